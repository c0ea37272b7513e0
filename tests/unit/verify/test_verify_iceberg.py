"""How a lake's files become rows that the upstream's are held against."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from changefeed.reading.scratch import open_database
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, parse_table_info
from changefeed.verify.result import TableRows
from changefeed.verify.tables.parquet_values import of_lake
from changefeed.verify.tables.replayed import ReplayedComparison

Rows = list[tuple[int, str]]
FINE, MIDNIGHT = datetime(2026, 1, 2, 3, 4, 5, 670_000), datetime(2026, 1, 2, tzinfo=UTC)
Changes = list[tuple[str, int, int, str]]  # op, commit ts, key, value


@pytest.fixture
def db(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    opened = open_database(tmp_path)
    yield opened
    opened.close()


def cells(rows: Rows) -> list[pa.Array]:
    return [pa.array([str(row[place]).encode() for row in rows], pa.binary()) for place in (0, 1)]


class Case:
    def __init__(self, db: duckdb.DuckDBPyConnection, upstream: Rows, at_start: Rows = []) -> None:  # noqa: B006
        self.rows = ReplayedComparison(db, "shop.t", ["id", "v"], [0])
        self.rows.add("upstream", cells(upstream))
        self.rows.add_at_start(cells(at_start))

    def changelog(self, changes: Changes, after_ts: int = 0, knows_start: bool = True) -> tuple[int, TableRows]:
        op, ts = pa.array([each[0] for each in changes]), pa.array([each[1] for each in changes], pa.int64())
        self.rows.add_stored(1, cells([(each[2], each[3]) for each in changes]), op, ts)
        return self.rows.settle(after_ts, is_changelog=True, knows_start=knows_start), self.rows.found()


def counts(found: TableRows) -> tuple[int, int, int]:
    return found.missing, found.surplus, found.different


def test_the_last_change_of_a_row_counts(db: duckdb.DuckDBPyConnection) -> None:
    case = Case(db, [(1, "b"), (3, "c")])
    changes = [
        ("I", 5, 1, "a"),
        ("U", 6, 1, "b"),
        ("I", 5, 2, "x"),
        ("D", 7, 2, "x"),
        ("D", 8, 3, "z"),
        ("I", 8, 3, "c"),
    ]
    twice, found = case.changelog(changes)
    assert (twice, counts(found)) == (0, (0, 0, 0))


def test_a_changelog_that_lacks_has_too_much_or_has_other_values(db: duckdb.DuckDBPyConnection) -> None:
    case = Case(db, [(1, "b"), (2, "x"), (4, "d")])
    _, found = case.changelog([("I", 5, 1, "a"), ("I", 5, 3, "c"), ("I", 6, 2, "x"), ("D", 7, 2, "x")])
    assert counts(found) == (2, 1, 1)


def test_a_change_that_is_there_twice_is_counted(db: duckdb.DuckDBPyConnection) -> None:
    assert Case(db, [(1, "a")]).changelog([("I", 5, 1, "a"), ("I", 5, 1, "a")])[0] == 1


def test_what_was_truncated_is_gone(db: duckdb.DuckDBPyConnection) -> None:
    _, found = Case(db, [(2, "b")]).changelog([("I", 5, 1, "a"), ("I", 9, 2, "b")], after_ts=7)
    assert counts(found) == (0, 0, 0)


@pytest.mark.parametrize(("knows_start", "missing"), [(True, 2), (False, 1)])
def test_rows_that_have_not_changed_since_the_start_are_in_no_file(
    db: duckdb.DuckDBPyConnection, knows_start: bool, missing: int
) -> None:
    """Row 1 is as at the start; 2 is another one now, so its change is missing; 3 was deleted in the changelog."""
    case = Case(db, [(1, "a"), (2, "new"), (3, "c")], at_start=[(1, "a"), (2, "b"), (3, "c")])
    _, found = case.changelog([("D", 5, 3, "c")], knows_start=knows_start)
    assert counts(found) == (missing, 0, 0)


def test_deletes_reach_rows_of_earlier_snapshots_alone(db: duckdb.DuckDBPyConnection) -> None:
    case = Case(db, [(1, "b"), (3, "c")])
    case.rows.add_stored(1, cells([(1, "a"), (2, "x"), (3, "c")]), None, None)
    case.rows.add_stored(2, cells([(1, "b")]), None, None)
    case.rows.add_gone(2, cells([(1, ""), (2, "")])[:1])
    assert case.rows.settle(0, is_changelog=False, knows_start=True) == 0
    assert counts(case.rows.found()) == (0, 0, 0)


def test_a_row_that_nothing_deletes_is_surplus(db: duckdb.DuckDBPyConnection) -> None:
    case = Case(db, [(1, "b")], at_start=[])
    case.rows.add_stored(1, cells([(1, "a"), (2, "x")]), None, None)
    case.rows.add_stored(2, cells([(1, "b")]), None, None)
    case.rows.settle(0, is_changelog=False, knows_start=True)
    assert counts(case.rows.found())[1] == 2


def column(tp: int, decimal: int = 0) -> ColumnInfo:
    kind = {"Tp": tp, "Flag": 0, "Flen": 30, "Decimal": decimal}
    made = {"id": 1, "name": {"O": "c"}, "offset": 0, "type": kind, "state": 5}
    return parse_table_info({"id": 1, "name": {"O": "t"}, "cols": [made], "state": 5}, "shop").columns[0]


@pytest.mark.parametrize(
    ("kind", "values", "shown"),
    [
        (column(SqlType.DATETIME, 2), pa.array([FINE], pa.timestamp("us")), "2026-01-02 03:04:05.67"),
        (column(SqlType.TIMESTAMP), pa.array([MIDNIGHT], pa.timestamp("us", "UTC")), "2026-01-02 00:00:00"),
        (column(SqlType.DATE), pa.array([date(2026, 1, 2)]), "2026-01-02"),
        (column(SqlType.DECIMAL, 9), pa.array([Decimal("0.000000001")], pa.decimal128(20, 9)), "0.000000001"),
        (column(SqlType.DECIMAL, 2), pa.array([Decimal("-1.50")], pa.decimal128(20, 2)), "-1.50"),
        (column(SqlType.BIGINT), pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)), str(2**64 - 1)),
        (column(SqlType.INT), pa.array([7], pa.int32()), "7"),
        (column(SqlType.JSON), pa.array(['{"b": 1.0, "a": 2}']), '{"a":2,"b":1}'),
        (column(SqlType.VARCHAR), pa.array(["ü"]), "ü"),
    ],
)
def test_values_of_parquet_have_the_common_form(kind: ColumnInfo, values: pa.Array, shown: Any) -> None:
    (found,) = of_lake(kind, values).to_pylist()
    assert found.decode().replace(" ", "") == shown.replace(" ", "")
    assert of_lake(kind, pa.nulls(1, values.type)).to_pylist() == [None]
