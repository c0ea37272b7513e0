"""Hands on rows that a scan found committed, as they were decoded, without a copy of a value.

Most chunks of a scan have nothing else. It must give what the matcher would give of the same rows (`COMMITTED_ROWS`),
and leave to it whatever has to be matched or dropped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.model.rows import RAW_SCHEMA
from changefeed.upstream.tikv.matching.decode import COMMITTED, DELETE

_NO_VALUE = pa.scalar(None, pa.binary())


def are_committed(rows: pa.Table) -> bool:
    """Whether rows (decode.Decoded) are COMMITTED ones alone, each of which changes something."""
    if not rows.num_rows or (rows["type"].to_numpy() != COMMITTED).any():
        return False
    deletes = rows["op_type"].to_numpy() == DELETE
    return not deletes.any() or not (deletes & _is_new(rows["old_value"])).any()


def committed_batch(rows: pa.Table, span_ids: npt.NDArray[np.uint64]) -> pa.RecordBatch:
    """RAW_SCHEMA, of rows that `are_committed` is true of."""
    given = {name: rows[name].chunk(0) for name in rows.column_names}
    old_value = given["old_value"]
    is_new = _is_new(old_value)
    op = np.where(given["op_type"].to_numpy() == DELETE, OP_DELETE, np.where(is_new, OP_INSERT, OP_UPDATE))
    if is_new.all():
        old_value = pa.nulls(len(is_new), pa.binary())
    elif is_new.any():
        old_value = pc.if_else(pa.array(is_new), _NO_VALUE, old_value)
    columns = given | {"span_id": pa.array(span_ids), "op": pa.array(op.astype(np.uint8)), "old_value": old_value}
    return pa.RecordBatch.from_arrays([columns[name] for name in RAW_SCHEMA.names], schema=RAW_SCHEMA)


def _is_new(old_value: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Tell of each row whether there was none before: its old value is empty."""
    is_empty: npt.NDArray[np.bool_] = pc.binary_length(old_value).to_numpy() == 0
    return is_empty
