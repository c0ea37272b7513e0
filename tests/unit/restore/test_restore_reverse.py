"""Reverse changes, against a table that is a dict: applied to what is there now they give what was there then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from changefeed.reading.schema.columns import TableColumn
from changefeed.reading.scratch import open_database
from changefeed.restore.reverse import DELETE, INSERT, UPDATE, Ends, Reverse
from changefeed.restore.rows import RowChanges
from changefeed.restore.schema.table import ColumnHistory, Gap, TableVersion
from hypothesis import given, settings
from hypothesis import strategies as st

KEY, VALUE = ColumnHistory(1, pa.int64()), ColumnHistory(2, pa.string())
COLUMNS = (TableColumn("id", "BIGINT", "", "", False, True), TableColumn("v", "VARCHAR", "9", "", True, False))
SEGMENT = TableVersion(0, ("shop", "t"), COLUMNS, (KEY, VALUE))

Table = dict[int, str | None]
Change = tuple[str, int, str | None]  # op, key, value


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder: Path = tmp_path_factory.mktemp("db")
    with open_database(folder) as opened:
        yield opened


def changes(db: duckdb.DuckDBPyConnection, given: list[tuple[int, Change]]) -> RowChanges:
    made = RowChanges(db, (KEY, VALUE), (KEY,))
    made.add(
        SEGMENT,
        pa.table(
            {
                "op": pa.array([op for _, (op, _, _) in given], pa.string()),
                "commit_ts": pa.array([ts for ts, _ in given], pa.uint64()),
                "c0": pa.array([key for _, (_, key, _) in given], pa.int64()),
                "c1": pa.array([None if v is None else v.encode() for _, (_, _, v) in given], pa.binary()),
            }
        ),
    )
    return made


def reversed_(
    db: duckdb.DuckDBPyConnection, before: list[tuple[int, Change]], since: list[tuple[int, Change]], **more: Any
) -> Reverse:
    then, now = changes(db, before), changes(db, since)
    then.fold()
    db.execute("DROP TABLE IF EXISTS reverse")
    made = Reverse(db, "reverse", Ends(then, now, more.get("emptied", False)), more.get("gaps", []))
    then.drop()
    now.drop()
    return made


def applied(reverse: Reverse, table: Table) -> Table:
    table = dict(table)
    for going in reverse.going():
        for key in going["c0"].to_pylist():
            table.pop(key, None)
    for coming in reverse.coming():
        for key, value in zip(coming["c0"].to_pylist(), coming["c1"].to_pylist(), strict=True):
            table[key] = None if value is None else value.decode()
    return table


_STEPS = st.lists(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["put", "delete", "move"]), st.sampled_from(["a", "b", None]))
    ),
    max_size=6,
)


def run(table: Table, steps: list[Any], first_ts: int) -> list[tuple[int, Change]]:
    """Transactions on `table`: each changes a row at most once; "move" is a delete and an insert of the same key."""
    found: list[tuple[int, Change]] = []
    for ts, step in enumerate(steps, first_ts):
        for key, what, value in {each[0]: each for each in step}.values():
            if what == "put":
                found.append((ts, ("U" if key in table else "I", key, value)))
                table[key] = value
            elif key in table:
                found.append((ts, ("D", key, table.pop(key))))
                if what == "move":
                    found.append((ts, ("I", key, value)))
                    table[key] = value
    return found


def states(table: Table, steps: list[Any]) -> list[Table]:
    """Behind each of them."""
    found = []
    table = dict(table)
    for step in steps:
        run(table, [step], 0)
        found.append(dict(table))
    return found


@given(before=_STEPS, since=_STEPS, data=st.data())
@settings(max_examples=40, deadline=None)
def test_they_take_what_is_there_now_back_to_what_was(
    db: duckdb.DuckDBPyConnection, before: list[Any], since: list[Any], data: st.DataObject
) -> None:
    table: Table = {}
    first = run(table, before, 10)
    then = dict(table)
    later = data.draw(st.permutations(run(table, since, 100)))  # partitions come in any order
    reverse = reversed_(db, first, later)
    assert reverse.unknown == ""
    assert applied(reverse, table) == then
    history = [then, *states(then, since)]
    mixed = {key: data.draw(st.sampled_from(history)) for key in range(1, 5)}
    half_way = {key: state[key] for key, state in mixed.items() if key in state}
    assert applied(reverse, half_way) == then, "from wherever each row is"
    differ = {
        key for key in then.keys() | table.keys() if (key in then, then.get(key)) != (key in table, table.get(key))
    }
    assert sum(reverse.counts().get(kind, 0) for kind in (INSERT, UPDATE, DELETE)) == len(differ)


@given(before=_STEPS, since=_STEPS)
@settings(max_examples=20, deadline=None)
def test_behind_a_truncate_all_of_it_comes_back(
    db: duckdb.DuckDBPyConnection, before: list[Any], since: list[Any]
) -> None:
    then: Table = {}
    first = run(then, before, 10)
    table: Table = {}
    assert applied(reversed_(db, first, run(table, since, 100), emptied=True), table) == then


def test_a_row_of_before_the_files_is_known_but_for_an_update(db: duckdb.DuckDBPyConnection) -> None:
    since: list[tuple[int, Change]] = [
        (100, ("D", 1, "was")),
        (101, ("I", 2, "new")),
        (102, ("D", 3, "x")),
        (103, ("I", 3, "y")),
    ]
    reverse = reversed_(db, [], since)
    assert reverse.counts() == {"insert": 1, "delete": 1, "update": 1}
    assert applied(reverse, {2: "new", 3: "y"}) == {1: "was", 3: "x"}
    assert "1 of its rows were updated since" in reversed_(db, [], [*since, (104, ("U", 4, "?"))]).unknown


def test_a_row_in_a_gap_is_not_set_back(db: duckdb.DuckDBPyConnection) -> None:
    gap = Gap("price was converted", 50)
    for ts, unknown in ((50, True), (51, False)):
        reverse = reversed_(db, [(ts, ("I", 1, "a"))], [(100, ("U", 1, "b"))], gaps=[gap])
        assert bool(reverse.unknown) == unknown
