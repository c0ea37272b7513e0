"""Converts VECTOR values to text, `[1,2.5]`, without a step per row (docs/design/tidb.md, Values)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.upstream.binary_view import BadCell, BinaryView, Ints

_COUNT, _ELEMENT = 4, 4


def vector_texts(values: pa.BinaryArray) -> pa.StringArray:
    """`values`: a count and as many float32, no nulls. Each as TiDB prints it. Raises BadCell."""
    view = BinaryView(values)
    lengths = view.ends - view.starts
    _refuse(lengths < _COUNT, "is no vector: it has no count")
    counts = view.read(view.starts, _COUNT).astype(np.int64)
    _refuse(lengths != _COUNT + counts * _ELEMENT, "is no vector: its count is not that of its elements")
    ends = np.cumsum(counts)
    first = ends - counts
    positions = np.arange(counts.sum()) - np.repeat(first, counts)
    at: Ints = np.repeat(view.starts + _COUNT, counts) + positions * _ELEMENT
    elements = view.read(at, _ELEMENT).astype(np.uint32).view(np.float32)
    wrong = ~np.isfinite(elements)
    if wrong.any():
        raise BadCell(int(np.searchsorted(ends, wrong.argmax(), "right")), "is no vector: an element is not finite")
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), _texts(elements)), ",")
    return pc.binary_join_element_wise("[", joined, "]", "")


def _texts(elements: np.ndarray[tuple[int], np.dtype[np.float32]]) -> pa.StringArray:
    """The shortest digits that read back, and never an exponent, which few have at first."""
    texts = pa.array(elements).cast(pa.string())
    odd = pc.match_substring(texts, "e")
    if not pc.any(odd).as_py():
        return texts
    which = odd.to_numpy(zero_copy_only=False)
    plain = [np.format_float_positional(element, unique=True, trim="-") for element in elements[which]]
    return pc.replace_with_mask(texts, odd, pa.array(plain, pa.string()))


def _refuse(bad: np.ndarray[tuple[int], np.dtype[np.bool_]], why: str) -> None:
    if bad.any():
        raise BadCell(int(bad.argmax()), why)
