"""Turns raw rows into what Spark reads: typed columns, an update as pre- and post-image. Pure, columnar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from changefeed.errors import NeedsHuman
from changefeed.eventstore.slices import SegmentSlice
from changefeed.model.position import OP_DELETE, Position
from changefeed.model.tso import LOGICAL_BITS
from changefeed.pipeline.mounter import drop_unseen, mount
from changefeed.pipeline.run import chunks
from changefeed.pipeline.sorter import sort_parts
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.time_zones import UTC
from changefeed.sink.records import Records
from changefeed.sink.typed import cells
from changefeed.source.read_schema import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, METADATA

_TYPES = pa.array(["delete", "insert", "update_preimage", "update_postimage"])


def change_rows(
    slices: Sequence[tuple[SegmentSlice, pa.Table]],
    table: TableInfo,
    bounds: tuple[int, int],
    columns: pa.Schema,
    shown: Sequence[ColumnInfo | None],
) -> Iterator[pa.RecordBatch]:
    """Each change with bounds[0] < commit ts <= bounds[1] once, by commit ts, in batches with the schema `columns`.

    `shown`: see ReadSchema.shown. Raises ProtocolViolation (copies of a row differ), NeedsHuman (a value can't
    be represented).
    """
    after, upto = (Position.end_of(ts) for ts in bounds)
    written = tuple(column for column in shown if column is not None)
    for found in sort_parts(slices, table, after, upto, split=False):
        for chunk in chunks(drop_unseen(found.rows), len(written)):
            yield _batch(mount(chunk, table, UTC, written=written, halve_updates=True), columns, shown)


def _batch(records: Records, columns: pa.Schema, shown: Sequence[ColumnInfo | None]) -> pa.RecordBatch:
    data = iter(_data(records, shown))
    made = {CHANGE_TYPE: _change_type, COMMIT_VERSION: _commit_version, COMMIT_TIMESTAMP: _commit_timestamp}
    arrays = []
    for wanted in columns:
        values = made[wanted.name](records) if wanted.name in METADATA.names else next(data)
        arrays.append(pa.nulls(len(records.op), wanted.type) if values is None else values.cast(wanted.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _data(records: Records, shown: Sequence[ColumnInfo | None]) -> list[pa.Array | None]:
    try:
        found = iter(cells(records, records.columns))
    except NeedsHuman as error:
        raise NeedsHuman(error.message, 'Leave the column out: list the others in .schema("...").') from error
    return [None if column is None else next(found) for column in shown]


def _change_type(records: Records) -> pa.Array:
    kind = (records.op != OP_DELETE).astype(np.int8) + 2 * records.is_update.astype(np.int8)
    return _TYPES.take(pa.array(kind))


def _commit_version(records: Records) -> pa.Array:
    return records.commit_ts.cast(pa.int64())


def _commit_timestamp(records: Records) -> pa.Array:
    """Wall-clock time of the commit ts, to the millisecond."""
    microseconds = (records.commit_ts.to_numpy() >> np.uint64(LOGICAL_BITS)).astype(np.int64) * 1000
    return pa.array(microseconds).cast(METADATA.field(COMMIT_TIMESTAMP).type)
