"""FLOAT and DOUBLE as Go prints them with %v: the shortest digits that read back, an exponent for large ones."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

_SMALLEST_PLAIN, _FIRST_LARGE = -4, 6  # decimal exponents, Go's strconv for the shortest form


def go_float(values: pa.Array) -> pa.Array:
    """Text of a float32 or float64 array; NULL stays. Arrow gives the same digits, but has other limits."""
    if not len(values):
        return pa.array([], pa.string())
    plain = pl.Series("plain", values.cast(pa.string()), dtype=pl.String)
    number = pl.col("plain").str.strip_prefix("-").str.split_exact("e", 1)
    mantissa = number.struct.field("field_0").str.split_exact(".", 1)
    whole = mantissa.struct.field("field_0")
    digits = pl.concat_str(whole, mantissa.struct.field("field_1").fill_null(""))
    lead = digits.str.len_bytes().cast(pl.Int64) - digits.str.strip_chars_start("0").str.len_bytes().cast(pl.Int64)
    power = number.struct.field("field_1").cast(pl.Int64).fill_null(0)
    frame = plain.to_frame().select(
        "plain",
        sign=pl.when(pl.col("plain").str.starts_with("-")).then(pl.lit("-")).otherwise(pl.lit("")),
        digits=digits.str.strip_chars("0"),
        exponent=whole.str.len_bytes().cast(pl.Int64) - lead + power - 1,
    )
    tail = pl.col("digits").str.slice(1)
    power_text = pl.col("exponent").abs().cast(pl.String).str.zfill(2)
    scientific = pl.concat_str(
        "sign",
        pl.col("digits").str.slice(0, 1),
        pl.when(tail == "").then(pl.lit("")).otherwise(pl.concat_str(pl.lit("."), tail)),
        pl.when(pl.col("exponent") < 0).then(pl.lit("e-")).otherwise(pl.lit("e+")),
        power_text,
    )
    is_plain = pl.col("exponent").is_between(_SMALLEST_PLAIN, _FIRST_LARGE - 1) | (pl.col("digits") == "")
    text = frame.select(pl.when(is_plain).then("plain").otherwise(scientific))
    return text.to_series().to_arrow().cast(pa.string())
