"""Records of one op have one form: `by_op` writes them apart, and puts them together again in their order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from changefeed.sink.records import Records, taken


def by_op(records: Records, write: Callable[[int, Records], pa.Array]) -> pa.Array:
    """An element for each record, in order; `write` is asked once for each op that there is."""
    ops = np.unique(records.op).tolist()
    if len(ops) == 1:
        return write(ops[0], records)
    indexes = [np.flatnonzero(records.op == op) for op in ops]
    apart = [write(op, taken(records, rows)) for op, rows in zip(ops, indexes, strict=True)]
    order = np.empty(len(records.op), np.int64)
    order[np.concatenate(indexes)] = np.arange(len(order))
    return pa.concat_arrays(_of_one_type(apart)).take(pa.array(order))


def _of_one_type(apart: list[pa.Array]) -> list[pa.Array]:
    """Text of one op may be broken, and be binary by that."""
    if len({array.type for array in apart}) == 1:
        return apart
    return [array.cast(pa.binary()) for array in apart]
