"""Texts as their collation sees them: two of them are equal in TiDB exactly if their folded forms are the same.

Whole columns at a time. A collation is either bytes, or weights of characters (`changefeed.filter.weights`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl

from changefeed.filter.weights import Codes, Weights, replaced

#: Of constants, which take the collation of what they are compared with.
ANY = ""

_UNICODE_CI = "utf8mb4_unicode_ci"
_PLANE = 0x10000
_MOST_WEIGHTS = 4  # of a character that LIKE compares by them under unicode_ci


@dataclass(frozen=True)
class _Comparing:
    weights: str = ""  # whose; "": the bytes of the text are compared
    keeps_spaces: bool = False  # at the end
    has_order: bool = True  # folded texts have its order, too, not only its equality
    like_is_exact: bool = False


_KNOWN: dict[str, _Comparing] = {
    **dict.fromkeys((ANY, "utf8mb4_bin", "utf8_bin", "ascii_bin", "latin1_bin"), _Comparing()),
    **dict.fromkeys(("utf8mb4_0900_bin", "binary"), _Comparing(keeps_spaces=True)),
    **dict.fromkeys(("utf8mb4_general_ci", "utf8_general_ci"), _Comparing("utf8mb4_general_ci")),
    **dict.fromkeys((_UNICODE_CI, "utf8_unicode_ci"), _Comparing(_UNICODE_CI)),
    "utf8mb4_0900_ai_ci": _Comparing("utf8mb4_0900_ai_ci", keeps_spaces=True),
    "gbk_bin": _Comparing("gbk_bin", like_is_exact=True),
    "gbk_chinese_ci": _Comparing("gbk_chinese_ci"),
    # Rows have their text in UTF-8, whose order is not that of the charset.
    "gb18030_bin": _Comparing(has_order=False),
    "gb18030_chinese_ci": _Comparing("gb18030_chinese_ci", has_order=False),
}


def is_known(collation: str) -> bool:
    return collation in _KNOWN


def has_order(collation: str) -> bool:
    """Whether folded texts have the collation's order, too, not only its equality."""
    return _KNOWN[collation].has_order


def folded(text: pl.Expr, collation: str) -> pl.Expr:
    """The form by which the texts are compared: a text, or the bytes of its sort key."""
    known = _KNOWN[collation]
    compared = text if known.keeps_spaces else text.str.strip_chars_end(" ")
    if not known.weights:
        return compared
    return compared.map_batches(Weights.of(known.weights).keys, return_dtype=pl.Binary, is_elementwise=True)


def folded_for_like(text: pl.Expr, collation: str) -> pl.Expr:
    """The form in which LIKE meets the texts, a character for each; trailing spaces count under every collation."""
    known = _KNOWN[collation]
    if not known.weights or known.like_is_exact:
        return text
    alike = _alike(known.weights)
    return text.map_batches(lambda texts: replaced(texts, alike), return_dtype=pl.String, is_elementwise=True)


@cache
def _alike(weights: str) -> Codes:
    """For each character, one for all that LIKE takes for the same."""
    of_all = Weights.of(weights)
    found, codes = of_all.representatives(), np.arange(len(of_all.lengths), dtype=np.uint32)
    if weights == _UNICODE_CI:
        return np.where((codes >= _PLANE) | (of_all.lengths > _MOST_WEIGHTS), codes, found)
    return found
