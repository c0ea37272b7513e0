"""A column's part of CREATE TABLE and ALTER TABLE, as TiDB's SHOW CREATE TABLE has it (pkg/executor/show.go).

Nothing is left to the server: each text has its character set and collation, each column says whether it is NULL, and
a TIMESTAMP's default stands in the session's time zone.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, tzinfo

from changefeed.errors import ExecuteByHand
from changefeed.schema import table_info as ti
from changefeed.schema.sql.definition import AUTO_INCREMENT, NO_DEFAULT, ON_UPDATE_NOW, ZEROFILL, Column
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.text import expression, literal, quoted
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, column_type_name

NOW = ("CURRENT_TIMESTAMP", "CURRENT_DATE")  # defaults that are the time of their use
_CHOICES = frozenset({SqlType.ENUM, SqlType.SET})
_SIZED = frozenset({SqlType.CHAR, SqlType.VARCHAR, SqlType.VAR_STRING, SqlType.BIT})
_TIMES = frozenset({SqlType.TIMESTAMP, SqlType.DATETIME, SqlType.TIME})
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d+)?")
_FORMAT = "%Y-%m-%d %H:%M:%S"
_UTF8 = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
#: What TiDB takes where a statement names a character set alone.
COLLATIONS = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "utf8mb3": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "binary": "binary",
    "gbk": "gbk_chinese_ci",
    "gb18030": "gb18030_chinese_ci",
}


def column_text(column: Column, dialect: Dialect, zone: tzinfo = UTC, default: str | None = None) -> str:
    """With its name. `default`: another one than the definition's, a clause; "" for none."""
    info = column.info
    parts = [quoted(info.name), _type(info, dialect), _charset(info, dialect)]
    if column.expression:
        if not dialect.has_generated_columns:
            raise ExecuteByHand(f"{dialect} knows no generated columns, such as {info.name}.")
        parts.append(f"GENERATED ALWAYS AS ({expression(column.expression, info.name)})")
        parts.append("STORED" if info.is_generated_stored else "VIRTUAL")
        if not info.nullable and not dialect.is_mariadb:  # which knows no such clause there
            parts.append("NOT NULL")
    else:
        parts.append("NULL" if info.nullable else "NOT NULL")
        parts.append(default_text(column, dialect, zone) if default is None else default)
        if column.has(ON_UPDATE_NOW):
            parts.append(f"ON UPDATE CURRENT_TIMESTAMP{_fraction(info)}")
        parts.append("AUTO_INCREMENT" if column.has(AUTO_INCREMENT) else "")
    if column.auto_random is not None and dialect.is_tidb:
        bits, of = column.auto_random
        parts.append(f"AUTO_RANDOM({bits})" if of == 64 else f"AUTO_RANDOM({bits}, {of})")
    parts.append(f"COMMENT {literal(column.comment)}" if column.comment else "")
    return " ".join(part for part in parts if part)


def _type(info: ColumnInfo, dialect: Dialect) -> str:
    """Raises ExecuteByHand for one that the server does not know."""
    if info.type == SqlType.VECTOR and not dialect.is_tidb:
        raise ExecuteByHand(f"{dialect} is sent no VECTOR, such as {info.name}.")
    if info.type == SqlType.JSON and not dialect.has_json:
        return f"LONGTEXT {_UTF8}"
    return type_text(info)


def type_text(info: ColumnInfo) -> str:
    """Such as DECIMAL(10, 2) UNSIGNED."""
    base, _, unsigned = column_type_name(info).replace("VAR_STRING", "VARCHAR").partition(" ")
    more = [] if info.type in (SqlType.BIT, SqlType.YEAR) else [unsigned]
    if info.flag & ZEROFILL and info.type != SqlType.YEAR:
        more.append("ZEROFILL")
    return " ".join(part for part in (f"{base}{_size(info)}", *more) if part)


def _size(info: ColumnInfo) -> str:
    if info.type in _CHOICES:
        return f"({', '.join(map(literal, info.elems))})"
    if info.type in _TIMES:
        return _fraction(info)
    if info.type == SqlType.DECIMAL:
        return f"({10 if info.flen < 0 else info.flen}, {max(info.decimal, 0)})"
    if info.type in (SqlType.FLOAT, SqlType.DOUBLE):
        return f"({info.flen}, {info.decimal})" if info.decimal > 0 and info.flen > 0 else ""
    if info.type in _SIZED:
        return f"({1 if info.flen < 0 else info.flen})"
    if (
        info.type in ti.INTEGERS
        and info.flen > 0
        and (info.flag & ZEROFILL or (info.type == SqlType.TINYINT and info.flen == 1))
    ):
        return f"({info.flen})"
    return f"({info.flen})" if info.type == SqlType.VECTOR and info.flen > 0 else ""


def _fraction(info: ColumnInfo) -> str:
    return f"({info.decimal})" if info.decimal > 0 else ""


def _charset(info: ColumnInfo, dialect: Dialect) -> str:
    is_text = info.type in _CHOICES or (info.type in ti.STRINGS | ti.BLOBS and not info.is_binary)
    if not is_text or not info.charset:
        return ""
    collate = _collation(info.charset, info.collate)
    if (known := dialect.collation(collate)) is None:
        raise ExecuteByHand(f"{dialect} has no collation {collate}, which {info.name} has.")
    return f"CHARACTER SET {info.charset} COLLATE {known}"


def default_charset_text(charset: str, collate: str, dialect: Dialect) -> str:
    """Return a database's or table's clause, which says nothing of columns that name their own, as all of ours do."""
    if (known := dialect.collation(_collation(charset, collate))) is None:
        return _UTF8
    return f"CHARACTER SET {charset} COLLATE {known}"


def _collation(charset: str, collate: str) -> str:
    return collate or COLLATIONS.get(charset, f"{charset}_bin")


def default_text(column: Column, dialect: Dialect, zone: tzinfo = UTC) -> str:
    """What later inserts get, a clause; "" if there is none."""
    info = column.info
    if column.expression or column.has(AUTO_INCREMENT) or column.has(NO_DEFAULT):
        return ""
    if info.default is None and info.default_bit is None:
        return ""
    if isinstance(info.default, str) and info.default.upper() in NOW:
        if info.default.upper() == "CURRENT_TIMESTAMP":
            return f"DEFAULT CURRENT_TIMESTAMP{_fraction(info)}"
        return f"DEFAULT ({_known(info, 'CURRENT_DATE', dialect)})"
    if column.default_is_expression:
        if str(info.default).lower().startswith("nextval("):
            return ""  # sequences are not replicated; rows have their values
        return f"DEFAULT ({expression(_known(info, str(info.default), dialect), info.name)})"
    return f"DEFAULT {value_text(info, info.default, info.default_bit, zone)}"


def _known(info: ColumnInfo, default: str, dialect: Dialect) -> str:
    if not dialect.has_defaults_of_expressions:
        raise ExecuteByHand(f"{dialect} knows no default such as that of {info.name}, {default!r}.")
    return default


def older_rows_default(column: Column, zone: tzinfo = UTC) -> str | None:
    """The clause by which rows that are older than a new column get what they have of it upstream.

    None: its default says that as well.
    """
    info = column.info
    if column.expression or (info.origin_default, info.origin_default_bit) == (info.default, info.default_bit):
        return None
    if info.origin_default is None and info.origin_default_bit is None:
        return None if info.default is None and info.default_bit is None else ""
    is_zero = info.default is None and info.default_bit is None and not info.nullable
    if is_zero:  # of a column that has no default: each server gives the same
        return None
    return f"DEFAULT {value_text(info, info.origin_default, info.origin_default_bit, zone)}"


def value_text(info: ColumnInfo, value: object, bits: str | None, zone: tzinfo) -> str:
    """A default's value as a literal."""
    if info.type == SqlType.BIT:
        raw = base64.b64decode(bits) if bits else str(value).encode()
        return f"b'{int.from_bytes(raw, 'big'):b}'"
    text = str(value)
    if info.type == SqlType.TIMESTAMP and not text.startswith("0000-00-00"):
        text = _shown(text, zone)
    return literal(text)


def moments(column: Column) -> list[datetime]:
    """Times in UTC that its text may hold."""
    if column.info.type != SqlType.TIMESTAMP:
        return []
    texts = (_TIME.fullmatch(str(value)) for value in (column.info.default, column.info.origin_default))
    found = [match[1] for match in texts if match is not None and not match[1].startswith("0000-00-00")]
    return [datetime.strptime(text, _FORMAT) for text in found]


def _shown(text: str, zone: tzinfo) -> str:
    """A TIMESTAMP, which TiDB keeps in UTC, as a session in `zone` must write it."""
    if (match := _TIME.fullmatch(text)) is None or zone is UTC:
        return text
    moment = datetime.strptime(match[1], _FORMAT).replace(tzinfo=UTC)
    shown = moment.astimezone(zone)
    if shown.replace(fold=0).astimezone(UTC) != moment:
        raise ExecuteByHand(f"{text} UTC has no clear time in {zone}, where the statement must be executed.")
    return f"{shown.strftime(_FORMAT)}{match[2] or ''}"
