"""A table's columns as values of expressions, and its decoded rows as what those are evaluated over."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.filter import collation as co
from changefeed.filter.values import BadExpression, Operand
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo

_INTEGERS = ti.INTEGERS | {SqlType.YEAR, SqlType.BIT}
_REALS = frozenset({SqlType.FLOAT, SqlType.DOUBLE})
_CHOICES = frozenset({SqlType.ENUM, SqlType.SET})
_TEXTS = ti.STRINGS | ti.BLOBS
_DATES = frozenset({SqlType.DATE, SqlType.NEW_DATE})
_CLOCKS = frozenset({SqlType.DATETIME, SqlType.TIMESTAMP})
_MOST_DIGITS = 38


def value_of(column: ColumnInfo) -> Operand:
    """What an expression means by the column. Raises BadExpression for one that no expression can have."""
    if column.is_generated_virtual:
        raise BadExpression(f"column {column.name} is virtual: its values are not in the rows")
    said, expr = column.name, pl.col(_name(column))
    if column.type in _INTEGERS:
        unsigned = column.type == SqlType.BIT or (column.is_unsigned and column.type != SqlType.YEAR)
        return Operand("int", expr, said, width="u64" if unsigned else "i64")
    if column.type in _REALS:
        return Operand("real", expr, said)
    if column.type == SqlType.DECIMAL:
        return _decimal(column, expr)
    if column.type in _DATES | _CLOCKS:
        return Operand("time", expr, said, fraction=None if column.type in _DATES else max(column.decimal, 0))
    if column.is_binary:
        return Operand("bytes", expr, said)
    if column.type in _TEXTS | _CHOICES:
        if not co.is_known(column.collate):
            raise BadExpression(f"column {column.name} has the collation {column.collate}, which is not supported")
        number = pl.col(_number_name(column)) if column.type in _CHOICES else None
        return Operand("text", expr, said, collation=column.collate, number=number)
    return Operand("other", expr, said)


def frame(columns: Sequence[ColumnInfo], arrays: Sequence[pa.Array], rows: int) -> pl.DataFrame:
    """The columns' decoded values, none of them broken text, under the names that `value_of` gives them."""
    series: list[pl.Series] = []
    for column, values in zip(columns, arrays, strict=True):
        if pa.types.is_struct(values.type):
            series.append(_series(_number_name(column), pc.struct_field(values, "number")))
            values = pc.struct_field(values, "text")
        series.append(_series(_name(column), values))
    return pl.DataFrame(series) if series else pl.DataFrame({"": pl.repeat(0, rows, eager=True)})


def _series(name: str, values: pa.Array) -> pl.Series:
    series = pl.from_arrow(values)
    assert isinstance(series, pl.Series)
    return series.alias(name)


def _name(column: ColumnInfo) -> str:
    return f"c{column.id}"


def _number_name(column: ColumnInfo) -> str:
    return f"n{column.id}"


def _decimal(column: ColumnInfo, expr: pl.Expr) -> Operand:
    scale = max(column.decimal, 0)
    if not 0 < column.flen <= _MOST_DIGITS:
        raise BadExpression(f"column {column.name} has {column.flen} digits; up to {_MOST_DIGITS} are supported")
    number = expr.cast(pl.Decimal(_MOST_DIGITS, scale))
    return Operand("decimal", number, column.name, scale=scale, digits=column.flen - scale)
