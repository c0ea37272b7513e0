"""The owner's cores together, seed by seed: `make simulate SEEDS=5000`, and `SEED=123 make simulate` replays one."""

from __future__ import annotations

import os
import sys
import time

import pytest
from changefeed.owner.checkpoint import Checkpoint
from changefeed.owner.owner import Owner
from changefeed.owner.spans import Spans
from simulated_world import World, failing_seed

_SEEDS = int(os.environ.get("SEEDS") or "400")
_TRACE_LINES = 80


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
