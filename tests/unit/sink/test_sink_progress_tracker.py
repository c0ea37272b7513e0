"""The progress tracker against a naive one, and what bounds it."""

from __future__ import annotations

import pytest
from changefeed.errors import NeedsHuman
from changefeed.sink import progress_tracker
from changefeed.sink.progress_tracker import ProgressTracker
from hypothesis import given, settings
from hypothesis import strategies as st


class Naive:
    def __init__(self) -> None:
        self.events: list[bool | int] = []  # written or not, or a resolved-ts

    def checkpoint_ts(self) -> int:
        checkpoint_ts = 0
        for each in self.events:
            if each is False:
                break
            if each is not True:
                checkpoint_ts = each
        return checkpoint_ts


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_the_checkpoint_is_the_last_resolved_ts_before_the_first_event_that_is_not_written(data: st.DataObject) -> None:
    tracker, naive, at, ts = ProgressTracker(0), Naive(), list[int](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress_tracker, "BUFFER_BITS", 128)
        for _ in range(data.draw(st.integers(1, 25))):
            match data.draw(st.sampled_from(("add", "resolve", "write"))):
                case "add":
                    events = data.draw(st.integers(0, 200))
                    assert tracker.add(events) == len(at)
                    at += range(len(naive.events), len(naive.events) + events)
                    naive.events += [False] * events
                case "resolve":
                    ts += data.draw(st.integers(0, 2))
                    tracker.resolve(ts)
                    if ts:
                        naive.events.append(ts)
                case "write":
                    open_ = [number for number in range(len(at)) if naive.events[at[number]] is False]
                    if open_:
                        first = end = data.draw(st.sampled_from(open_))
                        longest = data.draw(st.integers(1, 300))
                        while end - first < longest and end < len(at) and naive.events[at[end]] is False:
                            naive.events[at[end]] = True
                            end += 1
                        tracker.written(first, end)
            assert tracker.advance() == tracker.checkpoint_ts == naive.checkpoint_ts()
            assert tracker.pending == sum(each is False for each in naive.events)


def test_one_event_that_is_not_acknowledged_bounds_what_is_added() -> None:
    tracker = ProgressTracker(0, capacity=200_000)
    tracker.add(200_000)
    tracker.resolve(7)
    tracker.written(1, 200_000)
    assert tracker.advance() == 0
    assert not tracker.has_room(1)
    tracker.written(0, 1)
    assert tracker.advance() == 7
    assert tracker.has_room(100_000)
    assert len(tracker._buffers) <= 1


def test_what_is_acknowledged_twice_or_never_added_is_a_bug() -> None:
    tracker = ProgressTracker(0)
    tracker.add(100)
    tracker.written(10, 90)
    for first, end in ((89, 91), (10, 11), (99, 101)):
        with pytest.raises(NeedsHuman):
            tracker.written(first, end)
