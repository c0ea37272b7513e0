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
    plain = text.str.replace_many(letters, bases).str.to_uppercase()
    return plain.str.replace_all(r"[\x{10000}-\x{10FFFF}]", "\ufffd")  # beyond the first plane it knows no difference


def _unicode_ci(text: pl.Expr) -> pl.Expr:
    return text.str.normalize("NFKD").str.replace_all(r"\p{Mn}", "").str.to_uppercase()


#: Name: how it folds, whether trailing spaces count, whether folded texts have its order, too.
_KNOWN: dict[str, tuple[_Fold, bool, bool]] = {
    ANY: (_as_it_is, False, True),
    **{f"{charset}_bin": (_as_it_is, False, True) for charset in ("utf8mb4", "utf8", "ascii")},
    "utf8mb4_0900_bin": (_as_it_is, True, True),
    "binary": (_as_it_is, True, True),
    **{f"{charset}_general_ci": (_general_ci, False, True) for charset in ("utf8mb4", "utf8")},
    **{f"{charset}_unicode_ci": (_unicode_ci, False, False) for charset in ("utf8mb4", "utf8")},
    "utf8mb4_0900_ai_ci": (_unicode_ci, True, False),
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
