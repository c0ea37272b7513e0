"""An entry that is sorted in parts gives the rows of one that is sorted at once."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from changefeed.errors import ProtocolViolation
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE, Position
from changefeed.pipeline.parts import OrderedRows, cut
from changefeed.pipeline.sorter import sort_parts, sort_rows
from changefeed.schema.table_info import TableInfo
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_rows import PEOPLE, Row, delete, index, insert, key, raw, segment, update, with_index

UNIQUE = with_index(PEOPLE, index("k"))
EVERYTHING = (Position.end_of(0), Position.end_of(1 << 63))
BOUNDS = [
    EVERYTHING,
    (Position.end_of(2), Position.end_of(4)),
    (Position(2, 1, OP_DELETE, key(3)), Position(4, 1, OP_INSERT, key(5))),
]


@st.composite
def history(draw: st.DrawFn) -> list[Row]:
    """A row a key and commit ts at most."""
    rows = []
    for ts in range(1, draw(st.integers(1, 5)) + 1):
        for handle in draw(st.sets(st.integers(1, 12))):
            kind = draw(st.sampled_from(("insert", "update", "move", "delete")))
            if kind == "insert":
                rows.append(insert(ts, handle, start_ts=1 + handle % 2))
            elif kind == "delete":
                rows.append(delete(ts, handle, start_ts=1 + handle % 2))
            else:
                rows.append(update(ts, handle, (1, "a"), (1 if kind == "update" else 2, "b")))
    return rows


def tables(rows: list[Row], seed: int, count: int) -> list[tuple[object, pa.Table]]:
    """The rows, some of them twice, in segments."""
    rng = random.Random(seed)
    there = [*rows, *(row for row in rows if rng.random() < 0.2)]
    rng.shuffle(there)
    return [(segment(n), raw(there[n::count])) for n in range(count)]


@settings(deadline=None, max_examples=200)
@given(history(), st.integers(0, 99), st.integers(1, 3), st.sampled_from([60, 300, 900]), st.booleans())
@pytest.mark.parametrize("bounds", BOUNDS, ids=["all", "whole-ts", "inside"])
@pytest.mark.parametrize("table", [PEOPLE, UNIQUE], ids=["plain", "unique"])
def test_rule_12_parts_are_the_whole(
    table: TableInfo, bounds: tuple[Position, Position], rows: list[Row], seed: int, count: int, size: int, split: bool
) -> None:
    slices = tables(rows, seed, count)
    whole = sort_rows(slices, table, *bounds, split=split)
    parts = list(sort_parts(slices, table, *bounds, split=split, size=size))
    found = pa.Table.from_batches([part.rows for part in parts], whole.rows.schema)
    assert found.to_pylist() == whole.rows.to_pylist()
    if bounds[0].is_end_of_ts:
        assert sum(part.raw_rows for part in parts) == whole.raw_rows


def test_one_large_transaction_is_cut_into_parts_that_are_small() -> None:
    rows = [
        OrderedRows.of(batch)
        for start in range(3)
        for batch in raw([insert(5, n, name="x" * 100) for n in range(start, 6000, 3)]).to_batches()
    ]
    size = sum(each.batch.nbytes for each in rows) // 20
    parts = list(cut(rows, 1, 9, size, split=True))
    assert 15 <= len(parts) <= 25
    held = [sum(batch.nbytes for each in rows for batch in part.select(each)) for part in parts]
    assert max(held) < 2 * size


@pytest.mark.parametrize("copy", [Row(5, OP_UPDATE, 7, insert(5, 7).value, b"x"), insert(5, 7, start_ts=3)])
def test_rule_4_copies_that_differ_meet_in_a_part(copy: Row) -> None:
    slices = [(segment(0), raw([insert(5, n) for n in range(40)])), (segment(1), raw([copy]))]
    with pytest.raises(ProtocolViolation, match="with different"):
        list(sort_parts(slices, PEOPLE, *EVERYTHING, split=True, size=200))
