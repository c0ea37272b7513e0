"""What a run shows of itself: to the metrics, and to whoever watches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import owner_records as made
import pytest
from changefeed.errors import ProtocolViolation, Transient
from changefeed.metrics import Registry
from changefeed.model.tso import compose
from changefeed.objectstore.patience import RUN_S
from changefeed.owner.planning.actions import AppendCheckpoint, AppendPlan, Publish
from changefeed.owner.pulling.known_files import Reader
from changefeed.owner.reporting.meter import Meter, mode_of
from changefeed.owner.reporting.troubles import Trouble
from changefeed.owner.writing.open_entries import EntryKey
from changefeed.spec.driver_status import OpenTransaction
from changefeed.upstream.tikv.feed.stopped_stores import BEHIND, CONGESTED
from changefeed.wire import owner_pb2 as pb


class FakeOwner:
    """What Meter reads of an Owner."""

    def __init__(self) -> None:
        self.state = made.begun()
        self.planner = SimpleNamespace(dirty=1)
        self.files = SimpleNamespace(bytes=0, readers={}, take_switches=list)
        self.spans = SimpleNamespace(complete=True, held=[], moves=0, splits=0, files=self.files)
        self.resolved = 0
        self.dispatchers = {1, 2, 3}

    def resolved_ts(self) -> int:
        return self.resolved

    def planned_ts(self, resolved_ts: int) -> int:
        return resolved_ts

    def table_name(self, dispatcher: int) -> str:
        return f"shop.t{dispatcher}"


@pytest.fixture
def owner() -> FakeOwner:
    return FakeOwner()


@pytest.fixture
def registry() -> Registry:
    return Registry("shop", "orders")


@pytest.fixture
def meter(owner: FakeOwner, registry: Registry) -> Meter:
    fake: Any = owner
    return Meter(fake, registry)


def _delta(name: str, value: float, label: str = "", gauge: bool = False) -> pb.MetricDelta:
    return pb.MetricDelta(name=name, label=label, value=value, gauge=gauge)


def test_reports_count_what_was_pulled_and_stored(meter: Meter) -> None:
    segment = pb.SegmentMeta(uri="u", bytes=70, spans=[pb.SegmentSpan(rows=3), pb.SegmentSpan(rows=4)])
    pulled = [_delta("changefeed_puller_events_total", 9, "insert"), _delta("changefeed_puller_bytes_total", 500)]
    meter.report(0, pb.Report(segments=[segment, pb.SegmentMeta(seq=2)], metrics=pulled))
    meter.report(1, pb.Report(segments=[segment]))
    shown = meter.snapshot(10.0)
    puller, event_store, _, _ = shown.stages
    assert (puller.rows, puller.bytes) == (9, 500)
    assert (event_store.rows, event_store.bytes) == (14, 140)


def test_gauges_of_a_puller_that_left_are_forgotten_and_its_counters_kept(meter: Meter, registry: Registry) -> None:
    pending = "changefeed_puller_matcher_pending_rows"
    for puller in (0, 1):
        meter.report(puller, pb.Report(metrics=[_delta(pending, 5, gauge=True)]))
    meter.report(1, pb.Report(metrics=[_delta("changefeed_puller_bytes_total", 7)]))
    meter.puller_left(1)
    assert registry.total(pending) == 5
    assert registry.total("changefeed_puller_bytes_total") == 7


def test_the_resource_names_the_oldest_transaction_that_holds_a_table_back(meter: Meter) -> None:
    def named() -> OpenTransaction | None:
        return meter.snapshot(0.0).blocked

    assert named() is None
    meter.report(0, pb.Report(blocked=pb.Blocked(span_id=5, start_ts=300, ttl_ms=9)))
    meter.report(1, pb.Report(blocked=pb.Blocked(span_id=6, start_ts=200, ttl_ms=7)))
    assert named() == OpenTransaction(table="shop.t6", puller=1, start_ts=200, ttl_ms=7)
    meter.report(1, pb.Report())
    assert named() == OpenTransaction(table="shop.t5", puller=0, start_ts=300, ttl_ms=9)
    meter.puller_left(0)
    assert named() is None


def test_a_metric_that_nobody_declared_is_refused(meter: Meter) -> None:
    with pytest.raises(ProtocolViolation, match="not a declared"):
        meter.report(0, pb.Report(metrics=[_delta("changefeed_puller_luck_total", 1)]))


def test_records_count_plans_files_and_rows(meter: Meter, owner: FakeOwner, registry: Registry) -> None:
    plan = made.plan(owner.state, made.entry(owner.state, 110), made.entry(owner.state, 110, 1, dispatcher=2))
    meter.recorded(0.0, AppendPlan(plan))
    commit = made.commit(owner.state, 110, files=(made.file(3), made.file(3, 1)))
    assert meter.snapshot(1.0).files == 0
    meter.recorded(0.0, Publish((), commit))
    meter.recorded(0.0, AppendCheckpoint(commit))  # one without files counts nothing
    shown = meter.snapshot(2.0)
    *_, pipeline, sink = shown.stages
    assert (shown.files, sink.rows, sink.bytes, pipeline.rows) == (2, 2, 2, 2)
    assert registry.snapshot()["changefeed_owner_entries_total", "interval"] == 2
    assert registry.total("changefeed_owner_plans_total") == 1


def test_stages_of_a_file_are_timed_by_pds_clock(meter: Meter, owner: FakeOwner, registry: Registry) -> None:
    plan = made.plan(owner.state, made.entry(owner.state, compose(1_000)))
    meter.pd_answered(0.0, 1_500)
    meter.recorded(0.5, AppendPlan(plan))
    meter.written(0.75, EntryKey(plan.n, 0))
    meter.recorded(2.0, Publish((), made.commit(owner.state, 110, files=(made.file(plan.n),))))
    shown = registry.snapshot()
    stages = {"owner_plan": 1.0, "sink_write": 0.25, "sink_publish": 1.25}
    assert {stage: shown[f"changefeed_{stage}_duration_seconds_sum", ""] for stage in stages} == stages


def test_the_store_and_what_it_holds_back_are_shown(meter: Meter, owner: FakeOwner, registry: Registry) -> None:
    owner.spans.held, owner.spans.moves, owner.spans.splits, owner.spans.files.bytes = [7, 8], 3, 2, 500
    assert "2 spans are held back" in meter.snapshot(0.0).message
    meter.snapshot(1.0)
    shown = registry.snapshot()
    assert shown["changefeed_owner_held_spans_count", ""] == 2
    assert shown["changefeed_owner_moves_total", ""] == 3
    assert shown["changefeed_owner_splits_total", ""] == 2
    assert shown["changefeed_event_store_used_bytes", ""] == 500


def test_rates_are_of_the_last_seconds(meter: Meter, owner: FakeOwner) -> None:
    commit = made.commit(owner.state, 110, files=[made.file(3, number) for number in range(10)])
    meter.snapshot(0.0)
    meter.recorded(0.0, Publish((), commit))
    assert meter.snapshot(2.0).stages[-1].rows_per_second == 5.0
    for now in (4.0, 6.0, 8.0, 10.0):
        shown = meter.snapshot(now)
    assert (shown.stages[-1].rows, shown.stages[-1].rows_per_second) == (10, 0.0)


def test_lags_are_by_pds_clock_and_unknown_before_it_was_asked(meter: Meter, owner: FakeOwner) -> None:
    owner.resolved = compose(9_000, 0)
    assert meter.snapshot(0.0).resolved_lag == 0.0
    meter.pd_answered(0.5, 10_000)
    shown = meter.snapshot(1.0)  # PD's clock has gone on meanwhile
    assert (shown.resolved_lag, shown.resolved_ts, shown.table_count, shown.dirty) == (1.5, owner.resolved, 3, 1)
    meter.pd_answered(2.0, 8_000)  # PD's clock as last seen may be behind a resolved-ts
    assert meter.snapshot(2.0).resolved_lag == 0.0


def test_state_is_one_word_and_one_sentence(meter: Meter, owner: FakeOwner, registry: Registry) -> None:
    def words() -> dict[str, float]:
        return {label: n for (name, label), n in registry.snapshot().items() if name.endswith("state_info")}

    owner.spans.complete = False
    assert meter.snapshot(0.0).message.startswith("Starting")
    assert words() == {"Pending": 1, "Normal": 0, "Warning": 0, "Finished": 0}
    owner.spans.complete = True
    assert meter.snapshot(1.0).message == "Running, epoch 1."
    assert words() == {"Pending": 0, "Normal": 1, "Warning": 0, "Finished": 0}
    meter.draining = True
    assert "Ctrl-C again" in meter.snapshot(2.0).message


def test_a_store_that_fails_is_a_warning_until_it_works_for_all(meter: Meter, registry: Registry) -> None:
    meter.pd_answered(0.0, 1_000_000)
    meter.store_failed("log", Transient("s3://state answers 503."))
    meter.report(1, pb.Report(trouble="s3://state is away."))
    shown = meter.snapshot(1.0).message
    assert shown == "Waiting for a store and retrying: s3://state answers 503."
    assert registry.snapshot()["changefeed_owner_state_info", "Warning"] == 1
    meter.store_works("log")
    meter.report(0, pb.Report())  # another puller's
    assert "s3://state is away." in meter.snapshot(2.0).message
    meter.puller_left(1)
    assert meter.snapshot(3.0).message == "Running, epoch 1."
    meter.report(1, pb.Report(trouble="s3://state is away."))
    meter.report(1, pb.Report())
    assert meter.snapshot(3.0).message == "Running, epoch 1."


def test_whether_a_store_has_answered_is_kept_from_whoever_tells_it(meter: Meter) -> None:
    meter.pd_answered(0.0, 1_000_000)
    error = Transient("s3://state answers 503.")
    error.answered = True
    meter.store_failed("log", error)
    assert meter.snapshot(0.0).sink == Trouble(1_000_000, error.message, answered=True)
    given_up = meter.given_up(RUN_S)
    assert given_up is not None
    assert given_up.answered
    meter.store_works("log")
    for said, answered in (({"answered": True}, True), ({"answered": False}, False), ({}, None)):
        meter.report(1, pb.Report(trouble="s3://state fails.", **said))
        seen = meter.snapshot(0.0).sink
        assert seen is not None
        assert seen.answered is answered
        meter.report(1, pb.Report())


def test_a_store_that_fails_at_first_each_time_stays_a_warning_and_is_not_given_up(meter: Meter) -> None:
    meter.pd_answered(0.0, 1_000_000)
    for seconds in range(0, 2 * int(RUN_S), 60):
        meter.pd_answered(seconds, 1_000_000 + seconds * 1000)
        meter.store_failed("publication", Transient("s3://lake gives no answer in time."))
        meter.store_works("publication", at_once=False)
        assert "no answer in time" in meter.snapshot(seconds).message
        assert meter.given_up(seconds + RUN_S - 1) is None
    meter.store_works("publication")
    assert meter.snapshot(seconds).message == "Running, epoch 1."


def test_a_store_that_has_worked_at_last_is_no_warning_soon_though_nobody_asks_it_again(meter: Meter) -> None:
    meter.pd_answered(0.0, 1_000_000)
    meter.store_failed("publication", Transient("sqlite:///catalog is locked."))
    meter.store_works("publication", at_once=False)
    meter.pd_answered(2.9, 1_002_900)
    assert "is locked" in meter.snapshot(2.9).message
    meter.pd_answered(3.0, 1_003_000)
    assert meter.snapshot(3.0).message == "Running, epoch 1."
    meter.store_failed("publication", Transient("sqlite:///catalog is locked."))
    meter.pd_answered(60.0, 1_060_000)
    assert "is locked" in meter.snapshot(60.0).message  # it fails again, and still


def test_a_store_that_fails_for_too_long_is_given_up(meter: Meter) -> None:
    meter.pd_answered(0.0, 1_000_000)
    assert meter.given_up(10_000.0) is None
    meter.pd_answered(10_000.0, 11_000_000)
    meter.store_failed("files", Transient("s3://lake answers 503."))
    meter.store_failed("files", Transient("s3://lake is away."))
    meter.store_failed("log", Transient("s3://state answers 503."))
    meter.store_works("log", at_once=False)
    assert meter.given_up(10_000.0 + RUN_S - 1) is None
    error = meter.given_up(10_000.0 + RUN_S)
    assert error is not None
    assert error.message == "A store has failed for 900 s. s3://lake answers 503."
    meter.store_works("files")
    assert meter.given_up(20_000.0) is None, "the log's store has worked since it failed"


def test_where_segments_are_read_is_shown_and_each_change_said(
    meter: Meter, owner: FakeOwner, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    owner.files.readers = {0: Reader(0, in_buffer=True), 1: Reader(1), 2: Reader(2)}
    owner.files.take_switches = lambda: [(0, True), (2, False)]
    meter.snapshot(10.0)
    owner.files.take_switches = lambda: [(2, True)]
    meter.snapshot(11.0)
    shown = registry.snapshot()
    assert shown["changefeed_event_store_mode", "buffer"] == 1
    assert shown["changefeed_event_store_mode", "archive"] == 2
    assert shown["changefeed_event_store_mode_switches_total", ""] == 3
    assert caplog.messages == [
        "Puller 2: its segments overflowed the buffer (spec.eventStore.bufferSize) and are now read from the archive.",
        "Puller 2: its segments are read from the buffer again.",
    ], "puller 0 has not overflowed: each run begins so"


def test_the_resource_says_archive_as_soon_as_one_buffer_has_overflowed() -> None:
    buffered, overflowed, none = Reader(0, has_buffer=True, in_buffer=True), Reader(1, has_buffer=True), Reader(2)
    assert [mode_of(readers) for readers in ([], [none], [buffered, none], [buffered, overflowed])] == [
        "",
        "",
        "Buffer",
        "Archive",
    ]


def test_what_our_own_pullers_do_not_read_is_blamed_on_no_other_client(meter: Meter) -> None:
    """The puller that reads slowly may have no registration on that store that is turned away; another one has."""
    meter.pd_answered(0.0, 5_000)
    meter.report(0, pb.Report(stopped=pb.Stopped(store_id=3, reason=CONGESTED, message="another client")))
    meter.pd_answered(1.0, 6_000)
    meter.report(1, pb.Report(stopped=pb.Stopped(store_id=3, reason=BEHIND, message="this changefeed")))
    seen = meter.snapshot(1.0).tikv
    assert seen is not None
    assert (seen.reason, seen.message) == (BEHIND, "this changefeed")


def test_a_store_of_the_upstream_that_refuses_is_in_every_view_until_it_sends_again(
    meter: Meter, caplog: pytest.LogCaptureFixture
) -> None:
    meter.pd_answered(0.0, 5_000)
    refused = pb.Stopped(store_id=1, reason="TikvRefuses", message="Store 1 does not let us in. Do this.")
    for _ in range(2):
        meter.report(0, pb.Report(stopped=refused))
    meter.report(1, pb.Report())
    seen = meter.snapshot(0.0).tikv
    assert seen is not None
    assert (seen.since_ms, seen.reason, seen.message) == (5_000, "TikvRefuses", refused.message)
    assert meter.word == "Warning"
    assert meter.snapshot(1.0).message == f"Waiting for the upstream and retrying: {refused.message}"
    assert meter.last_error is not None
    assert (meter.last_error.kind, meter.last_error.over) == ("TikvRefuses", False)
    meter.report(0, pb.Report())
    assert meter.snapshot(0.0).tikv is None
    assert meter.word == "Normal"
    assert meter.last_error.over
    assert [record.getMessage() for record in caplog.records] == [refused.message, "Change data is sent again."]
