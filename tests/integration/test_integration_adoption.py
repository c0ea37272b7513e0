"""A changefeed goes on in a folder that TiCDC has written; readers of the whole folder miss nothing."""

from __future__ import annotations

import asyncio
import csv
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from changefeed.objectstore.open import open_store
from changefeed.reading.known import known_of
from changefeed.reading.schema.schema_file import read_schema_file, schema_checksum
from changefeed.tail.changes import TailedChanges
from changefeed.ticdc import adoption as ticdc_module
from changefeed.ticdc.adoption import adopt_ticdc
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.verify.storage.report import StoredSink, verify
from changefeed_devcluster.tidb.schema import NewColumn
from integration_inprocess import World, new_world

DATE = "2026-11-26"
COLUMNS = [
    {"ColumnName": "id", "ColumnType": "BIGINT", "ColumnPrecision": "20", "ColumnNullable": "false"},
    {"ColumnName": "name", "ColumnType": "VARCHAR", "ColumnPrecision": "64"},
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


class Ticdc:
    """TiCDC as far as a reader sees it: it writes whole files of shop.orders (docs/sink-files.md)."""

    def __init__(self, lake: Path, version: int) -> None:
        self.lake = lake
        self.directory = lake / "shop" / "orders" / str(version) / DATE
        (self.directory / "meta").mkdir(parents=True)
        content = {"Table": "orders", "Schema": "shop", "Version": 1, "TableVersion": version, "Query": "", "Type": 0}
        content |= {"TableColumns": COLUMNS, "TableColumnsTotal": len(COLUMNS)}
        (lake / "shop" / "orders" / "meta").mkdir()
        name = f"schema_{version}_{schema_checksum(content):010}.json"
        (lake / "shop" / "orders" / "meta" / name).write_text(json.dumps(content, indent=4))

    def write(self, number: int, transactions: Mapping[int, range], *, indexed: bool = True) -> None:
        """`transactions`: ids by commit ts."""
        rows = [(ts, each) for ts, ids in transactions.items() for each in ids]
        lines = [f'"I","orders","shop",{ts},{each},"order {each}"\r\n' for ts, each in rows]
        (self.directory / f"CDC{number:020}.csv").write_bytes("".join(lines).encode())
        if indexed:
            (self.directory / "meta" / "CDC.index").write_text(f"CDC{number:020}.csv\n")

    def checkpoint(self, ts: int) -> None:
        (self.lake / "metadata").write_text(json.dumps({"checkpoint-ts": ts}))


class StorageConsumer:
    """TiCDC's storage consumer: each round takes what is new, a key after the other, and drops
    rows below the table's watermark. Rows replace those that are there.
    """

    _KEY = re.compile(r"shop/orders/(\d+)/([^/]+)/meta/CDC\.index")

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._read: dict[Path, int] = {}
        self._watermark = 0
        self.ids: list[int] = []

    def round(self) -> None:
        checkpoint = json.loads((self._lake / "metadata").read_text())["checkpoint-ts"]
        versions = {ts for path in self._lake.glob("shop/orders/meta/*.json") for ts in [self._version(path)]}
        for version, date, index in sorted(self._indexes()):
            if version > checkpoint:
                continue
            assert version in versions, f"{index} has no schema file"
            rows: list[tuple[int, int]] = []
            last = int(re.fullmatch(r"CDC(\d{20})\.csv\n", index.read_text())[1])  # type: ignore[index]
            for number in range(self._read.get(index, 0) + 1, last + 1):
                rows += self._rows(index.parents[1] / f"CDC{number:020}.csv")
            self._read[index] = last
            for ts, each in sorted(rows, key=lambda row: row[0]):
                if ts >= self._watermark:
                    self._watermark = ts
                    self.ids.append(each)
            assert date

    def _version(self, path: Path) -> int:
        file, problems = read_schema_file(path.relative_to(self._lake).as_posix(), path.read_bytes())
        assert not problems
        assert file is not None
        return file.version

    def _indexes(self) -> Iterator[tuple[int, str, Path]]:
        for path in self._lake.rglob("CDC.index"):
            found = self._KEY.fullmatch(path.relative_to(self._lake).as_posix())
            assert found, f"{path} is in no place of a consumer's"
            yield int(found[1]), found[2], path

    def _rows(self, path: Path) -> list[tuple[int, int]]:
        with path.open(newline="") as file:
            return [(int(row[3]), int(row[4])) for row in csv.reader(file)]


def tailed(lake: Path) -> list[int]:
    store = open_store(lake.as_uri())
    changes = TailedChanges(store, known_of(store).format_of, 0, lambda schema, table: True)
    rows = [change.row for change in changes.round() if change.row is not None]
    assert [row.commit_ts for row in rows] == sorted(row.commit_ts for row in rows)
    return [int(row.values["id"]) for row in rows]  # type: ignore[arg-type]


def ours(lake: Path, version: int) -> list[str]:
    """Names of the files below a table version."""
    return sorted(path.name for path in (lake / "shop" / "orders" / str(version)).rglob("CDC*.csv"))


async def check_verified(world: World, rows: int) -> None:
    result = await verify(StoredSink(world.lake.as_uri()), TikvAccess((f"http://{world.cluster.pd_address}",)))
    assert result.ok, result.to_json()
    assert result.rows == rows
    (note,) = (note for note in result.notes if "TiCDC" in note)
    assert note.startswith("3 files are of table versions below startTs")


async def test_rule_7_and_15_a_changefeed_goes_on_behind_ticdc(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """TiCDC's files run ahead of its `metadata`, the last one even of its index."""
    monkeypatch.setattr(ticdc_module, "WATCHED_S", 0.1)
    ticdc, consumer = Ticdc(world.lake, world.start_ts), StorageConsumer(world.lake)
    first = world.insert(range(1, 11))
    second = world.insert(range(11, 21))
    checkpoint = world.tidb.now()
    third, last_read = world.insert(range(21, 26)), world.insert(range(26, 31))
    fourth = world.insert(range(31, 41))
    ticdc.write(1, {first: range(1, 11)})
    ticdc.write(2, {second: range(11, 21), third: range(21, 26), last_read: range(26, 31)})
    ticdc.write(3, {fourth: range(31, 41)}, indexed=False)
    ticdc.checkpoint(checkpoint)
    consumer.round()
    assert consumer.ids == [*range(1, 31)]
    before = {path: path.read_bytes() for path in ticdc.directory.rglob("*") if path.is_file()}

    spec: dict[str, Any] = {
        "startTs": None,
        "state": {"uri": (world.folder / "state").as_uri(), "id": "orders"},
    }
    changefeed = world.changefeed(**spec)
    adopted = await adopt_ticdc(changefeed, confirmed=True)
    assert (adopted.start_ts, adopted.files) == (checkpoint, 3)

    async def write_until(ts: int) -> None:
        run = world.run(**spec)
        await run.until(lambda: world.checkpoint() >= ts, f"{ts} is published")
        await run.drained()

    await write_until(world.insert(range(41, 51)))
    assert world.ids() == [*range(1, 41), *range(21, 51)], "rows above the checkpoint stand in both"
    assert ours(world.lake, checkpoint)[0] == f"CDC{1:020}.csv"
    await check_verified(world, rows=30)
    await asyncio.to_thread(consumer.round)
    # Another run of it, and a DDL.
    world.orders = world.tidb.add_column(world.orders, NewColumn("note", "varchar(8)", nullable=True))
    await write_until(world.insert(range(51, 61)))
    await check_verified(world, rows=40)
    await asyncio.to_thread(consumer.round)

    assert {path: path.read_bytes() for path in before} == before, "nothing that TiCDC wrote is touched"
    # What is at its watermark it takes again, what is below not.
    assert consumer.ids == [*range(1, 31), *range(26, 61)]
    assert await asyncio.to_thread(tailed, world.lake) == [*range(1, 61)]
    again = StorageConsumer(world.lake)
    again.round()
    assert again.ids == consumer.ids, "one that reads all from the beginning"
