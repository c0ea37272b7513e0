"""DDLs that a person asks a running cluster for, as the product's own reader of meta keys sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.tidb.snapshot import load_schema
from changefeed_devcluster.cli import main
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.tidb import Tidb


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(stores=1) as cluster:
        Tidb(cluster).bootstrap()
        yield cluster


class Person:
    def __init__(self, cluster: DevCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster = cluster
        self._capsys = capsys

    def runs(self, *words: str) -> list[TableInfo]:
        """The tables that there are behind the DDL."""
        main(["ddl", *words, "--pd", self._cluster.pd_address])
        answer: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return asyncio.run(self._tables(int(answer["ts"])))

    async def _tables(self, ts: int) -> list[TableInfo]:
        pd = await PdClient.connect([self._cluster.pd_address])
        try:
            return (await load_schema(Snapshot(pd, ts), ts)).tables_at(ts)
        finally:
            await pd.close()

    def is_refused(self, *words: str) -> str:
        with pytest.raises(SystemExit) as caught:
            main(["ddl", *words, "--pd", self._cluster.pd_address])
        assert caught.value.code == 2
        return self._capsys.readouterr().err


@pytest.fixture
def person(cluster: DevCluster, capsys: pytest.CaptureFixture[str]) -> Person:
    return Person(cluster, capsys)


def test_a_table_is_made_changed_and_dropped(person: Person) -> None:
    (made,) = person.runs("create-table", "shop.notes", "id bigint", "note varchar(20)")
    (added,) = person.runs("add-column", "shop.notes", "due date")
    (truncated,) = person.runs("truncate-table", "shop.notes")
    columns = [[column.name for column in table.columns] for table in (made, added, truncated)]
    assert columns == [["id", "note"], ["id", "note", "due"], ["id", "note", "due"]]
    assert made.full_name == "shop.notes"
    assert made.id == added.id != truncated.id
    assert person.runs("drop-table", "shop.notes") == []


def test_columns_and_indexes_come_change_and_go(person: Person) -> None:
    person.runs("create-table", "shop.notes", "id bigint", "n int", "note varchar(20)")
    (wider,) = person.runs("modify-column", "shop.notes", "n", "number varchar(40)")
    assert [(column.name, column.type, column.flen) for column in wider.columns][1:] == [
        ("number", 15, 40),
        ("note", 15, 20),
    ]
    (indexed,) = person.runs("add-index", "shop.notes", "by_note", "note", "--unique")
    assert [(index.name, index.is_unique) for index in indexed.indexes] == [("by_note", True)]
    (plain,) = person.runs("drop-index", "shop.notes", "by_note")
    (narrow,) = person.runs("drop-column", "shop.notes", "note")
    assert (plain.indexes, [column.name for column in narrow.columns]) == ((), ["id", "number"])


def test_tables_are_renamed_exchanged_and_dropped_with_their_database(person: Person) -> None:
    (parted,) = person.runs("create-table", "shop.parted", "id bigint", "--partition", "p0=10")
    person.runs("create-table", "other.one", "id bigint")
    renamed = person.runs("rename-table", "other.one", "shop.other")[-1]
    assert renamed.full_name == "shop.other"
    found = {table.name: table for table in person.runs("exchange-partition", "shop.parted", "p0", "shop.other")}
    assert (found["parted"].partition_ids, found["other"].id) == ((renamed.id,), parted.partition_ids[0])
    assert person.runs("drop-database", "shop") == []


def test_partitions_come_and_go(person: Person) -> None:
    (made,) = person.runs("create-table", "shop.parted", "id bigint", "--partition", "p0=10", "--partition", "p1=20")
    (added,) = person.runs("add-partition", "shop.parted", "p2", "30")
    (truncated,) = person.runs("truncate-partition", "shop.parted", "p1")
    (dropped,) = person.runs("drop-partition", "shop.parted", "p0")
    p0, p1 = made.partition_ids
    p2, again = added.partition_ids[-1], truncated.partition_ids[1]
    assert [added.partition_ids, truncated.partition_ids, dropped.partition_ids] == [
        (p0, p1, p2),
        (p0, again, p2),
        (again, p2),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("drop-table", "shop.nothing"), "there is no table shop.nothing: there are mysql.tidb_ddl_job, shop.notes"),
        (("drop-table", "notes"), "'notes' names no table: write DATABASE.TABLE"),
        (("add-column", "shop.notes", "due"), "'due' is no column: write NAME and TYPE"),
        (("add-column", "shop.notes", "id int"), "table shop.notes has a column id"),
        (("add-column", "shop.notes", "due whenever"), "'whenever'"),
        (("drop-column", "shop.notes", "id"), "column id of shop.notes is part of a key"),
        (("drop-index", "shop.notes", "by_id"), "table shop.notes has no index by_id: it has none"),
        (("add-index", "shop.notes", "by_due", "due"), "table notes has no column due"),
        (("rename-table", "shop.notes", "far.notes"), "there is no database far of yours"),
        (("drop-database", "mysql"), "there is no database mysql of yours"),
        (("drop-partition", "shop.notes", "p0"), "table shop.notes has no partition p0: it has none"),
        (("create-table", "shop.notes", "id int"), "table shop.notes exists"),
        (("create-table", "shop.other", "id int", "--partition", "p0"), "wants NAME=NUMBER"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_next_step(person: Person, words: tuple[str, ...], said: str) -> None:
    person.runs("create-table", "shop.notes", "id bigint")
    assert said in person.is_refused(*words)
