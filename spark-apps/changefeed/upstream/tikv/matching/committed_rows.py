"""Finds the rows that a chunk decides by itself, and hands them on as they were decoded, with one copy at most.

They are what a scan found committed, and prewrites whose own commits come in the same chunk: most of what ever comes.
All that this module leaves is matched (`matcher`), which would give the same of these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.model.rows import RAW_SCHEMA
from changefeed.upstream.tikv.matching.decode import COMMIT, DELETE, PREWRITE, U64
from changefeed.upstream.tikv.matching.pairs import Numbers, twins

_NO_VALUE = pa.scalar(None, pa.binary())
_START_TS, _REG = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def couples(rows: pa.RecordBatch, regs: npt.NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    """Numbers of prewrites, and of their commits, which come later, where no other row has their key and start_ts."""
    keys, start_ts, types = rows["key"], rows["start_ts"].to_numpy(), rows["type"].to_numpy()
    if not (types == COMMIT).any():
        return np.empty(0, np.intp), np.empty(0, np.intp)
    first, second = twins(pl.Series(keys).hash().to_numpy() ^ start_ts * _START_TS ^ regs.astype(np.uint64) * _REG)
    same = (types[first] == PREWRITE) & (types[second] == COMMIT)
    for column in (start_ts, regs):
        same &= column[first] == column[second]
    first, second = first[same], second[same]
    equal = pc.equal(keys.take(pa.array(first)), keys.take(pa.array(second))).to_numpy(zero_copy_only=False)
    return first[equal], second[equal]


def committed_batch(rows: pa.RecordBatch, commit_ts: U64, span_ids: npt.NDArray[np.uint64]) -> pa.RecordBatch:
    """RAW_SCHEMA. An empty old value says that there was no row before; the rows must change something."""
    old_value = rows["old_value"]
    is_new = _is_new(old_value)
    op = np.where(rows["op_type"].to_numpy() == DELETE, OP_DELETE, np.where(is_new, OP_INSERT, OP_UPDATE))
    if is_new.all():
        old_value = pa.nulls(len(is_new), pa.binary())
    elif is_new.any():
        old_value = pc.if_else(pa.array(is_new), _NO_VALUE, old_value)
    made = {"span_id": span_ids, "commit_ts": commit_ts, "op": op.astype(np.uint8), "old_value": old_value}
    columns = [pa.array(made[name]) if name in made else rows[name] for name in RAW_SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def are_changes(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Whether they are: a delete of what did not exist changes nothing (docs/design/tikv.md, Rows)."""
    deletes: npt.NDArray[np.bool_] = rows["op_type"].to_numpy() == DELETE
    return ~(deletes & _is_new(rows["old_value"])) if deletes.any() else ~deletes


def _is_new(old_value: pa.Array) -> npt.NDArray[np.bool_]:
    """Tell of each row whether there was none before: its old value is empty."""
    is_empty: npt.NDArray[np.bool_] = pc.binary_length(old_value).to_numpy() == 0
    return is_empty
