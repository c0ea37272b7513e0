"""Weights of characters, by which collations compare texts, on whole columns.

Most characters have theirs by a rule; `weights.parquet` lists the others (`make collations`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FILE = "weights.parquet"

Codes = npt.NDArray[np.uint32]
Units = npt.NDArray[np.uint16]

_CHARACTERS = 0x110000
_PLANE = 0x10000
_REPLACEMENT = 0xFFFD
_MOST_UNITS = 8


def _itself(codes: Codes) -> tuple[Any, Any]:
    return np.where(codes < _PLANE, codes, _REPLACEMENT), 0


def _unmapped(codes: Codes) -> tuple[Any, Any]:
    return ord("?"), 0


def _utf16(codes: Codes) -> tuple[Any, Any]:
    high, low = 0xD800 - (_PLANE >> 10) + (codes >> 10), 0xDC00 + (codes & 0x3FF)
    return np.where(codes < _PLANE, codes, high), np.where(codes < _PLANE, 0, low)


def _uca_0400(codes: Codes) -> tuple[Any, Any]:
    han = _within(codes, (0x4E00, 0x9FA5), (0xFA0E, 0xFA0F))
    first, second = _implicit(codes, han, _within(codes, (0x3400, 0x4DB5)))
    return np.where(codes < _PLANE, first, _REPLACEMENT), np.where(codes < _PLANE, second, 0)


def _uca_0900(codes: Codes) -> tuple[Any, Any]:
    extensions = ((0x3400, 0x4DB5), (0x20000, 0x2A6D6), (0x2A700, 0x2B734), (0x2B740, 0x2B81D), (0x2B820, 0x2CEA1))
    han = _within(codes, (0x4E00, 0x9FD5), (0xFA0E, 0xFA29))
    first, second = _implicit(codes, han, _within(codes, *extensions))
    tangut = _within(codes, (0x17000, 0x18AFF))
    return np.where(tangut, 0xFB00, first), np.where(tangut, codes - 0x17000 | 0x8000, second)


def _implicit(codes: Codes, han: npt.NDArray[np.bool_], extension: npt.NDArray[np.bool_]) -> tuple[Any, Any]:
    """The Unicode Collation Algorithm's, of characters that its table does not have (UTS 10, implicit weights)."""
    base = np.where(han, 0xFB40, np.where(extension, 0xFB80, 0xFBC0))
    return base + (codes >> 15), codes & 0x7FFF | 0x8000


def _within(codes: Codes, *ranges: tuple[int, int]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(codes), np.bool_)
    for first, last in ranges:
        found |= (codes >= first) & (codes <= last)
    return found


_RULES: dict[str, Callable[[Codes], tuple[Any, Any]]] = {
    "utf8mb4_general_ci": _itself,
    "utf8mb4_unicode_ci": _uca_0400,
    "utf8mb4_0900_ai_ci": _uca_0900,
    "gbk_bin": _unmapped,
    "gbk_chinese_ci": _unmapped,
    "gb18030_chinese_ci": _utf16,
}


def by_rule(collation: str, codes: Codes) -> tuple[Units, Units]:
    """The first and the second unit of each character's weights, where `weights.parquet` has none; 0: there is none."""
    first, second = _RULES[collation](codes)
    return np.broadcast_to(first, codes.shape).astype(np.uint16), np.broadcast_to(second, codes.shape).astype(np.uint16)


@dataclass(frozen=True)
class Weights:
    """The weights of every character, by code point: `units[starts[c] : starts[c] + lengths[c]]`."""

    starts: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.uint8]
    units: Units

    @classmethod
    @cache
    def of(cls, collation: str) -> Weights:
        listed = pq.read_table(files("changefeed.filter") / FILE, filters=[("collation", "=", collation)])
        codes, lists = listed["character"].to_numpy(), listed["weights"].combine_chunks()
        first, second = by_rule(collation, np.arange(_CHARACTERS, dtype=np.uint32))
        lengths = np.where(second == 0, 1, 2).astype(np.uint8)
        lengths[codes] = pc.list_value_length(lists).to_numpy()
        starts = np.zeros(_CHARACTERS, np.int32)
        np.cumsum(lengths[:-1], dtype=np.int32, out=starts[1:])
        units = np.zeros(int(lengths.sum()), np.uint16)
        ruled = np.ones(_CHARACTERS, np.bool_)
        ruled[codes] = False
        units[starts[ruled]] = first[ruled]
        two = ruled & (lengths == 2)
        units[starts[two] + 1] = second[two]
        ends = np.cumsum(lengths[codes], dtype=np.int64)
        of_each = np.repeat(starts[codes] - ends + lengths[codes], lengths[codes])
        units[of_each + np.arange(len(of_each))] = lists.flatten().to_numpy()
        return cls(starts, lengths, units)

    def keys(self, texts: pl.Series) -> pl.Series:
        """The sort keys, two bytes a unit, the higher first: TiDB's, but that it has one byte for GBK's low ones."""
        codes, ends = _characters(texts)
        lengths = self.lengths[codes]
        if (lengths == 1).all():
            return _series(pa.large_binary(), texts, ends * 2, self.units[self.starts[codes]].astype(">u2").tobytes())
        after = np.cumsum(lengths, dtype=np.int64)
        units = np.empty(after[-1], ">u2")
        for number in range(lengths.max()):
            longer = np.flatnonzero(lengths > number)
            units[(after - lengths)[longer] + number] = self.units[self.starts[codes[longer]] + number]
        return _series(pa.large_binary(), texts, np.concatenate([[0], after])[ends] * 2, units.tobytes())

    def representatives(self) -> Codes:
        """For each character, the first one of the same weights."""
        units = np.zeros((_CHARACTERS, _MOST_UNITS), np.uint16)
        for number in range(_MOST_UNITS):
            longer = self.lengths > number
            units[longer, number] = self.units[self.starts[longer] + number]
        one, other = units.view(np.uint64).T
        order = np.lexsort((one, other))
        new = np.append(True, (np.diff(one[order]) != 0) | (np.diff(other[order]) != 0))
        found = np.empty(_CHARACTERS, np.uint32)
        found[order] = order[np.flatnonzero(new)][np.cumsum(new) - 1]
        return found


def replaced(texts: pl.Series, by: Codes) -> pl.Series:
    """The texts, each character as `by` has it at its code point."""
    codes, ends = _characters(texts)
    codes = by[codes]
    lengths = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= _PLANE)  # of UTF-8
    offsets = np.concatenate([[0], np.cumsum(lengths)])[ends]
    return _series(pa.large_string(), texts, offsets, codes.astype("<u4").tobytes().decode("utf-32-le").encode())


def _characters(texts: pl.Series) -> tuple[Codes, npt.NDArray[np.int64]]:
    """The code points of all texts, one after the other; where the first begins among them, and where each ends."""
    text = texts.str.join("").item() or ""
    counts = texts.str.len_chars().fill_null(0).to_numpy()
    return np.frombuffer(text.encode("utf-32-le"), "<u4"), np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _series(type_: Any, texts: pl.Series, offsets: npt.NDArray[np.int64], values: bytes) -> pl.Series:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    found = pl.Series(values=pa.Array.from_buffers(type_, len(texts), buffers))
    return pl.select(pl.when(texts.is_not_null()).then(found)).to_series() if texts.null_count() else found
