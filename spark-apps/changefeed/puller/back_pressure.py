"""Which subscriptions run while a quota is short: back-pressure is by subscription (CORRECTNESS.md, rule 17).

Pure; used by a puller for its memory and by the owner for the event store. A stream is always read: whoever is held is
not subscribed, so nothing of it comes.

Why it neither overflows nor stands still for ever:

1. *Everything comes faster than it goes.* From 80 % on the farther ahead half, then more, is held: their number falls
   evenly to none at the quota itself. They come back below 60 %, so nobody goes to and fro.
2. *All wait for the one that is held back.* The lowest runs in the last 20 %, whatever it has brought.
3. *Those that run pass one that is held.* When it has fallen behind by `lead` it runs again, and the farthest ahead of
   the others is held in its place.
4. *The quota is used up.* Then the lowest is held too; it is the first to run again, below 80 %.
5. *An idle one is farthest ahead.* Holding it frees nothing: only those that have bytes in the quota are held.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from changefeed.model.tso import compose

HIGH = 0.8
LOW = 0.6
LEAD = compose(10_000)  # as a difference of ts


@dataclass(frozen=True)
class BackPressure:
    """Marks of one quota, in bytes."""

    quota: int
    lead: int = LEAD

    def is_short(self, used: int) -> bool:
        return used >= HIGH * self.quota

    def is_full(self, used: int) -> bool:
        return used >= self.quota

    def is_at_ease(self, used: int) -> bool:
        return used <= LOW * self.quota

    def decide(
        self, used: int, reached: Mapping[int, int], stored: Collection[int], held: Collection[int]
    ) -> tuple[list[int], list[int]]:
        """Whom to hold and whom to resume now.

        `reached`: the resolved-ts of each; `stored`: those with bytes in the quota; `held`: those that don't run.
        """
        if self.is_at_ease(used):
            return [], sorted(held)
        order = sorted(reached, key=lambda each: (reached[each], each))
        running = [each for each in order if each not in held]
        back = [order[0]] if order and order[0] in held and self._lags(used, reached, order[0], running) else []
        if not self.is_short(used):
            return [], back
        lowest = [] if self.is_full(used) else order[:1]
        heavy = [each for each in running if each in stored and each not in lowest]
        share = max(0.0, 1 - used / self.quota) / (1 - HIGH)
        return heavy[int(share * (len(heavy) + len(held))) :], back

    def _lags(self, used: int, reached: Mapping[int, int], lowest: int, running: list[int]) -> bool:
        if not running:
            return not self.is_short(used)
        return not self.is_full(used) and reached[running[0]] - reached[lowest] >= self.lead
