"""FLOAT and DOUBLE as Go prints them: the shortest digits that read back, with an exponent (%v) or without (%f).

NaN, Infinity and -Infinity, which PostgreSQL has, are these words, as it spells them and JavaScript and Java read them.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

_SMALLEST_PLAIN, _FIRST_LARGE = -4, 6  # decimal exponents, Go's strconv for the shortest form
_ZEROS = "0" * 330  # the smallest double has 323 of them before its digits


def go_float(values: pa.Array) -> pa.Array:
    """Text of a float32 or float64 array, with an exponent for large and small ones; NULL stays."""
    if not len(values):
        return pa.array([], pa.string())
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
    text = _digits(values.cast(pa.string())).select(pl.when(is_plain).then("plain").otherwise(scientific))
    return _named(values, text.to_series().to_arrow().cast(pa.string()))


def plain_float(values: pa.Array) -> pa.Array:
    """Text of a float32 or float64 array, never with an exponent; NULL stays."""
    text = values.cast(pa.string())
    if not pc.any(pc.match_substring(text, "e")).as_py():
        return _named(values, text)
    digits, whole = pl.col("digits"), pl.col("exponent") + 1  # digits before the point
    fraction = digits.str.slice(whole.clip(0))
    zeros = pl.lit(_ZEROS)
    expanded = pl.concat_str(
        "sign",
        pl.when(whole > 0).then(digits.str.slice(0, whole.clip(0))).otherwise(pl.lit("0")),
        zeros.str.slice(0, (whole - digits.str.len_bytes().cast(pl.Int64)).clip(0)),
        pl.when(fraction == "").then(pl.lit("")).otherwise(pl.lit(".")),
        zeros.str.slice(0, (-whole).clip(0)),
        fraction,
    )
    has_exponent = pl.col("plain").str.contains("e", literal=True)
    plain = _digits(text).select(pl.when(has_exponent).then(expanded).otherwise("plain"))
    return _named(values, plain.to_series().to_arrow().cast(pa.string()))


def _named(values: pa.Array, text: pa.Array) -> pa.Array:
    """With PostgreSQL's words for what is no number, in the place of Arrow's."""
    if pc.all(pc.is_finite(values)).as_py() is not False:
        return text
    return pc.replace_substring(pc.replace_substring(text, "nan", "NaN"), "inf", "Infinity")


def _digits(text: pa.Array) -> pl.DataFrame:
    """plain: `text`, numbers as Arrow writes them, which has Go's digits but other limits; its sign; its digits without
    zeros at the ends; the decimal exponent of the first digit.
    """
    plain = pl.Series("plain", text, dtype=pl.String)
    number = pl.col("plain").str.strip_prefix("-").str.split_exact("e", 1)
    mantissa = number.struct.field("field_0").str.split_exact(".", 1)
    whole = mantissa.struct.field("field_0")
    digits = pl.concat_str(whole, mantissa.struct.field("field_1").fill_null(""))
    lead = digits.str.len_bytes().cast(pl.Int64) - digits.str.strip_chars_start("0").str.len_bytes().cast(pl.Int64)
    power = number.struct.field("field_1").cast(pl.Int64).fill_null(0)
    return plain.to_frame().select(
        "plain",
        sign=pl.when(pl.col("plain").str.starts_with("-")).then(pl.lit("-")).otherwise(pl.lit("")),
        digits=digits.str.strip_chars("0"),
        exponent=whole.str.len_bytes().cast(pl.Int64) - lead + power - 1,
    )
