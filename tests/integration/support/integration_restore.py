"""The bank with a changefeed that began before it, and its tables as the upstream has them at any ts."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow.parquet
from changefeed.objectstore.open import open_store
from changefeed.reading.progress import NoProgress
from changefeed.restore.folder import Folder
from changefeed.restore.report import RestoreReport
from changefeed.restore.restore import restore
from changefeed.restore.source import RestoreSource
from changefeed_devcluster.store.txn import TxnError
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.workload.bank import Bank
from integration_inprocess import Run, World

NOTE = NewColumn("note", "varchar(20)", nullable=True, default="it's new")
FORMATS: dict[str, dict[str, Any]] = {
    "csv": {"protocol": "csv", "csv": {"includeCommitTs": True}},
    "canal-json": {"protocol": "canal-json", "canalJson": {"enableTidbExtension": True}},
    "parquet": {"protocol": "parquet"},
    "by id": {"protocol": "csv", "csv": {"includeCommitTs": True}, "useTableIdAsPath": True, "compression": "gzip"},
}

Rows = dict[int, dict[str, Any]]  # by id


@dataclass
class BankStory:
    """Two tables, of which the first gets a column in the middle."""

    world: World
    draw: random.Random
    definitions: list[tuple[int, dict[str, NamedTable]]] = field(default_factory=list)  # from which ts on
    first_ts: int = 0

    def begin(self) -> Bank:
        """The bank's first accounts. The changefeed is to start at `world.start_ts`."""
        tidb = self.world.tidb
        self.world.start_ts = tidb.now()
        bank = Bank(tidb, tables=2, regions=2, accounts=60, seed=self.draw.randrange(1 << 30))
        bank.create()
        self.definitions.append((tidb.now(), {table.name: table for table in bank.tables}))
        bank.load(Event())
        self.first_ts = tidb.now()
        return bank

    def steps(self, bank: Bank, count: int) -> None:
        for _ in range(count):
            with suppress(TxnError):
                bank.step()

    def add_column(self, bank: Bank) -> int:
        """Gives the DDL's ts; the bank goes on with the new definition. A virtual column stands before it."""
        old = bank.tables[0]
        virtual = NewColumn("twice", "bigint", nullable=True, generated="`balance` * 2")
        new = self.world.tidb.add_column(self.world.tidb.add_column(old, virtual), NOTE)
        ts = self.world.tidb.last_ddl_ts
        bank.tables[0] = new
        for accounts in (bank._open, bank._closed):
            accounts[:] = [(new if table is old else table, pk) for table, pk in accounts]
        self.definitions.append((ts, {table.name: table for table in bank.tables}))
        return ts

    def tables_at(self, ts: int) -> dict[str, Rows]:
        """As the upstream shows them."""
        definitions = [found for since, found in self.definitions if since <= ts][-1]
        return {name: dict(self.world.tidb.snapshot(table, ts)) for name, table in definitions.items()}

    async def written(self, run: Run) -> int:
        """The checkpoint, behind all that was written so far."""
        after = self.world.tidb.now()
        await run.until(lambda: self.world.checkpoint() > after, "the checkpoint passes")
        return self.world.checkpoint()


def running(world: World, protocol: str, **options: Any) -> Run:
    storage = {"uri": world.lake.as_uri(), "flushInterval": "100ms", **FORMATS[protocol], **options}
    return world.run(sink={"storage": storage}, filter={"rules": ["bank.*", "shop.orders"]})


def restored(world: World, ts: int, folder: Path) -> tuple[dict[str, Rows], RestoreReport]:
    source = RestoreSource(open_store(world.lake.as_uri()))
    report = restore(source, ts, lambda *name: True, lambda tables: Folder(folder), NoProgress())
    return rows_in(folder), report


def rows_in(folder: Path) -> dict[str, Rows]:
    found = {}
    for path in sorted(folder.glob("*/*.parquet")):
        rows = pyarrow.parquet.read_table(path).to_pylist()
        found[f"{path.parent.name}.{path.stem}"] = {row["id"]: row for row in rows}
    return found
