"""Lines out of constant and column parts: the one step of every text codec that touches each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema.values import as_bytes


def joined(parts: Sequence[str | pa.Array]) -> pa.Array:
    """The parts one after another, row by row, NULL where one is; at least one is an array.

    pa.binary() if a part is: text with bytes that are not UTF-8.
    """
    merged = _merged(parts)
    if any(isinstance(part, pa.Array) and pa.types.is_binary(part.type) for part in merged):
        raw = [part.encode() if isinstance(part, str) else as_bytes(part) for part in merged]
        return pc.binary_join_element_wise(*raw, b"")
    return pc.binary_join_element_wise(*merged, "")


def _merged(parts: Sequence[str | pa.Array]) -> list[str | pa.Array]:
    """Neighbouring constants as one: each part costs a step per row."""
    merged: list[str | pa.Array] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def text_of(lines: pa.Array) -> pa.Buffer:
    """All elements one after another: they stand so in the array's own buffer."""
    _, offsets, data = lines.buffers()
    if data is None:
        return pa.py_buffer(b"")
    bounds = np.frombuffer(offsets, np.int32)
    first, end = int(bounds[lines.offset]), int(bounds[lines.offset + len(lines)])
    return data.slice(first, end - first)
