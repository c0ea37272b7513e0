"""Verify finds what the product gets wrong about definitions and values, however much of it both see: each test plants
such a fault into the product itself, lets it write a sink, and has verify look at that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changefeed.owner.planning.timeline import Timeline
from changefeed.schema.history import SchemaHistory, Touched
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.tikv.tidb import snapshot
from changefeed.upstream.tikv.tidb.effects import Effects
from changefeed.upstream.tikv.tidb.job import Job
from changefeed.verify.result import Result
from changefeed.verify.storage.report import verify
from changefeed_devcluster.cdc import events
from changefeed_devcluster.ddl.columns import add_column, modify_column
from changefeed_devcluster.ddl.jobs import JobType
from changefeed_devcluster.ddl.running import last, put_table
from changefeed_devcluster.ddl.tables import rename_table
from changefeed_devcluster.store.mvcc import ScannedVersion
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn, make_table
from integration_inprocess import World, insert, new_world

ID = NewColumn("id", "bigint")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


async def verified(world: World, **spec: Any) -> Result:
    """All that was written until now is replicated, then verified."""
    outcome = await world.run(targetTs=str(world.tidb.now()), **spec).outcome()
    assert outcome.state == "finished"
    return await verify(world.lake.as_uri(), [f"http://{world.cluster.pd_address}"])


def plant(
    monkeypatch: pytest.MonkeyPatch, is_meant: Callable[[Job], bool], to: Callable[[SchemaHistory, Job], Job | None]
) -> None:
    """The schema history takes another job in for some, or none at all."""
    apply, touches = SchemaHistory.apply, SchemaHistory.touches

    def fold(self: SchemaHistory, job: Job, finished_ts: int) -> None:
        taken = to(self, job) if is_meant(job) else job
        if taken is not None:
            apply(self, taken, finished_ts)

    def touched(self: SchemaHistory, job: Job) -> Touched:
        taken = to(self, job) if is_meant(job) else job
        return Touched() if taken is None else touches(self, taken)

    monkeypatch.setattr(SchemaHistory, "apply", fold)
    monkeypatch.setattr(SchemaHistory, "touches", touched)


def is_of(kind: JobType) -> Callable[[Job], bool]:
    return lambda job: job.type == int(kind)


# --- which tables have which names ---


def renamed_into_mysql(world: World) -> None:
    insert(world, world.orders, [1], name="mine")
    moved = rename_table(world.tidb, world.orders, world.tidb.databases["mysql"], "orders")
    insert(world, moved, [2], name="not mine")


async def test_rows_of_a_table_that_has_left_are_found_under_its_old_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, is_of(JobType.RENAME_TABLE), lambda *_: None)
    renamed_into_mysql(world)
    result = await verified(world)
    assert world.ids() == [1, 2], "the fault is there"
    assert not result.ok
    assert "mysql" in str(result.first_problem)
    assert result.unexpected == 0  # it stands behind the end of the table's version


async def test_rows_that_are_lost_with_a_rename_into_the_filter_are_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidb = world.tidb
    away = tidb.create_table("mysql", "away", [ID])
    world.start_ts = tidb.now()
    plant(monkeypatch, is_of(JobType.RENAME_TABLE), lambda *_: None)
    insert(world, rename_table(tidb, away, tidb.databases["shop"], "back"), [7])
    result = await verified(world)
    assert world.ids() == [], "the fault is there"
    assert result.missing == 1


async def test_a_table_under_anothers_name_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folding takes the name before for the name after."""

    def unrenamed(storage: SchemaHistory, job: Job) -> Job:
        assert job.table_info is not None
        return replace(job, table_info=replace(job.table_info, name="orders"))

    plant(monkeypatch, is_of(JobType.RENAME_TABLE), unrenamed)
    insert(world, rename_table(world.tidb, world.orders, world.orders.db, "bills"), [1], name="a bill")
    result = await verified(world)
    assert world.ids() == [1], "the fault is there"
    assert "shop/bills/meta/schema_" in str(result.first_problem)
    assert (result.missing, result.ok) == (1, False)


# --- by which definition ---


async def test_rows_by_the_definition_before_a_ddl_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folding keeps the old columns, so the schema file and the rows agree with each other."""

    def unchanged(storage: SchemaHistory, job: Job) -> Job:
        return replace(job, table_info=known[job.table_id])

    known: dict[int, TableInfo] = {}
    begin = SchemaHistory._restart

    def remember(self: SchemaHistory) -> None:
        begin(self)
        known.update({table.id: table for table in self.tables_at(self.snapshot_ts)})

    monkeypatch.setattr(SchemaHistory, "_restart", remember)
    plant(monkeypatch, is_of(JobType.ADD_COLUMN), unchanged)
    orders = last(add_column(world.tidb, world.orders, NewColumn("price", "int", default="5")))
    insert(world, orders, [1], name="x", price=7)
    result = await verified(world)
    assert world.ids() == [1], "the fault is there"
    assert "CSV parse error: Expected 7 columns, got 6" in str(result.first_problem)
    assert (result.missing, result.ok) == (1, False)


@pytest.mark.parametrize("planted", [False, True])
async def test_rows_by_a_column_on_its_way_out_are_found(
    world: World, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """Before MODIFY COLUMN is done sessions write the new column, and the old one gets its default."""
    prices = world.tidb.create_table("shop", "prices", [ID, NewColumn("price", "int")])
    insert(world, prices, [1], price=88)
    world.start_ts = world.tidb.now()
    states = modify_column(world.tidb, prices, "price", NewColumn("price", "varchar(20)"))
    prices = next(state for state in states if state.info.public[1].type.is_text)
    with world.tidb.begin() as txn:
        txn.update(prices, {"id": 1, "price": "88.50"})
        txn.insert(prices, {"id": 2, "price": "317262"})
    last(states)
    if planted:
        effect = Effects.of

        async def only_when_done(self: Effects, job: Job, ts: int) -> Job | None:
            return await effect(self, job, ts) if job.is_done else None

        monkeypatch.setattr(Effects, "of", only_when_done)
    result = await verified(world)
    written = "".join(path.read_text() for path in world.lake.rglob("CDC0*.csv"))
    assert (',1,"88.50"' in written and ',2,"317262"' in written) is not planted
    assert result.ok is not planted, result.first_problem
    assert bool(result.missing) is planted


async def test_partitions_that_a_snapshot_overlooks_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    parted = world.tidb.create_table("shop", "parted", [ID], partitions={"p0": 10, "p1": None})
    world.start_ts = world.tidb.now()
    insert(world, parted, [1, 11])
    parse = snapshot.parse_table_info

    def without_the_last(raw: Mapping[str, Any], name: str) -> TableInfo:
        info = parse(raw, name)
        return replace(info, partition_ids=info.partition_ids[:-1])

    monkeypatch.setattr(snapshot, "parse_table_info", without_the_last)
    result = await verified(world)
    assert world.ids() == [1], "the fault is there"
    assert result.missing == 1


async def test_a_table_that_no_job_has_made_is_named(world: World) -> None:
    """Some ways of making one quickly leave no row where changefeeds look for DDLs (docs/design/tidb.md, DDL jobs)."""
    (id_,) = world.tidb.new_physical_ids(1)
    with world.tidb.begin() as txn:
        bills = put_table(txn, NamedTable(world.orders.db, make_table(id_, "bills", [ID], "id")))
    insert(world, bills, [1])
    result = await verified(world)
    assert world.ids() == [], "nothing tells the changefeed of it"
    assert result.first_problem == "TiDB's sessions see another shop.bills than the finished DDLs have made."


# --- what event filters keep ---

FILTER = {
    "rules": ["shop.*"],
    "eventFilters": [{"matcher": ["shop.orders"], "ignoreEvent": ["rename table"]}],
}


async def test_a_statement_that_a_filter_keeps_is_found_in_a_schema_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks the filter by the name after a rename tells readers what they may not know."""
    real = Timeline.__init__

    def asks_by_the_new_name(self: Timeline, selects: Any, databases: Any, ignores: Any, *rest: Any) -> None:
        def never(job: Job, *names: str) -> bool:
            return False

        real(self, selects, databases, never, *rest)

    monkeypatch.setattr(Timeline, "__init__", asks_by_the_new_name)
    rename_table(world.tidb, world.orders, world.orders.db, "bills")
    result = await verified(world, filter=FILTER)
    assert "has a statement that an event filter keeps from readers: RENAME TABLE" in str(result.first_problem)


# --- values ---


async def test_a_feed_that_gives_another_value_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changefeed and verify's scan of the history get the same wrong one, of no row's last change."""
    first = world.insert(range(1, 2))
    with world.tidb.begin() as txn:
        txn.update(world.orders, {"id": 1, "name": "the real one"})
    second = txn.commit_ts
    with world.tidb.begin() as txn:
        txn.update(world.orders, {"id": 1, "name": "the last one"})
    real = events.scan_rows

    def scan(found: Sequence[Any]) -> list[bytes]:
        items = list(found)
        flushed = next(
            (i.version.value for i in items if isinstance(i, ScannedVersion) and i.version.commit_ts == first), None
        )
        return real([with_value(item, second, flushed) for item in items])

    monkeypatch.setattr(events, "scan_rows", scan)
    result = await verified(world)
    assert "the real one" not in "".join(path.read_text() for path in world.lake.rglob("CDC0*.csv")), (
        "the fault is there"
    )
    assert (result.missing, result.unexpected, result.replay_different) == (0, 0, 0), "nothing else can tell"
    assert "is not what it stores: key" in str(result.first_problem)


def with_value(item: Any, commit_ts: int, value: bytes | None) -> Any:
    if not isinstance(item, ScannedVersion) or item.version.commit_ts != commit_ts or value is None:
        return item
    return item._replace(version=item.version._replace(value=value))
