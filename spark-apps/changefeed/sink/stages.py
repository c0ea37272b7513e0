"""Where the pipeline's CPU time goes, by stage: the first question when it is too slow."""

from __future__ import annotations

import time

STAGES = ("read", "sort", "filter", "mount", "encode", "spool")


class CpuTime:
    """Seconds of this process by STAGES; what it puts of other files meanwhile counts in. No byte may depend on it."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._since = time.process_time()

    def resume(self) -> None:
        """What was spent up to now is somebody else's."""
        self._since = time.process_time()

    def went_to(self, stage: str) -> None:
        """What was spent since this was last said."""
        now = time.process_time()
        self.seconds[stage] += now - self._since
        self._since = now
