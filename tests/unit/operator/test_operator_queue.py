"""The work queue, in virtual time: nothing lost, nothing twice at once, no hot loop."""

from __future__ import annotations

import asyncio

import pytest
from changefeed_operator.loop.queue import (
    APART,
    EAGER,
    FIRST_RETRY,
    LONGEST_RETRY,
    RESYNC,
    Gone,
    Key,
    Outcome,
    Queue,
    Requeue,
    Retry,
    Workers,
)
from hypothesis import given
from hypothesis import strategies as st

A, B, C = ("shop", "a"), ("shop", "b"), ("shop", "c")


def queue(limit: int = 8, chance: float = 0.5) -> Queue:
    """With chance 0.5 the jitter is nil."""
    return Queue(limit, lambda: chance)


def test_a_key_added_many_times_is_worked_on_once() -> None:
    q = queue()
    for now in (0.0, 1.0, 2.0):
        q.add(A, now)
    assert q.oldest_age(2.0) == 2.0
    assert q.take(2.0) == A
    assert q.take(2.0) is None


def test_the_longest_waiting_key_comes_first() -> None:
    q = queue()
    for now, key in enumerate((B, A, C)):
        q.add(key, float(now))
    assert [q.take(3.0), q.take(3.0), q.take(3.0)] == [B, A, C]


def test_a_key_is_never_worked_on_twice_at_the_same_moment_and_comes_again_when_added_meanwhile() -> None:
    q = queue()
    q.add(A, 0.0)
    assert q.take(0.0) == A
    q.add(A, 0.1)
    assert q.take(0.1) is None
    q.done(A, Requeue(), 5.0)
    assert q.take(5.0) == A


def test_no_more_than_the_limit_run_and_the_rest_waits() -> None:
    q = queue(limit=2)
    for key in (A, B, C):
        q.add(key, 0.0)
    assert [q.take(0.0), q.take(0.0), q.take(0.0)] == [A, B, None]
    assert (q.depth, q.running, q.oldest_age(7.0), q.longest_pass(7.0)) == (1, 2, 7.0, 7.0)
    q.done(A, Requeue(), 7.0)
    assert q.take(7.0) == C


def test_passes_of_one_key_are_apart_so_that_a_burst_of_events_is_one_pass() -> None:
    q = queue()
    q.add(A, 0.0)
    q.take(0.0)
    q.done(A, Requeue(), 0.01)
    q.add(A, 0.02)
    q.add(A, 0.03)
    assert q.take(0.03) is None
    assert q.wait(0.03) == pytest.approx(APART - 0.03)
    assert q.take(APART) == A


def test_retries_back_off_to_a_bound_and_start_anew_after_a_success() -> None:
    q = queue()
    q.add(A, 0.0)
    now, delays = 0.0, []
    for _ in range(12):
        assert q.take(now) == A
        q.done(A, Retry(), now)
        delays.append(q.wait(now) or 0.0)
        now += delays[-1]
    assert delays[:4] == pytest.approx([FIRST_RETRY, 2 * FIRST_RETRY, 4 * FIRST_RETRY, 8 * FIRST_RETRY])
    assert max(delays) == pytest.approx(LONGEST_RETRY) == delays[-1]
    assert q.retries == 12
    assert q.take(now) == A
    q.done(A, Requeue(0.0), now)
    assert q.take(now) == A
    q.done(A, Retry(), now)
    assert q.wait(now) == pytest.approx(FIRST_RETRY)


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.75), (0.999999, 1.25)])
def test_retries_have_jitter(chance: float, factor: float) -> None:
    q = queue(chance=chance)
    q.add(A, 0.0)
    q.take(0.0)
    q.done(A, Retry(), 0.0)
    assert q.wait(0.0) == pytest.approx(FIRST_RETRY * factor, rel=0.001)


def test_events_shorten_a_back_off_but_never_to_a_hot_loop() -> None:
    q = queue()
    q.add(A, 0.0)
    now = 0.0
    for _ in range(12):
        q.take(now)
        q.done(A, Retry(), now)
        now += q.wait(now) or 0.0
    q.take(now)
    q.done(A, Retry(), now)
    q.add(A, now)
    assert q.wait(now) == pytest.approx(EAGER)


def test_retry_after_of_the_server_holds_against_events() -> None:
    q = queue()
    q.add(A, 0.0)
    q.take(0.0)
    q.done(A, Retry(retry_after=30.0), 0.0)
    q.add(A, 1.0)
    assert q.wait(1.0) == pytest.approx(29.0)


def test_a_key_that_asks_for_nothing_comes_again_at_the_resync() -> None:
    q = queue()
    q.add(A, 0.0)
    q.take(0.0)
    q.done(A, Requeue(), 0.0)
    assert q.wait(0.0) == pytest.approx(RESYNC)
    assert q.take(RESYNC) == A


def test_a_wish_to_come_again_holds_up_to_the_resync() -> None:
    q = queue()
    for key, seconds in ((A, 12.0), (B, 10 * RESYNC)):
        q.add(key, 0.0)
        q.take(0.0)
        q.done(key, Requeue(seconds), 0.0)
    assert q.take(12.0) == A
    assert q.take(RESYNC) == B


def test_what_is_gone_does_not_come_again_unless_added() -> None:
    q = queue()
    q.add(A, 0.0)
    q.take(0.0)
    q.done(A, Gone(), 0.0)
    assert q.wait(0.0) is None
    q.add(A, 1.0)
    q.take(1.0)
    q.add(A, 1.0)
    q.done(A, Gone(), 1.0)
    assert q.wait(1.0) == pytest.approx(APART)


def test_an_earlier_time_wins() -> None:
    q = queue()
    q.add_after(A, 100.0, 0.0)
    q.add_after(A, 5.0, 0.0)
    q.add_after(A, 50.0, 0.0)
    assert q.wait(0.0) == 5.0
    assert q.take(5.0) == A
    q.done(A, Gone(), 5.0)
    assert q.take(1000.0) is None


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "work", "fail", "gone", "pass"]), st.sampled_from([A, B, C]), st.floats(0.0, 400.0)
    ),
    max_size=60,
)


@given(steps=_STEPS, limit=st.integers(1, 3))
def test_whatever_happens_a_key_that_was_added_after_its_last_pass_began_is_worked_on_again(
    steps: list[tuple[str, Key, float]], limit: int
) -> None:
    q = queue(limit)
    now, running, wanted = 0.0, set[Key](), set[Key]()
    for what, key, seconds in steps:
        if what == "add":
            q.add(key, now)
            wanted.add(key)
        elif what == "pass":
            now += seconds
        elif key in running:
            running.discard(key)
            q.done(key, {"work": Requeue(seconds), "fail": Retry(seconds), "gone": Gone()}[what], now)
        while (taken := q.take(now)) is not None:
            assert taken not in running
            running.add(taken)
            wanted.discard(taken)
        assert len(running) <= limit
    while wanted:
        for key in set(running):
            running.discard(key)
            q.done(key, Gone(), now)
        now += q.wait(now) or 0.0
        taken = q.take(now)
        assert taken is not None, "a wanted key is lost"
        running.add(taken)
        wanted.discard(taken)


async def test_workers_run_what_is_added_until_they_are_stopped_and_let_a_pass_end() -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    ended: list[Key] = []

    async def work(key: Key) -> Outcome:
        began.set()
        await go_on.wait()
        ended.append(key)
        return Requeue()

    workers = Workers(Queue(1), work)
    running = asyncio.create_task(workers.run())
    workers.add(A)
    workers.add(B)
    await began.wait()
    workers.stop()
    go_on.set()
    await running
    assert ended == [A]


async def test_workers_wake_for_a_key_that_is_due_later() -> None:
    passes: list[Key] = []

    async def work(key: Key) -> Outcome:
        passes.append(key)
        if len(passes) == 3:
            workers.stop()
        return Requeue(0.001)

    workers = Workers(Queue(1), work)
    workers.add(A)
    await workers.run()
    assert passes == [A, A, A]
