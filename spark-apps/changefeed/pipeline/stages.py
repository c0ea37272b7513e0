"""Where the pipeline's CPU time goes, by stage: the first question when it is too slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

STAGES = ("read", "sort", "filter", "mount", "encode", "spool")


class CpuTime:
    """Seconds of this process by STAGES; what it puts of other files meanwhile counts in. No byte may depend on it."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[stage] += time.process_time() - began
