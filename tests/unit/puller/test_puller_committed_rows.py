"""What a chunk commits by itself is what it is when it is matched; a scan's rows go by without a copy."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from changefeed.upstream.tikv.matching import committed_rows
from changefeed.upstream.tikv.matching.committed_rows import committed_batch, couples
from changefeed.upstream.tikv.matching.decode import decode
from changefeed.upstream.tikv.matching.matcher import Matcher
from changefeed.upstream.tikv.matching.region_events import ChunkOutcome, RegionEvents
from changefeed.wire import cdcpb_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

Event = cdcpb_pb2.Event
Row = Event.Row
PREWRITE, COMMIT, ROLLBACK, COMMITTED, INITIALIZED = 1, 2, 3, 4, 5
PUT, DELETE = 1, 2

#: (region, row): a message; regions 9 and 10 are those of subscription 1, 11 is that of 2, 12 is nobody's.
Messages = list[tuple[int, Row]]


def row(key: bytes, start_ts: int, type_: int = COMMITTED, op: int = PUT, old: bytes = b"") -> Row:
    commit_ts = start_ts + 1 if type_ in (COMMIT, COMMITTED) else 0
    value = b"" if op == DELETE else b"%d of %s" % (type_, key)
    return Row(start_ts=start_ts, commit_ts=commit_ts, type=type_, op_type=op, key=key, value=value, old_value=old)


ROWS = st.builds(
    row,
    st.sampled_from([b"a", b"b", b"c"]),
    st.integers(3, 30) | st.sampled_from([9, 20]),
    st.sampled_from([COMMITTED, COMMITTED, PREWRITE, PREWRITE, COMMIT, COMMIT, ROLLBACK]),
    st.sampled_from([PUT, PUT, PUT, DELETE]),
    st.sampled_from([b"", b"", b"old"]),
) | st.just(Row(type=INITIALIZED))
CHUNKS = st.lists(st.lists(st.tuples(st.sampled_from([9, 9, 10, 11, 12]), ROWS), min_size=1, max_size=8), max_size=5)
BEGUN = [(region, Row(type=INITIALIZED)) for region in (9, 10, 11)]


def pair(key: bytes, start_ts: int, **given: Any) -> list[tuple[int, cdcpb_pb2.Event.Row]]:
    return [(9, row(key, start_ts, PREWRITE, **given)), (9, row(key, start_ts, COMMIT))]


def message(region: int, *rows: Row) -> bytes:
    event = Event(region_id=region, request_id=1, entries=Event.Entries(entries=rows))
    return cdcpb_pb2.ChangeDataEvent(events=[event]).SerializeToString()


def told(outcome: ChunkOutcome) -> tuple[Any, ...]:
    data = [(sub_id, each) for sub_id, batch in outcome.data for each in batch.to_pylist()]
    return sorted(data, key=str), outcome.initialized, outcome.resolved, [str(each.error) for each in outcome.failed]


def outcomes(chunks: list[Messages]) -> list[tuple[Any, ...]]:
    events = RegionEvents()
    others = [(3, region) for region in range(100, 161)]  # so that number -1 of 64 is one of them
    for sub_id, region in ((1, 9), (1, 10), (2, 11), *others):
        assert events.register(sub_id, 70 + sub_id, region, 5).request_id == 1
    ts = cdcpb_pb2.ChangeDataEvent(resolved_ts=cdcpb_pb2.ResolvedTs(request_id=1, ts=12, regions=[9, 10, 11]))
    found = []
    for number, chunk in enumerate(chunks):
        tail = [ts.SerializeToString()] if number == 2 else []
        found.append(told(events.process([*(message(*each) for each in chunk), *tail])))
    return found


def all_left(_: Matcher, rows: pa.RecordBatch, regs: Any) -> tuple[Any, Any, Any]:
    """To the joins."""
    return np.zeros(len(regs), bool), regs >= 0, np.empty(0, np.uint64)


@settings(deadline=None, max_examples=300)
@given(CHUNKS, st.booleans())
@example([[(9, row(b"a", 9))], [(9, row(b"b", 9, PREWRITE)), (9, Row(type=INITIALIZED))]], False)  # tells the fate
@example([[(9, row(b"b", 9, PREWRITE))], [(9, Row(type=INITIALIZED))], [(9, row(b"a", 9))]], False)  # one waits for it
@example([[(9, row(b"a", 4))], [(9, row(b"a", 3))]], False)  # not wanted
@example([[], [(10, row(b"a", 9))], [(9, row(b"b", 20))], [(9, row(b"a", 9))]], True)  # late
@example([[(11, row(b"a", 9)), (9, row(b"a", 9, old=b"old")), (11, row(b"b", 9))]], False)  # of two, by turns
@example([[(9, row(b"a", 20, PREWRITE))], pair(b"b", 20), [(9, row(b"a", 20, COMMIT))]], True)  # decides another
@example([[(9, row(b"a", 20, PREWRITE, old=b"old"))], pair(b"a", 20)], True)  # repeats another
@example([[*pair(b"a", 20, old=b"old", op=DELETE), *pair(b"b", 20, op=DELETE)]], True)  # one changes something
@example([[*pair(b"a", 20), (9, row(b"c", 20, COMMIT)), (10, row(b"d", 20))]], True)  # one breaks the protocol
@example([[*pair(b"a", 20), (9, row(b"a", 20, ROLLBACK))]], True)
@example([[*pair(b"a", 9)], [], [], [*pair(b"b", 9)]], True)  # late
def test_rows_that_a_chunk_settles_are_what_they_are_when_matched(chunks: list[Messages], begun: bool) -> None:
    chunks = [BEGUN, *chunks] if begun else chunks
    with patch.object(Matcher, "settle", all_left):
        matched = outcomes(chunks)
    assert outcomes(chunks) == matched


def test_what_a_chunk_settles_is_not_matched_and_no_value_of_a_scan_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = [*pair(b"a", 20), (11, row(b"b", 20)), *pair(b"c", 20, old=b"old")]
    with monkeypatch.context() as patched:
        patched.setattr(Matcher, "_match", lambda *_: pytest.fail("it is matched"))
        assert len(outcomes([[(9, row(b"a", 9)), (10, row(b"b", 9, old=b"old"))]])[0][0]) == 2
    feed, fed = Matcher.feed, []
    monkeypatch.setattr(Matcher, "feed", lambda self, rows, streams: fed.append(rows) or feed(self, rows, streams))
    assert len(outcomes([BEGUN, settled])[1][0]) == 3
    assert len(fed) == 1, "the scans' ends"
    rows = decode([message(9, row(b"a", 9), row(b"b", 9))]).rows
    made = committed_batch(rows, rows["commit_ts"].to_numpy(), np.array([7, 7], np.uint64))
    assert made.column("value").buffers()[2].address == rows["value"].buffers()[2].address


@pytest.mark.parametrize(
    ("second", "reg", "found"),
    [
        (row(b"a", 9, COMMIT), 0, [0]),
        (row(b"b", 9, COMMIT), 0, []),
        (row(b"a", 8, COMMIT), 0, []),
        (row(b"a", 9, COMMIT), 1, []),
        (row(b"a", 9, ROLLBACK), 0, []),
        (row(b"a", 9, PREWRITE), 0, []),
    ],
)
def test_rows_of_one_hash_are_told_apart(
    second: cdcpb_pb2.Event.Row, reg: int, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_rows, "twins", lambda hashes: (np.array([0]), np.array([1])))
    rows = decode([message(9, row(b"a", 9, PREWRITE), second, row(b"z", 9, COMMIT))]).rows
    assert couples(rows, np.array([0, reg, 0]))[0].tolist() == found
