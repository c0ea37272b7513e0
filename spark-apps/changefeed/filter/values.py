"""Values of SQL expressions as polars expressions, and TiDB's rules for two of them that meet.

A value keeps its SQL type beside its expression, because that decides how it is compared: texts by their collation, a
text with a number as numbers, a DATETIME with a text as times. What TiDB would answer differently is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

import polars as pl

from changefeed.filter import collation as co

Kind = Literal["null", "bool", "int", "decimal", "real", "text", "bytes", "time", "other"]

Width = Literal["i64", "u64", "i128"]

NUMBERS = frozenset({"bool", "int", "decimal", "real"})
_MOST_DIGITS = 38  # of a decimal in polars
_INT_DIGITS = 20
_WIDEST: Width = "i128"
_TYPES = {"i64": pl.Int64, "u64": pl.UInt64, "i128": pl.Int128}
_RANGES = {"i64": (-(1 << 63), (1 << 63) - 1), "u64": (0, (1 << 64) - 1), "i128": (-(1 << 127), (1 << 127) - 1)}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")
_HIGHEST = (9999, 12, 31, 23, 59, 59)
#: How a text begins that TiDB takes for a number; the rest of it is left out.
_LEADING_NUMBER = r"^[ \t\n\v\f\r]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"

_KINDS: dict[Kind, str] = {
    "null": "NULL",
    "bool": "a condition",
    "int": "an integer",
    "decimal": "a decimal",
    "real": "a double",
    "text": "a text",
    "bytes": "of bytes",
    "time": "a time",
    "other": "of a type that can only be tested for NULL",
}


class BadExpression(ValueError):
    """The expression is wrong, or asks for what is not supported; the message says which part of it."""


@dataclass(frozen=True)
class Operand:
    """One value a row. `said` is its SQL."""

    kind: Kind
    expr: pl.Expr
    said: str
    constant: int | float | Decimal | str | None = None  # of literals
    collation: str = co.ANY  # of texts
    scale: int = 0  # digits behind the point, of decimals
    digits: int = _INT_DIGITS  # before the point, of decimals and ints
    width: Width = "i64"  # of ints
    fraction: int | None = None  # digits of a second's fraction, of times; None: a date
    number: pl.Expr | None = None  # ENUM and SET are texts with one


def null(said: str) -> Operand:
    return Operand("null", pl.lit(None), said)


def boolean(expr: pl.Expr, said: str) -> Operand:
    return Operand("bool", expr, said)


def whole(number: int, said: str) -> Operand:
    if abs(number) >= 10**_MOST_DIGITS:
        raise BadExpression(f"{said} has more than {_MOST_DIGITS} digits")
    return Operand("int", pl.lit(number, dtype=pl.Int128), said, number, digits=len(str(abs(number))), width=_WIDEST)


def real(number: float, said: str) -> Operand:
    return Operand("real", pl.lit(number, dtype=pl.Float64), said, number)


def decimal(number: Decimal, said: str) -> Operand:
    scale = max(0, -int(number.as_tuple().exponent))
    digits = max(1, len(number.as_tuple().digits) - scale)
    if digits + scale > _MOST_DIGITS:
        raise BadExpression(f"{said} has more than {_MOST_DIGITS} digits")
    dtype = pl.Decimal(_MOST_DIGITS, scale)
    return Operand("decimal", pl.lit(number, dtype=dtype), said, number, scale=scale, digits=digits)


def text(content: str, said: str) -> Operand:
    return Operand("text", pl.lit(content, dtype=pl.String), said, content)


def truth(value: Operand) -> pl.Expr:
    """Boolean, NULL where the value is."""
    if value.kind == "bool":
        return value.expr
    if value.kind == "null":
        return pl.lit(None, dtype=pl.Boolean)
    if value.kind == "text":
        value = _as_number(value)
    if value.kind not in NUMBERS:
        raise BadExpression(f"{value.said} is not a condition; compare it with something")
    return value.expr != 0


def alike(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Two values that are to be compared, of one type. None of them is NULL."""
    kinds = {left.kind, right.kind}
    if kinds == {"text"}:
        left, right = in_common([left, right])
    elif "bytes" in kinds and kinds <= {"bytes", "text"}:
        left, right = _as_bytes(left), _as_bytes(right)
    elif "time" in kinds and kinds <= {"time", "text"}:
        left, right = _same_fraction(_as_time(left), _as_time(right))
    elif kinds <= NUMBERS | {"text"}:
        left, right = in_common([_as_number(left), _as_number(right)])
    else:
        raise BadExpression(f"{left.said} can't be compared with {right.said}; {_what(left)}, {_what(right)}")
    return left, right


def in_common(values: Sequence[Operand]) -> list[Operand]:
    """Values that mean alternatives, or are compared, of one type: texts of one collation, numbers of one type."""
    kinds = {value.kind for value in values if value.kind != "null"}
    if kinds == {"text"}:
        return _one_collation(values)
    if not kinds <= NUMBERS:
        raise BadExpression(f"{', '.join(value.said for value in values)} must be all numbers or all texts")
    if "real" in kinds:
        return [replace(value, kind="real", expr=value.expr.cast(pl.Float64)) for value in values]
    if "decimal" in kinds:
        return _one_scale(values)
    if kinds == {"bool"}:
        return [replace(value, kind="bool", expr=value.expr.cast(pl.Boolean)) for value in values]
    return _one_width(values)


def _one_width(values: Sequence[Operand]) -> list[Operand]:
    """Integers of one width: a constant takes that of the others where it fits, else all have 128 bits."""
    widths = {value.width for value in values if value.constant is None and value.kind != "null"}
    width = widths.pop() if len(widths) == 1 else _WIDEST
    low, high = _RANGES[width]
    if not all(low <= value.constant <= high for value in values if isinstance(value.constant, int)):
        width = _WIDEST
    return [replace(value, kind="int", expr=value.expr.cast(_TYPES[width]), width=width) for value in values]


def _one_scale(values: Sequence[Operand]) -> list[Operand]:
    scale = max(value.scale for value in values)
    if max(value.digits for value in values if value.kind != "null") + scale > _MOST_DIGITS:
        raise BadExpression(
            f"{', '.join(value.said for value in values)} need more than {_MOST_DIGITS} digits to be exact"
        )
    dtype = pl.Decimal(_MOST_DIGITS, scale)
    return [replace(value, kind="decimal", expr=value.expr.cast(dtype), scale=scale) for value in values]


def _one_collation(values: Sequence[Operand]) -> list[Operand]:
    found = {value.collation for value in values} - {co.ANY}
    if len(found) > 1:
        raise BadExpression(
            f"{', '.join(value.said for value in values)} have the collations {', '.join(sorted(found))}"
        )
    chosen = found.pop() if found else co.ANY
    return [replace(value, kind="text", expr=value.expr.cast(pl.String), collation=chosen) for value in values]


def _as_number(value: Operand) -> Operand:
    """Return a value as a number: a text as the number it begins with, or 0; an ENUM or SET as its own."""
    if value.kind != "text":
        return value
    if value.number is not None:
        return Operand("int", value.number, value.said, width="u64")
    if isinstance(value.constant, str):
        return _number(value.constant, value.said)
    leading = value.expr.str.extract(_LEADING_NUMBER).cast(pl.Float64)
    number = pl.when(value.expr.is_null()).then(None).otherwise(leading.fill_null(0.0))
    return Operand("real", number, value.said)


def _number(content: str, said: str) -> Operand:
    found = _NUMBER.match(content)
    number = found[1] if found else "0"
    if "e" in number.lower():
        return real(float(number), said)
    return decimal(Decimal(number), said) if "." in number else whole(int(number), said)


def _as_bytes(value: Operand) -> Operand:
    return replace(value, kind="bytes", expr=value.expr.cast(pl.Binary))


def _as_time(value: Operand) -> Operand:
    if value.kind == "time":
        return value
    if not isinstance(value.constant, str):
        raise BadExpression(f"{value.said} is a text, which can be compared with a time only if it is a constant")
    return time(value.constant, value.said)


def time(content: str, said: str) -> Operand:
    """A constant date or time in the form that columns have."""
    found = _TIME.fullmatch(content.strip(" "))
    if not found or any(int(part or 0) > top for part, top in zip(found.groups()[:6], _HIGHEST, strict=True)):
        raise BadExpression(f"{said} is not a time; write 'YYYY-MM-DD' or 'YYYY-MM-DD hh:mm:ss', with up to 6 decimals")
    written = content.strip(" ").replace("T", " ")
    if found[4] is None:
        return Operand("time", pl.lit(written), said, written, fraction=None)
    written = written.rstrip("0").removesuffix(".") if found[7] else written
    return Operand("time", pl.lit(written), said, written, fraction=len(written.partition(".")[2]))


def _same_fraction(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Times are texts of one length, whose order is that of the times."""
    if left.fraction is None and right.fraction is None:
        return left, right
    fraction = max(left.fraction or 0, right.fraction or 0)
    return _padded(left, fraction), _padded(right, fraction)


def _padded(value: Operand, fraction: int) -> Operand:
    tail = " 00:00:00" if value.fraction is None else ""
    missing = fraction - (value.fraction or 0)
    if missing:
        tail += ("" if value.fraction else ".") + "0" * missing
    expr = pl.concat_str(value.expr, pl.lit(tail)) if tail else value.expr
    return replace(value, expr=expr, fraction=fraction)


def _what(value: Operand) -> str:
    return f"{value.said} is {_KINDS[value.kind]}"
