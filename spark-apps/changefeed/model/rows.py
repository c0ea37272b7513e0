"""Arrow schemas of what flows between the stages (docs/design/layouts.md, Raw rows)."""

from __future__ import annotations

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

#: Where there may be none to concatenate, or a single batch that is to be copied.
NO_ROWS = pa.RecordBatch.from_pylist([], RAW_SCHEMA)

#: Bytes a row counts for beyond its key, value and old value: the fixed columns and offsets.
ROW_OVERHEAD = 48

_PAYLOAD = tuple(map(RAW_SCHEMA.get_field_index, ("key", "value", "old_value")))


def raw_bytes(batch: pa.RecordBatch) -> int:
    """The size by which quotas, curves and plans measure a raw batch."""
    payload = sum(_payload(batch.column(number)) for number in _PAYLOAD)
    return payload + ROW_OVERHEAD * int(batch.num_rows)


def _payload(column: pa.Array) -> int:
    count, first = len(column), column.offset
    if not count:
        return 0
    offsets = memoryview(column.buffers()[1]).cast("i")
    return int(offsets[first + count] - offsets[first])
