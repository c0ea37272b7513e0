"""Values as they stand in rows (docs/design/tidb.md, Values), and in other types.

They are Python's: int, float, Decimal, str (text; bytes that are not UTF-8 by "surrogateescape"), bytes (binary), date,
datetime, timedelta (TIME), None; ENUM and SET are their names in one string; a date that Python lacks (0000-00-00) is
its text.
"""

from __future__ import annotations

import struct
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from .. import keys
from .field_types import CHOICES, INTEGERS, TIMES, FieldType, Tp
from .schema import TidbColumn

_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_DECIMAL = Context(prec=65, rounding=ROUND_HALF_UP)


def compact_int(value: int) -> bytes:
    """Two's complement, little-endian, the smallest of 1, 2, 4, 8 bytes that holds it."""
    for width in (1, 2, 4):
        if -(1 << (8 * width - 1)) <= value < 1 << (8 * width - 1):
            return value.to_bytes(width, "little", signed=True)
    return value.to_bytes(8, "little", signed=True)


def compact_uint(value: int) -> bytes:
    for width in (1, 2, 4):
        if value < 1 << (8 * width):
            return value.to_bytes(width, "little")
    return value.to_bytes(8, "little")


def packed_time(value: date | str) -> int:
    """The u64 of a date, datetime or its text (TIMESTAMP: in UTC)."""
    if isinstance(value, str):
        day_text, _, clock = value.partition(" ")
        clock, _, fraction = (clock or "00:00:00").partition(".")
        (year, month, day), (hour, minute, second) = map(int, day_text.split("-")), map(int, clock.split(":"))
        us = int(fraction[:6].ljust(6, "0"))
    else:
        year, month, day, hour, minute, second, us = value.year, value.month, value.day, 0, 0, 0, 0
    if isinstance(value, datetime):
        hour, minute, second, us = value.hour, value.minute, value.second, value.microsecond
    return ((((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second) << 24) | us


def nanoseconds(value: timedelta) -> int:
    return (value.days * 86_400_000_000 + value.seconds * 1_000_000 + value.microseconds) * 1000


def choice_number(field: FieldType, value: str) -> int:
    """The index of an ENUM's name (0: ''), the mask of a SET's."""
    if field.tp is Tp.ENUM:
        return field.elems.index(value) + 1 if value else 0
    return sum(1 << field.elems.index(name) for name in value.split(",") if name)


def encode_decimal(value: Decimal, precision: int, frac: int) -> bytes:
    """Prefix and MySQL binary decimal, rounded half up to `frac`. Raises ValueError when it does not fit."""
    rounded = value.quantize(Decimal(1).scaleb(-frac), context=_DECIMAL)
    digits = f"{abs(int(rounded.scaleb(frac, context=_DECIMAL))):0{precision}d}"
    if len(digits) > precision:
        raise ValueError(f"{value} does not fit into decimal({precision},{frac})")
    whole, fraction = digits[: precision - frac], digits[precision - frac :]
    lead = len(whole) % 9
    groups = [whole[:lead], *_nines(whole[lead:]), *_nines(fraction)]
    binary = bytearray(b"".join(int(group).to_bytes(_DIGIT_BYTES[len(group)], "big") for group in groups if group))
    if rounded < 0:
        binary = bytearray(byte ^ 0xFF for byte in binary)
    binary[0] ^= 0x80
    return bytes((precision, frac)) + binary


def _nines(digits: str) -> list[str]:
    return [digits[at : at + 9] for at in range(0, len(digits), 9)]


def decode_decimal(encoded: bytes) -> Decimal:
    precision, frac = encoded[0], encoded[1]
    binary = bytearray(encoded[2:])
    negative = not binary[0] & 0x80
    binary[0] ^= 0x80
    if negative:
        binary = bytearray(byte ^ 0xFF for byte in binary)
    whole = precision - frac
    widths = [whole % 9, *[9] * (whole // 9), *[9] * (frac // 9), frac % 9]
    digits, at = "", 0
    for width in filter(None, widths):
        size = _DIGIT_BYTES[width]
        digits += f"{int.from_bytes(binary[at : at + size], 'big'):0{width}d}"
        at += size
    value = Decimal(int(digits)).scaleb(-frac, context=_DECIMAL)
    return value.copy_negate() if negative and value else value


def encode_value(field: FieldType, value: Any) -> bytes:
    """A non-null value as it stands in a row. Raises ValueError, TypeError or OverflowError for one of another type."""
    if field.tp in INTEGERS:
        return compact_uint(value) if field.unsigned else compact_int(value)
    if field.tp is Tp.YEAR:
        return compact_int(value)
    if field.tp is Tp.BIT:
        return compact_uint(value)
    if field.tp in CHOICES:
        return compact_uint(choice_number(field, value))
    if field.tp is Tp.DURATION:
        return compact_int(nanoseconds(value))
    if field.tp is Tp.DECIMAL:
        return encode_decimal(Decimal(value), field.flen, max(field.decimal, 0))
    if field.tp is Tp.FLOAT:
        return keys.encode_float(struct.unpack("<f", struct.pack("<f", value))[0])
    if field.tp is Tp.DOUBLE:
        return keys.encode_float(value)
    if field.tp in TIMES:
        return compact_uint(packed_time(value))
    return _string(field, value)


def _string(field: FieldType, value: str | bytes) -> bytes:
    raw = value.encode(errors="surrogateescape") if isinstance(value, str) else bytes(value)
    if field.tp is Tp.STRING:  # CHAR loses trailing spaces, BINARY(n) is padded with zeros
        return raw.rstrip(b" ") if field.is_text else raw.ljust(field.flen, b"\0")
    return raw


def decode_value(field: FieldType, encoded: bytes) -> Any:
    if field.tp in INTEGERS:
        return int.from_bytes(encoded, "little", signed=not field.unsigned)
    if field.tp in (Tp.YEAR, Tp.BIT):
        return int.from_bytes(encoded, "little", signed=field.tp is Tp.YEAR)
    if field.tp in CHOICES:
        return _choice(field, int.from_bytes(encoded, "little"))
    if field.tp is Tp.DURATION:
        return timedelta(microseconds=int.from_bytes(encoded, "little", signed=True) // 1000)
    if field.tp is Tp.DECIMAL:
        return decode_decimal(encoded)
    if field.tp in (Tp.FLOAT, Tp.DOUBLE):
        return keys.decode_float(encoded)
    if field.tp in TIMES:
        return _unpack_time(field, int.from_bytes(encoded, "little"))
    return encoded.decode(errors="surrogateescape") if field.is_text else encoded


def _choice(field: FieldType, number: int) -> str:
    if field.tp is Tp.ENUM:
        return ("", *field.elems)[number]
    return ",".join(name for bit, name in enumerate(field.elems) if number >> bit & 1)


def _unpack_time(field: FieldType, packed: int) -> date | str:
    us, rest = packed & 0xFFFFFF, packed >> 24
    hms, ymd = rest & 0x1FFFF, rest >> 17
    year, month = divmod(ymd >> 5, 13)
    if not (year and month and ymd & 31):
        clock = f" {hms >> 12:02}:{hms >> 6 & 63:02}:{hms & 63:02}.{us:06}"
        return f"{year:04}-{month:02}-{ymd & 31:02}" + ("" if field.tp is Tp.DATE else clock)
    if field.tp is Tp.DATE:
        return date(year, month, ymd & 31)
    return datetime(year, month, ymd & 31, hms >> 12, hms >> 6 & 63, hms & 63, us)


def cast(field: FieldType, value: Any) -> Any:
    """A value in another type, as MODIFY COLUMN turns it. Raises ValueError for types that it is not built for."""
    if value is None:
        return None
    if field.tp in INTEGERS:
        return int(Decimal(value).to_integral_value(ROUND_HALF_UP))
    if field.tp is Tp.DECIMAL:
        return Decimal(value)
    if field.tp is Tp.DOUBLE:
        return float(value)
    if field.is_text:
        return str(value)
    raise ValueError(f"no value of a row can be turned into type {field.tp.name}")


def absent_value(column: TidbColumn) -> Any:
    if column.origin_default is not None or column.nullable:
        return from_text(column, column.origin_default)
    if column.type.tp in INTEGERS:
        return 0
    if column.type.tp is Tp.DECIMAL:
        return Decimal(0)
    if column.type.tp in (Tp.FLOAT, Tp.DOUBLE):
        return 0.0
    if column.type.tp in (Tp.YEAR, Tp.BIT):
        return 0
    if column.type.tp in TIMES:
        return decode_value(column.type, b"\0")
    if column.type.tp is Tp.DURATION:
        return timedelta()
    if column.type.tp is Tp.ENUM:
        return column.type.elems[0]
    return "" if column.type.is_text else b""


def from_text(column: TidbColumn, text: str | None) -> Any:
    """A default, which TiDB keeps as text, in Python's type."""
    tp = column.type.tp
    if text is None:
        return None
    if tp in INTEGERS or tp in (Tp.YEAR, Tp.BIT):
        return int(text)
    if tp is Tp.DURATION:
        hours, minutes, seconds = text.lstrip("-").split(":")
        size = timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))
        return -size if text.startswith("-") else size
    if tp is Tp.DECIMAL:
        return Decimal(text)
    if tp in (Tp.FLOAT, Tp.DOUBLE):
        return float(text)
    if tp in TIMES:
        return decode_value(column.type, compact_uint(packed_time(text)))
    return text if column.type.is_text else text.encode()
