"""Rows that may change while they are compared: what counts, what is left out, and what is looked at again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import consumers_postgresql_types as page
import duckdb
import pyarrow as pa
import pytest
from changefeed.reading.rows.formats import Format
from changefeed.reading.rows.lines import LineShape
from changefeed.reading.scratch import scratch_database
from changefeed.verify.kafka.rows import rows_of
from changefeed.verify.snapshot.changes import ChangesOfTable, KeyColumn
from changefeed.verify.tables.comparison import RowComparison, Side
from changefeed.verify.tables.replayed import ReplayedComparison

Rows = dict[str, str]  # by key
OPEN = Format("open-protocol", "", "", "", "\n", False, "latin-1", True, "UTC")


@pytest.fixture
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    with scratch_database() as found:
        yield found


def columns(rows: Rows) -> list[pa.Array]:
    return [pa.array([text.encode() for text in side], pa.binary()) for side in (rows.keys(), rows.values())]


def compared(db: duckdb.DuckDBPyConnection, upstream: Rows, downstream: Rows) -> RowComparison:
    rows = RowComparison(db, "shop.t", ["id", "v"], [0])
    sides: tuple[tuple[Side, Rows], ...] = (("upstream", upstream), ("downstream", downstream))
    for side, given in sides:
        rows.add(side, columns(given))
    return rows


def look(
    db: duckdb.DuckDBPyConnection, before: str | None, kept: str, upstream: Rows, downstream: Rows
) -> tuple[tuple[int, int, int], int]:
    found, moved = compared(db, upstream, downstream).found_again(before, kept)
    return (found.missing, found.surplus, found.different), moved


def test_a_row_is_at_fault_that_differs_in_each_look_and_was_the_same_on_both_sides(
    db: duckdb.DuckDBPyConnection,
) -> None:
    upstream = {"1": "a", "2": "b", "3": "c", "5": "e"}
    assert look(db, None, "first", upstream, {"1": "x", "2": "y", "4": "d", "5": "e"}) == ((1, 1, 2), 0)
    later = upstream | {"2": "new"}
    assert look(db, "first", "second", later, {"1": "x", "2": "y", "4": "d", "5": "e"}) == ((1, 1, 1), 1)
    assert look(db, "second", "third", later, {"1": "x", "2": "new", "3": "c", "4": "other", "5": "e"}) == (
        (0, 0, 1),
        1,
    )
    assert look(db, "", "fourth", upstream, {}) == ((0, 0, 0), 4)


def test_rows_that_the_sink_never_had_are_left_out(db: duckdb.DuckDBPyConnection) -> None:
    rows = compared(db, {"1": "a", "2": "b"}, {"2": "x", "3": "c"})
    assert rows.leave_unsaid() == 1
    found = rows.found()
    assert (found.rows, found.missing, found.surplus, found.different) == (1, 0, 1, 1)


def replayed(db: duckdb.DuckDBPyConnection, upstream: Rows) -> ReplayedComparison:
    rows = ReplayedComparison(db, "shop.t", ["id", "v"], [0])
    rows.add("upstream", columns(upstream))
    return rows


def add(rows: ReplayedComparison, ts: int, op: str, key: str, value: str, values_from: int | None = None) -> None:
    rows.add_stored(0, columns({key: value}), pa.array([op]), pa.array([ts], pa.int64()), values_from)


def test_a_changelog_counts_up_to_a_ts_and_rows_that_it_has_changed_since_another_do_not(
    db: duckdb.DuckDBPyConnection,
) -> None:
    rows = replayed(db, {"1": "a", "2": "b", "3": "c", "4": "d"})
    add(rows, 10, "I", "1", "a")
    add(rows, 30, "U", "1", "of later")
    add(rows, 10, "I", "2", "old")
    add(rows, 20, "U", "2", "busy")
    add(rows, 10, "D", "3", "c")
    assert rows.settle(0, is_changelog=True, knows_start=True, upto_ts=25) == 0
    assert rows.leave_unsaid() == 1  # row 4, of which no change tells
    assert rows.leave_changed(15) == 1  # row 2
    found = rows.found()
    assert (found.rows, found.missing, found.surplus, found.different) == (2, 1, 0, 0)


def test_of_rows_that_are_older_than_a_column_the_keys_alone_are_compared(db: duckdb.DuckDBPyConnection) -> None:
    rows = replayed(db, {"1": "a", "2": "b"})
    add(rows, 10, "I", "1", "without the column", 10)
    add(rows, 11, "I", "2", "wrong", 10)
    add(rows, 10, "I", "3", "too much", 10)
    rows.settle(0, is_changelog=True, knows_start=True)
    assert rows.without_values() == 2
    found = rows.found()
    assert (found.missing, found.surplus, found.different) == (0, 1, 1)


def test_a_change_that_comes_again_is_late_only_where_it_stood_first(db: duckdb.DuckDBPyConnection) -> None:
    changes = ChangesOfTable(db, [KeyColumn("k0", "BLOB", "id")])
    ts = [10, 20, 10, 5, 7]
    keys = pa.array([b"1", b"1", b"1", b"2", b"1"], pa.binary())
    parts = pa.array([0, 0, 0, 0, 1], pa.uint32())
    changes.add(parts, pa.array(["I", "U", "I", "I", "U"]), pa.array(ts, pa.uint64()), [keys])
    assert changes.duplicates().count == 1
    assert changes.late_of_key().count == 0
    assert changes.late().count == 2
    late = pa.array([b"1"], pa.binary())
    changes.add(parts[:1], pa.array(["U"]), pa.array([15], pa.uint64()), [late])
    found = changes.late_of_key()
    assert (found.count, found.first) == (1, "U, commit ts 15, id='1', behind a later one of its row")


def test_words_for_numbers_are_read_in_messages_of_open_protocol() -> None:
    texts = ["NaN", "Infinity", "-Infinity"]
    cell = '{"t":5,"f":64,"v":%s}'
    values = [cell % f'"{text}"' for text in texts] + [cell % "1.5"]
    lines = [f'{{"k":{{"ts":{n}}},"v":{{"u":{{"c":{value}}}}}}}'.encode() for n, value in enumerate(values)]
    info = page.table_of([page.Kind("double precision", 701, -1, "", "")])
    column = replace(info.output_columns[1], name="c")
    (found,) = rows_of(lines, "a message", LineShape(["c"], [pa.float64()]), [column], OPEN)
    assert [str(value) for value in found["c0"].to_pylist()] == ["nan", "inf", "-inf", "1.5"]
    assert found["commit_ts"].to_pylist() == [0, 1, 2, 3]
