"""Arrow schemas of what flows between the stages (DESIGN.md 3.1)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

#: Committed row changes of one or several spans, as the puller hands them on. A row is
#: unique by (span_id, commit_ts, key). `op`: see model.position. `key` is raw (`t..._r...`), `value` the new row
#: (empty for a delete), `old_value` the row before (null: did not exist).
RAW_SCHEMA = pa.schema(
    [
        pa.field("span_id", pa.uint64(), nullable=False),
        pa.field("commit_ts", pa.uint64(), nullable=False),
        pa.field("start_ts", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("old_value", pa.binary()),
        pa.field("txn_source", pa.uint64(), nullable=False),
    ]
)

#: Bytes a row counts for beyond its key, value and old value: the fixed columns and offsets.
ROW_OVERHEAD = 48


def raw_bytes(batch: pa.RecordBatch) -> int:
    """The size by which quotas, curves and plans measure a raw batch."""
    payload = sum(_payload(batch.column(name)) for name in ("key", "value", "old_value"))
    return payload + ROW_OVERHEAD * int(batch.num_rows)


def _payload(column: pa.Array) -> int:
    if len(column) == 0:
        return 0
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return int(offsets[column.offset + len(column)] - offsets[column.offset])
