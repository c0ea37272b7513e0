"""Batches are bounded, never cut a transaction, and always get on."""

from __future__ import annotations

import numpy as np
from changefeed.source.admission import RowCount, Timestamps, end_by_bytes, pieces, split
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from owner_segments import segment

STEADY = settings(deadline=None, derandomize=True, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
ROWS = st.lists(st.integers(1, 40), min_size=1, max_size=30)
SEGMENTS = st.lists(ROWS, min_size=1, max_size=5)


def ts(*values: int) -> Timestamps:
    return np.array(values, np.uint64)


def counted(rows: list[list[int]], after: int, upto: int, most: int) -> int:
    """As the stream does: lowest segments first, no more than are needed."""
    count = RowCount(after, upto, most)
    for own in sorted(rows, key=min):
        if count.is_enough(min(own)):
            break
        count.add(ts(*sorted(own)))
    return count.end()


@STEADY
@given(SEGMENTS, st.integers(0, 40), st.integers(0, 40), st.integers(1, 50))
def test_a_batch_by_rows_is_the_longest_that_fits(rows: list[list[int]], after: int, more: int, most: int) -> None:
    upto = after + more + 1
    end = counted(rows, after, upto, most)
    found = [each for own in rows for each in own if after < each <= upto]
    inside = sorted(each for each in found if each <= end)
    later = sorted(each for each in found if each > end)
    assert after < end <= upto
    assert len(inside) <= most or len(set(inside)) == 1, "only a commit ts that has more by itself"
    if later:
        assert len(inside) + later.count(later[0]) > most, "the next commit ts did not fit"


@STEADY
@given(SEGMENTS, st.integers(0, 40), st.integers(0, 40), st.integers(1, 400), st.integers(1, 4))
def test_a_batch_by_bytes_gets_on_and_loses_nothing(
    rows: list[list[int]], after: int, more: int, size: int, point_every: int
) -> None:
    upto = after + more + 1
    found = pieces([segment(1, own, point_every=point_every) for own in rows], after, upto)
    has_rows = any(after < each <= upto for own in rows for each in own)
    assert found or not has_rows, "rows that are there are never overlooked"
    if found:
        assert after < end_by_bytes(found, size, upto) <= upto
    ranges = list(split(found, size, after, upto))
    if ranges:
        assert [ranges[0][0], *(end for _, end in ranges)] == sorted({after, *(end for _, end in ranges)})
        assert [start for start, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
        assert ranges[-1][1] == upto
    assert bool(ranges) == bool(found)


def test_ranges_for_tasks_are_about_as_large_as_they_should_be() -> None:
    rows = list(range(1, 101))
    found = pieces([segment(1, rows, row_bytes=10, point_every=1)], 0, 100)
    assert list(split(found, 250, 0, 100)) == [(0, 25), (25, 50), (50, 75), (75, 100)]


def test_a_transaction_that_is_too_large_is_a_batch() -> None:
    found = pieces([segment(1, [5] * 100 + [6], point_every=1)], 0, 10)
    assert end_by_bytes(found, 20, 10) == 5
    assert counted([[5] * 100 + [6]], 0, 10, 20) == 5


def test_what_was_read_before_is_not_counted_again() -> None:
    found = pieces([segment(1, range(1, 11), point_every=1)], 5, 10)
    assert sum(piece.bytes for piece in found) == 50
    assert counted([list(range(1, 11))], 5, 10, 3) == 8
