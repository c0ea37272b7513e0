"""Delta tables of a test's own, below a folder; tasks and drivers that write there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from changefeed.errors import Fenced
from changefeed.log.records import FileCommitted, PlanEntry
from changefeed.model.position import Position
from changefeed.objectstore import Location
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.once import create_once
from changefeed.objectstore.patience import Patience
from changefeed.schema.table_info import TableInfo
from changefeed.sink.delta.driver import DeltaDriver
from changefeed.sink.delta.endpoint import DeltaEndpoint
from changefeed.sink.delta.files import encode_files
from changefeed.sink.delta.layout import DeltaFiles
from changefeed.sink.delta.marks import Marks
from changefeed.sink.delta.tables import DeltaTables, DeltaWriter
from changefeed.sink.table_format.relied import Relied
from deltalake import DeltaTable
from sink_iceberg_lake import LOG, Change, commit, entry_of, records


class DeltaLake:
    def __init__(self, folder: Path, upsert: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.upsert = folder, upsert
        self.names = DeltaFiles("origin", upsert)
        self.endpoint = DeltaEndpoint(Location((folder / "lake").as_uri()))
        self.store = LocalStore(folder / "lake")
        self.indexes: dict[int, int] = {}
        self.newest_epoch = 1

    def driver(
        self,
        *tables: TableInfo,
        epoch: int = 1,
        asked: Callable[[], None] = lambda: None,
        log: str = LOG,
        relied: Mapping[int, Mapping[int, Relied]] | None = None,
    ) -> DeltaDriver:
        """`asked`: is called whenever it asks the log who drives."""
        self.newest_epoch = max(self.newest_epoch, epoch)

        def poll_fence() -> None:
            asked()
            if self.newest_epoch > epoch:
                raise Fenced(f"epoch {self.newest_epoch} drives")

        patience = Patience(60, lambda _: None)
        lake = DeltaTables(self.endpoint, DeltaWriter(log, epoch, poll_fence), patience, relied)
        there = {each: (table, 5) for table in tables for each in table.physical_ids}
        return DeltaDriver(lake, self.store, self.upsert, there)

    def written(
        self, plan: int, table: TableInfo, changes: Sequence[Change], entry: int = 0, dispatcher: int | None = None
    ) -> tuple[PlanEntry, FileCommitted]:
        """What a task has written of an entry, whose rows have ts from 10 * plan on."""
        dispatcher = dispatcher or table.id
        index = self.indexes[dispatcher] = self.indexes.get(dispatcher, 0) + 1
        directory = self.names.series(table, dispatcher, 5)
        output = self.names.next(directory, 0, {"directory": directory, "index": index - 1})
        planned = PlanEntry.model_validate(
            {
                "entry": entry,
                "dispatcher": dispatcher,
                "table_id": dispatcher,
                "from": Position.end_of(10 * plan - 1),
                "to": Position.end_of(10 * plan + 9),
                "output": output,
                "table_version": 5,
                "table_info": table.hash,
                "estimate": 1,
                "reason": "interval",
            }
        )
        if changes:
            planned_entry = entry_of(table, output["path"], plan, entry, self.upsert)
            files = encode_files(planned_entry, [records(table, changes, 10 * plan)], self.folder / "spool")
            for path, spool in files.items():
                create_once(self.store, path, spool.body(), spool.hash)
                spool.discard()
        rows = len(changes)
        file = FileCommitted(plan=plan, entry=entry, rows=rows, raw_rows=rows, filtered_rows=0, bytes=1, hash="h")
        return planned, file

    def table(self, name: str = "t", schema: str = "shop") -> DeltaTable:
        return DeltaTable(str(self.folder / "lake" / schema / name))

    def marks(self, name: str = "t") -> Marks:
        return Marks(self.table(name), LOG)

    def rows(self, name: str = "t") -> list[tuple[Any, ...]]:
        """In no order: (id, v), before that op and ts in a changelog."""
        found = pa.table(pa.RecordBatchReader.from_stream(self.table(name).scan()))
        return sorted(tuple(row.values()) for row in found.to_pylist())


def publish(driver: DeltaDriver, n: int, *written: tuple[PlanEntry, FileCommitted], epoch: int = 1) -> None:
    driver.publish([entry for entry, _ in written], commit(n, *(file for _, file in written), epoch=epoch))
