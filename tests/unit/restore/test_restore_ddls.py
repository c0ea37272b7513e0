"""Behind every DDL tables are rebuilt as they were at each moment, or named where the files don't say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from changefeed.restore.source import NotRestorable
from changefeed_devcluster.ddl import columns, databases, indexes, partitions, tables
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.tidb.schema import NewColumn
from restore_story import ITEMS, Marks, restored
from verify_story import Story, write_story

Tell = Callable[[Story, Callable[[], int]], object]


def rows(story: Story, mark: Callable[[], int]) -> None:
    story.update("items", 1, note=None)
    story.delete("items", 2)
    mark()
    story.insert("items", (2,), price=7)
    with story.tidb.begin() as txn:
        txn.delete(story.table("parted"), 3)
        txn.insert(story.table("parted"), {"id": 13, "price": 3, "note": "moved"})
    story.tidb.create_table(story.db, "coded", [*ITEMS, NewColumn("code", "int", unique=True)])
    story.insert("coded", (1,), price=1, code=1)
    story.update("coded", 1, code=2)  # a delete and an insert of one commit ts


def drop_truncate_and_create(story: Story, mark: Callable[[], int]) -> None:
    story.tidb.truncate_table(story.table("items"))
    mark()
    story.insert("items", range(2), price=3)
    mark()
    story.tidb.drop_table(story.table("items"))
    mark()
    story.tidb.create_table(story.db, "items", ITEMS)
    story.insert("items", (7,), price=4)


def truncate_what_was_there_before(story: Story, mark: Callable[[], int]) -> None:
    story.tidb.truncate_table(story.table("old"))
    mark()
    story.insert("old", (2,), price=3)


def create_several(story: Story, mark: Callable[[], int]) -> None:
    tables.create_tables(story.tidb, story.db, [tables.NewTable("one", ITEMS), tables.NewTable("two", ITEMS)])
    story.insert("two", (1,), price=1)


def rename(story: Story, mark: Callable[[], int]) -> None:
    tables.rename_table(story.tidb, story.table("items"), story.tidb.databases[story.too], "renamed")
    mark()
    story.update(f"{story.too}.renamed", 2, note="after")
    story.delete(f"{story.too}.renamed", 3)


def swap(story: Story, mark: Callable[[], int]) -> None:
    story.tidb.create_table(story.db, "other", ITEMS)
    story.insert("other", range(4), price=9)
    tables.swap_tables(story.tidb, story.table("items"), story.table("other"))
    mark()
    story.update("other", 2, note="was items")
    story.delete("items", 3)


def rename_out(story: Story, mark: Callable[[], int]) -> None:
    tables.rename_table(story.tidb, story.table("items"), story.tidb.databases[story.out], "items")


def recover(story: Story, mark: Callable[[], int]) -> None:
    dropped = story.table("items")
    story.tidb.drop_table(dropped)
    tables.recover_table(story.tidb, dropped, "recovered")
    mark()
    story.update("recovered", 2, note="after")


def add_and_drop_columns(story: Story, mark: Callable[[], int]) -> None:
    last(columns.add_column(story.tidb, story.table("items"), NewColumn("first", "int", True, "-7"), columns.FIRST))
    last(columns.add_column(story.tidb, story.table("items"), NewColumn("last", "varchar(9)", True)))
    mark()
    story.insert("items", (30,), price=1, first=8, last="mine")
    last(columns.drop_column(story.tidb, story.table("items"), "note"))
    mark()
    last(columns.add_column(story.tidb, story.table("items"), NewColumn("note", "varchar(9)", True, "again")))


def add_columns_that_forbid_null(story: Story, mark: Callable[[], int]) -> None:
    kinds = ("int", "varchar(9)", "double", "varbinary(4)", "enum('x','y')", "set('x','y')", "bit(12)", "year")
    for number, kind in enumerate(kinds):
        last(columns.add_column(story.tidb, story.table("items"), NewColumn(f"z{number}", kind)))
    mark()
    story.update("items", 1, z0=7)


def rename_and_move_columns(story: Story, mark: Callable[[], int]) -> None:
    last(columns.modify_column(story.tidb, story.table("items"), "note", NewColumn("text", "varchar(24)", True)))
    story.update("items", 1, text="after")
    mark()
    last(columns.modify_column(story.tidb, story.table("items"), "price", NewColumn("price", "int"), columns.FIRST))
    story.update("items", 2, price=6)


def widen_a_column(story: Story, mark: Callable[[], int]) -> None:
    last(columns.modify_column(story.tidb, story.table("items"), "price", NewColumn("price", "bigint")))
    last(columns.modify_column(story.tidb, story.table("items"), "note", NewColumn("note", "varchar(60)", True)))
    story.insert("items", (40,), price=1 << 40, note="x" * 50)


def compute_columns(story: Story, mark: Callable[[], int]) -> None:
    """Virtual ones, between others; no row has a value for them."""
    twice = NewColumn("twice", "int", True, generated="`price` * 2")
    story.tidb.create_table(story.db, "computed", (*ITEMS[:2], twice, ITEMS[2]))
    story.insert("computed", (1, 2), price=5, note="first")
    mark()
    thrice = NewColumn("thrice", "int", True, generated="`price` * 3")
    last(columns.add_column(story.tidb, story.table("computed"), thrice, columns.FIRST))
    story.insert("computed", (3,), price=7, note="second")
    mark()
    last(columns.drop_column(story.tidb, story.table("computed"), "twice"))
    story.update("computed", 2, note="third")


def change_an_index(story: Story, mark: Callable[[], int]) -> None:
    indexes.add_index(story.tidb, story.table("items"), "i", ["note"], False)
    story.update("items", 1, note="with an index")
    mark()
    indexes.drop_index(story.tidb, story.table("items"), "i")
    story.update("items", 2, note="without one")


def move_partitions(story: Story, mark: Callable[[], int]) -> None:
    empty = story.tidb.truncate_table(story.table("parted"))
    partitions.add_partition(story.tidb, partitions.drop_partition(story.tidb, empty, "p2"), "p3", 40)
    story.insert("parted", (11, 12, 22, 33), price=1)
    partitions.reorganize_partition(story.tidb, story.table("parted"), ["p1"], {"p4": 12, "p5": 20})
    mark()
    story.update("parted", 12, note="moved")
    partitions.remove_partitioning(story.tidb, story.table("parted"))
    story.update("parted", 11, note="moved too")


def drop_a_database(story: Story, mark: Callable[[], int]) -> None:
    story.tidb.create_table(story.too, "inside", ITEMS)
    story.insert(f"{story.too}.inside", (1,), price=1)
    mark()
    databases.drop_database(story.tidb, story.too)
    mark()
    databases.create_database(story.tidb, story.too)
    story.tidb.create_table(story.too, "inside", ITEMS)


STORIES: tuple[Tell, ...] = (
    rows, drop_truncate_and_create, truncate_what_was_there_before, create_several, rename, swap, rename_out, recover,
    add_and_drop_columns, add_columns_that_forbid_null, rename_and_move_columns, widen_a_column, compute_columns,
    change_an_index, move_partitions, drop_a_database,
)  # fmt: skip


@pytest.mark.parametrize("tell", STORIES)
async def test_tables_are_rebuilt_as_they_were(story: Story, tmp_path: Path, tell: Tell) -> None:
    marks = Marks(story)
    marks.mark()
    tell(story, marks.mark)
    marks.mark()
    sink = await write_story(tmp_path, story)
    old = f"{story.db}.old"
    for ts, wanted in marks.all:
        found, report = restored(sink.uri, ts, tmp_path / str(ts))
        if old not in found:
            (left,) = report.left
            assert left.table == old
            assert "existed when the changefeed started" in left.why
            wanted.pop(old)
        assert found == wanted


def convert_a_column(story: Story) -> str:
    last(columns.modify_column(story.tidb, story.table("items"), "price", NewColumn("price", "varchar(24)")))
    return r"price was converted at \d+, and no file says how; 6 of its rows have not changed since"


def add_a_column_of_now(story: Story) -> str:
    last(
        columns.add_column(story.tidb, story.table("items"), NewColumn("at", "timestamp", True, "2001-01-01 00:00:00"))
    )
    return r"no file says what rows from before \d+ have in at"


def change_several_at_once(story: Story) -> str:
    last(columns.change_several(story.tidb, story.table("items"), NewColumn("more", "int", True, "3"), "note"))
    return "rows may have got values in more before"


def drop_a_partition(story: Story) -> str:
    partitions.drop_partition(story.tidb, story.table("parted"), "p2")
    return "no file says which rows were in the partitions"


def exchange_a_partition(story: Story) -> str:
    tables.create_like(story.tidb, story.table("parted"), "twin")
    partitions.exchange_partition(story.tidb, story.table("parted"), "p1", story.table("twin"))
    return "no file says which rows EXCHANGE PARTITION has moved"


def rename_in(story: Story) -> str:
    inside, outside = (story.tidb.databases[name] for name in (story.db, story.out))
    tables.rename_table(story.tidb, story.table("items"), outside, "items")
    tables.rename_table(story.tidb, story.table(f"{story.out}.items"), inside, "back")
    return "no file has its rows"


def without_a_key(story: Story) -> str:
    story.tidb.create_table(story.db, "keyless", ITEMS, None)
    return "no primary key"


@pytest.mark.parametrize(
    "tell",
    [
        convert_a_column, add_a_column_of_now, change_several_at_once, drop_a_partition, exchange_a_partition,
        rename_in, without_a_key,
    ],
)  # fmt: skip
async def test_what_no_file_says_is_named(story: Story, tmp_path: Path, tell: Callable[[Story], str]) -> None:
    before = story.tidb.now()
    why = tell(story)
    sink = await write_story(tmp_path, story)
    found, report = restored(sink.uri, sink.checkpoint_ts, tmp_path / "after")
    reasons = {left.table: left.why for left in report.left}
    assert any(re.match(f".*{why}", each) for each in reasons.values()), reasons
    assert not reasons.keys() & found.keys()
    assert len(restored(sink.uri, before, tmp_path / "before")[0]) == 2, "nothing had happened by then"


async def test_a_gap_ends_when_its_rows_have_been_written_again(story: Story, tmp_path: Path) -> None:
    convert_a_column(story)
    for number in (1, 2, 3, 11, 12):
        story.update("items", number, price="new")
    story.delete("items", 21)
    ts = story.tidb.now()
    rows = story.tidb.snapshot(story.table("items"), ts)
    sink = await write_story(tmp_path, story)
    found, _ = restored(sink.uri, ts, tmp_path / "after")
    assert found[f"{story.db}.items"] == rows


async def test_a_table_of_before_is_rebuilt_from_a_base(story: Story, tmp_path: Path) -> None:
    marks = Marks(story)
    story.insert("old", (2, 3), price=6, note="'")
    base_ts = marks.mark()
    story.delete("old", 1)
    marks.mark()
    last(columns.add_column(story.tidb, story.table("old"), NewColumn("more", "int", True, "3")))
    story.update("old", 2, more=4)
    end_ts = marks.mark()
    sink = await write_story(tmp_path, story)
    rows_of_base = [
        {"id": 1, "price": 5, "note": None},
        {"id": 2, "price": 6, "note": "'"},
        {"id": 3, "price": 6, "note": "'"},
    ]
    base = tmp_path / "base"
    (base / story.db).mkdir(parents=True)
    for rows_then in (rows_of_base[:1], rows_of_base):  # as of the start, or a little later
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows_then), base / story.db / "old.parquet")
        for ts, wanted in marks.all:
            found, report = restored(sink.uri, ts, tmp_path / f"{ts}-{len(rows_then)}", base)
            assert (found, report.left) == (wanted, []), (base_ts, ts, end_ts)
    pyarrow.parquet.write_table(pa.table({"id": [1]}), base / story.db / "old.parquet")
    with pytest.raises(NotRestorable, match="has no column price, note"):
        restored(sink.uri, end_ts, tmp_path / "wrong", base)
