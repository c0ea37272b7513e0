"""Columns and values at random, ends of their ranges included."""

from __future__ import annotations

import random
import string
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from ..tidb.field_types import CHOICES, INTEGERS, FieldType, Tp
from ..tidb.schema import NewColumn

_WIDTHS = {Tp.TINY: 8, Tp.SHORT: 16, Tp.INT24: 24, Tp.LONG: 32, Tp.LONGLONG: 64}
_ODD = "aZ ,'\"\\\n\t|é李€🦊"
#: Types of a new column, and a default that suits each.
_TYPES: tuple[tuple[str, str], ...] = (
    ("int", "-7"),
    ("bigint unsigned", "18446744073709551615"),
    ("varchar(24)", "so, 'so'"),
    ("char(8)", "c"),
    ("decimal(18,4)", "-1.5000"),
    ("double", "0.5"),
    ("date", "2024-02-29"),
    ("datetime(3)", "1999-12-31 23:59:59.999"),
    ("timestamp", "2001-01-01 00:00:00"),
    ("time(6)", "-12:00:00.5"),
    ("year", "1999"),
    ("bit(12)", "5"),
    ("enum('a','b,c','it')", "b,c"),
    ("set('x','y','z')", "x,z"),
    ("varbinary(16)", "b"),
)
#: Types of which the later can replace the earlier; the first step reads other bytes, the second does not.
CHANGES: dict[str, tuple[str, ...]] = {
    "int": ("bigint", "varchar(24)", "decimal(24,2)"),
    "bigint": ("varchar(24)", "decimal(24,2)"),
    "varchar(24)": ("varchar(60)", "varchar(240)"),
    "varchar(60)": ("varchar(240)",),
    "char(8)": ("varchar(24)",),
    "decimal(18,4)": ("decimal(24,4)", "varchar(60)"),
    "decimal(24,2)": ("varchar(60)",),
}


def column(rng: random.Random, name: str) -> NewColumn:
    """A new column, with a default where rows could not do without."""
    kind, default = rng.choice(_TYPES)
    nullable = rng.random() < 0.5
    return NewColumn(name, kind, nullable, None if nullable and rng.random() < 0.5 else default)


def value(rng: random.Random, field: FieldType) -> Any:
    """Never NULL."""
    if field.tp in INTEGERS:
        return _integer(rng, _WIDTHS[field.tp], field.unsigned)
    if field.tp in (Tp.VARCHAR, Tp.STRING):
        return _text(rng, field)
    if field.tp is Tp.DECIMAL:
        limit = 10 ** min(field.flen, 14) - 1
        return Decimal(rng.choice((rng.randint(-limit, limit), 0, limit, -limit))).scaleb(-field.decimal)
    if field.tp in (Tp.FLOAT, Tp.DOUBLE):
        return float(rng.randint(-(1 << 20), 1 << 20)) / 8
    if field.tp is Tp.DATE:
        return date(1970, 1, 1) + timedelta(rng.randint(0, 20_000))
    if field.tp in (Tp.DATETIME, Tp.TIMESTAMP):
        unit = 10 ** (6 - field.decimal)
        at = datetime(1980, 1, 1) + timedelta(seconds=rng.randint(0, 1 << 30))
        return at.replace(microsecond=rng.randrange(1_000_000) // unit * unit)
    if field.tp is Tp.DURATION:
        unit = 10 ** (6 - field.decimal)
        return timedelta(seconds=rng.randint(-900_000, 900_000), microseconds=rng.randrange(1_000_000) // unit * unit)
    if field.tp is Tp.YEAR:
        return rng.choice((0, 1901, 2155, rng.randint(1901, 2155)))
    if field.tp is Tp.BIT:
        return rng.randrange(1 << field.flen)
    if field.tp in CHOICES:
        chosen = [elem for elem in field.elems if rng.random() < 0.5]
        return ",".join(chosen) if field.tp is Tp.SET else rng.choice(field.elems)
    raise ValueError(f"no values of type {field.tp.name} are made here")


def _integer(rng: random.Random, bits: int, unsigned: bool) -> int:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return rng.choice((rng.randint(-300, 300) if not unsigned else rng.randint(0, 300), low, high))


def _text(rng: random.Random, field: FieldType) -> str | bytes:
    length = rng.randint(0, min(field.flen, 20))
    if not field.is_text:
        return rng.randbytes(length)
    text = "".join(rng.choice(_ODD if rng.random() < 0.2 else string.ascii_letters) for _ in range(length))
    return text.rstrip(" ")
