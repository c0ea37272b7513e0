"""What a slot's feed does when its stream can't be had, and that it rests while nobody wants rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import ChangefeedError, NeedsHuman, ProtocolViolation, Refused, Transient
from changefeed.model.position import OP_INSERT
from changefeed.model.rows import RAW_SCHEMA
from changefeed.upstream.contract import Data, FeedEvent, Resolved, SchemaNews, SubscriptionFailed
from changefeed.upstream.postgresql import feed as feed_module
from changefeed.upstream.postgresql.failures import AWAY, REFUSED
from changefeed.upstream.postgresql.feed import SlotFeed
from changefeed.upstream.postgresql.server import PostgresqlServer
from changefeed.upstream.postgresql.slot.slot_reader import SlotArrival, SlotRows

T = 11


class Hasty:
    """A clock on which nobody waits."""

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Scripted:
    """A reader. `streams`: for each, what its reads give, and then for ever the last; an error is raised."""

    def __init__(self, streams: Iterable[list[SlotArrival | ChangefeedError]]) -> None:
        self._streams = iter(streams)
        self.opened = self.reads = 0
        self.common_ts: int | None = None
        self.crossed = False

    def open(self) -> None:
        self.opened += 1
        self._now = next(self._streams)
        if isinstance(error := self._now[0], ChangefeedError):
            raise error

    def read(self, wanted: frozenset[int], needed_ts: int | None) -> SlotArrival:
        self.reads += 1
        self.needed_ts = needed_ts
        found = self._now[0] if len(self._now) == 1 else self._now.pop(0)
        if isinstance(found, ChangefeedError):
            raise found
        return found

    def look(self) -> bool:
        return False

    def cross(self) -> None:
        self.crossed = True
        self.common_ts = None

    def tell(self) -> None:
        pass

    def anchor(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        pass


def taken(position: int, *rows: int) -> SlotArrival:
    """`rows`: their ts."""
    found = [
        {"span_id": T, "commit_ts": ts, "start_ts": ts, "op": OP_INSERT, "key": b"k", "value": b"v", "txn_source": 0}
        for ts in rows
    ]
    return SlotArrival(
        10, position, [], iter([SlotRows(T, pa.RecordBatch.from_pylist(found, RAW_SCHEMA))] if rows else [])
    )


class Run:
    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *streams: list[SlotArrival | ChangefeedError],
        clock: Hasty | None = None,
        then: Callable[[FeedEvent], None] = lambda _: None,
    ) -> None:
        self.reader = Scripted(streams)
        monkeypatch.setattr(feed_module, "SlotReader", lambda *_: self.reader)
        self.events: list[FeedEvent] = []
        self._event, self._then = asyncio.Event(), then
        server = PostgresqlServer("h", 1, "d", "u", "secret")
        self.feed = SlotFeed(server, "s", "p", self._hear, clock or Hasty())

    async def _hear(self, event: FeedEvent) -> None:
        self._then(event)
        self.events.append(event)
        self._event.set()

    async def until(self, is_so: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not is_so():
                self._event.clear()
                await self._event.wait()


async def test_rows_come_behind_news_and_before_their_resolved_ts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [taken(30, 15, 20, 30), taken(30)])
    async with run.feed as feed:
        feed.subscribe(1, T, b"", b"", 15)
        await run.until(lambda: len(run.events) == 3)
    news, data, resolved = run.events
    assert news == SchemaNews(30, b"")
    assert isinstance(data, Data)
    assert data.batch["commit_ts"].to_pylist() == [20, 30]
    assert resolved == Resolved(1, 30)
    assert run.reader.needed_ts in (15, 30), "not below what the subscription has"
    assert feed.metrics.events["insert"] == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Transient("gone", "Look."), AWAY),
        (Refused("who are you?", "Look."), REFUSED),
        (ProtocolViolation("what?", "Look."), AWAY),
    ],
)
async def test_a_server_that_is_away_is_tried_again_and_named(
    monkeypatch: pytest.MonkeyPatch, error: ChangefeedError, reason: str
) -> None:
    """Unhappy path: it is said from the second attempt on, until there is something new."""
    said = []

    class Noting(Hasty):
        async def sleep(self, seconds: float) -> None:
            said.append(run.feed.stopped())

    run = Run(monkeypatch, [error], [taken(20), error], [error], [taken(20), taken(30)], clock=Noting())
    async with run.feed as feed:
        feed.subscribe(1, T, b"", b"", 15)
        await run.until(lambda: Resolved(1, 30) in run.events)
        assert feed.stopped() is None
    assert [stopped and (stopped.reason, stopped.message) for stopped in said] == [
        *[None] * 3,  # the first waits for subscriptions
        (reason, str(error)),
    ]
    assert feed.metrics.errors == {type(error).__name__: 3}


async def test_what_needs_a_human_is_told_to_every_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unhappy path: whoever comes later is served if it is mended by then."""
    run = Run(monkeypatch, [taken(20), NeedsHuman("no key", "Add one.")], [taken(30)])
    async with run.feed as feed:
        feed.subscribe(1, T, b"", b"", 15)
        feed.subscribe(2, T, b"", b"", 15)
        feed.hold(2)
        await run.until(lambda: len([each for each in run.events if isinstance(each, SubscriptionFailed)]) == 2)
        feed.release(1)
        feed.subscribe(3, T, b"", b"", 15)
        await run.until(lambda: Resolved(3, 30) in run.events)


async def test_with_nobody_to_tell_it_ends_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [NeedsHuman("no key", "Add one.")])
    with pytest.raises(NeedsHuman, match="no key"):
        async with run.feed:
            await asyncio.Event().wait()


async def test_while_all_are_held_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: who resumes goes on in the same stream."""

    def hold(event: FeedEvent) -> None:
        if event == Resolved(1, 20):
            run.feed.hold(1)

    run = Run(monkeypatch, [taken(20), taken(30, 25), taken(40)], then=hold)
    async with run.feed as feed:
        feed.subscribe(1, T, b"", b"", 15)
        await run.until(lambda: Resolved(1, 20) in run.events)
        for _ in range(20):  # it would have got on by then
            await asyncio.to_thread(run.reader.tell)
        assert run.reader.reads == 1
        feed.resume(1)
        await run.until(lambda: Resolved(1, 30) in run.events)
        assert run.reader.opened == 1


async def test_who_comes_late_makes_the_stream_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: it gets what has passed, and who has that already does not get it again."""
    run = Run(monkeypatch, [taken(30, 20, 30)], [taken(20, 20), taken(30, 30), taken(40)])
    async with run.feed as feed:
        feed.subscribe(1, T, b"", b"", 15)
        await run.until(lambda: Resolved(1, 30) in run.events)
        feed.subscribe(2, T, b"", b"", 15)
        await run.until(lambda: Resolved(2, 40) in run.events)
    rows = [(each.sub_id, each.batch["commit_ts"].to_pylist()) for each in run.events if isinstance(each, Data)]
    assert rows == [(1, [20, 30]), (2, [20]), (2, [30])]
    assert [each.ts for each in run.events if isinstance(each, SchemaNews)] == [30, 40]


@pytest.mark.parametrize(
    ("start_ts", "reached_ts", "may_go_on"), [(20, 0, True), (21, 0, False), (15, 20, True), (15, 21, False)]
)
async def test_a_server_that_has_taken_over_must_have_what_was_read(
    monkeypatch: pytest.MonkeyPatch, start_ts: int, reached_ts: int, may_go_on: bool
) -> None:
    run = Run(monkeypatch, [taken(20), taken(30, 25), taken(30)], [taken(20), taken(30, 25), taken(30)])
    run.reader.common_ts = 20
    async with run.feed as feed:
        feed.subscribe(1, T, b"", b"", start_ts, None, reached_ts)
        await run.until(
            lambda: any(each == Resolved(1, 30) or isinstance(each, SubscriptionFailed) for each in run.events)
        )
    assert run.reader.crossed is may_go_on
    assert run.reader.opened == 1 + may_go_on, "what says that it is crossed comes back before anything is told"
    if not may_go_on:
        (failed,) = run.events
        assert isinstance(failed, SubscriptionFailed)
        assert isinstance(failed.error, NeedsHuman)
        assert "up to ts 20 " in failed.error.message


async def test_nothing_is_crossed_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [taken(30)])
    run.reader.common_ts = 20
    async with run.feed:
        await run.until(lambda: run.events)
    assert not run.reader.crossed
