"""A lake of a test's own: a warehouse in a folder, a catalog in SQLite, tasks and drivers that write there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from changefeed.errors import Fenced
from changefeed.log.records import CommitRecord, FileCommitted, PlanEntry
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE, Position
from changefeed.objectstore import Location
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.once import create_once
from changefeed.objectstore.patience import Patience
from changefeed.schema.ddl.actions import Action
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, TableInfo, parse_table_info
from changefeed.sink.contract import Claim, Ddl, Entry, EntryId
from changefeed.sink.iceberg.driver import IcebergDriver
from changefeed.sink.iceberg.endpoint import IcebergEndpoint
from changefeed.sink.iceberg.files import encode_files
from changefeed.sink.iceberg.layout import FileNames
from changefeed.sink.iceberg.tables import LakeTables, TableWriter
from changefeed.sink.records import Records
from changefeed.sink.table_format.relied import Relied
from changefeed.upstream.tikv.tidb.job import parse_job
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

LOG = "uid/origin"
NAMES = FileNames("origin")
Change = tuple[int, int, int] | tuple[int, int, int, int]  # op, id, v, and the id before an update


def column(number: int, name: str, tp: int, flag: int = 0, place: int | None = None, **more: Any) -> dict[str, Any]:
    kind = {"Tp": tp, "Flag": flag, "Flen": 20, "Decimal": 0, **more}
    return {"id": number, "name": {"O": name}, "offset": number if place is None else place, "type": kind, "state": 5}


ID = column(1, "id", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY)
V = column(2, "v", SqlType.INT)


def table_of(
    id_: int = 101, name: str = "t", columns: Sequence[dict[str, Any]] = (ID, V), schema: str = "shop", **more: Any
) -> TableInfo:
    info = {"id": id_, "name": {"O": name}, "cols": list(columns), "pk_is_handle": True, "state": 5}
    return parse_table_info(info | more, schema)


def records(table: TableInfo, changes: Sequence[Change], first_ts: int) -> Records:
    ts = pa.array(np.arange(first_ts, first_ts + len(changes)), pa.uint64())
    op = np.array([change[0] for change in changes], np.uint8)
    old = [change[3] if len(change) > 3 else change[1] for change in changes]
    shown = [pa.array([change[place] for change in changes], pa.int64()) for place in (1, 2)]
    before = [pa.array([key if o == OP_UPDATE else None for key, o in zip(old, op, strict=True)], pa.int64()), shown[1]]
    return Records(table, op, np.zeros(len(op), np.bool_), ts, shown, before, table.output_columns, ts)


class Lake:
    def __init__(self, folder: Path, upsert: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.upsert = folder, upsert
        self.endpoint = IcebergEndpoint(Location((folder / "lake").as_uri()), f"sqlite:///{folder}/catalog.db")
        self.store = LocalStore(folder / "lake")
        self.indexes: dict[int, int] = {}
        self.newest_epoch = 1

    def driver(
        self,
        *tables: TableInfo,
        epoch: int = 1,
        wrap: Callable[[Catalog], Any] = lambda catalog: catalog,
        slept: Callable[[float], None] = lambda _: None,
        log: str = LOG,
        relied: Mapping[int, Mapping[int, Relied]] | None = None,
    ) -> IcebergDriver:
        self.newest_epoch = max(self.newest_epoch, epoch)

        def poll_fence() -> None:
            if self.newest_epoch > epoch:
                raise Fenced(f"epoch {self.newest_epoch} drives")

        lake = LakeTables(
            wrap(self.endpoint.open()),
            self.endpoint.catalog_uri,
            TableWriter(log, epoch, poll_fence),
            Patience(60, slept),
            relied,
        )
        there = {each: (table, 5) for table in tables for each in table.physical_ids}
        return IcebergDriver(self.endpoint, lake, self.upsert, there)

    def written(
        self, plan: int, table: TableInfo, changes: Sequence[Change], entry: int = 0, dispatcher: int | None = None
    ) -> tuple[PlanEntry, FileCommitted]:
        """What a task has written of an entry, whose rows have ts from 10 * plan on."""
        dispatcher = dispatcher or table.id
        index = self.indexes[dispatcher] = self.indexes.get(dispatcher, 0) + 1
        directory = NAMES.series(table, dispatcher, 5)
        output = NAMES.next(directory, 0, {"directory": directory, "index": index - 1})
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
        chunks = [records(table, changes, 10 * plan)] if changes else []
        self.put(entry_of(table, output["path"], plan, entry, self.upsert), chunks)
        file = FileCommitted(
            plan=plan, entry=entry, rows=len(changes), raw_rows=len(changes), filtered_rows=0, bytes=1, hash="h"
        )
        return planned, file

    def put(self, entry: Entry, chunks: Iterable[Records]) -> None:
        for path, spool in encode_files(entry, chunks, self.folder / "spool").items():
            create_once(self.store, path, spool.body(), spool.hash)
            spool.discard()

    def located(self, location: str | None = None) -> str:
        """Where the catalog has the table's metadata; from now on it has those that are given."""
        with sqlite3.connect(self.folder / "catalog.db") as catalog:
            ((was,),) = catalog.execute("SELECT metadata_location FROM iceberg_tables WHERE table_name = 't'")
            if location is not None:
                catalog.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 't'", (location,))
        return str(was)

    def table(self, name: str = "t", schema: str = "shop") -> Table:
        return self.endpoint.open().load_table((schema, name))

    def rows(self, name: str = "t") -> list[tuple[Any, ...]]:
        """As a reader of the specification has them, in no order: (id, v), before that op and ts in a changelog."""
        table = self.table(name)
        if not self.upsert:
            return sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())
        data, deletes = files(table, DataFileContent.DATA), files(table, DataFileContent.EQUALITY_DELETES)
        gone = [(key["id"], sequence) for sequence, found in deletes for key in found.to_pylist()]
        return sorted(
            tuple(row.values())
            for sequence, found in data
            for row in found.to_pylist()
            if not any(key == row["id"] and sequence < deleted for key, deleted in gone)
        )


def files(table: Table, content: DataFileContent) -> list[tuple[int, pa.Table]]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return [
        (entry.sequence_number or 0, pq.read_table(entry.data_file.file_path.removeprefix("file://")))
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == content
    ]


def entry_of(table: TableInfo, path: str, plan: int = 1, number: int = 0, upsert: bool = False) -> Entry:
    options: Mapping[str, Any] = {"mode": "upsert" if upsert else "append"}
    claim = Claim(LOG, table.id, 1, "n", 0)
    return Entry(claim, EntryId(plan, number), 0, {"path": path}, table, 5, table.output_columns, 0, "UTC", options)


def commit(n: int, *files: FileCommitted, epoch: int = 1) -> CommitRecord:
    return CommitRecord(n=n, epoch=epoch, nonce="n", checkpoint_ts=10 * n, files=files)


def publish(driver: IcebergDriver, n: int, *written: tuple[PlanEntry, FileCommitted], epoch: int = 1) -> None:
    driver.publish([entry for entry, _ in written], commit(n, *(file for _, file in written), epoch=epoch))


def ddl(
    ts: int, action: Action, before: Sequence[TableInfo] = (), after: Sequence[TableInfo] = (), told: bool = True
) -> Ddl:
    there = {id_: table for table in before for id_ in table.physical_ids}
    tables = {id_: table for table in after for id_ in table.physical_ids}
    query = f"{action.name} of {ts}"
    job = parse_job({"id": ts, "type": int(action), "state": 6, "schema_name": "shop", "query": query})
    return Ddl(
        ts=ts,
        job_id=ts,
        change=job,
        query=query,
        description=query,
        involved=frozenset(there),
        left=frozenset(there) - tables.keys(),
        before=there,
        tables=tables,
        is_told=told,
    )


INSERT, UPDATE, DELETE = OP_INSERT, OP_UPDATE, OP_DELETE
