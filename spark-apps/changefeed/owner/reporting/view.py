"""What a person watches while a changefeed runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StageProgress:
    """What went through one stage since this driver started, and how fast lately."""

    rows: int = 0
    bytes: int = 0
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True)
class Progress:
    """How far a changefeed is; a ts is 0 while it is unknown."""

    state: str  # one sentence
    checkpoint_ts: int = 0
    resolved_ts: int = 0
    checkpoint_lag: float = 0.0  # seconds
    resolved_lag: float = 0.0  # seconds
    puller: StageProgress = StageProgress()
    event_store: StageProgress = StageProgress()
    pipeline: StageProgress = StageProgress()
    sink: StageProgress = StageProgress()
    files: int = 0  # committed
    tables: int = 0
    dirty: int = 0  # dispatchers with unplanned events


class View(Protocol):
    """Somebody who watches."""

    def update(self, progress: Progress) -> None:
        """Show it; called from one thread, a few times a second at most."""
        ...

    def close(self) -> None:
        """Give the terminal back: the process ends now. No error when it is done already."""
        ...
