"""Whether a collation of the server's takes texts for equal that the upstream's tells apart. Pure.

It must be called as the upstream's, or compare bytes; and it must behave like that, as a name may mean another thing
there: to MariaDB utf8mb4_0900_bin ignores spaces at the end, to MySQL it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import polars as pl

from changefeed.filter import collation
from changefeed.sink.mysql.rows.literals import bytes_literal, identifier

#: Pairs that some collation takes for equal: case, spaces at the end; then accents, ligatures, kana, widths, letters of
#: Unicode 14, emoji.
_ASCII = (("a", "A"), ("a", "a "))
_LETTERS = (("a", "á"), ("s", "ß"), ("ss", "ß"), ("ae", "æ"), ("か", "が"), ("か", "カ"), ("a", "ａ"), ("a", "a\u0001"))
_NEW = (("Ⱟ", "ⱟ"),)
_BEYOND = (("😀", "😁"),)
_UTF8 = frozenset({"utf8", "utf8mb3"})

Pair = tuple[str, str]


def is_as_fine(upstream: str, downstream: str) -> bool:
    """Whether, by their names, all texts that are two to the upstream are two downstream."""
    return downstream == "binary" or downstream.endswith("_bin") or _rule(downstream) == _rule(upstream)


def _rule(collation: str) -> str:
    """What follows the character set; to ignore no spaces at the end only tells more texts apart."""
    return collation.partition("_")[2].replace("nopad_", "")


@dataclass(frozen=True)
class Collation:
    """A downstream's."""

    charset: str
    name: str

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Which the character set has."""
        if self.charset == "utf8mb4":
            return _ASCII + _LETTERS + _NEW + _BEYOND
        return _ASCII + _LETTERS + _NEW if self.charset in _UTF8 else _ASCII


@dataclass(frozen=True)
class Behaviour:
    """Which pairs each collation of the downstream takes for equal."""

    equal: Mapping[Collation, frozenset[Pair]]

    def merged(self, upstream: str, downstream: Collation) -> Pair | None:
        """Two texts that are one downstream alone; None: none is known."""
        apart = {pair for pair in self.equal[downstream] if not _is_equal(upstream, pair)}
        return next((pair for pair in downstream.pairs if pair in apart), None)


def query(collations: Iterable[Collation]) -> bytes:
    """Gives one row: of each collation a text of 0 and 1, one for each of its pairs."""
    return b"SELECT " + b", ".join(
        b"CONCAT(" + b", ".join(_comparison(each, pair) for pair in each.pairs) + b")" for each in collations
    )


def behaviour(collations: Iterable[Collation], answer: Iterable[bytes]) -> Behaviour:
    """From what `query` gives of the same collations."""
    return Behaviour({
        each: frozenset(pair for pair, bit in zip(each.pairs, bits.decode(), strict=True) if bit == "1")
        for each, bits in zip(collations, answer, strict=True)
    })  # fmt: skip


def _comparison(of: Collation, pair: Pair) -> bytes:
    one, other = (
        b"CONVERT(_utf8mb4 " + bytes_literal(text.encode()) + b" USING " + identifier(of.charset) + b")"
        for text in pair
    )
    return one + b" = " + other + b" COLLATE " + identifier(of.name)


@cache
def _is_equal(upstream: str, pair: Pair) -> bool:
    """To TiDB. One whose collation nobody knows tells all texts apart, to be on the safe side."""
    known = upstream if collation.is_known(upstream) else "binary"
    one, other = pl.Series("text", pair).to_frame().select(collation.folded(pl.col("text"), known)).to_series()
    return bool(one == other)
