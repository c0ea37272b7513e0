"""The Spark source without Spark: every change is read once, whatever ends in between, and DDLs are told."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from changefeed.errors import InvalidSpec, SnapshotLostByGC
from changefeed.eventstore import segment
from changefeed.source import stream
from changefeed.source.schema_changes import SchemaChanged
from changefeed_devcluster.ddl import columns, indexes, partitions, tables
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from integration_inprocess import World, insert, new_world
from integration_source import PlayedSpark, expected, found, options, read_bounded, write_some

AGE = NewColumn("age", "int", nullable=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def step(world: World, rng: random.Random, alive: set[int]) -> None:
    write_some(world, rng, alive, below=200, most=8)


@pytest.mark.parametrize("seed", range(3))
async def test_every_change_is_read_once_however_often_the_query_dies(world: World, seed: int) -> None:
    rng, alive = random.Random(seed), set[int]()
    spark = PlayedSpark(options(world, maxRowsPerTrigger="12"))
    troubles = [world.cluster.repeat, world.cluster.reorder, world.cluster.cut, world.cluster.heal]
    for death in ("planned", "read", "written") * 3:
        for _ in range(rng.randint(1, 8)):
            step(world, rng, alive)
        rng.choice(troubles)()
        done = len(spark.offsets)
        async with spark.query() as query:
            await query.until(int(spark.offsets[-1]["ts"]) + 1 if done and rng.random() < 0.5 else 0)
            step(world, rng, alive)
            while not await query.batch(death):
                await query.stream.next_news()
    world.cluster.heal()
    upto = world.tidb.now()
    async with spark.query() as query:
        await query.stream.set_target()
        while await query.batch():
            pass
    assert int(spark.offsets[-1]["ts"]) >= upto, "up to what was committed before it was asked"
    history = world.tidb.history(world.orders, world.start_ts, int(spark.offsets[-1]["ts"]))
    assert found(spark.rows()) == expected(history)
    for versions, later in zip(spark.versions(), spark.versions()[1:], strict=False):
        assert not versions or not later or max(versions) < min(later), "a transaction is whole in its batch"
    for parts in spark.sink.values():
        changes = [row for part in parts for row in part if row["_change_type"] != "update_preimage"]
        assert len(changes) <= 12


async def test_a_stream_from_now_on_begins_where_it_first_began(world: World) -> None:
    """Spark keeps no first offset: it asks for it again, later, when the first batch did not end."""
    spark = PlayedSpark(replace(options(world), from_ts=None))
    async with spark.query() as query:
        await query.stream.initial()
        world.insert(range(3))
        while not await query.batch("planned"):
            await query.stream.next_news()
    world.insert(range(3, 5))
    async with spark.query() as query:
        assert await query.batch()
        await query.until(world.tidb.now())
    assert sorted(row["id"] for row in spark.rows()) == [0, 1, 2, 3, 4]


async def test_large_batches_are_read_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PARTITION_BYTES", 2_000)
    monkeypatch.setattr(segment, "CURVE_STEP", 500)  # else a segment of so few rows is one piece
    for number in range(20):
        world.insert(range(10 * number, 10 * number + 10))
    spark = PlayedSpark(options(world))
    async with spark.query() as query:
        await query.until(world.tidb.now())
    assert max(len(parts) for parts in spark.sink.values()) > 1
    assert found(spark.rows()) == expected(world.tidb.history(world.orders, world.start_ts, world.tidb.now()))
    owners = [{row["_commit_version"] for row in part} for parts in spark.sink.values() for part in parts]
    assert sum(map(len, owners)) == len(set().union(*owners)), "no transaction is in two"


async def test_bytes_bound_a_batch(world: World) -> None:
    for number in range(20):
        world.insert(range(10 * number, 10 * number + 10))
    small, large = PlayedSpark(options(world, maxBytesPerTrigger="1")), PlayedSpark(options(world))
    for spark in (small, large):
        async with spark.query() as query:
            await query.until(world.tidb.now())
    assert found(small.rows()) == found(large.rows())
    assert len(small.sink) >= len(large.sink)


async def test_nothing_is_planned_while_nothing_happens(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """But after a while the offset moves, for the upstream's GC waits for it."""
    world.insert(range(3))
    spark = PlayedSpark(options(world))
    async with spark.query() as query:
        await query.until(world.tidb.now())
        batches = len(spark.offsets)
        for _ in range(10):
            await query.stream.next_news()
            assert not await query.batch()
        monkeypatch.setattr(stream, "IDLE_TICKS", 1)
        await query.stream.next_news()
        assert await query.batch()
        assert (len(spark.offsets), spark.sink[batches]) == (batches + 1, [])


async def test_a_column_that_is_added_ends_the_stream_behind_all_that_came_before(world: World) -> None:
    spark = PlayedSpark(options(world))
    async with spark.query() as query:
        world.insert(range(5))
        await query.until(world.tidb.now())
        world.insert(range(5, 10))
        wider = world.tidb.add_column(world.orders, AGE)
        ts = world.tidb.last_ddl_ts
        insert(world, wider, [10], age=7)
        with pytest.raises(SchemaChanged) as error:
            await query.until(world.tidb.now())
    assert "column age is new" in str(error.value)
    assert f"at ts {ts} (ADD_COLUMN of shop.orders" in str(error.value)
    assert int(spark.offsets[-1]["ts"]) == ts
    assert sorted(row["id"] for row in spark.rows()) == list(range(10))
    async with spark.query() as query:
        await query.until(world.tidb.now())
    assert next(row for row in spark.rows() if row["id"] == 10)["age"] == 7
    assert found(spark.rows()) == expected(world.tidb.history(world.orders, world.start_ts, world.tidb.now()))


async def test_a_stream_that_died_before_a_ddl_shows_old_rows_in_new_columns(world: World) -> None:
    world.insert(range(5))
    spark = PlayedSpark(options(world))
    async with spark.query() as query:
        while not await query.batch("planned"):
            await query.stream.next_news()
    world.insert(range(5, 10))
    wider = world.tidb.add_column(world.orders, AGE)
    renamed = _last(columns.modify_column(world.tidb, wider, "name", NewColumn("title", "varchar(64)", nullable=True)))
    with world.tidb.begin() as txn:
        txn.insert(renamed, {"id": 10, "title": "ten", "age": 7})
    async with spark.query() as query:
        await query.until(world.tidb.now())
    assert {(row["id"], row["title"], row["age"]) for row in spark.rows() if row["id"] >= 9} == {
        (9, "order 9", None),
        (10, "ten", 7),
    }
    assert len(spark.rows()) == 11


def _last(states: Iterator[NamedTable]) -> NamedTable:
    *_, table = states
    return table


async def test_indexes_come_and_go_unseen(world: World) -> None:
    spark = PlayedSpark(options(world))
    async with spark.query() as query:
        world.insert(range(3))
        indexed = indexes.add_index(world.tidb, world.orders, "by_name", ["name"], False)
        insert(world, indexed, range(3, 6), name="n")
        indexes.drop_index(world.tidb, indexed, "by_name")
        world.insert(range(6, 9))
        await query.until(world.tidb.now())
    assert sorted(row["id"] for row in spark.rows()) == list(range(9))


async def test_who_reads_chosen_columns_is_not_ended_by_others(world: World) -> None:
    own = pa.schema([("id", pa.int64()), ("_change_type", pa.string()), ("_commit_version", pa.int64())])
    spark = PlayedSpark(options(world))
    async with spark.query(own) as query:
        world.insert(range(3))
        await query.until(world.tidb.now())
        insert(world, world.tidb.add_column(world.orders, AGE), range(3, 6), name="n", age=1)
        await query.until(world.tidb.now())
    assert sorted(row["id"] for row in spark.rows()) == list(range(6))
    with pytest.raises(InvalidSpec, match="it has no column price"):
        async with spark.query(pa.schema([("price", pa.int64())])) as query:
            await query.batch()


async def test_a_rename_is_followed_when_it_is_said(world: World) -> None:
    spark = PlayedSpark(options(world))
    async with spark.query() as query:
        world.insert(range(3))
        renamed = tables.rename_table(world.tidb, world.orders, world.tidb.databases["shop"], "sales")
        insert(world, renamed, range(3, 6), name="n")
        with pytest.raises(SchemaChanged, match="Set the option tables to its new name"):
            await query.until(world.tidb.now())
    spark.options = options(world, tables="shop.sales")
    async with spark.query() as query:
        await query.until(world.tidb.now())
    assert sorted(row["id"] for row in spark.rows()) == list(range(6))


@pytest.mark.parametrize("how", ["drop_table", "truncate_table"])
async def test_rows_that_go_without_changes_end_the_stream(world: World, how: str) -> None:
    spark = PlayedSpark(options(world))
    async with spark.query() as query:
        world.insert(range(3))
        await query.until(world.tidb.now())
        world.insert(range(3, 6))
        getattr(world.tidb, how)(world.orders)
        with pytest.raises(SchemaChanged, match=f"startingVersion {world.tidb.last_ddl_ts + 1}"):
            await query.until(world.tidb.now())
    assert sorted(row["id"] for row in spark.rows()) == list(range(6)), "what came before is read"


async def test_partitions_that_are_added_are_read(world: World) -> None:
    parted = world.tidb.create_table(
        "shop", "parted", (NewColumn("id", "bigint"), NewColumn("name", "varchar(8)")), partitions={"p0": 100}
    )
    spark = PlayedSpark(options(world, tables="shop.parted", startingVersion=str(world.tidb.now())))
    async with spark.query() as query:
        insert(world, parted, range(3), name="n")
        await query.until(world.tidb.now())
        wider = partitions.add_partition(world.tidb, parted, "p1", 200)
        insert(world, wider, range(99, 103), name="n")
        await query.until(world.tidb.now())
        partitions.drop_partition(world.tidb, wider, "p1")
        with pytest.raises(SchemaChanged, match="DROP_TABLE_PARTITION"):
            await query.until(world.tidb.now())
    assert sorted(row["id"] for row in spark.rows()) == [0, 1, 2, 99, 100, 101, 102]


def holds(world: World) -> dict[bytes, int]:
    """Return the holds of this source, by name."""
    living = world.cluster.safepoints.living(0)
    return {hold.service_id: hold.safe_point for hold in living if hold.service_id.startswith(b"changefeed-spark-")}


async def test_history_is_held_for_what_is_not_read(world: World) -> None:
    spark = PlayedSpark(options(world))
    world.insert(range(3))
    async with spark.query() as query:
        while not await query.batch("planned"):
            await query.stream.next_news()
    with world.tidb.begin() as txn:
        txn.delete(world.orders, 1)
    world.cluster.collect_garbage(world.tidb.now())
    async with spark.query() as query:
        await query.until(world.tidb.now())
    assert [row["_change_type"] for row in spark.rows()].count("insert") == 3, "GC has waited"
    for service in holds(world):
        world.cluster.safepoints.remove(service)
    world.cluster.collect_garbage(world.tidb.now())
    with pytest.raises(SnapshotLostByGC, match="raise safepointTtl"):
        async with spark.query() as query:
            await query.batch()


async def test_what_is_committed_leaves_no_segment(world: World) -> None:
    spark = PlayedSpark(options(world))
    events = world.folder / "events"
    async with spark.query() as query:
        world.insert(range(3))
        while not await query.batch():
            await query.stream.next_news()
        assert list(events.rglob("*.arrow")), "the batch may have to be read again"
        await query.until(world.tidb.now())
        assert list(events.rglob("*.arrow")) == []
    assert [path for path in events.rglob("*") if path.is_file()] == []


async def test_a_checkpoint_is_of_one_table_and_cluster(world: World) -> None:
    spark = PlayedSpark(options(world))
    world.insert(range(3))
    async with spark.query() as query:
        await query.until(world.tidb.now())
    spark.offsets[-1]["cluster"] = "5"
    with pytest.raises(InvalidSpec, match="the checkpoint belongs to a stream from cluster 5"):
        async with spark.query() as query:
            await query.batch()


async def test_a_beginning_in_the_future_is_refused(world: World) -> None:
    with pytest.raises(InvalidSpec, match=r"startingVersion: .* is in the future"):
        async with PlayedSpark(options(world, startingVersion=str(1 << 62))).query() as query:
            await query.batch()


async def test_a_bounded_read_has_the_history_between_two_versions(world: World) -> None:
    rng, alive = random.Random(1), set[int]()
    for _ in range(30):
        step(world, rng, alive)
    middle = world.tidb.now()
    for _ in range(30):
        step(world, rng, alive)
    wider = world.tidb.add_column(world.orders, AGE)
    insert(world, wider, [900], name="n", age=7)
    end = world.tidb.now()
    world.insert(range(950, 960))
    given = options(world, startingVersion=str(middle + 1), endingVersion=str(end))
    parts = await read_bounded(given)
    rows = [row for part in parts for row in part]
    assert len(parts) >= 2, "one for each region"
    assert found(rows, ("id", "name", "age")) == expected(world.tidb.history(wider, middle, end), ("id", "name", "age"))
    assert list((world.folder / "events").rglob("*.arrow")) == []


async def test_a_bounded_read_needs_a_beginning(world: World) -> None:
    with pytest.raises(InvalidSpec, match="startingVersion: missing"):
        await read_bounded(replace(options(world), from_ts=None))
