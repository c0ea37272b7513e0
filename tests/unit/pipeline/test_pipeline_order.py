"""The fast ways to sort and to compare keys agree with a comparison of their bytes (model.order)."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from changefeed.model.order import comparable, order_of, ordered, same_as_next
from hypothesis import given
from hypothesis import strategies as st

BY = ("ts", "key")


@st.composite
def keys_of_one_length(draw: st.DrawFn) -> list[bytes]:
    """Keys that differ from one another in few bytes, anywhere."""
    length = draw(st.integers(1, 28))
    base = draw(st.binary(min_size=length, max_size=length))
    changes = st.dictionaries(st.integers(0, length - 1), st.integers(0, 255), max_size=2)
    return [
        bytes(change.get(place, byte) for place, byte in enumerate(base))
        for change in draw(st.lists(changes, min_size=2, max_size=8))
    ]


@given(keys_of_one_length() | st.lists(st.binary(max_size=20), min_size=2, max_size=8), st.integers(0, 3), st.data())
def test_rows_are_ordered_as_their_bytes_are(keys: list[bytes], before: int, data: st.DataObject) -> None:
    ts = data.draw(st.lists(st.integers(0, 2), min_size=len(keys), max_size=len(keys)))
    whole = pa.RecordBatch.from_pydict(
        {"ts": pa.array([9] * before + ts, pa.uint64()), "key": pa.array([b"another"] * before + keys, pa.binary())}
    )
    rows = whole.slice(before)  # what is read is often a part
    numbers = sorted(range(len(keys)), key=lambda row: (ts[row], keys[row]))
    expected = rows.take(pa.array(numbers))
    assert ordered(rows, BY).equals(expected)
    for form in (expected, comparable(expected, BY)):
        pairs = [(ts[row], keys[row]) for row in numbers]
        repeated = [row for row, (one, other) in enumerate(pairwise(pairs)) if one == other]
        assert same_as_next(form, BY).tolist() == repeated
    order = order_of(comparable(rows, BY), BY)
    assert (list(range(len(keys))) if order is None else order.tolist()) == numbers
