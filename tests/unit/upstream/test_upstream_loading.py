"""What reaching an upstream loads: little for a Job that renews a hold, all that pulls for tasks that are forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

FEED = "changefeed.upstream.tikv.feed.span_feed"


@pytest.mark.parametrize(
    ("module", "loaded"),
    [("changefeed.owner.closing.undriven", []), ("changefeed.spark.task", [FEED, "polars"])],
)
def test_a_hold_loads_neither_feed_nor_decoder_and_a_task_is_forked_with_both(module: str, loaded: list[str]) -> None:
    script = f"import sys, {module}; print(*sorted({{'polars', {FEED!r}}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == loaded
