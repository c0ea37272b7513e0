"""How long a store may fail before its user gives up, and who is told in the meantime.

At start, a bad store is refused quickly. A run waits: outages, full disks and revoked permissions pass, and a restart
would only lose what has been pulled. Giving up is safe: a later run reads what happened.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from changefeed.errors import (
    ChangefeedError,
    Conflict,
    NeedsHuman,
    NotFound,
    OutcomeUnknown,
    Refused,
    Transient,
    Unavailable,
)

T = TypeVar("T")

START_S = 60.0
#: Of a run; what its tasks wait for is counted by the driver, which ends them.
RUN_S = 900.0

#: What may be over when it is tried again, however long that takes.
PASSING = (OutcomeUnknown, Refused, Transient, Unavailable)

#: Takes a counter's name and the value of its label: once more.
Count = Callable[[str, str], object]

REQUESTS = "changefeed_sink_requests_total"
LATE_WRITES = "changefeed_sink_late_writes_total"

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 5.0


class Tally:
    """What has been counted and is not told yet; thread-safe."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, label: str) -> None:
        """A `Count`."""
        with self._lock:
            self._times[name, label] += 1

    def take(self) -> Counter[tuple[str, str]]:
        """Return the counts by counter and label, and count from 0 again."""
        with self._lock:
            times, self._times = self._times, Counter()
        return times


def outcome(answered: bool | None) -> str:
    """Name the outcome of a request that has failed, in one word; see `ChangefeedError.answered`."""
    return {None: "failed", False: "away", True: "refused"}[answered]


def given_up(where: str, seconds: float, why: str, answered: bool | None = None, next_step: str = "") -> Unavailable:
    """A store has failed for so long that nobody waits any more. `next_step`: of the failure that `why` tells."""
    error = Unavailable(
        f"{where} has failed for {seconds:g} s. {why}",
        f"{next_step or 'Check the store and the network to it.'} The next start resumes from the checkpoint.",
    )
    error.answered = answered
    return error


class Patience:
    """Tries a call to a store again for `limit_s` seconds; one for many calls, of any thread.

    `failed` is told each time why, and may raise to stop the waiting. `works` is told when a call has not failed: True
    at once, False after failures. `count` is told how each request has ended.
    """

    def __init__(
        self,
        limit_s: float = START_S,
        sleep: Callable[[float], None] | None = None,
        failed: Callable[[ChangefeedError], object] = lambda error: None,
        works: Callable[[bool], object] = lambda at_once: None,
        ending: threading.Event | None = None,
        count: Count = lambda name, label: None,
    ) -> None:
        """`ending`: once it is set nothing is waited for any more."""
        self.limit_s = limit_s
        self.ending = ending or threading.Event()
        self._sleep = sleep or self._wait
        self._failed = failed
        self._works = works
        self._count = count

    def call(self, where: str, attempt: Callable[[], T], again: Callable[[], object] = lambda: None) -> T:
        """Return what `attempt` gives. After a failure of it that may pass, `again` is called before the next one.

        `where` names the store. Raises Unavailable when it is time to give up, and what can't pass at once.
        """
        wait, spent = FIRST_WAIT_S, 0.0
        while True:
            began = time.monotonic()
            try:
                given = attempt()
            except PASSING as error:
                self._count(REQUESTS, outcome(error.answered))
                spent += time.monotonic() - began
                if spent >= self.limit_s:
                    raise given_up(where, self.limit_s, error.message, error.answered, error.next_step) from error
                self._failed(error)
                self._sleep(wait)
                spent += wait
                wait = min(wait * 2, LONGEST_WAIT_S)
            except (Conflict, NotFound):  # an answer like any other
                self._count(REQUESTS, "ok")
                raise
            except NeedsHuman as error:
                self._count(REQUESTS, outcome(error.answered))
                raise
            else:
                self._count(REQUESTS, "ok")
                self._works(not spent)
                return given
            again()

    def found_late(self) -> None:
        """A write whose outcome nobody knew was done: it stands there."""
        self._count(LATE_WRITES, "")

    def _wait(self, seconds: float) -> None:
        if self.ending.wait(seconds):
            raise Unavailable("The run is ending.", "The next start resumes from the checkpoint.")
