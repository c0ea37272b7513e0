"""Readers of the files of a PostgreSQL: `changefeed tail` and `restore`, also of a changefeed with LowLatency."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from changefeed.cli.main import main
from changefeed.objectstore.open import open_store
from changefeed.reading.layout.files import checkpoint
from integration_postgresql import running
from integration_postgresql_bank import PUBLICATION, TABLES, Bank
from integration_postgresql_sinks import TIDB_EXTENSION, into_files
from integration_postgresql_world import PASSWORD, USER, World

FORMATS: dict[str, dict[str, Any]] = {
    "csv": {"protocol": "csv", "csv": {"includeCommitTs": True}},
    "canal-json": TIDB_EXTENSION,
    "parquet": {"protocol": "parquet"},
}
CHANGES = (
    "INSERT INTO bank.notes VALUES (1, 'one'), (2, NULL)",
    "ALTER TABLE bank.notes ADD COLUMN at timestamptz",
    "UPDATE bank.notes SET at = '2024-07-01 00:30:00.25+00' WHERE id = 1",
    "DELETE FROM bank.notes WHERE id = 2",
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running(USER, PASSWORD, of="newest") as server:
        server.query(*TABLES, PUBLICATION)
        yield World(server, tmp_path)


@pytest.mark.parametrize("protocol", FORMATS)
async def test_tables_are_restored_as_they_were(
    world: World, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = Bank(world.database)
    bank.open()
    mode = "LowLatency" if protocol == "csv" else "Throughput"
    run = world.run(sink=into_files(world, **FORMATS[protocol]), initialCopy=True, mode=mode)
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    await asyncio.to_thread(bank.transfer, 30)
    await world.to_now(run)  # a table that is being copied must not be altered
    await asyncio.to_thread(world.database.query, "TRUNCATE bank.notes", *CHANGES)
    wanted = {
        table: world.database.query(f"SELECT * FROM bank.{table} ORDER BY 1")
        for table in ("accounts", "notes", "transfers")
    }
    store, now = open_store(world.lake.as_uri()), await world.now()
    await run.until(lambda: checkpoint(store) > now, "all is published")
    ts = checkpoint(store)
    await asyncio.to_thread(world.database.query, "UPDATE bank.accounts SET balance = 0")
    await world.to_now(run)
    await run.drained()
    into = world.folder / "restored"
    code = await asyncio.to_thread(main, ["restore", world.lake.as_uri(), "--to-ts", str(ts), "--into", str(into)])
    assert code == 0, capsys.readouterr()
    found = {path.stem: pq.read_table(path).to_pylist() for path in (into / "bank").glob("*.parquet")}
    assert {table: [list(row.values()) for row in rows] for table, rows in found.items()} == wanted
    assert "CREATE TABLE `bank`.`accounts`" in (into / "bank" / "accounts.sql").read_text()


@pytest.mark.parametrize("protocol", FORMATS)
async def test_changes_are_told_in_their_order(world: World, protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = world.run(sink=into_files(world, **FORMATS[protocol]))
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    await asyncio.to_thread(world.database.query, *CHANGES)
    await world.to_now(run)
    await run.drained()
    assert await asyncio.to_thread(main, ["tail", world.lake.as_uri(), "--no-follow"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("op") for line in lines] == ["insert", "insert", None, "update", "delete"]
    assert [line["data"]["id"] for line in lines if "data" in line] == ["1", "2", "1", "2"]
    assert lines[3]["data"]["at"].startswith("2024-07-01 00:30:00.25")
    assert "ADD COLUMN" in json.dumps(lines[2])
