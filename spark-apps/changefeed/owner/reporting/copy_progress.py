"""Progress of initial copies in words: "copied 43 %, 12 min left". Pure."""

from __future__ import annotations

from changefeed.log.state import State


class CopyProgress:
    """Measures one run's copying. Chunks count once they are in committed files; all are taken for equally large."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None  # (monotonic seconds, chunks that were done)

    def say(self, now: float, state: State) -> str:
        """Empty while nothing is copied. `now`: monotonic seconds."""
        copies = state.copies()
        if all(copy.ts <= state.checkpoint_ts for copy in copies.values()):
            self._first = None
            return ""
        size = sum(copy.size for copy in copies.values())
        done = sum(copy.done(state.flushed_ts(dispatcher)) for dispatcher, copy in copies.items())
        if self._first is None:
            self._first = now, done
        began, before = self._first
        said = f"copied {done * 100 // size} %"
        if done in (before, size):
            return said
        return f"{said}, {_duration((size - done) * (now - began) / (done - before))} left"


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
