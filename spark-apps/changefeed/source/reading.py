"""The task side of a query: reads rows from the event store as batches in the query's schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from changefeed.errors import Transient, Unavailable
from changefeed.eventstore.reader import KeptSegments, read_slice
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.slices import SegmentSlice
from changefeed.objectstore import Location
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.source.change_rows import change_rows
from changefeed.source.read_schema import ReadSchema


@dataclass(frozen=True)
class DefinitionRange:
    """The range `(after_ts, upto_ts]`, in which the table has one definition. Sent to tasks; `of` makes it.

    `shown`: see ReadSchema.shown.
    """

    table: TableInfo
    shown: tuple[ColumnInfo | None, ...]
    after_ts: int
    upto_ts: int

    @classmethod
    def of(cls, table: TableInfo, read: ReadSchema, after_ts: int, upto_ts: int) -> DefinitionRange:
        return cls(replace(table, raw={}), read.shown(table), after_ts, upto_ts)


@dataclass(frozen=True)
class StoredSlices:
    """What one task reads of a batch: rows of one physical table in segments of the run `epoch`, `nonce`."""

    state: Location
    epoch: int
    nonce: str
    life: DefinitionRange
    slices: tuple[SegmentSlice, ...]

    def read(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows in the query's schema, `columns`. Raises Unavailable (segments not found), NeedsHuman."""
        run_folder, kept = RunFolder(self.state, self.epoch, self.nonce), KeptSegments()
        try:
            slices = [(piece, read_slice(run_folder, piece, kept=kept)) for piece in self.slices]
        except Transient as error:
            raise Unavailable(
                error.message,
                "If executors run on other machines than the driver, set the option eventStore to a bucket or a shared "
                "directory. If it is set already, restart the stream: it pulls the batch again.",
            ) from error
        life = self.life
        yield from change_rows(slices, life.table, (life.after_ts, life.upto_ts), columns, life.shown)
