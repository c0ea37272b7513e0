"""Records of one op have one form: they are written apart, and put together again in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.pipeline.mounter import Records


def by_op(records: Records, write: Callable[[int, Records], pa.Array]) -> pa.Array:
    """An element for each record, in order; `write` is asked once for each op that there is."""
    ops = np.unique(records.op).tolist()
    if len(ops) == 1:
        return write(ops[0], records)
    places = [np.flatnonzero(records.op == op) for op in ops]
    apart = [write(op, taken(records, rows)) for op, rows in zip(ops, places, strict=True)]
    order = np.empty(len(records.op), np.int64)
    order[np.concatenate(places)] = np.arange(len(order))
    return pa.concat_arrays(_of_one_type(apart)).take(pa.array(order))


def _of_one_type(apart: list[pa.Array]) -> list[pa.Array]:
    """Text of one op may be broken, and be binary by that."""
    if len({array.type for array in apart}) == 1:
        return apart
    return [array.cast(pa.binary()) for array in apart]


def taken(records: Records, places: npt.NDArray[np.intp]) -> Records:
    chosen = pa.array(places)
    return _picked(records, places, lambda values: values.take(chosen))


def sliced(records: Records, start: int, rows: int) -> Records:
    return _picked(records, slice(start, start + rows), lambda values: values.slice(start, rows))


def _picked(records: Records, places: Any, pick: Callable[[pa.Array], pa.Array]) -> Records:
    return Records(
        records.table,
        records.op[places],
        records.is_update[places],
        pick(records.commit_ts),
        [pick(values) for values in records.columns],
        [pick(values) for values in records.old_columns] if records.old_columns is not None else None,
        records.written,
        pick(records.start_ts) if records.start_ts is not None else None,
    )


def narrowed(records: Records, names: frozenset[str]) -> Records:
    """With these columns alone."""
    places = [place for place, column in enumerate(records.shown) if column.name in names]
    old = records.old_columns
    return Records(
        records.table,
        records.op,
        records.is_update,
        records.commit_ts,
        [records.columns[place] for place in places],
        [old[place] for place in places] if old is not None else None,
        tuple(records.shown[place] for place in places),
    )
