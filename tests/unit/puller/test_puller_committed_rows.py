"""What a scan brings goes by without a copy, and is what it is when it is matched."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from changefeed.upstream.tikv.matching import region_events
from changefeed.upstream.tikv.matching.committed_rows import are_committed, committed_batch
from changefeed.upstream.tikv.matching.decode import decode
from changefeed.upstream.tikv.matching.matcher import Matcher
from changefeed.upstream.tikv.matching.region_events import ChunkOutcome, RegionEvents
from changefeed.wire import cdcpb_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

Event = cdcpb_pb2.Event
Row = Event.Row
PREWRITE, COMMITTED, INITIALIZED = 1, 4, 5
PUT, DELETE = 1, 2

#: (region, row): a message; regions 9 and 10 are those of subscription 1, 11 is that of 2, 12 is nobody's.
Messages = list[tuple[int, Row]]


def row(key: bytes, start_ts: int, type_: int = COMMITTED, op: int = PUT, old: bytes = b"") -> Row:
    commit_ts = start_ts + 1 if type_ == COMMITTED else 0
    value = b"" if op == DELETE else b"value of " + key
    return Row(start_ts=start_ts, commit_ts=commit_ts, type=type_, op_type=op, key=key, value=value, old_value=old)


ROWS = st.builds(
    row,
    st.sampled_from([b"a", b"b", b"c"]),
    st.integers(3, 30),
    st.sampled_from([COMMITTED, COMMITTED, COMMITTED, PREWRITE]),
    st.sampled_from([PUT, PUT, PUT, DELETE]),
    st.sampled_from([b"", b"", b"old"]),
) | st.just(Row(type=INITIALIZED))
CHUNKS = st.lists(st.lists(st.tuples(st.sampled_from([9, 10, 11, 12]), ROWS), min_size=1, max_size=4), max_size=5)


def message(region: int, *rows: Row) -> bytes:
    event = Event(region_id=region, request_id=1, entries=Event.Entries(entries=rows))
    return cdcpb_pb2.ChangeDataEvent(events=[event]).SerializeToString()


def told(outcome: ChunkOutcome) -> tuple[Any, ...]:
    data = [(sub_id, each) for sub_id, batch in outcome.data for each in batch.to_pylist()]
    return data, outcome.initialized, outcome.resolved, [str(each.error) for each in outcome.failed]


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


@settings(deadline=None)
@given(CHUNKS)
@example([[(9, row(b"a", 9))], [(9, row(b"b", 9, PREWRITE)), (9, Row(type=INITIALIZED))]])  # the first tells the fate
@example([[(9, row(b"b", 9, PREWRITE))], [(9, Row(type=INITIALIZED))], [(9, row(b"a", 9))]])  # one waits for it
@example([[(9, row(b"a", 4))], [(9, row(b"a", 3))]])  # not wanted
@example([[(9, Row(type=INITIALIZED))], [(10, row(b"a", 9))], [(9, row(b"b", 20))], [(9, row(b"a", 9))]])  # late
@example([[(11, row(b"a", 9)), (9, row(b"a", 9, old=b"old")), (11, row(b"b", 9))]])  # of two, by turns
def test_rows_of_a_scan_are_what_they_are_when_matched(chunks: list[Messages]) -> None:
    with patch.object(region_events, "are_committed", lambda rows: False):
        matched = outcomes(chunks)
    assert outcomes(chunks) == matched


def test_a_scan_is_not_matched_and_no_value_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Matcher, "feed", lambda *_: pytest.fail("it is matched"))
    assert len(outcomes([[(9, row(b"a", 9)), (10, row(b"b", 9, old=b"old"))]])[0][0]) == 2
    rows = decode([message(9, row(b"a", 9), row(b"b", 9))]).rows
    assert are_committed(rows)
    made = committed_batch(rows, pa.array([7, 7], pa.uint64()).to_numpy())
    assert made.column("value").buffers()[2].address == rows["value"].chunk(0).buffers()[2].address
