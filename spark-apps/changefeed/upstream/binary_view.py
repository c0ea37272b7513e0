"""Vectorised reads at arbitrary positions of an Arrow binary column, without a step per row.

All decoding of keys and values builds on it. It must never read beyond the buffer that the column refers to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Bounds = npt.NDArray[np.signedinteger]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_WORD = 8
_MAX_OFFSET = (1 << 31) - 1


class BadCell(Exception):
    """The bytes at `row` are not what their column's type wants; `why` continues "column c ...".

    For who decodes one column: who knows table and key makes an error for people of it.
    """

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row
        self.why = why


class BinaryView:
    """`starts[i]` and `ends[i]` are the bounds of element i inside `data` (bytes)."""

    def __init__(self, column: pa.BinaryArray) -> None:
        """`column` is a pa.binary() array, maybe a slice. Raises ValueError if it has nulls or is of another type."""
        if column.type != pa.binary() or column.null_count:
            raise ValueError(f"expected binary without nulls, got {column.type} with {column.null_count} nulls")
        _, offsets, data = column.buffers()
        bounds = np.zeros(1, np.int32) if offsets is None else np.frombuffer(offsets, np.int32)
        begins: Ints = bounds[column.offset : column.offset + len(column) + 1].astype(np.int64)
        self.starts: Ints = begins[:-1]
        self.ends: Ints = begins[1:]
        self.buffer = data
        self.data: npt.NDArray[np.uint8] = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        self._words = _overlapping_words(self.data)

    def read(self, at: Bounds, width: int | Ints) -> Words:
        """The little-endian unsigned integers of `width` (0..8) bytes at the offsets `at`, all inside the buffer."""
        last = len(self._words) - 1
        if at.size and int(at.max()) > last:
            # The word that starts here would end behind the buffer: take the last one and shift.
            words = self._words[np.minimum(at, last)] >> (np.maximum(at - last, 0) * 8).astype(np.uint64)
        else:
            words = self._words[at]
        if isinstance(width, int):
            return words if width == _WORD else words & np.uint64((1 << 8 * width) - 1)
        unused = (64 - 8 * width).astype(np.uint64)
        return words << unused >> unused

    def blocks(self, at: Ints, width: int) -> npt.NDArray[np.uint8]:
        """The `width` bytes at each of the offsets, all inside the buffer; a row each."""
        count = len(self.data) - width + 1 if len(at) else 0
        blocks = np.ndarray((count,), f"V{width}", self.data.data, strides=(1,))
        return blocks[at].view(np.uint8).reshape(len(at), width)

    def followed_by(self, words: Words) -> BinaryView:
        """The same elements, with words behind their data; its offsets stay what they are."""
        data = np.concatenate([self.data, words.astype("<u8").view(np.uint8)])
        other = BinaryView.__new__(BinaryView)
        other.starts, other.ends, other.data = self.starts, self.ends, data
        other.buffer = pa.py_buffer(data)
        other._words = _overlapping_words(data)
        return other

    def take(self, starts: npt.NDArray[np.int32], ends: npt.NDArray[np.int32], present: Mask | None) -> pa.Array:
        """A binary array of `data[starts[i]:ends[i]]`, null where not `present` (None: all are)."""
        return take_slices(self.buffer, starts, ends, present)


def take_slices(
    buffer: Any, starts: npt.NDArray[np.int32], ends: npt.NDArray[np.int32], present: Mask | None
) -> pa.Array:
    """See `BinaryView.take`. One C++ gather, of the values in an array of gap, value, gap, value, gap."""
    rows = len(starts)
    if rows == 0:
        return pa.array([], pa.binary())
    if buffer is not None and buffer.size > _MAX_OFFSET:
        raise ValueError(f"a binary buffer of {buffer.size} bytes is beyond 32-bit offsets; decode smaller batches")
    offsets = np.zeros(2 * rows + 2, np.int32)
    offsets[1:-1:2] = starts
    offsets[2::2] = ends
    if buffer is not None:
        offsets[-1] = buffer.size
    both = pa.Array.from_buffers(pa.binary(), 2 * rows + 1, [None, pa.py_buffer(offsets), buffer])
    chosen = np.arange(1, 2 * rows, 2, dtype=np.int32)
    indices = pa.array(chosen) if present is None else pa.array(chosen, mask=~present)
    return pc.take(both, indices, boundscheck=False)


def take_text(text: npt.NDArray[np.uint8], begin: Ints | None, present: Mask) -> pa.Array:
    """A string array of ASCII: row i of `text` from column `begin[i]` (None: 0) on is the i-th that is `present`."""
    count, width = text.shape
    everywhere = count == len(present)
    if begin is None and everywhere:
        return _strings(np.arange(count + 1) * width, text, None)
    # An absent cell stands, empty, where the next present one's row begins: offsets may not go back.
    base = (np.cumsum(present) - present) * width
    if begin is None:
        return _strings(np.append(base, count * width), text, np.packbits(present, bitorder="little"))
    starts, ends = base.astype(np.int32), base.astype(np.int32)
    starts[present] += begin.astype(np.int32)
    ends[present] += width
    return take_slices(pa.py_buffer(text), starts, ends, None if everywhere else present).cast(pa.string())


def _strings(offsets: Ints, text: npt.NDArray[np.uint8], validity: npt.NDArray[np.uint8] | None) -> pa.Array:
    bitmap = None if validity is None else pa.py_buffer(validity)
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def _overlapping_words(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Element i is the little-endian word that starts at byte i; at least one element, zero padded."""
    if len(data) < _WORD:
        data = np.concatenate([data, np.zeros(_WORD - len(data), np.uint8)])
    return np.ndarray((len(data) - _WORD + 1,), np.dtype("<u8"), buffer=data.data, strides=(1,))
