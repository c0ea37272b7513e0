"""O8: behind every DDL a consumer of the files has the upstream's tables, and what it would trip over is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from changefeed.verify.result import Result
from changefeed.verify.storage import report
from changefeed.verify.storage.report import verify
from changefeed_devcluster.ddl import columns, indexes
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import PRIMARY, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb
from verify_ddls import (
    ITEMS,
    PARTS,
    add_a_partition,
    add_columns,
    change_an_index,
    change_several,
    convert_a_column,
    create_drop_and_truncate,
    create_several,
    drop_a_column,
    drop_a_database,
    exchange_a_partition,
    partition_a_table,
    recover,
    rename,
    rename_columns,
    rename_out_and_in,
    reorganize_partitions,
    swap,
    truncate_a_partition,
    views,
    widen_a_column,
)
from verify_story import Story, StorySink, write_story

Tell = Callable[[Story], object]


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tidb(cluster: DevCluster) -> Tidb:
    tidb = Tidb(cluster)
    tidb.bootstrap()
    return tidb


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def story(cluster: DevCluster, tidb: Tidb, numbers: Iterator[int]) -> Story:
    """`items` and `parted` have rows when it begins."""
    story = Story(cluster, tidb, f"db{next(numbers)}_")
    for name in (story.db, story.too, story.out):
        tidb.create_database(name)
    tidb.create_table(story.db, "items", ITEMS)
    tidb.create_table(story.db, "parted", ITEMS, partitions=PARTS)
    for name in ("items", "parted"):
        story.insert(name, (1, 2, 3, 11, 12, 21), price=5, note="old")
    story.start_ts = tidb.now()
    return story


#: What the files alone don't say, and a note tells; "": nothing.
STORIES: dict[Tell, str] = {
    create_drop_and_truncate: "",
    create_several: "",
    rename: "",
    swap: "",
    rename_out_and_in: "the rows of {db}.back as of",
    add_columns: "the default of {db}.items.c9 at",  # TIMESTAMP is of a time zone
    drop_a_column: "",
    rename_columns: "",
    widen_a_column: "",
    change_an_index: "",
    change_several: "",
    recover: "",
    add_a_partition: "the ids of {db}.parted's partitions p2 at",
    truncate_a_partition: "the ids of {db}.parted's partitions p1 at",
    exchange_a_partition: "the ids of {db}.parted's partition p1 before and after",
    views: "",
    drop_a_database: "",
    convert_a_column: "the values of {db}.items.price as of",
    reorganize_partitions: "which partitions hold the rows of {db}.parted as of",
    partition_a_table: "which partitions hold the rows of {db}.items as of",
}


@pytest.mark.parametrize(("tell", "taken"), STORIES.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_a_consumer_ends_with_the_upstreams_tables(story: Story, tmp_path: Path, tell: Tell, taken: str) -> None:
    tell(story)
    result = await verify((await write_story(tmp_path, story)).uri, story.pd)
    assert result.first_problem is None
    assert result.consumed > 0
    assert len(result.notes) == bool(taken)
    assert not taken or taken.format(db=story.db) in result.notes[0]


async def test_a_table_without_a_key_is_followed_from_where_it_has_one(story: Story, tmp_path: Path) -> None:
    story.tidb.create_table(story.db, "heap", ITEMS, pk=None)
    story.insert("heap", (1,), price=1, _tidb_rowid=1)
    sink = await write_story(tmp_path, story)
    result = await verify(sink.uri, story.pd)
    assert result.ok
    assert result.notes == [f"{story.db}.heap has no key in its files: its changes were compared but not replayed."]
    indexes.add_index(story.tidb, story.table("heap"), PRIMARY, ["id"], True)
    story.insert("heap", (3,), price=1, _tidb_rowid=3)
    (tmp_path / "later").mkdir()
    later = await verify((await write_story(tmp_path / "later", story)).uri, story.pd)
    assert later.ok, later.first_problem
    assert later.consumed == result.consumed + 2
    assert f"the rows of {story.db}.heap as of" in later.notes[-1]


async def test_a_ddl_that_readers_are_not_told_of_is_followed_and_noted(story: Story, tmp_path: Path) -> None:
    story.tidb.truncate_table(story.table("items"))
    story.insert("items", (5,), price=5)
    story.tidb.drop_table(story.table("parted"))
    ignored = {"eventFilters": [{"matcher": ["*.*"], "ignoreEvent": ["truncate table", "drop table"]}]}
    result = await verify((await write_story(tmp_path, story, **ignored)).uri, story.pd)
    assert result.first_problem is None
    assert any(f"Whether a consumer has {story.db}.parted was not checked" in note for note in result.notes)
    assert any(f"the rows of {story.db}.items as of" in note for note in result.notes)


async def test_rows_that_are_written_before_several_changes_have_ended_are_of_the_new_columns(
    story: Story, tmp_path: Path
) -> None:
    """One step shows all columns; the one that is dropped goes after it."""
    states = columns.change_several(story.tidb, story.table("items"), NewColumn("more", "int", True, "3"), "note")
    while "more" not in {column.name for column in story.table("items").info.public}:
        next(states)
    story.update("items", 1, more=4)
    last(states)
    result = await verify((await write_story(tmp_path, story)).uri, story.pd)
    assert result.first_problem is None
    assert result.notes == []


async def test_names_that_are_alike_when_a_dot_joins_them_are_two(story: Story, tmp_path: Path) -> None:
    """Both have a schema file of the start, with other columns."""
    tidb, other = story.tidb, f"{story.db}.a"
    tidb.create_database(other)
    outer = tidb.create_table(story.db, "a.b", ITEMS)
    tidb.forget(outer)  # the development cluster joins names too
    inner = tidb.create_table(other, "b", ITEMS[:2])
    story.start_ts = tidb.now()
    with tidb.begin() as txn:
        txn.insert(outer, {"id": 1, "price": 5, "note": "of a.b"})
        txn.insert(inner, {"id": 2, "price": 6})
    result = await verify((await write_story(tmp_path, story)).uri, story.pd)
    assert result.first_problem is None
    assert result.consumed == 6 + 6 + 1 + 1  # items and parted have six each


# --- harm ---


async def found(sink: StorySink) -> Result:
    result = await verify(sink.uri, sink.story.pd)
    assert not result.ok
    assert result.first_problem is not None
    return result


async def harmed(story: Story, tmp_path: Path, tell: Tell) -> StorySink:
    tell(story)
    sink = await write_story(tmp_path, story)
    assert (await verify(sink.uri, story.pd)).ok
    return sink


@pytest.fixture
def without_consumer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """What the other oracles say."""

    async def nothing(*_: Any) -> None:
        pass

    return lambda: monkeypatch.setattr(report, "replay", nothing)


OF_STATEMENTS: dict[str, tuple[Tell, Callable[[StorySink], object], str]] = {
    "another old name": (
        rename,
        lambda sink: sink.rewrite(
            next((sink.lake / sink.story.too / "renamed" / "meta").iterdir()),
            lambda file: file.update(Query=file["Query"].replace("`items`", "`parted`")),
        ),
        "A consumer has a table db",
    ),
    "another table": (
        create_drop_and_truncate,
        lambda sink: sink.rewrite(
            sink.schema_files("items", 4)[0], lambda file: file.update(Query="DROP TABLE `parted`")
        ),
        "has a statement about tables other than",
    ),
    "another type": (
        create_drop_and_truncate,
        lambda sink: sink.rewrite(sink.schema_files("more", 11)[0], lambda file: file.update(Type=5)),
        "has Type 5, which does not match its statement: TRUNCATE TABLE",
    ),
    "another length": (
        widen_a_column,
        lambda sink: sink.rewrite(
            sink.schema_files("items", 12)[-1],
            lambda file: file["TableColumns"][2].update(ColumnPrecision="24"),
        ),
        "says note VARCHAR(24): the upstream has note VARCHAR(60)",
    ),
    "another column": (
        rename_columns,
        lambda sink: sink.rewrite(
            sink.schema_files("items", 12)[0],
            lambda file: file.update(Query=file["Query"].replace("`note`", "`prise`")),
        ),
        "does not have its statement's columns (note, text)",
    ),
    "another partition": (
        truncate_a_partition,
        lambda sink: sink.rewrite(
            sink.schema_files("parted", 23)[0], lambda file: file.update(Query=file["Query"].replace("p1", "p0"))
        ),
        "at the checkpoint has no such row; the upstream has id='1'",
    ),
    "a database's file of another content": (
        drop_a_database,
        lambda sink: _append(next((sink.lake / sink.story.too / "meta").iterdir()), '"Schema": "', "x"),
        "unlike its own name",
    ),
}


def _append(path: Path, behind: str, what: str) -> None:
    path.write_text(path.read_text().replace(behind, behind + what))


@pytest.mark.parametrize(("tell", "harm", "said"), OF_STATEMENTS.values(), ids=OF_STATEMENTS)
async def test_a_wrong_statement_is_seen_by_nobody_else(
    story: Story,
    tmp_path: Path,
    without_consumer: Callable[[], object],
    tell: Tell,
    harm: Callable[[StorySink], object],
    said: str,
) -> None:
    sink = await harmed(story, tmp_path, tell)
    harm(sink)
    assert said in ((await found(sink)).first_problem or "")
    without_consumer()
    assert (await verify(sink.uri, story.pd)).ok


async def test_a_wrong_default_shows_in_old_rows(
    story: Story, tmp_path: Path, without_consumer: Callable[[], object]
) -> None:
    last(columns.add_column(story.tidb, story.table("items"), NewColumn("more", "int", True, "3")))
    sink = await write_story(tmp_path, story)
    sink.rewrite(sink.schema_files("items", 5)[0], lambda file: file["TableColumns"][3].update(ColumnDefault="4"))
    result = await found(sink)
    assert result.consumed_different == 6
    assert "more='4' (as the upstream once had it); the upstream has" in (result.first_problem or "")
    without_consumer()
    assert (await verify(sink.uri, story.pd)).ok


async def test_a_drop_that_no_file_tells_of_leaves_a_table(story: Story, tmp_path: Path) -> None:
    story.tidb.drop_table(story.table("items"))
    sink = await write_story(tmp_path, story)
    sink.schema_files("items", 4)[0].unlink()
    assert await said_by_consumer(sink, f"A consumer has a table {story.db}.items at the checkpoint")


async def test_a_wrong_value_behind_a_rename_is_found(story: Story, tmp_path: Path) -> None:
    rename(story)
    sink = await write_story(tmp_path, story)
    path = next((sink.lake / story.too / "renamed").rglob("CDC*.csv"))
    path.write_bytes(path.read_bytes().replace(b"after", b"aft"))
    problem = f"A consumer's {story.too}.renamed at the checkpoint has id='2', price='5', note='aft' (by "
    assert await said_by_consumer(sink, problem)


@pytest.mark.parametrize("number", [0, -1], ids=["before its version", "after its version"])
async def test_a_row_under_a_wrong_version_is_found(story: Story, tmp_path: Path, number: int) -> None:
    change_an_index(story)
    sink = await write_story(tmp_path, story)
    wrong, right = (sink.data_file("items", place) for place in ((1, 2) if number else (2, 1)))
    wrong.write_bytes(wrong.read_bytes() + right.read_bytes())
    right.write_bytes(b"")
    assert await said_by_consumer(sink, f"A row of {story.db}.items has commit ts ")


async def said_by_consumer(sink: StorySink, what: str) -> bool:
    """Whether it is among the problems; other oracles may have spoken before."""
    problems: list[str] = []

    class Every(Result):
        def problem(self, what: str) -> None:
            problems.append(what)
            super().problem(what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "Result", Every)
        await verify(sink.uri, sink.story.pd)
    return any(problem.startswith(what) for problem in problems)


# --- hard rules ---


def _first(sink: StorySink) -> Path:
    return sink.schema_files("items")[0]


def _moved(sink: StorySink, path: Path, to: str) -> None:
    (sink.lake / to).parent.mkdir(parents=True, exist_ok=True)
    path.rename(sink.lake / to)


HARD_RULES: dict[str, tuple[Callable[[StorySink], object], str]] = {
    "the name parses": (
        lambda sink: _first(sink).with_name("schema_1_77.json").write_text("{}"),
        "schema_1_77.json is not named like a schema file",
    ),
    "at a depth of 3 or 4": (
        lambda sink: _moved(sink, _first(sink), f"a/b/c/meta/{_first(sink).name}"),
        "is not named like a schema file",
    ),
    "the checksum is the content's": (
        lambda sink: _append(_first(sink), '"ColumnName": "', "x"),
        "does not match the checksum in its name",
    ),
    "the version is the content's": (
        lambda sink: _append(_first(sink), '"TableVersion": ', "1"),
        "unlike its own name",
    ),
    "data has a schema file of its version": (
        lambda sink: _first(sink).unlink(),
        "has no schema file ",
    ),
    "the content is a schema file's": (lambda sink: _first(sink).write_text("[]"), "is not a schema file."),
    "one for each version": (
        lambda sink: sink.rewrite(_copied(_first(sink)), lambda file: file["TableColumns"][0].update(ColumnName="x")),
        "is the second of its version",
    ),
    "an index parses": (
        lambda sink: (sink.data_file("items", 0).parent / "meta" / "CDC.index").write_text("CDC1"),
        "which is no data file",
    ),
    "numbers have no hole": (
        lambda sink: (sink.data_file("items", 0).parent / "meta" / "CDC.index").write_text(f"CDC{2:020}.csv\n"),
        "is missing: ",
    ),
}


def _copied(path: Path) -> Path:
    copy = path.with_name("copy.json")
    copy.write_bytes(path.read_bytes())
    return copy


@pytest.mark.parametrize(("harm", "said"), HARD_RULES.values(), ids=HARD_RULES)
async def test_a_hard_rule_of_ticdcs_consumer_is_held(
    story: Story, tmp_path: Path, harm: Callable[[StorySink], object], said: str
) -> None:
    story.update("items", 1, note="x")
    sink = await write_story(tmp_path, story)
    harm(sink)
    problem = (await found(sink)).first_problem
    assert problem is not None
    assert said in problem
