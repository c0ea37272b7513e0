"""The owner's cores together, seed by seed: `make simulate SEEDS=5000`, and `SEED=123 make simulate` replays one."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest
from changefeed.owner.checkpoint import Checkpoint
from changefeed.owner.owner import Owner
from changefeed.owner.quota import Quota, Relief
from changefeed.owner.spans import Orders, Spans
from simulated_world import World, failing_seed

_SEEDS = int(os.environ.get("SEEDS") or "400")
_TRACE_LINES = 80


@pytest.mark.timeout(600)
def test_no_seed_breaks_a_promise() -> None:
    seed = os.environ.get("SEED")
    seeds = [int(seed)] if seed else range(_SEEDS)
    began = time.monotonic()
    if broken := failing_seed(seeds):
        story = "\n".join(broken.trace if seed else broken.trace[-_TRACE_LINES:])
        replay = f"`SEED={broken.seed} make simulate` replays it."
        raise AssertionError(f"{story}\n\n{broken}\n\n{replay}") from broken.__cause__
    rate = len(seeds) / (time.monotonic() - began)
    sys.stderr.write(f"{len(seeds)} seeds hold, {rate:.0f} seeds/s\n")


def test_a_seed_is_always_the_same_story() -> None:
    for seed in range(5):
        first, again = World(seed), World(seed)
        first.run()
        again.run()
        assert list(first.trace) == list(again.trace)


def test_rule_3_a_plan_that_runs_on_half_of_its_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spans, "is_whole", lambda self, entries: True)
    assert failing_seed(range(_SEEDS)) is not None


def test_rule_21_a_move_that_forgets_what_it_resumes_from_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_back(self: Spans, span: Any, ts: int, orders: Orders) -> None:
        self._forget(span, lambda segment: True)
        orders.ended[span.span_id] = span.resolved_ts

    monkeypatch.setattr(Spans, "_fall_back", fall_back)
    assert failing_seed(range(_SEEDS)) is not None


def test_rule_2_a_move_that_believes_the_puller_that_lost_the_span_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Spans._end

    def end(self: Spans, span: Any, orders: Orders) -> None:
        sub_id = span.sub_id
        honest(self, span, orders)
        self._subs[sub_id] = span

    monkeypatch.setattr(Spans, "_end", end)
    monkeypatch.setattr(Spans, "_current", lambda self, puller, sub_id: self._subs.get(sub_id))
    assert failing_seed(range(_SEEDS)) is not None


def test_rule_17_a_store_without_a_reserve_for_the_lowest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def relieve(self: Quota, spans: Spans, *_: object) -> Relief:
        if self._marks.is_at_ease(spans.files.bytes):
            return Relief([], list(spans.held), {})
        short = self._marks.is_short(spans.files.bytes)
        return Relief([each for each in spans.reached() if each not in spans.held] if short else [], [], {})

    monkeypatch.setattr(Quota, "relieve", relieve)
    broken = failing_seed(range(_SEEDS))
    assert broken is not None
    assert "stuck" in str(broken)


def test_rule_17_a_store_that_nothing_holds_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quota, "relieve", lambda *_: Relief([], [], {}))
    broken = failing_seed(range(_SEEDS))
    assert broken is not None
    assert "bytes of segments" in str(broken)


def test_rule_11_a_checkpoint_that_is_not_reached_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Checkpoint.next
    monkeypatch.setattr(Checkpoint, "next", lambda self, progress, barrier: honest(self, progress, barrier) + 1)
    assert failing_seed(range(_SEEDS)) is not None


def test_rule_20_a_message_of_another_plan_that_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def file_done(self: Owner, record: int, nonce: str, file: object) -> None:
        if self.state.plan is not None:
            self._files[file.entry] = file  # type: ignore[attr-defined, assignment]

    monkeypatch.setattr(Owner, "file_done", file_done)
    assert failing_seed(range(_SEEDS)) is not None
