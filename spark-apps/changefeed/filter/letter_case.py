"""Capital and small letters as TiDB's UPPER and LOWER make them: one for one, whatever stands beside it."""

from __future__ import annotations

from functools import cache

import numpy as np
import polars as pl

from changefeed.filter.weights import Codes, replaced


def upper(text: pl.Expr) -> pl.Expr:
    return text.map_batches(lambda texts: replaced(texts, _capitals()), return_dtype=pl.String, is_elementwise=True)


def lower(text: pl.Expr) -> pl.Expr:
    return text.map_batches(lambda texts: replaced(texts, _small()), return_dtype=pl.String, is_elementwise=True)


def capital(letter: str) -> str:
    """Unicode's simple mapping: of ß, whose capitals are two, itself."""
    return next((one for one in (letter.upper(), letter.title()) if len(one) == 1), letter)


@cache
def _capitals() -> Codes:
    return np.array([ord(capital(chr(code))) for code in range(0x110000)], np.uint32)


@cache
def _small() -> Codes:
    """Only İ becomes two letters in Python, of which the simple mapping has the first."""
    return np.array([ord(chr(code).lower()[0]) for code in range(0x110000)], np.uint32)
