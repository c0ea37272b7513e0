"""The oracles over small tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.rows.lines import LineShape
from changefeed.verify.comparison import oracles
from changefeed.verify.comparison.ledger import TableLedger, TableShape
from changefeed.verify.comparison.oracles import ChangeDifferences, Replay
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Change = tuple[str, int, str, str | None]
ALL = 100
SHAPE = LineShape(["id", "v"], [pa.string(), pa.string()])
RANKS = {"D": 0, "U": 1, "I": 2}

many = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableLedger]:
    ledger = TableLedger(tmp_path_factory.mktemp("spill"))
    yield ledger
    ledger.close()


def load(ledger: TableLedger, files: list[Change], upstream: list[Change], **table: Any) -> None:
    ledger.begin(TableShape("t", SHAPE, table.pop("key", [0]), **table))
    add_files(ledger, files)
    rows = [
        {"commit_ts": ts, "start_ts": ts - 1, "rank": RANKS[op], "key": pk.encode(), "op": op, "c0": pk, "c1": v}
        for op, ts, pk, v in upstream
    ]
    kinds = {"commit_ts": pl.UInt64, "start_ts": pl.UInt64, "rank": pl.UInt8, "key": pl.Binary}
    ledger.add_images(pl.DataFrame(rows, {**kinds, "op": pl.String, "c0": pl.String, "c1": pl.String}))


def add_files(ledger: TableLedger, files: list[Change]) -> None:
    """In pieces of two rows."""
    shape = pa.schema([("op", pa.string()), ("commit_ts", pa.uint64()), ("c0", pa.string()), ("c1", pa.string())])
    for first in range(0, len(files), 2):
        rows = [dict(zip(shape.names, change, strict=True)) for change in files[first : first + 2]]
        ledger.add_files(pa.Table.from_pylist(rows, shape), first)


def add_rows(ledger: TableLedger, name: str, rows: dict[str, str | None]) -> None:
    text = pa.string()
    columns = {"c0": pa.array(list(rows), text), "c1": pa.array(list(rows.values()), text)}
    ledger.add_rows(name, pa.array([pk.encode() for pk in rows], pa.binary()), columns)


def counts(ledger: TableLedger, files: list[Change], upstream: list[Change], **table: Any) -> tuple[int, int, int, int]:
    """missing, duplicate, unexpected, out of order; all 0 is the same as equal sequences."""
    load(ledger, files, upstream, **table)
    found = oracles.differences(ledger, ALL)
    back, first = oracles.disorder(ledger)
    assert (back == 0) == (first is None)
    counted = (found.missing, found.duplicate, found.unexpected, back)
    assert oracles.is_same_sequence(ledger, ALL) == (counted == (0, 0, 0, 0))
    return counted


CHANGES = st.tuples(
    st.sampled_from("DUI"), st.integers(1, ALL), st.sampled_from("12"), st.sampled_from(["", "1", "2", "\\N", None])
)


@many
@given(st.lists(CHANGES, max_size=8), st.lists(CHANGES, max_size=8))
def test_only_equal_multisets_have_no_differences(
    ledger: TableLedger, some: list[Change], others: list[Change]
) -> None:
    load(ledger, some, others)
    found = oracles.differences(ledger, ALL)
    assert (found == ChangeDifferences()) == (sorted(some, key=repr) == sorted(others, key=repr))
    assert found.duplicate + found.unexpected - found.missing == len(some) - len(others)


@many
@given(st.lists(CHANGES, max_size=12, unique_by=lambda change: change[:3]), st.data())
def test_every_single_harm_is_counted(ledger: TableLedger, changes: list[Change], data: Any) -> None:
    changes = sorted(changes, key=lambda change: (change[1], RANKS[change[0]], change[2]))
    assert counts(ledger, changes, changes) == (0, 0, 0, 0)
    if not changes:
        return
    at = data.draw(st.integers(0, len(changes) - 1))
    assert counts(ledger, changes[:at] + changes[at + 1 :], changes) == (1, 0, 0, 0)
    assert counts(ledger, changes[: at + 1] + changes[at:], changes) == (0, 1, 0, 0)
    op, ts, pk, _ = changes[at]
    assert counts(ledger, [*changes[:at], (op, ts, pk, "other"), *changes[at + 1 :]], changes) == (1, 0, 1, 0)
    if at:
        swapped = [*changes[: at - 1], changes[at], changes[at - 1], *changes[at + 1 :]]
        assert counts(ledger, swapped, changes) == (0, 0, 0, 1)


def test_rows_above_the_checkpoint_are_held_to_their_order_only(ledger: TableLedger) -> None:
    upstream: list[Change] = [("I", 5, "1", "a")]
    above: list[Change] = [("U", ALL + 1, "1", "b"), ("U", ALL + 2, "1", "c")]
    assert counts(ledger, upstream + above, upstream) == (0, 0, 0, 0)
    assert counts(ledger, upstream + above[::-1], upstream) == (0, 0, 0, 1)
    assert oracles.disorder(ledger) == (1, 2)


def test_a_table_without_a_key(ledger: TableLedger) -> None:
    upstream: list[Change] = [("I", 5, "1", "a"), ("D", 6, "1", "a"), ("I", 7, "1", None)]
    assert counts(ledger, upstream, upstream, key=[]) == (0, 0, 0, 0)
    assert counts(ledger, [upstream[1], upstream[0], upstream[2]], upstream, key=[]) == (0, 0, 0, 1)
    assert counts(ledger, [*upstream[:2], ("I", 7, "1", "x")], upstream, key=[]) == (1, 0, 1, 0)


def test_what_is_there_instead_of_an_unexpected_change(ledger: TableLedger) -> None:
    for files, upstream, instead in (
        ([("I", 5, "1", "x")], [("I", 5, "1", "a")], ("I", 5)),
        ([("I", 6, "1", None)], [("I", 5, "1", None)], ("I", 5)),
        ([("I", 5, "2", "a")], [("I", 5, "1", "a")], None),
    ):
        load(ledger, files, upstream)
        found = oracles.differences(ledger, ALL)
        assert found.first_unexpected == 0
        assert (found.instead and (found.instead.op, found.instead.commit_ts)) == instead


def test_where_a_missing_row_belongs(ledger: TableLedger) -> None:
    upstream: list[Change] = [("I", 1, "1", "a"), ("I", 2, "2", "b"), ("I", 3, "3", "c")]
    after = []
    for files in (upstream[1:], [upstream[0], upstream[2]], upstream[:2], []):
        load(ledger, files, upstream)
        after.append(oracles.differences(ledger, ALL).missing_after)
    assert after == [None, 0, 1, None]


def replay(ledger: TableLedger, start: dict[str, Any], files: list[Change], end: dict[str, Any]) -> Replay:
    load(ledger, files, [])
    add_rows(ledger, "at_start", start)
    add_rows(ledger, "at_end", end)
    return oracles.replay(ledger, ALL)


def test_o4_the_last_change_of_a_row_decides(ledger: TableLedger) -> None:
    files: list[Change] = [
        ("I", 1, "2", "a"),
        ("U", 2, "1", "b"),
        ("D", 3, "2", "a"),
        ("I", 3, "2", "c"),  # a delete and an insert of one key in one transaction
        ("I", 4, "3", "x"),
        ("D", 5, "3", "x"),
        ("U", ALL + 1, "1", "later"),
    ]
    assert replay(ledger, {"1": "old", "9": None}, files, {"1": "b", "2": "c", "9": None}) == Replay(rows=3)


def test_o4_each_kind_of_difference_is_counted_and_the_first_key_is_named(ledger: TableLedger) -> None:
    files: list[Change] = [("I", 1, "2", "a"), ("U", 2, "1", None)]
    found = replay(ledger, {"1": "old", "9": "9"}, files, {"1": "\\N", "3": "3", "9": "8"})
    assert found == Replay(rows=3, missing=1, extra=1, different=2, row_index=1, start_key=None, end_key=b"1")
    assert replay(ledger, {"9": "9"}, [], {"9": None}) == Replay(1, 0, 0, 1, None, b"9", b"9")
    assert replay(ledger, {}, [], {"9": None}) == Replay(1, 1, 0, 0, None, None, b"9")
    assert replay(ledger, {"9": None}, [], {}) == Replay(0, 0, 1, 0, None, b"9", None)


STATES = st.dictionaries(st.sampled_from("123"), st.sampled_from(["", "\\N", None, "a"]), max_size=3)


@many
@given(STATES, st.lists(CHANGES, max_size=8), STATES)
def test_o4_agrees_with_a_replay_by_hand(
    ledger: TableLedger, start: dict[str, Any], files: list[Change], end: dict[str, Any]
) -> None:
    rows = dict(start)
    for op, _, pk, value in files:
        rows.pop(pk, None)
        if op != "D":
            rows[pk] = value
    found = replay(ledger, start, files, end)
    assert (found.missing, found.extra) == (len(end.keys() - rows.keys()), len(rows.keys() - end.keys()))
    assert found.different == sum(rows[pk] != end[pk] for pk in rows.keys() & end.keys())


def conserved(tmp_path: Path, *tables: tuple[dict[str, Any], list[Change]], **table: Any) -> tuple[str, int, int, str]:
    """Tables as (rows at startTs, files); the upstream's history is that of the files. `table`: as for load."""
    ledger = TableLedger(tmp_path)
    try:
        for start, files in tables:
            load(ledger, files, [each for each in files if each[1] <= ALL], amount=1, **table)
            add_rows(ledger, "at_start", start)
            oracles.add_moves(ledger, ALL, with_start=True)
        return oracles.conserved(ledger)
    finally:
        ledger.close()


def test_o7_a_sum_over_tables_deletes_and_reinserted_keys(tmp_path: Path) -> None:
    first: list[Change] = [("U", 1, "1", "0.5"), ("D", 2, "1", "0.5"), ("D", 4, "2", "0.5"), ("I", 4, "2", "1.5")]
    second: list[Change] = [("I", 1, "9", "10"), ("U", 2, "9", "10.5"), ("U", 3, "9", "10"), ("U", 4, "9", "9")]
    first.insert(2, ("U", 3, "2", "0.5"))
    assert conserved(tmp_path, ({"1": "10.5", "2": None}, first), ({}, second)) == ("10.5", 0, 0, "0")


def test_o7_a_table_without_a_key_goes_by_the_upstreams(tmp_path: Path) -> None:
    """What its files do not say, which row a change is of, the upstream's key does."""
    first: list[Change] = [("U", 1, "1", "0.5"), ("D", 2, "1", "0.5"), ("D", 4, "2", "0.5"), ("I", 4, "2", "1.5")]
    second: list[Change] = [("I", 1, "9", "10"), ("U", 2, "9", "10.5"), ("U", 3, "9", "10"), ("U", 4, "9", "9")]
    first.insert(2, ("U", 3, "2", "0.5"))
    tables = ({"1": "10.5", "2": None}, first), ({}, second)
    assert conserved(tmp_path, *tables, key=[]) == ("10.5", 0, 0, "0")
    assert conserved(tmp_path, ({"1": "10"}, [("U", 1, "1", "9.99")]), key=[]) == ("10", 1, 1, "-0.01")


def test_o7_equal_changes_of_a_table_without_a_key_are_changes_of_different_rows(tmp_path: Path) -> None:
    ledger = TableLedger(tmp_path)
    try:
        ledger.begin(TableShape("t", LineShape(["v"], [pa.string()]), [], 0))
        changes = pa.table(
            {"op": ["U", "U"], "commit_ts": pa.array([5, 5], pa.uint64()), "c0": pa.array(["3", "3"], pa.string())}
        )
        ledger.add_files(changes, 0)
        upstream = {"commit_ts": 5, "start_ts": 4, "rank": 1, "op": "U", "c0": "3"}
        kinds = {"commit_ts": pl.UInt64, "start_ts": pl.UInt64, "rank": pl.UInt8, "op": pl.String}
        ledger.add_images(pl.DataFrame([{**upstream, "key": b"a"}, {**upstream, "key": b"b"}], schema_overrides=kinds))
        at_start = pa.array([b"a", b"b"], pa.binary())
        ledger.add_rows("at_start", at_start, {"c0": pa.array(["1", "5"], pa.string())})
        oracles.add_moves(ledger, ALL, with_start=True)
        assert oracles.conserved(ledger) == ("6", 0, 0, "0")
    finally:
        ledger.close()


def test_o7_a_sum_that_changes_is_named(tmp_path: Path) -> None:
    files: list[Change] = [("U", 1, "1", "9.99"), ("U", 2, "1", None), ("U", ALL + 1, "1", "5")]
    assert conserved(tmp_path, ({"1": "10"}, files)) == ("10", 2, 1, "-0.01")


def test_o7_nothing_changed(tmp_path: Path) -> None:
    assert conserved(tmp_path, ({"1": "-7"}, []), ({}, [])) == ("-7", 0, 0, "0")


@pytest.mark.parametrize("text", ["x", "", "1e3", "1.0000000000001", "1" * 21, "1.", " 1"])
def test_o7_values_that_cannot_be_added_up(tmp_path: Path, text: str) -> None:
    with pytest.raises(NotVerifiable, match=r"t\.v holds"):
        conserved(tmp_path, ({}, [("I", 1, "1", text)]))


def test_o7_the_largest_values_are_added_up_exactly(tmp_path: Path) -> None:
    most = "9" * 20 + "." + "9" * 12
    found = conserved(tmp_path, ({"1": most, "2": "-1"}, [("U", 1, "2", "-1.000000000001")]))
    assert found == ("9" * 19 + "8." + "9" * 12, 1, 1, "-0.000000000001")
