"""Column types as TiDB stores them (docs/design/tidb.md, Definitions), and what a type is in SQL's words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

Json = dict[str, Any]

NOT_NULL = 1
PRIMARY_KEY = 2
UNIQUE_KEY = 4
MULTIPLE_KEY = 8
UNSIGNED = 32
ZEROFILL = 64
BINARY = 128
NO_DEFAULT = 4096

UNSPECIFIED = -1
CHARSET = "utf8mb4"
COLLATE = "utf8mb4_bin"


class Tp(IntEnum):
    """MySQL type codes (`FieldType.Tp`) of the types that the development cluster can write."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    DURATION = 11
    DATETIME = 12
    YEAR = 13
    VARCHAR = 15
    BIT = 16
    DECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    STRING = 254


INTEGERS = frozenset({Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG})
TIMES = frozenset({Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP})
CHOICES = frozenset({Tp.ENUM, Tp.SET})
_INTEGER_NAMES = {  # name: type, signed and unsigned display width
    "tinyint": (Tp.TINY, 4, 3),
    "smallint": (Tp.SHORT, 6, 5),
    "mediumint": (Tp.INT24, 9, 8),
    "int": (Tp.LONG, 11, 10),
    "bigint": (Tp.LONGLONG, 20, 20),
}
_BLOB_NAMES = {
    "tiny": (Tp.TINY_BLOB, 255),
    "": (Tp.BLOB, 65535),
    "medium": (Tp.MEDIUM_BLOB, 16777215),
    "long": (Tp.LONG_BLOB, 4294967295),
}
_STRING_NAMES = {  # name: type, is it binary
    "char": (Tp.STRING, False),
    "varchar": (Tp.VARCHAR, False),
    "binary": (Tp.STRING, True),
    "varbinary": (Tp.VARCHAR, True),
}
_SQL_TYPE = re.compile(
    r"(?P<name>[a-z]+)\s*(?:\(\s*(?P<a>\d+)\s*(?:,\s*(?P<b>\d+)\s*)?\))?(?P<unsigned>\s+unsigned)?(?P<zerofill>\s+zerofill)?"
)
_SQL_CHOICE = re.compile(r"(enum|set)\s*\((\s*'[^']*'\s*(?:,\s*'[^']*'\s*)*)\)", re.IGNORECASE)


@dataclass(frozen=True)
class FieldType:
    """TiDB's FieldType: `flen` and `decimal` may be -1 (unspecified); for time types `decimal` is the fsp."""

    tp: Tp
    flag: int = 0
    flen: int = UNSPECIFIED
    decimal: int = 0
    charset: str = "binary"
    collate: str = "binary"
    elems: tuple[str, ...] = ()  # of ENUM and SET

    @property
    def unsigned(self) -> bool:
        return bool(self.flag & UNSIGNED)

    @property
    def is_text(self) -> bool:
        return self.charset != "binary"

    @property
    def zero_text(self) -> str:
        """Return what rows that are older than a column have in it, if it is NOT NULL and was given no default."""
        if self.tp is Tp.ENUM:
            return self.elems[0]
        if self.tp is Tp.STRING and not self.is_text:
            return "\0" * self.flen
        if self.is_text or self.tp is Tp.VARCHAR or Tp.TINY_BLOB <= self.tp <= Tp.BLOB:
            return ""
        times = {Tp.DATE: "0000-00-00", Tp.DURATION: "00:00:00"} | dict.fromkeys(
            (Tp.DATETIME, Tp.TIMESTAMP), "0000-00-00 00:00:00"
        )
        return times.get(self.tp, "0")

    def to_json(self) -> Json:
        return {
            "Tp": int(self.tp), "Flag": self.flag, "Flen": self.flen, "Decimal": self.decimal,
            "Charset": self.charset, "Collate": self.collate,
            "Elems": list(self.elems) or None, "ElemsIsBinaryLit": None, "Array": False,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json) -> FieldType:
        return cls(
            Tp(data["Tp"]), data["Flag"], data["Flen"], data["Decimal"], data.get("Charset", ""), data["Collate"],
            tuple(data.get("Elems") or ()),
        )  # fmt: skip


def field_type(sql: str) -> FieldType:
    """The type of SQL text such as `bigint unsigned` or `decimal(18,2)`. Raises ValueError for others."""
    if choice := _SQL_CHOICE.fullmatch(sql.strip()):
        tp = Tp[choice[1].upper()]
        return FieldType(tp, 0, UNSPECIFIED, 0, CHARSET, COLLATE, tuple(re.findall("'([^']*)'", choice[2])))
    match = _SQL_TYPE.fullmatch(sql.strip().lower())
    if match is None:
        raise ValueError(f"not a column type: {sql!r}")
    name = match["name"]
    a = int(match["a"]) if match["a"] else None
    b = int(match["b"]) if match["b"] else 0
    flag = ZEROFILL | UNSIGNED if match["zerofill"] else UNSIGNED if match["unsigned"] else 0
    if name in _INTEGER_NAMES:
        tp, signed_width, unsigned_width = _INTEGER_NAMES[name]
        return FieldType(tp, flag, a or (unsigned_width if flag else signed_width))
    if name == "decimal":
        return FieldType(Tp.DECIMAL, flag, 10 if a is None else a, b)
    if name in ("float", "double"):
        tp, flen = (Tp.FLOAT, 12) if name == "float" else (Tp.DOUBLE, 22)
        return FieldType(tp, flag, flen, UNSPECIFIED)
    if name in ("date", "datetime", "timestamp"):
        fsp = a or 0
        flen = 10 if name == "date" else 19 + (fsp + 1 if fsp else 0)
        return FieldType(Tp[name.upper()], BINARY, flen, fsp)
    if name == "time":
        return FieldType(Tp.DURATION, BINARY, 10 + (a + 1 if a else 0), a or 0)
    if name == "year":
        return FieldType(Tp.YEAR, UNSIGNED | ZEROFILL | BINARY, 4)
    if name == "bit":
        return FieldType(Tp.BIT, UNSIGNED, 1 if a is None else a)
    return _string_type(sql, name, a)


def _string_type(sql: str, name: str, length: int | None) -> FieldType:
    if name in _STRING_NAMES:
        tp, binary = _STRING_NAMES[name]
        flen = 1 if length is None else length
    elif name.endswith(("text", "blob")) and name[:-4] in _BLOB_NAMES:
        tp, flen = _BLOB_NAMES[name[:-4]]
        binary = name.endswith("blob")
    else:
        raise ValueError(f"the development cluster can't write columns of type {sql!r}")
    return FieldType(tp, BINARY, flen) if binary else FieldType(tp, 0, flen, 0, CHARSET, COLLATE)
