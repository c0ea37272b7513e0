"""What canal-json says of columns: Java's and MySQL's types, and which columns are the handle key.

As TiCDC derives them from TiDB's own definition (docs/sink-files.md, canal-json). Pure functions of a definition.
"""

from __future__ import annotations

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, TableInfo, column_type_name

_FLAG_ZEROFILL = 64
_VARCHAR, _CLOB, _BLOB = 12, 2005, 2004
_JAVA_TYPES = {
    SqlType.BIT: -7,
    SqlType.SET: -7,
    SqlType.TINYINT: -6,
    SqlType.BIGINT: -5,
    SqlType.CHAR: 1,
    SqlType.DECIMAL: 3,
    SqlType.MEDIUMINT: 4,
    SqlType.INT: 4,
    SqlType.ENUM: 4,
    SqlType.SMALLINT: 5,
    SqlType.FLOAT: 7,
    SqlType.DOUBLE: 8,
    SqlType.DATE: 91,
    SqlType.NEW_DATE: 91,
    SqlType.TIME: 92,
    SqlType.DATETIME: 93,
    SqlType.TIMESTAMP: 93,
}
# Java has no unsigned integers: a value above the type's largest has the next type. MEDIUMINT fits always.
_LARGER_TYPES = {
    SqlType.TINYINT: ((1 << 7) - 1, 5),
    SqlType.SMALLINT: ((1 << 15) - 1, 4),
    SqlType.INT: ((1 << 31) - 1, -5),
    SqlType.BIGINT: ((1 << 63) - 1, 3),
}
_WITH_FSP = frozenset({SqlType.TIMESTAMP, SqlType.DATETIME, SqlType.TIME})
_FLOATS = frozenset({SqlType.FLOAT, SqlType.DOUBLE})
_WITH_LENGTH = ti.INTEGERS | ti.STRINGS | {SqlType.BIT, SqlType.YEAR}
_UNSIGNED_SILENTLY = frozenset({SqlType.BIT, SqlType.YEAR})
_UNSET = -1
_IN_QUOTES = str.maketrans({"'": "''", "\0": "\\0", "\n": "\\n", "\r": "\\r"})


def java_type(column: ColumnInfo) -> int:
    """A constant of java.sql.Types, but for values that `larger_java_type` is about."""
    if column.is_binary:
        return _BLOB
    return _CLOB if column.type in ti.BLOBS else _JAVA_TYPES.get(column.type, _VARCHAR)


def larger_java_type(column: ColumnInfo) -> tuple[int, int] | None:
    """(limit, type): values of the column above `limit` have this type. None: there are no such values."""
    return _LARGER_TYPES.get(column.type) if column.is_unsigned else None


def mysql_type(column: ColumnInfo, *, full: bool) -> str:
    """The type as a definition has it, in small letters; `full`: with its lengths, as MySQL's information_schema."""
    name = column_type_name(column).lower().removesuffix(" unsigned")
    if full:
        name += _lengths(column)
    if column.is_unsigned and column.type not in _UNSIGNED_SILENTLY:
        name += " unsigned"
    return f"{name} zerofill" if column.flag & _FLAG_ZEROFILL and column.type not in _UNSIGNED_SILENTLY else name


def _lengths(column: ColumnInfo) -> str:
    if column.type in (SqlType.ENUM, SqlType.SET):
        return "({})".format(",".join(f"'{elem.translate(_IN_QUOTES)}'" for elem in column.elems))
    if column.type in _WITH_FSP and column.decimal > 0:
        return f"({column.decimal})"
    if column.type == SqlType.DECIMAL or (column.type in _FLOATS and column.decimal > 0):
        return f"({column.flen},{column.decimal})"
    if column.type in _WITH_LENGTH or (column.type == SqlType.VECTOR and column.flen != _UNSET):
        return f"({column.flen})"
    return ""


def primary_key(table: TableInfo) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if column.is_pk)


def handle_key(table: TableInfo) -> frozenset[str]:
    """The columns by which TiCDC tells rows apart: the primary key, else the shortest unique key without NULL."""
    if names := primary_key(table):
        return frozenset(names)
    sure = {column.name for column in table.output_columns if not column.nullable}
    unique = [index for index in table.indexes if index.is_unique and all(name in sure for name, _ in index.columns)]
    shortest = min(unique, key=lambda index: (len(index.columns), index.id), default=None)
    return frozenset(name for name, _ in shortest.columns) if shortest else frozenset()
