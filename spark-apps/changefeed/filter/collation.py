"""Texts as their collation sees them: two of them are equal in TiDB exactly if their folded forms are the same.

Whole columns at a time. TiDB's own weights are tables of the Unicode consortium and of MySQL; what the rules here say
otherwise stands in docs/event-filters.md.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import cache

import polars as pl

#: Of constants, which take the collation of what they are compared with.
ANY = ""

_Fold = Callable[[pl.Expr], pl.Expr]


def _as_it_is(text: pl.Expr) -> pl.Expr:
    return text


def _general_ci(text: pl.Expr) -> pl.Expr:
    letters, bases = _general_letters()
    return _one_plane(text.str.replace_many(letters, bases).str.to_uppercase())


def _unicode_ci(text: pl.Expr) -> pl.Expr:
    return _one_plane(_0900_ai_ci(text))


def _0900_ai_ci(text: pl.Expr) -> pl.Expr:
    return text.str.normalize("NFKD").str.replace_all(r"\p{Mn}", "").str.to_uppercase()


def _one_plane(text: pl.Expr) -> pl.Expr:
    """Beyond the first plane the older collations know no difference."""
    return text.str.replace_all(r"[\x{10000}-\x{10FFFF}]", "\ufffd")


def _gbk_bin(text: pl.Expr) -> pl.Expr:
    return text.str.replace_all(_not_in_gbk(), "?")


def _gbk_chinese_ci(text: pl.Expr) -> pl.Expr:
    return _gbk_bin(text).str.to_uppercase()


def _gb18030_chinese_ci(text: pl.Expr) -> pl.Expr:
    return text.str.to_uppercase()


#: Name: how it folds, whether trailing spaces count, whether folded texts have its order, too.
_KNOWN: dict[str, tuple[_Fold, bool, bool]] = {
    ANY: (_as_it_is, False, True),
    **{f"{charset}_bin": (_as_it_is, False, True) for charset in ("utf8mb4", "utf8", "ascii")},
    "utf8mb4_0900_bin": (_as_it_is, True, True),
    "binary": (_as_it_is, True, True),
    **{f"{charset}_general_ci": (_general_ci, False, True) for charset in ("utf8mb4", "utf8")},
    **{f"{charset}_unicode_ci": (_unicode_ci, False, False) for charset in ("utf8mb4", "utf8")},
    "utf8mb4_0900_ai_ci": (_0900_ai_ci, True, False),
    # Rows have their text in UTF-8, whose order is not that of the charset.
    **{f"{charset}_bin": (_as_it_is, False, False) for charset in ("latin1", "gb18030")},
    "gbk_bin": (_gbk_bin, False, False),
    "gbk_chinese_ci": (_gbk_chinese_ci, False, False),
    "gb18030_chinese_ci": (_gb18030_chinese_ci, False, False),
}


def is_known(collation: str) -> bool:
    return collation in _KNOWN


def has_order(collation: str) -> bool:
    """Whether folded texts have the collation's order, too, not only its equality."""
    return _KNOWN[collation][2]


def folded(text: pl.Expr, collation: str) -> pl.Expr:
    """The form by which the texts are compared."""
    fold, keeps_spaces, _ = _KNOWN[collation]
    return fold(text) if keeps_spaces else fold(text.str.strip_chars_end(" "))


def folded_for_like(text: pl.Expr, collation: str) -> pl.Expr:
    """The form in which LIKE meets the texts: there trailing spaces count under every collation."""
    return _KNOWN[collation][0](text)


@cache
def _not_in_gbk() -> str:
    """A regular expression for a letter that GBK does not have: all of them are one to TiDB."""
    known = (code for code in range(0x10000) if not 0xD800 <= code < 0xE000 and chr(code).encode("gbk", "ignore"))
    ranges: list[list[int]] = []
    for code in known:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[^" + "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges) + "]"


@cache
def _general_letters() -> tuple[list[str], list[str]]:
    """Letters with marks, of Latin, Greek and Cyrillic, and the letters without them."""
    pairs = list(_with_marks())
    return [letter for letter, _ in pairs], [base for _, base in pairs]


def _with_marks() -> Iterator[tuple[str, str]]:
    yield "ß", "s"
    for code in (*range(0x00C0, 0x0250), *range(0x0370, 0x0530), *range(0x1E00, 0x2000)):
        letter = chr(code)
        base = unicodedata.normalize("NFD", letter)[0]
        if base != letter and base.isalpha() and letter not in "Йй":  # a letter of its own
            yield letter, base
