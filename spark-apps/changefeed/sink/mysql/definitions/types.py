"""Whether a downstream column can hold every value that the upstream's can, unchanged. Pure.

Sizes are those of https://dev.mysql.com/doc/refman/8.0/en/storage-requirements.html.
"""

from __future__ import annotations

import re

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.sink.mysql.definitions.found import FoundColumn

_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_BITS = {SqlType.TINYINT: 8, SqlType.SMALLINT: 16, SqlType.MEDIUMINT: 24, SqlType.INT: 32, SqlType.BIGINT: 64}
#: Bytes of a text or blob.
_BYTES = {"tiny": 0xFF, "": 0xFFFF, "medium": 0xFFFFFF, "long": 0xFFFFFFFF}
_LONGEST = {SqlType.TINYTEXT: 0xFF, SqlType.TEXT: 0xFFFF, SqlType.MEDIUMTEXT: 0xFFFFFF, SqlType.LONGTEXT: 0xFFFFFFFF}
_TIMES = {SqlType.DATETIME: "datetime", SqlType.TIMESTAMP: "timestamp", SqlType.TIME: "time"}
_SAME = {SqlType.DATE: "date", SqlType.NEW_DATE: "date", SqlType.YEAR: "year", SqlType.VECTOR: "vector"}
_WIDEST = 4  # bytes of a character
#: Which character sets hold all characters of one.
_HOLDERS = {
    "ascii": frozenset({"ascii", "latin1", "gbk", "gb18030", "utf8", "utf8mb3", "utf8mb4"}),
    "latin1": frozenset({"latin1", "utf8", "utf8mb3", "utf8mb4"}),
    "gbk": frozenset({"gbk", "gb18030", "utf8", "utf8mb3", "utf8mb4"}),
    "gb18030": frozenset({"gb18030", "utf8mb4"}),
    "utf8": frozenset({"utf8", "utf8mb3", "utf8mb4"}),
    "utf8mb3": frozenset({"utf8", "utf8mb3", "utf8mb4"}),
}
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_MEANT = {"n": "\n", "r": "\r", "0": "\0"}


def holds(column: ColumnInfo, found: FoundColumn) -> bool:
    """Whether each value of the upstream's column, which is no NULL, can be stored and reads the same."""
    if column.type in ti.INTEGERS:
        return _integer(column, found)
    if column.type == SqlType.DECIMAL:
        return _decimal(max(column.flen, 0) or 10, max(column.decimal, 0), column.is_unsigned, found)
    if column.type in (SqlType.FLOAT, SqlType.DOUBLE):
        return _float(column, found)
    if column.type in _TIMES:
        return found.type == _TIMES[column.type] and (found.size or 0) >= max(column.decimal, 0)
    if column.type == SqlType.BIT:
        return found.type == "bit" and (found.size or 0) >= max(column.flen, 1)
    if column.type in (SqlType.ENUM, SqlType.SET):
        kind = "enum" if column.type == SqlType.ENUM else "set"
        return found.type == kind and members(found)[: len(column.elems)] == column.elems
    if column.type == SqlType.JSON:  # to MariaDB it is a text
        return found.type in ("json", "longtext")
    if column.is_binary:
        return _binary(column, found)
    if column.type in ti.STRINGS | ti.BLOBS:
        return _text(column, found)
    return found.type == _SAME.get(column.type)


def members(found: FoundColumn) -> tuple[str, ...]:
    """Return the members of an ENUM or a SET, in their order."""
    return tuple(_ESCAPED.sub(_meant, match[1]) for match in _MEMBER.finditer(found.full_type))


def _meant(escaped: re.Match[str]) -> str:
    letter = escaped[1]
    return _MEANT.get(letter, letter) if letter else "'"


def _integer(column: ColumnInfo, found: FoundColumn) -> bool:
    bits = _BITS[column.type]
    if found.type == "decimal":
        return _decimal(len(str(1 << bits)), 0, column.is_unsigned, found)
    room = _INTEGER_BITS.get(found.type, 0)
    if column.is_unsigned == found.is_unsigned:
        return room >= bits
    return room > bits and column.is_unsigned  # a negative number has no place


def _decimal(digits: int, scale: int, is_unsigned: bool, found: FoundColumn) -> bool:
    if found.type != "decimal" or found.size is None:
        return False
    is_signed_enough = is_unsigned or not found.is_unsigned
    there = found.scale or 0
    return is_signed_enough and there >= scale and found.size - there >= digits - scale


def _float(column: ColumnInfo, found: FoundColumn) -> bool:
    if found.type != "double" and not (column.type == SqlType.FLOAT and found.type == "float"):
        return False
    if found.is_unsigned and not column.is_unsigned:
        return False
    if found.size is None or found.scale is None:  # nothing is rounded
        return True
    is_rounded = column.flen > 0 and column.decimal >= 0
    return is_rounded and found.scale >= column.decimal and found.size - found.scale >= column.flen - column.decimal


def _binary(column: ColumnInfo, found: FoundColumn) -> bool:
    """BINARY gets zeros at its end, so only one of the same length holds the same."""
    if found.type == "binary":
        return column.type == SqlType.CHAR and found.size == max(column.flen, 1)
    if found.charset:
        return False
    return _room(found, "binary", "blob") >= _most(column, 1)


def _text(column: ColumnInfo, found: FoundColumn) -> bool:
    """CHAR loses spaces at its end, so it holds nothing but CHAR."""
    if not _has_characters(column.charset, found.charset):
        return False
    if found.type == "char":
        return column.type == SqlType.CHAR and (found.size or 0) >= max(column.flen, 1)
    if found.type == "varchar":
        return column.type in ti.STRINGS and (found.size or 0) >= max(column.flen, 1)
    return _room(found, "char", "text") >= _most(column, _WIDEST)


def _has_characters(upstream: str, downstream: str) -> bool:
    return upstream == downstream or downstream in _HOLDERS.get(upstream, ())


def _room(found: FoundColumn, short: str, long: str) -> int:
    """Bytes."""
    if found.type == f"var{short}":
        return found.size or 0
    return _BYTES.get(found.type.removesuffix(long), 0) if found.type.endswith(long) else 0


def _most(column: ColumnInfo, width: int) -> int:
    """Bytes, at most."""
    return _LONGEST[column.type] if column.type in ti.BLOBS else max(column.flen, 1) * width
