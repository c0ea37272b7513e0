"""Which subscriptions run while a quota is short: back-pressure is per subscription (docs/design/rules.md, Rule 17).

Pure; used by a puller for its memory and by the owner for the event store. Streams are always read: what is held is not
subscribed, so nothing arrives for it.

Why it neither overflows nor deadlocks:

1. *Everything comes in faster than it goes out.* From 80 % on, the half that is furthest ahead is held, then more: the
   number that run falls evenly to none at the quota itself. They resume below 60 %, so that nothing flaps.
2. *All wait for the one that is held back.* The lowest runs in the last 20 %, however much it has pulled.
3. *Those that run overtake one that is held.* Once it has fallen behind by `lead` it resumes, and the furthest ahead of
   the others is held instead.
4. *The quota is used up.* Then the lowest is held too; it is the first to resume, below 80 %.
5. *An idle one is furthest ahead.* Holding it frees nothing: only those with bytes in the quota are held.
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
