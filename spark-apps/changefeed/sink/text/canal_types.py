"""What canal-json says of columns: Java's and MySQL's types, and which columns are the handle key.

As TiCDC derives them from TiDB's own definition (docs/sink-files.md, canal-json). Pure functions of a definition.
"""

from __future__ import annotations

from changefeed.schema import table_info as ti
from changefeed.schema.table_info import ColumnInfo, TableInfo, column_type_name

_FLAG_ZEROFILL = 64
_VARCHAR, _CLOB, _BLOB = 12, 2005, 2004
_JAVA_TYPES = {
    ti.BIT: -7,
    ti.SET: -7,
    ti.TINY: -6,
    ti.LONGLONG: -5,
    ti.STRING: 1,
    ti.NEW_DECIMAL: 3,
    ti.INT24: 4,
    ti.LONG: 4,
    ti.ENUM: 4,
    ti.SHORT: 5,
    ti.FLOAT: 7,
    ti.DOUBLE: 8,
    ti.DATE: 91,
    ti.NEW_DATE: 91,
    ti.DURATION: 92,
    ti.DATETIME: 93,
    ti.TIMESTAMP: 93,
}
# Java has no unsigned integers: a value above the type's largest has the next type. MEDIUMINT fits always.
_LARGER_TYPES = {
    ti.TINY: ((1 << 7) - 1, 5),
    ti.SHORT: ((1 << 15) - 1, 4),
    ti.LONG: ((1 << 31) - 1, -5),
    ti.LONGLONG: ((1 << 63) - 1, 3),
}
_WITH_FSP = frozenset({ti.TIMESTAMP, ti.DATETIME, ti.DURATION})
_FLOATS = frozenset({ti.FLOAT, ti.DOUBLE})
_WITH_LENGTH = ti.INTEGERS | ti.STRINGS | {ti.BIT, ti.YEAR}
_UNSIGNED_SILENTLY = frozenset({ti.BIT, ti.YEAR})
_UNSET = -1
_IN_QUOTES = str.maketrans({"'": "''", "\0": "\\0", "\n": "\\n", "\r": "\\r"})


def java_type(column: ColumnInfo) -> int:
    """A constant of java.sql.Types, but for values that `larger_java_type` is about."""
    if column.is_binary:
        return _BLOB
    return _CLOB if column.tp in ti.BLOBS else _JAVA_TYPES.get(column.tp, _VARCHAR)


def larger_java_type(column: ColumnInfo) -> tuple[int, int] | None:
    """(limit, type): values of the column above `limit` have this type. None: there are no such values."""
    return _LARGER_TYPES.get(column.tp) if column.is_unsigned else None


def mysql_type(column: ColumnInfo, *, full: bool) -> str:
    """The type as a definition has it, in small letters; `full`: with its lengths, as MySQL's information_schema."""
    name = column_type_name(column).lower().removesuffix(" unsigned")
    if full:
        name += _lengths(column)
    if column.is_unsigned and column.tp not in _UNSIGNED_SILENTLY:
        name += " unsigned"
    return f"{name} zerofill" if column.flag & _FLAG_ZEROFILL and column.tp not in _UNSIGNED_SILENTLY else name


def _lengths(column: ColumnInfo) -> str:
    if column.tp in (ti.ENUM, ti.SET):
        return "({})".format(",".join(f"'{elem.translate(_IN_QUOTES)}'" for elem in column.elems))
    if column.tp in _WITH_FSP and column.decimal > 0:
        return f"({column.decimal})"
    if column.tp == ti.NEW_DECIMAL or (column.tp in _FLOATS and column.decimal > 0):
        return f"({column.flen},{column.decimal})"
    if column.tp in _WITH_LENGTH or (column.tp == ti.VECTOR_FLOAT32 and column.flen != _UNSET):
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
