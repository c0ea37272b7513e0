"""The checkpoint's lag over the last hour, broken down by stage. Pure."""

from __future__ import annotations

from collections import deque

from changefeed.model.tso import physical_ms
from changefeed.spec.driver_status import SAMPLES_MAX, LagSample

EVERY_MS = 5_000


class Lags:
    """At most SAMPLES_MAX samples, one for each 5 s: the highest lag of these."""

    def __init__(self) -> None:
        self._samples: deque[LagSample] = deque(maxlen=SAMPLES_MAX)

    def note(self, at_ms: int, resolved_ts: int, planned_ts: int, checkpoint_ts: int) -> None:
        """`at_ms`: PD's clock; 0: not known yet, so nothing is."""
        if not at_ms:
            return
        resolved_ms = min(at_ms, physical_ms(resolved_ts))
        planned_ms = min(resolved_ms, physical_ms(planned_ts))
        checkpoint_ms = min(planned_ms, physical_ms(checkpoint_ts))
        sample = LagSample(
            at_ms=at_ms,
            pull=(at_ms - resolved_ms) / 1000,
            plan=(resolved_ms - planned_ms) / 1000,
            write=(planned_ms - checkpoint_ms) / 1000,
        )
        newest = self._samples[-1] if self._samples else None
        if newest is None or at_ms // EVERY_MS > newest.at_ms // EVERY_MS:
            self._samples.append(sample)
        elif sample.total > newest.total:
            self._samples[-1] = sample

    def samples(self) -> tuple[LagSample, ...]:
        """The oldest first."""
        return tuple(self._samples)
