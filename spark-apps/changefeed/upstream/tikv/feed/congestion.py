"""When registrations go to a store that has turned some away: because its change feed has no room (`congested`), or
because too many scans wait in it (`server_is_busy`).

Both are the store's as a whole, and one client that does not read is enough for all others to be turned away. So what a
store has turned away waits together, and nothing is sent to it before one registration has proved that there is room:
each that is turned away has cost the store a scan.

1. *A hundred regions are turned away at once.* They wait for one moment, and the wait grows once.
2. *That moment has come.* One registration goes; the others wait for what becomes of it.
3. *It is turned away too.* The wait doubles, up to 30 s, half of it random.
4. *Its scan is complete.* Two go, then four and so on: a store with room has as many as ever in five steps.
5. *One of those is turned away.* The wait goes on where it was, and one goes again. Those that are turned away go to
   the end of the line, so a region that never fits into the quota keeps no other waiting for ever.
6. *The first ends otherwise, because its region has moved.* The next goes at once.
7. *Its scan is long.* After five seconds in which it was not turned away, more go.
8. *As many go at once as without any trouble, or some were complete and nothing waits any more.* It is over: the next
   wait is a short one. So it is when nothing has been wanted for a minute.
9. *The store says how long to wait.* It waits at least that long.
10. *The stream breaks.* What was tried is forgotten, the wait is not.

Pure: what happens and the time in, whether one may go out.
"""

from __future__ import annotations

from random import Random

FIRST_SECONDS = 0.25
LAST_SECONDS = 30.0
STEP_SECONDS = 5.0
FORGET_SECONDS = 60.0


class Congestion:
    """Paces the scans of one store.

    `most`: registrations whose scan runs at a time when all is well. Times: monotonic seconds.
    """

    def __init__(self, most: int, rng: Random) -> None:
        self._most = most
        self._rng = rng
        self._tried: set[int] = set()  # registrations that went since the wait, and are neither complete nor over
        self._over()

    def _over(self) -> None:
        self.since: float | None = None  # registrations are turned away; None: they are not
        self._turns = 0  # in a row
        self._due = 0.0
        self._window = self._most
        self._widens = 0.0

    def may_go(self, now: float) -> bool:
        """Whether another registration may be sent."""
        self._forget(now)
        if self.since is None:
            return True
        if now < self._due:
            return False
        if self._tried and now >= self._widens:
            self._widen(self._window, now)
        return len(self._tried) < self._window

    def next_look(self, now: float) -> float | None:
        """When `may_go` may answer otherwise, if nothing happens before; None: never."""
        if self.since is None:
            return None
        if now < self._due:
            return self._due
        return self._widens if self._tried else None

    def gone(self, reg: int, now: float) -> None:
        """A registration was sent."""
        if self.since is not None:
            self._tried.add(reg)
            self._widens = now + STEP_SECONDS

    def complete(self, reg: int, now: float) -> None:
        """Its scan is."""
        if reg in self._tried:
            self._tried.remove(reg)
            self._widen(1, now)

    def ended(self, reg: int) -> None:
        """For whatever reason; `turned_away` says more."""
        self._tried.discard(reg)

    def turned_away(self, now: float, at_least: float = 0.0) -> None:
        """A registration was; `at_least`: seconds that the store asks to wait."""
        self._forget(now)
        if self.since is None or now >= self._due:
            self.since = now if self.since is None else self.since
            whole = min(FIRST_SECONDS * 2.0 ** min(self._turns, 16), LAST_SECONDS)
            self._due = now + whole * (0.5 + self._rng.random() / 2)
            self._turns += 1
            self._window = 1
        self._due = max(self._due, now + at_least)

    def lost(self) -> None:
        """With the stream, all registrations are over."""
        self._tried.clear()

    def nothing_waits(self, now: float) -> None:
        """No registration is to be sent for now; one that has moved may come back."""
        if self.since is not None and not self._tried and now >= self._due and self._window > 1:
            self._over()

    def _forget(self, now: float) -> None:
        if self.since is not None and not self._tried and now - self._due >= FORGET_SECONDS:
            self._over()

    def _widen(self, by: int, now: float) -> None:
        self._window += by
        self._widens = now + STEP_SECONDS
        if self._window >= self._most:
            self._over()
