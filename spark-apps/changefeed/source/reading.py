"""A task's side of a query: rows out of the event store, as batches of the query's schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from changefeed.errors import Transient, Unavailable
from changefeed.eventstore.house import House
from changefeed.eventstore.reader import KeptSegments, read_slice
from changefeed.model.record import SegmentSlice
from changefeed.objectstore import Place
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.source.change_rows import change_rows
from changefeed.source.read_schema import ReadSchema


@dataclass(frozen=True)
class Life:
    """Rows in `(after_ts, upto_ts]` of one definition. `shown`: see ReadSchema.shown. Made by `of`; goes to tasks."""

    table: TableInfo
    shown: tuple[ColumnInfo | None, ...]
    after_ts: int
    upto_ts: int

    @classmethod
    def of(cls, table: TableInfo, read: ReadSchema, after_ts: int, upto_ts: int) -> Life:
        return cls(replace(table, raw={}), read.shown(table), after_ts, upto_ts)


@dataclass(frozen=True)
class Stored:
    """What one task reads of a batch: rows of a physical table that stand in segments of run `epoch`, `nonce`."""

    state: Place
    epoch: int
    nonce: str
    life: Life
    slices: tuple[SegmentSlice, ...]

    def read(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows as `columns`, the query's schema. Raises Unavailable (no such segments), NeedsHuman."""
        house, kept = House(self.state, self.epoch, self.nonce), KeptSegments()
        try:
            slices = [(piece, read_slice(house, piece, kept=kept)) for piece in self.slices]
        except Transient as error:
            raise Unavailable(
                error.message,
                "Executors on other machines than the driver need the option eventStore: a bucket, or a shared folder. "
                "If they have that, start the stream again: it pulls the batch anew.",
            ) from error
        life = self.life
        yield from change_rows(slices, life.table, (life.after_ts, life.upto_ts), columns, life.shown)
