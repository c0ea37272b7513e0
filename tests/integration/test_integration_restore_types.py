"""Every scalar type comes out of `changefeed restore` as it went into the upstream: in files, and in a MariaDB."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from changefeed.objectstore.open import open_store
from changefeed.reading.progress import NoProgress
from changefeed.reading.scratch import scratch_database
from changefeed.restore import parquet
from changefeed.restore.database import Database, Restoring
from changefeed.restore.restore import restore
from changefeed.restore.rows import RowChanges
from changefeed.restore.source import RestoreSource
from changefeed_devcluster.tidb.schema import NewColumn
from integration_inprocess import World, new_world
from integration_mariadb import MariaDb
from integration_mariadb import running as mariadb_running
from integration_restore import FORMATS, restored, rows_in
from integration_types import KINDS, NULL, TIMES, ZONE, Cell, Kind

ROWS = max(len(kind.cells) for kind in KINDS) + 1
_NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    with mariadb_running(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


def cell_of(kind: Kind, number: int) -> Cell:
    return kind.cells[number] if number < len(kind.cells) else NULL


async def written(world: World, protocol: str, kinds: dict[str, Kind], **spec: Any) -> int:
    """`bank.types` has a row for each cell; gives the checkpoint."""
    tidb = world.tidb
    world.start_ts = tidb.now()
    tidb.create_database("bank")
    storage = {"uri": world.lake.as_uri(), "flushInterval": "100ms", **FORMATS[protocol]}
    run = world.run(sink={"storage": storage}, filter={"rules": ["bank.*", "shop.orders"]}, **spec)
    columns = [NewColumn("id", "bigint"), *(NewColumn(name, kind.sql, nullable=True) for name, kind in kinds.items())]
    table = tidb.create_table("bank", "types", columns)
    for number in range(ROWS):
        with tidb.begin() as txn:
            txn.insert(table, {"id": number, **{name: cell_of(kind, number).value for name, kind in kinds.items()}})
    after = tidb.now()
    await run.until(lambda: world.checkpoint() > after, "the checkpoint passes")
    await run.drained()
    return world.checkpoint()


def kinds_for(protocol: str) -> dict[str, Kind]:
    """Parquet has no date with a part that is 0, and a csv of its own for those is tested with the others."""
    odd = {kind.sql for kind in TIMES if any(isinstance(cell.value, str) for cell in kind.cells)}
    return {f"c{n}": kind for n, kind in enumerate(KINDS) if protocol != "parquet" or kind.sql not in odd}


def expected(kind: Kind, cell: Cell) -> Any:
    """In a file."""
    if cell.value is None:
        return None
    base = kind.sql.partition("(")[0].partition(" ")[0]
    text = cell.csv[1:-1].replace('""', '"')
    if base in _NUMBERS:
        return cell.value
    if base in ("float", "double"):
        return struct.unpack("f", struct.pack("f", cell.value))[0] if base == "float" else cell.value
    if base == "decimal":
        return Decimal(text) if "65" not in kind.sql else text
    if "blob" in base or "binary" in base:
        return base64.b64decode(text)
    if base == "timestamp":
        is_odd = isinstance(kind.cells[0].value, str)
        if isinstance(cell.value, datetime):
            return str(cell.value) if is_odd else cell.value.replace(tzinfo=UTC)
    return text


@pytest.mark.parametrize("protocol", ["csv", "canal-json", "parquet"])
async def test_values_are_those_of_the_upstream(world: World, tmp_path: Path, protocol: str) -> None:
    kinds = kinds_for(protocol)
    ts = await written(world, protocol, kinds)
    found, report = restored(world, ts, tmp_path / "out")
    rows = found["bank.types"]
    for name, kind in kinds.items():
        wanted = [expected(kind, cell_of(kind, number)) for number in range(ROWS)]
        assert [rows[number][name] for number in range(ROWS)] == wanted, kind.sql
    (told,) = [table for table in report.tables if table.table == "bank.types"]
    odd = {note.split()[0] for note in told.notes}
    assert odd == {name for name, kind in kinds.items() if kind in TIMES and isinstance(kind.cells[0].value, str)} | (
        {name for name, kind in kinds.items() if kind.sql == "datetime(6)"}
    )

    again = tmp_path / "again" / "bank"
    again.mkdir(parents=True)
    copy_of(world, ts, tmp_path / "out" / "bank" / "types.parquet", again / "types.parquet")
    assert rows_in(again.parent)["bank.types"] == rows, "a base is read as it was written"


def copy_of(world: World, ts: int, base: Path, path: Path) -> None:
    """Copy a base of the table, by way of what rows are put together from."""
    (table,) = [t for t in RestoreSource(open_store(world.lake.as_uri())).catalog(ts).tables if t.name == "bank.types"]
    with scratch_database() as db:
        changes = RowChanges(db, table.now.stored, table.now.key)
        for rows in parquet.read(db, base, table.now):
            changes.add_base(table.now, rows)
        changes.fold()
        parquet.write(db, changes, table.now, path)


@pytest.mark.parametrize("protocol", ["csv", "canal-json"])
async def test_a_timestamp_is_of_no_time_zone(world: World, tmp_path: Path, protocol: str) -> None:
    """Files have it as the clocks of spec.timeZone show it."""
    (kind,) = [kind for kind in KINDS if kind.sql == "timestamp(3)"]
    ts = await written(world, protocol, {"at": kind}, timeZone=ZONE)
    rows = restored(world, ts, tmp_path / "out")[0]["bank.types"]
    assert [rows[number]["at"] for number in range(ROWS)] == [expected(kind, cell_of(kind, n)) for n in range(ROWS)]


async def test_values_in_a_database_are_those_of_the_upstream(world: World, mariadb: MariaDb) -> None:
    kinds = {name: kind for name, kind in kinds_for("csv").items() if not kind.sql.startswith("enum")}
    ts = await written(world, "csv", kinds)
    source, database = RestoreSource(open_store(world.lake.as_uri())), Database(mariadb.server())
    restore(
        source, ts, lambda schema, _: schema == "bank", lambda tables: Restoring(database, ts, tables), NoProgress()
    )
    for name, kind in kinds.items():
        shown = f"CAST({name} AS DOUBLE)" if kind.sql in ("float", "double") else name
        found = [value for (value,) in mariadb.query(f"SELECT {shown} FROM bank.types ORDER BY id")]
        assert found == [in_database(kind, cell_of(kind, number)) for number in range(ROWS)] or (
            kind.sql in ("float", "double")
            and [value and float(value) for value in found] == [expected(kind, cell_of(kind, n)) for n in range(ROWS)]
        ), kind.sql


def in_database(kind: Kind, cell: Cell) -> bytes | None:
    """As the server shows it."""
    value = expected(kind, cell)
    if value is None or isinstance(value, bytes):
        return value
    if kind.sql.startswith("bit"):
        return int(value).to_bytes(8 if "64" in kind.sql else 1)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S.}{value.microsecond // 1000:03}".encode()
    if kind.sql.startswith("year"):
        return f"{value:04}".encode()
    if "zerofill" in kind.sql:
        return f"{value:010}".encode()
    return str(value).encode()
