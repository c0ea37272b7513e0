"""What a test that draws its events tells of itself; pytest shows it when the test fails."""

from __future__ import annotations

import os
import random
import time


class Story:
    """`CHANGEFEED_SEED=123` draws the same events again, and so does a test with a `seed` of its own."""

    def __init__(self, seed: int | None = None) -> None:
        drawn = int(os.environ.get("CHANGEFEED_SEED") or random.SystemRandom().getrandbits(32))
        self.seed = drawn if seed is None else seed
        self._began = time.monotonic()
        self.say(f"CHANGEFEED_SEED={self.seed}")

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:7.2f} {line}")  # noqa: T201 - what a failing run shows
