"""The span pipeline by script: barriers, out-of-order persists, merge, quota, compaction, release."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import datadriven
import pytest
from changefeed.eventstore.realtime_buffer import RealtimeBuffer
from changefeed.puller.pipeline_metrics import PREFIX, CaptureMetrics, MetricDeltas
from changefeed.puller.span_pipeline import COMPACT_AT, Action, Advance, HoldBack, Resume, SpanPipeline
from changefeed.upstream.contract import FeedMetrics
from hypothesis import given, settings
from hypothesis import strategies as st

STORIES = sorted((Path(__file__).parent / "testdata" / "span_pipeline").glob("*.txt"))


def show(actions: list[Action]) -> list[str]:
    lines = []
    for action in actions:
        match action:
            case HoldBack(sub_id):
                lines.append(f"hold sub={sub_id}")
            case Resume(sub_id):
                lines.append(f"resume sub={sub_id}")
            case Advance(sub_id, ts):
                lines.append(f"advance sub={sub_id} ts={ts}")
    return lines


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path, rewrite: bool) -> None:
    pipeline = SpanPipeline(quota_bytes=100)
    now = 0.0

    def command(line: str, _: list[str]) -> list[str]:
        nonlocal now
        now += 1.0
        match line.split():
            case ["register", sub_id]:
                pipeline.register(int(sub_id), start_ts=0)
                return []
            case ["unregister", sub_id]:
                return show(pipeline.unregister(int(sub_id), now))
            case ["data", sub_id, weight]:
                seq, actions = pipeline.data(int(sub_id), int(weight), now)
                return [f"seq={seq}" if seq else "dropped", *show(actions)]
            case ["resolved", sub_id, ts]:
                return show(pipeline.resolved(int(sub_id), int(ts)))
            case ["persisted", sub_id, seq]:
                return show(pipeline.persisted(int(sub_id), int(seq), now))
            case ["metrics"]:
                return [f"{name} {value}" for name, value in asdict(pipeline.metrics).items()]
        raise AssertionError(line)

    datadriven.play(story, lambda lines: command(lines[0], lines[1:]), rewrite)


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_resolved_ts_waits_for_all_data_before_it_and_for_no_other(rng: random.Random) -> None:
    pipeline = SpanPipeline(quota_bytes=1 << 40)
    pipeline.register(1, start_ts=0)
    inflight: set[int] = set()
    before: dict[int, set[int]] = {}  # resolved-ts -> what was in flight when it came
    sent: list[int] = []
    for ts in range(1, 200):
        actions: list[Action] = []
        dice = rng.random()
        if dice < 0.4:
            seq, actions = pipeline.data(1, 10, 0.0)
            inflight.add(seq)
        elif dice < 0.7:
            before[ts] = set(inflight)
            actions = pipeline.resolved(1, ts)
        elif inflight:
            seq = rng.choice(sorted(inflight))
            inflight.remove(seq)
            for waits in before.values():
                waits.discard(seq)
            actions = pipeline.persisted(1, seq, 0.0)
        sent += [action.ts for action in actions if isinstance(action, Advance)]
        assert sent == sorted(set(sent))
        assert all(not before[ts] for ts in sent)
        ready = [ts for ts, waits in before.items() if not waits]
        assert (sent[-1] if sent else None) == max(ready, default=None)
    assert pipeline.metrics.inflight_batches == len(inflight)


def test_flushed_barriers_are_compacted_though_the_queue_never_empties() -> None:
    pipeline = SpanPipeline(quota_bytes=1 << 40)
    pipeline.register(1, start_ts=0)
    for n in range(1, 10 * COMPACT_AT):
        pipeline.data(1, 1, 0.0)
        pipeline.resolved(1, n)
        if n > 1:
            pipeline.persisted(1, n - 1, 0.0)
    assert pipeline.metrics.resolved_barrier_compaction_total >= 5
    assert pipeline.metrics.pending_resolved_barriers == 1
    assert len(pipeline._spans[1].pending_resolved) <= 2 * COMPACT_AT


def test_seven_metrics_are_told_as_growth() -> None:
    pipeline = SpanPipeline(quota_bytes=10)
    deltas = MetricDeltas(pipeline.metrics, FeedMetrics(), CaptureMetrics(RealtimeBuffer(1, 1.0)), 0)
    pipeline.register(1, start_ts=0)
    for ts, held_for in ((3, 0.0), (4, 0.3)):
        pipeline.resolved(1, ts)
        seq, actions = pipeline.data(1, 12, 1.0)
        assert actions == [HoldBack(1)]
        assert pipeline.persisted(1, seq, 1.0 + held_for) == [Resume(1)]
    pipeline.resolved(1, 5)
    pipeline.resolved(1, 5)
    pipeline.data(1, 12, 2.0)
    taken = deltas.take()
    told = {(d.name.removeprefix(PREFIX), d.label): d.value for d in taken}
    assert told["inflight_bytes", ""] == 12
    assert told["changefeed_puller_held_subscriptions_count", ""] == 1
    assert told["active_subscriptions", ""] == 1
    assert told["resolved_barrier_dropped_total", ""] == 1
    waits = [d.value for d in taken if d.name == f"{PREFIX}quota_acquire_duration_seconds"]
    assert waits == pytest.approx([0.0, 0.3])
    assert [d for d in deltas.take() if not d.gauge] == []


def test_rule_17_those_farthest_ahead_are_held_and_the_lowest_runs() -> None:
    pipeline = SpanPipeline(quota_bytes=100)
    for sub_id, ts in ((1, 40), (2, 10), (3, 30)):
        pipeline.register(sub_id, ts)
        pipeline.data(sub_id, 26, 0.0)
    assert pipeline.data(2, 10, 0.0) == (2, [HoldBack(1)])  # 88 bytes: one of the two others
    assert pipeline.data(3, 5, 0.0)[1] == [HoldBack(3)]
    assert pipeline.data(1, 5, 0.0) == (2, [])  # on its way when it was held: taken in all the same
    assert pipeline.data(2, 10, 0.0)[1] == [HoldBack(2)]  # there is no room for anybody
    for sub_id, seq in ((1, 1), (3, 1)):
        woken = pipeline.persisted(sub_id, seq, 1.0)
    assert woken == [Resume(1), Resume(2), Resume(3)]
    assert pipeline.metrics.held_subscriptions == 0


def test_rule_17_the_lowest_is_not_held_twice_where_it_stands() -> None:
    pipeline = SpanPipeline(quota_bytes=100)
    pipeline.register(1, start_ts=10)
    assert pipeline.data(1, 120, 0.0)[1] == [HoldBack(1)]
    assert pipeline.persisted(1, 1, 0.0) == [Resume(1)]
    assert pipeline.data(1, 120, 0.0) == (2, [])  # the same scan again: only its end can help
    pipeline.resolved(1, 11)
    assert pipeline.data(1, 10, 0.0)[1] == [HoldBack(1)]
