"""Which tables flashback sets back across DDLs, and which it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from changefeed.errors import InvalidSpec
from changefeed.objectstore.open import open_store
from changefeed.reading.progress import NoProgress
from changefeed.restore.database import Database
from changefeed.restore.flashback import Reversed, flashback
from changefeed.restore.report import RestoreReport
from changefeed.restore.source import NotRestorable, RestoreSource
from changefeed_devcluster.ddl import columns, indexes, tables
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.tidb.schema import NewColumn
from restore_story import ITEMS
from verify_story import Story, StorySink, write_story


class Untouched(Database):
    """Nothing may be written there."""

    def __init__(self) -> None:
        pass


def back(sink: StorySink, ts: int, *names: str) -> RestoreReport:
    """A dry run."""
    source = RestoreSource(open_store(sink.uri))
    report, is_applied = flashback(source, ts, lambda _, table: table in names, None, NoProgress())
    assert not is_applied
    return report


def counts(report: RestoreReport) -> dict[str, tuple[int, int, int]]:
    assert not report.left, report.left
    return {table.table.partition(".")[2]: (table.inserted, table.updated, table.deleted) for table in report.tables}


async def test_rows_are_counted_once_by_what_they_were_and_are(story: Story, tmp_path: Path) -> None:
    ts = story.tidb.now()
    for price in (6, 7):
        story.update("items", 1, price=price)
    story.update("items", 2, price=9)
    story.update("items", 2, price=5)  # as it was
    story.delete("items", 3)
    story.insert("items", (50, 51), price=1)
    story.delete("items", 51)
    sink = await write_story(tmp_path, story)
    assert counts(back(sink, ts, "items", "parted")) == {"items": (1, 1, 1), "parted": (0, 0, 0)}


async def test_a_truncate_is_taken_back(story: Story, tmp_path: Path) -> None:
    ts = story.tidb.now()
    story.delete("items", 1)
    story.tidb.truncate_table(story.table("items"))
    story.insert("items", (2, 60), price=8)
    sink = await write_story(tmp_path, story)
    report = back(sink, ts, "items")
    assert counts(report) == {"items": (5, 1, 1)}
    assert any("TRUNCATE" in note and "stays as it is" in note for note in report.notes)


async def test_an_index_stays_and_is_named(story: Story, tmp_path: Path) -> None:
    ts = story.tidb.now()
    indexes.add_index(story.tidb, story.table("items"), "i", ["note"], False)
    story.update("items", 1, price=6)
    indexes.drop_index(story.tidb, story.table("items"), "i")
    sink = await write_story(tmp_path, story)
    report = back(sink, ts, "items")
    assert counts(report) == {"items": (0, 1, 0)}
    assert len(report.notes) == 2


def add_a_column(story: Story) -> str:
    last(columns.add_column(story.tidb, story.table("items"), NewColumn("more", "int", True)))
    return "its definition was changed after .*ADD COLUMN"


def make_an_index_unique(story: Story) -> str:
    indexes.add_index(story.tidb, story.table("items"), "u", ["id", "price"], True)
    return "its definition was changed after .*UNIQUE"


def rename(story: Story) -> str:
    story.tidb.remember(tables.rename_table(story.tidb, story.table("items"), story.tidb.databases[story.too], "items"))
    return "its definition was changed after .*RENAME"


def drop(story: Story) -> str:
    story.tidb.drop_table(story.table("items"))
    return "it was dropped since: `changefeed restore` can rebuild it"


def create(story: Story) -> str:
    story.tidb.drop_table(story.table("items"))
    story.tidb.create_table(story.db, "items", ITEMS)
    return "it was created after .*CREATE TABLE"


@pytest.mark.parametrize("change", [add_a_column, make_an_index_unique, rename, drop, create])
async def test_a_table_that_is_another_now_is_named_and_nothing_is_applied(
    story: Story, tmp_path: Path, change: Callable[[Story], str]
) -> None:
    ts = story.tidb.now()
    story.update("parted", 1, price=6)
    why = change(story)
    sink = await write_story(tmp_path, story)
    source = RestoreSource(open_store(sink.uri))
    report, is_applied = flashback(source, ts, lambda _, table: table in ("items", "parted"), Untouched(), NoProgress())
    assert not is_applied
    assert any(re.match(why, left.why) for left in report.left), report.left
    assert {left.table.partition(".")[2] for left in report.left} == {"items"}
    assert counts(back(sink, ts, "parted")) == {"parted": (0, 1, 0)}, "the other one alone"


async def test_a_table_of_before_is_set_back_where_files_have_its_rows(story: Story, tmp_path: Path) -> None:
    story.insert("old", (2, 3), price=5)
    ts = story.tidb.now()
    story.update("old", 2, price=6)
    story.delete("old", 1)
    sink = await write_story(tmp_path, story)
    assert counts(back(sink, ts, "old")) == {"old": (1, 1, 0)}


async def test_an_update_of_a_row_of_before_is_not_to_be_set_back(story: Story, tmp_path: Path) -> None:
    ts = story.tidb.now()
    story.update("old", 1, price=6)
    sink = await write_story(tmp_path, story)
    (left,) = back(sink, ts, "old").left
    assert "1 of its rows were updated since, and no file has their earlier values" in left.why


async def test_a_ts_that_the_files_do_not_have_is_refused(story: Story, tmp_path: Path) -> None:
    sink = await write_story(tmp_path, story)
    wrong = {sink.checkpoint_ts + 1: "above the sink's checkpoint", story.start_ts - 1: "where the sink's files begin"}
    for ts, why in wrong.items():
        with pytest.raises(InvalidSpec, match=why):
            back(sink, ts, "items")
    with pytest.raises(NotRestorable, match="no matching table"):
        back(sink, sink.checkpoint_ts, "nothing")
    assert back(sink, sink.checkpoint_ts, "items").tables == [Reversed(f"{story.db}.items", 0, 0, 0)]
