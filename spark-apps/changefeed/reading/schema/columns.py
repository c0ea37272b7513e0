"""Columns as a schema file declares them: how their values are stored, and what old rows have in new columns.

The upstream's side is derived from its definitions by separate code (docs/sink-files.md, The schema file), so that bugs
in the schema file writer show up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from changefeed.schema.table_info import ColumnInfo

_WIDTHS = {"TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 3, "INT": 4, "BIGINT": 8}
_BYTES = ("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")
_TEXTS = ("CHAR", "VARCHAR", "VAR_STRING", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT")
_CHOICES = ("ENUM", "SET")
#: By TiDB's type code: the name of text types too, and (length, decimals) where a definition has none.
_TYPES: dict[int, tuple[str, int | None, int | None]] = {
    1: ("TINYINT", 4, None),
    2: ("SMALLINT", 6, None),
    3: ("INT", 11, None),
    4: ("FLOAT", 12, None),
    5: ("DOUBLE", 22, None),
    6: ("NULL", None, None),
    7: ("TIMESTAMP", None, None),
    8: ("BIGINT", 20, None),
    9: ("MEDIUMINT", 9, None),
    10: ("DATE", None, None),
    11: ("TIME", None, None),
    12: ("DATETIME", None, None),
    13: ("YEAR", 4, None),
    14: ("DATE", None, None),
    15: ("VARCHAR", 5, None),
    16: ("BIT", 1, None),
    225: ("VECTOR", None, None),
    245: ("JSON", None, None),
    246: ("DECIMAL", 10, 0),
    247: ("ENUM", None, None),
    248: ("SET", None, None),
    249: ("TINYTEXT", 255, None),
    250: ("MEDIUMTEXT", 16_777_215, None),
    251: ("LONGTEXT", 4_294_967_295, None),
    252: ("TEXT", 65_535, None),
    253: ("VAR_STRING", 5, None),
    254: ("CHAR", 1, None),
    255: ("GEOMETRY", None, None),
}
_BINARY_NAMES = {
    "VARCHAR": "VARBINARY",
    "CHAR": "BINARY",
    **{f"{size}TEXT": f"{size}BLOB" for size in ("", "TINY", "MEDIUM", "LONG")},
}
_UNSIGNED = 32
_TIME = re.compile(r"(-?[0-9: -]+?)(?:\.([0-9]{1,6}))?")


@dataclass(frozen=True)
class TableColumn:
    """One of TableColumns. `precision`, `scale`: "" where there is none. `is_virtual`: no row has a value for it."""

    name: str
    type: str
    precision: str
    scale: str
    nullable: bool
    is_pk: bool
    elems: tuple[str, ...] = ()
    default: Any = None
    is_virtual: bool = False

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> TableColumn:
        """One of a schema file. Raises KeyError and TypeError where it is none."""
        return cls(
            name=str(entry["ColumnName"]),
            type=str(entry["ColumnType"]),
            precision=str(entry.get("ColumnPrecision", "")),
            scale=str(entry.get("ColumnScale", "")),
            nullable=entry.get("ColumnNullable") != "false",
            is_pk=entry.get("ColumnIsPk") == "true",
            elems=tuple(entry.get("ColumnElems") or ()),
            default=entry.get("ColumnDefault"),
            is_virtual=entry.get("ColumnVirtual") == "true",
        )

    @classmethod
    def expected(cls, info: ColumnInfo) -> TableColumn:
        """As the upstream's definition has it."""
        name, length, decimals = _TYPES.get(info.type, (f"TYPE{info.type}", None, None))
        if info.charset == "binary" and name in _TEXTS:
            name = _BINARY_NAMES.get(name, name)
        scale = "" if info.decimal <= 0 else str(info.decimal)
        return cls(
            name=info.name,
            type=f"{name} UNSIGNED" if info.flag & _UNSIGNED else name,
            precision="" if length is None else str(length if info.flen == -1 else info.flen),
            scale=str(max(info.decimal, 0)) if decimals is not None else scale if _has_scale(name) else "",
            nullable=info.nullable,
            is_pk=info.is_pk,
            elems=info.elems if name in _CHOICES else (),
            default=info.default,
            is_virtual=info.is_generated and not info.is_generated_stored,
        )

    @property
    def shape(self) -> tuple[object, ...]:
        """What a schema file and a definition must agree on."""
        return self.name, self.type, self.precision, self.scale, self.nullable, self.is_pk, self.elems

    def __str__(self) -> str:
        size = (
            f"({','.join(size for size in (self.precision, self.scale) if size)})"
            if self.precision or self.scale
            else ""
        )
        flags = f"{'' if self.nullable else ' NOT NULL'}{' PRIMARY KEY' if self.is_pk else ''}"
        elems = f" of {', '.join(self.elems)}" if self.elems else ""
        return f"{self.name} {self.type}{size}{elems}{flags}"

    @property
    def base(self) -> str:
        return self.type.partition(" ")[0]

    @property
    def is_unsigned(self) -> bool:
        return "UNSIGNED" in self.type or self.base in ("BIT", "YEAR")

    def arrow_type(self, choice: str) -> pa.DataType:
        """What its values in a file are read as. `choice`: formats.Format."""
        base = self.base
        if base in _WIDTHS or base in ("BIT", "YEAR"):
            return pa.uint64() if self.is_unsigned else pa.int64()
        if base in ("FLOAT", "DOUBLE"):
            return pa.float32() if base == "FLOAT" else pa.float64()
        if base in _CHOICES and choice == "number":
            return pa.uint64()
        return pa.binary() if base in _BYTES else pa.string()

    def keeps_values(self, old: TableColumn) -> bool:
        """Whether rows of the old column are rows of this one as they stand."""
        if old.nullable and not self.nullable:
            return False  # NULL became a value
        if (self.type, self.precision, self.scale, self.elems) == (old.type, old.precision, old.scale, old.elems):
            return True
        if self.base in _WIDTHS and old.base in _WIDTHS:
            return self.is_unsigned == old.is_unsigned and _WIDTHS[self.base] >= _WIDTHS[old.base]
        if self.type != old.type:
            return False
        if self.base in _CHOICES:
            return self.elems[: len(old.elems)] == old.elems
        is_longer = (
            self.precision.isdecimal() and old.precision.isdecimal() and int(self.precision) >= int(old.precision)
        )
        return is_longer and self.scale == old.scale and self.base in (*_TEXTS, "VARBINARY", "DECIMAL")

    def value_of_old_rows(self, choice: str) -> Any:
        """What a row from before the column has of it. Raises ValueError where the schema file doesn't say."""
        if self.default is None:
            if not self.nullable:
                raise ValueError("NOT NULL without a default")
            return None
        text = str(self.default)
        base = self.base
        if base in _WIDTHS or base == "YEAR":
            return int(Decimal(text).quantize(Decimal(1), ROUND_HALF_UP))
        if base in ("FLOAT", "DOUBLE"):
            return float(text)
        if base == "DECIMAL":
            number = Decimal(text).quantize(Decimal(1).scaleb(-int(self.scale)), ROUND_HALF_UP, Context(prec=130))
            return f"{number:f}"
        if base in _TEXTS or (base in _CHOICES and choice == "text"):
            return text
        if base in _CHOICES:
            return sum(self._number(elem) for elem in text.split(",")) if base == "SET" else self.elems.index(text) + 1
        if base in _BYTES:
            return text.encode().ljust(int(self.precision) if base == "BINARY" else 0, b"\0")
        if base == "DATE":
            return text
        if base in ("DATETIME", "TIME"):
            return self._time(text)
        raise ValueError(f"a {base}")  # BIT holds bytes, TIMESTAMP is of a time zone

    def _number(self, elem: str) -> int:
        return 1 << self.elems.index(elem)

    def _time(self, text: str) -> str:
        digits = int(self.scale or 0)
        match = _TIME.fullmatch(text)
        if match is None or len(match[2] or "") > digits:
            raise ValueError(text)
        return f"{match[1]}.{(match[2] or '').ljust(digits, '0')}" if digits else match[1]


def default_of(column: TableColumn, choice: str) -> tuple[Any, bool]:
    """(the value, whether the schema file says it)."""
    try:
        return column.value_of_old_rows(choice), True
    except (ValueError, InvalidOperation):
        return None, False


def _has_scale(name: str) -> bool:
    return name in ("FLOAT", "DOUBLE", "TIME", "DATETIME", "TIMESTAMP")
