"""Decoding, region events and the error table, on messages as a store sends them."""

from __future__ import annotations

import random
import struct

import pytest
from changefeed.errors import InvalidSpec, ProtocolViolation, Unavailable
from changefeed.model.rows import RAW_SCHEMA, ROW_OVERHEAD, raw_bytes
from changefeed.upstream.tikv.feed.reaction import Fatal, Leader, Relocate, Wait, backoff, reaction
from changefeed.upstream.tikv.feed.stopped_stores import BUSY, CONGESTED
from changefeed.upstream.tikv.matching import matcher, region_events
from changefeed.upstream.tikv.matching.decode import decode
from changefeed.upstream.tikv.matching.region_events import ChunkOutcome, RegionEvents
from changefeed.wire import cdcpb_pb2, errorpb_pb2, metapb_pb2
from puller_memory_scratch import MemoryFile

Row = cdcpb_pb2.Event.Row
Event = cdcpb_pb2.Event
INITIALIZED = Row(type=5)


def rows(request_id: int, region_id: int, *entries: cdcpb_pb2.Event.Row) -> bytes:
    event = Event(region_id=region_id, request_id=request_id, entries=Event.Entries(entries=entries))
    return cdcpb_pb2.ChangeDataEvent(events=[event]).SerializeToString()


def committed(key: bytes, commit_ts: int, value: bytes = b"v", old: bytes = b"") -> cdcpb_pb2.Event.Row:
    return Row(start_ts=commit_ts - 1, commit_ts=commit_ts, type=4, op_type=1, key=key, value=value, old_value=old)


def resolved(request_id: int, ts: int, *regions: int) -> bytes:
    message = cdcpb_pb2.ResolvedTs(request_id=request_id, ts=ts, regions=regions)
    return cdcpb_pb2.ChangeDataEvent(resolved_ts=message).SerializeToString()


def failed(request_id: int, region_id: int, error: cdcpb_pb2.Error) -> bytes:
    event = Event(region_id=region_id, request_id=request_id, error=error)
    return cdcpb_pb2.ChangeDataEvent(events=[event]).SerializeToString()


def keys(outcome: ChunkOutcome) -> list[tuple[int, bytes, int]]:
    return [(sub_id, row["key"], row["commit_ts"]) for sub_id, batch in outcome.data for row in batch.to_pylist()]


def test_decode_loses_nothing() -> None:
    full = Row(
        start_ts=2**64 - 2,
        commit_ts=2**64 - 1,
        type=4,
        op_type=2,
        key=b"\x00k",
        value=b"",
        old_value=b"\xff",
        txn_source=2**63,
    )
    both = cdcpb_pb2.ChangeDataEvent(resolved_ts=cdcpb_pb2.ResolvedTs(regions=[2**64 - 1], ts=5, request_id=4))
    both.events.add(region_id=1, request_id=2, entries=Event.Entries(entries=[full, full]))
    both.events.add(region_id=3, request_id=2, resolved_ts=9)
    both.events.add(region_id=8, request_id=2, admin=Event.Admin())
    both.events.add(region_id=6, request_id=2, error=cdcpb_pb2.Error(congested=cdcpb_pb2.Congested(region_id=6)))
    decoded = decode([b"", both.SerializeToString(), rows(5, 7, INITIALIZED)])
    assert decoded.rows.num_rows == 3
    assert decoded.rows.slice(0, 1).to_pylist() == [
        {
            "start_ts": 2**64 - 2,
            "commit_ts": 2**64 - 1,
            "type": 4,
            "op_type": 2,
            "key": b"\x00k",
            "value": b"",
            "old_value": b"\xff",
            "txn_source": 2**63,
        }
    ]
    assert (decoded.request_id.tolist(), decoded.region_id.tolist(), decoded.rows_of.tolist()) == (
        [2, 5],
        [1, 7],
        [2, 1],
    )
    told = [(event.request_id, event.ts, event.regions.tolist()) for event in decoded.resolved]
    assert told == [(4, 5, [2**64 - 1]), (2, 9, [3])]
    (error,) = decoded.errors
    assert (error.request_id, error.region_id, error.error.congested.region_id) == (2, 6, 6)


def test_bytes_that_are_no_message_are_a_protocol_violation() -> None:
    with pytest.raises(ProtocolViolation, match="can't be read"):
        decode([rows(1, 1, INITIALIZED), struct.pack("<Q", 2**64 - 1)])


def test_rows_of_one_region_go_to_each_subscription_of_it() -> None:
    events = RegionEvents()
    one = events.register(sub_id=1, span_id=71, region_id=9, checkpoint_ts=5)
    two = events.register(sub_id=2, span_id=72, region_id=9, checkpoint_ts=15)
    assert one.request_id != two.request_id
    sent = [rows(r.request_id, 9, committed(b"a", 10), committed(b"b", 20, old=b"o"), INITIALIZED) for r in (one, two)]
    outcome = events.process([*sent, rows(99, 9, committed(b"x", 30)), rows(one.request_id, 8, committed(b"x", 30))])
    assert keys(outcome) == [(1, b"a", 10), (1, b"b", 20), (2, b"b", 20)]
    assert all(batch.schema == RAW_SCHEMA for _, batch in outcome.data)
    batch = outcome.data[0][1]
    assert (batch["span_id"].to_pylist(), batch["op"].to_pylist()) == ([71, 71], [2, 1])
    assert batch["old_value"].to_pylist() == [None, b"o"]
    assert outcome.initialized == [one.reg, two.reg]


def test_resolved_ts_counts_after_initialized_and_never_goes_back() -> None:
    events = RegionEvents()
    one = events.register(1, 71, 9, 5)
    two = events.register(1, 71, 10, 5)
    request = one.request_id
    assert two.request_id == request  # so that the store can batch their resolved-ts
    assert events.process([resolved(request, 50, 9, 10)]).resolved == {}
    outcome = events.process([rows(request, 9, INITIALIZED), resolved(request, 20, 9, 10, 11)])
    assert outcome.resolved == {one.reg: 20}
    assert events.process([resolved(request, 20, 9), resolved(request, 0, 9), resolved(7, 90, 9)]).resolved == {}
    assert events.process([resolved(request, 30, 9), resolved(request, 25, 9)]).resolved == {one.reg: 30}


@pytest.mark.parametrize("released", [False, True])
def test_an_error_after_a_commit_takes_no_row_of_it_back(monkeypatch: pytest.MonkeyPatch, released: bool) -> None:
    """1. A large transaction is prewritten, and spilled. 2. One chunk brings its commit, a resolved-ts above that, and
    the region's end. 3. The resolved-ts counts, so all rows must come, also those that are read back only later."""
    monkeypatch.setattr(matcher, "SPILL_BYTES", 0)
    events = RegionEvents(MemoryFile)
    one = events.register(1, 71, 9, 5)
    request = one.request_id
    prewrites = [Row(start_ts=10, type=1, op_type=1, key=b"%d" % n, value=b"v") for n in range(3)]
    undecided = Row(start_ts=11, type=1, op_type=1, key=b"7", value=b"v")
    events.process([rows(request, 9, INITIALIZED, *prewrites, undecided)])
    commit = Row(start_ts=10, commit_ts=20, type=2, op_type=1, key=b"0")
    gone = cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=9))
    outcome = events.process([rows(request, 9, commit), resolved(request, 25, 9), failed(request, 9, gone)])
    assert (outcome.resolved, [failure.registration for failure in outcome.failed]) == ({one.reg: 25}, [one])
    again = events.register(1, 71, 9, 25)
    assert again.request_id == request
    if released:
        events.release(1)
    come = [row["key"] for part in outcome.more for _, batch in part for row in batch.to_pylist()]
    assert come == ([] if released else [b"0", b"1", b"2"])
    assert events.pending_rows == 0, "the old registration is over"


def test_rule_18_row_at_or_below_the_resolved_ts_is_a_violation_and_the_name_rests_until_acknowledged() -> None:
    events = RegionEvents()
    one = events.register(1, 71, 9, 5)
    request = one.request_id
    events.process([rows(request, 9, INITIALIZED), resolved(request, 20, 9)])
    outcome = events.process([rows(request, 9, committed(b"a", 30), committed(b"b", 20)), resolved(request, 40, 9)])
    assert (outcome.data, outcome.resolved) == ([], {})
    (failure,) = outcome.failed
    assert failure.registration == one
    assert isinstance(failure.error, ProtocolViolation)
    assert "commit_ts 20" in str(failure.error)
    again = events.register(1, 71, 9, 20)
    assert again.request_id != request
    late = events.process([rows(request, 9, committed(b"c", 50))])
    assert (late.data, late.failed) == ([], [])
    gone = cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=9))
    assert events.process([failed(request, 9, gone)]).failed == []
    events.process([failed(again.request_id, 9, gone)])
    assert events.register(1, 71, 9, 20).request_id == request


def test_resolved_ts_without_a_request_is_nobodys() -> None:
    """After a merge a subscription may have two registrations of one region: whose would it be?"""
    events = RegionEvents()
    one, two = events.register(1, 71, 9, 5), events.register(1, 71, 9, 5)
    assert one.request_id != two.request_id
    outcome = events.process([rows(r.request_id, 9, INITIALIZED) for r in (one, two)] + [resolved(0, 20, 9)])
    assert outcome.resolved == {}
    assert events.process([resolved(two.request_id, 20, 9)]).resolved == {two.reg: 20}


def test_error_event_ends_a_registration_and_the_next_one_starts_afresh() -> None:
    events = RegionEvents()
    one = events.register(1, 71, 9, 5)
    prewrite = Row(start_ts=9, type=1, op_type=1, key=b"a", value=b"v")
    events.process([rows(one.request_id, 9, prewrite, INITIALIZED)])
    outcome = events.process([failed(one.request_id, 9, cdcpb_pb2.Error())])
    assert [failure.registration for failure in outcome.failed] == [one]
    two = events.register(1, 71, 9, 5)
    assert two.request_id == one.request_id
    commit = Row(start_ts=9, commit_ts=11, type=2, op_type=1, key=b"a")
    outcome = events.process([rows(two.request_id, 9, INITIALIZED), rows(two.request_id, 9, commit)])
    assert [failure.registration for failure in outcome.failed] == [two]  # its prewrite was of another registration


def test_subscriptions_share_a_request_which_lets_the_store_tell_their_resolved_ts_in_one_message() -> None:
    events = RegionEvents()
    one, two = events.register(1, 71, 9, 5), events.register(2, 72, 10, 5)
    request = one.request_id
    assert two.request_id == request
    outcome = events.process(
        [rows(request, 9, INITIALIZED), rows(request, 10, INITIALIZED), resolved(request, 20, 9, 10)]
    )
    assert outcome.resolved == {one.reg: 20, two.reg: 20}


def test_released_subscription_gives_nothing_more_and_its_names_rest_until_acknowledged() -> None:
    events = RegionEvents()
    one, ended = events.register(1, 71, 9, 5), events.register(1, 71, 10, 5)
    other = events.register(2, 72, 11, 5)
    gone = cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=9))
    events.process([failed(ended.request_id, 10, gone)])
    assert events.release(1) == [one], "the store has ended the other one"
    assert events.release(1) == []
    late = [rows(one.request_id, 9, committed(b"a", 10), INITIALIZED), resolved(one.request_id, 20, 9)]
    assert events.process(late) == ChunkOutcome(resolved_events=1)
    assert events.register(1, 71, 9, 5).request_id != one.request_id
    assert events.process([failed(one.request_id, 9, gone)]) == ChunkOutcome()
    assert events.register(3, 73, 9, 5).request_id == one.request_id
    assert events.register(1, 71, 10, 5).request_id == ended.request_id
    outcome = events.process([rows(other.request_id, 11, committed(b"b", 10))])
    assert keys(outcome) == [(2, b"b", 10)], "another subscription of the request goes on"


def test_large_transaction_comes_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_events, "MAX_BATCH_BYTES", 1000)
    events = RegionEvents()
    one = events.register(1, 71, 9, 5)
    entries = [committed(b"%03d" % i, 10, value=bytes(100 if i else 5000)) for i in range(50)]
    outcome = events.process([rows(one.request_id, 9, *entries, INITIALIZED)])
    assert [key for _, key, _ in keys(outcome)] == [b"%03d" % i for i in range(50)]
    assert max(batch.num_rows for _, batch in outcome.data) < 10


def test_rows_of_many_subscriptions_in_one_chunk_come_apart_each_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What shares memory with its neighbours must measure, and read, as if it stood alone."""
    monkeypatch.setattr(region_events, "MAX_BATCH_BYTES", 2000)
    events = RegionEvents()
    regions = {9: (3, 73), 10: (1, 71), 11: (2, 72), 12: (1, 71)}
    request = {region: events.register(*where, region, 5).request_id for region, where in regions.items()}
    messages = [rows(request[region], region, INITIALIZED) for region in regions]
    for n in range(40):
        region = 9 + n * 7 % 4
        messages.append(rows(request[region], region, committed(b"%03d" % n, 10 + n, value=bytes(n * 5))))
    outcome = events.process(messages)
    assert [sub_id for sub_id, _ in outcome.data] == sorted(sub_id for sub_id, _ in outcome.data)
    for region, (sub_id, span_id) in regions.items():
        mine = [batch for sub, batch in outcome.data if sub == sub_id]
        assert {span for batch in mine for span in batch["span_id"].to_pylist()} == {span_id}
        keys_ = [key for batch in mine for key in batch["key"].to_pylist()]
        assert keys_ == [b"%03d" % n for n in range(40) if regions[9 + n * 7 % 4][0] == sub_id], region
        assert [raw_bytes(batch) for batch in mine] == [
            sum(len(row["key"]) + len(row["value"]) + ROW_OVERHEAD for row in batch.to_pylist()) for batch in mine
        ]


def error(**fields: object) -> cdcpb_pb2.Error:
    return cdcpb_pb2.Error(**fields)  # type: ignore[arg-type]


def test_every_error_event_has_a_reaction() -> None:
    led = errorpb_pb2.NotLeader(region_id=1, leader=metapb_pb2.Peer(id=5, store_id=3))
    assert reaction(error(not_leader=led)) == Leader(3)
    assert reaction(error(not_leader=errorpb_pb2.NotLeader(region_id=1))) == Relocate()
    assert reaction(error(region_not_found=errorpb_pb2.RegionNotFound())) == Relocate()
    assert reaction(error(epoch_not_match=errorpb_pb2.EpochNotMatch())) == Relocate()
    assert reaction(error(server_is_busy=errorpb_pb2.ServerIsBusy(backoff_ms=250))) == Wait(0.25, BUSY)
    assert reaction(error(server_is_busy=errorpb_pb2.ServerIsBusy(backoff_ms=10**9))) == Wait(600, BUSY)
    assert reaction(error(server_is_busy=errorpb_pb2.ServerIsBusy(reason="too many scans"))) == Wait(0, BUSY)
    assert reaction(error(congested=cdcpb_pb2.Congested())) == Wait(0, CONGESTED)
    assert reaction(error()) == Relocate()
    fatal = {
        "duplicate_request": (cdcpb_pb2.DuplicateRequest(region_id=1), ProtocolViolation),
        "compatibility": (cdcpb_pb2.Compatibility(required_version="9.0.0"), Unavailable),
        "cluster_id_mismatch": (cdcpb_pb2.ClusterIDMismatch(current=1, request=2), InvalidSpec),
    }
    assert len(cdcpb_pb2.Error.DESCRIPTOR.fields) == 5 + len(fatal)
    for name, (message, kind) in fatal.items():
        answer = reaction(error(**{name: message}))
        assert isinstance(answer, Fatal)
        assert isinstance(answer.error, kind)


def test_backoff_doubles_to_two_seconds_with_half_jitter() -> None:
    rng = random.Random(1)
    for attempt, whole in [(1, 0.05), (2, 0.1), (3, 0.2), (6, 1.6), (7, 2.0), (10_000, 2.0)]:
        waits = [backoff(attempt, rng) for _ in range(200)]
        assert whole / 2 <= min(waits) < max(waits) <= whole
        assert max(waits) - min(waits) > whole / 4
