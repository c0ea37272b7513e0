"""What the driver answers on `/status`: tables, lag by stage, who holds it back, what failed last; and who may ask."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import urlopen

import owner_run as run
import pytest
from changefeed.errors import Transient, Unavailable
from changefeed.metrics import Registry
from changefeed.model.tso import compose
from changefeed.owner.owner import Owner
from changefeed.owner.reporting.driver_status import driver_status
from changefeed.owner.reporting.lags import EVERY_MS, Lags
from changefeed.owner.reporting.meter import Meter
from changefeed.owner.serving import http_server
from changefeed.owner.serving.http_server import Inquiry, served
from changefeed.spec.driver_status import SAMPLES_MAX, TABLES_MAX, DriverStatus
from changefeed.spec.parse import parse
from changefeed.wire import owner_pb2 as pb

CHANGEFEED = parse(
    """
apiVersion: changefeed.dev/v1alpha1
kind: Changefeed
metadata: {name: orders, namespace: shop}
spec:
  upstream: {pdAddresses: ["http://127.0.0.1:2379"]}
  sink: {storage: {uri: "s3://lake/orders", protocol: csv}}
"""
)


def _told(owner: Owner, meter: Meter, now: float = 0.0) -> DriverStatus:
    """By way of JSON, as a reader has it."""
    status = driver_status(
        CHANGEFEED, replace(meter.snapshot(now, TABLES_MAX), sink_uri="s3://lake/orders-gen-2"), "1.2.3"
    )
    return DriverStatus.model_validate_json(status.model_dump_json(by_alias=True))


@pytest.fixture
def owner() -> Owner:
    return run.began(dispatchers=3)


@pytest.fixture
def meter(owner: Owner) -> Meter:
    meter = Meter(owner, Registry("shop", "orders"))
    meter.pd_answered(0.0, 10_000)
    return meter


def test_who_it_is_and_where_it_stands(owner: Owner, meter: Meter) -> None:
    told = _told(owner, meter, now=2.0)
    assert (told.namespace, told.name, told.version, told.epoch) == ("shop", "orders", "1.2.3", 1)
    assert (told.at_ms, told.started_ms, told.state) == (12_000, 10_000, "Normal")
    assert (told.upstream, told.sink) == ("http://127.0.0.1:2379", "s3://lake/orders-gen-2")
    assert told.checkpoint_ts == owner.state.checkpoint_ts
    assert [stage.name for stage in told.stages] == ["puller", "event store", "pipeline", "sink"]


def test_the_lag_is_shared_out_among_the_stages(owner: Owner, meter: Meter) -> None:
    for span in (2, 3):
        run.row(owner, 1, compose(1_000), compose(9_000), span)
    run.row(owner, 1, compose(7_000), compose(8_000))
    run.plan(owner)  # what is resolved by then, and not what comes now
    run.row(owner, 2, compose(8_500), compose(9_000))
    for span in (2, 3):
        run.row(owner, 2, compose(8_900), compose(9_000), span)
    (sample,) = _told(owner, meter).lags
    assert (sample.at_ms, sample.pull) == (10_000, 1.0)
    assert sample.total == pytest.approx(10.0)
    assert sample.plan == pytest.approx(9.0 - (8.5 - 0.001), abs=0.002)


def test_lags_are_of_an_hour_at_most_and_keep_the_highest_of_each_moment() -> None:
    lags = Lags()
    lags.note(0, 0, 0, 0)  # PD's clock is not known
    assert lags.samples() == ()
    for at_ms, late in ((EVERY_MS, 1), (EVERY_MS + 1, 900), (EVERY_MS + 2, 2)):
        lags.note(at_ms, compose(at_ms), compose(at_ms), compose(at_ms - late))
    assert [(each.at_ms, each.write) for each in lags.samples()] == [(EVERY_MS + 1, 0.9)]
    for number in range(2, 2 * SAMPLES_MAX):
        lags.note(number * EVERY_MS, compose(number * EVERY_MS), 0, 0)
    kept = lags.samples()
    assert len(kept) == SAMPLES_MAX
    assert kept[-1].at_ms == (2 * SAMPLES_MAX - 1) * EVERY_MS


def test_stages_are_never_below_nought_whatever_the_clocks_say() -> None:
    lags = Lags()
    lags.note(1_000, compose(5_000), compose(9_000), compose(2_000))
    (sample,) = lags.samples()
    assert (sample.pull, sample.plan, sample.write) == (0.0, 0.0, 0.0)


def test_tables_come_the_furthest_behind_first(owner: Owner, meter: Meter) -> None:
    run.row(owner, 1, compose(4_000), compose(9_000), 1)
    for span, resolved in ((2, 3_000), (3, 8_000)):
        run.row(owner, 1, compose(1), compose(resolved), span)
    owner.barrier.on_resolved(compose(9_500))
    told = _told(owner, meter)
    by_dispatcher = {table.dispatcher: table for table in told.tables}
    assert by_dispatcher[1].resolved_ts == compose(9_000)
    assert [table.written_ts for table in told.tables] == sorted(table.written_ts for table in told.tables)
    assert told.table_count == 3


def test_of_very_many_tables_some_are_told() -> None:
    owner = run.began(dispatchers=TABLES_MAX + 5)
    told = _told(owner, Meter(owner, Registry("shop", "orders")))
    assert (told.table_count, len(told.tables)) == (TABLES_MAX + 5, TABLES_MAX)


def test_the_oldest_transaction_of_each_puller_is_told_until_it_ends(owner: Owner, meter: Meter) -> None:
    meter.report(0, pb.Report(blocked=pb.Blocked(span_id=1, start_ts=300, ttl_ms=9)))
    meter.report(1, pb.Report(blocked=pb.Blocked(span_id=2, start_ts=200, ttl_ms=7)))
    assert [(each.puller, each.start_ts, each.ttl_ms) for each in _told(owner, meter).transactions] == [
        (1, 200, 7),
        (0, 300, 9),
    ]
    meter.report(1, pb.Report())
    assert [each.puller for each in _told(owner, meter).transactions] == [0]


def test_the_last_error_is_told_with_its_next_step_and_that_it_is_over(owner: Owner, meter: Meter) -> None:
    assert _told(owner, meter).last_error is None
    meter.store_failed("log", Transient("s3://state answers 503.", "Look at the store."))
    told = _told(owner, meter)
    assert told.state == "Warning"
    assert told.last_error is not None
    assert (told.last_error.kind, told.last_error.message) == ("WriteFailed", "s3://state answers 503.")
    assert (told.last_error.next_step, told.last_error.over) == ("Look at the store.", False)
    meter.store_works("log")
    over = _told(owner, meter).last_error
    assert over is not None
    assert (over.message, over.over) == ("s3://state answers 503.", True)
    meter.pd_failed("PD is away.")
    newer = _told(owner, meter).last_error
    assert newer is not None
    assert (newer.kind, newer.over, bool(newer.next_step)) == ("PdUnavailable", False, True)


def _ask(port: int) -> tuple[int, bytes]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/status", timeout=5.0) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


async def test_who_asks_in_another_thread_gets_what_the_loop_says_once_a_second() -> None:
    said: list[bytes] = []

    def make() -> bytes:
        asyncio.get_running_loop()  # raises elsewhere
        said.append(b'{"asked": %d}' % len(said))
        return said[-1]

    with served(Registry("a", "b"), 0, status=Inquiry(make).ask) as port:
        answers = await asyncio.gather(*(asyncio.to_thread(_ask, port) for _ in range(3)))
    assert answers == [(200, b'{"asked": 0}')] * 3


async def test_a_loop_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "STATUS_WAIT_S", 0.05)
    with served(Registry("a", "b"), 0, status=Inquiry(lambda: b"{}").ask) as port:
        code, body = _ask(port)  # on the loop, which stands still
    assert (code, b"event loop has not answered" in body) == (503, True)


def test_a_loop_that_has_ended_is_unavailable() -> None:
    async def made() -> Inquiry:
        return Inquiry(lambda: b"{}")

    with pytest.raises(Unavailable, match="ends"):
        asyncio.run(made()).ask()
