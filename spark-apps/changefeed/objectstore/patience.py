"""How long a store may fail before whoever uses it gives up, and who hears of it meanwhile.

At start a bad store is refused soon. A run waits: an outage, a full disk and a permission that was taken away pass, and
starting again would change nothing but lose what has been pulled. Giving up is safe: a later run reads what happened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from changefeed.errors import ChangefeedError, OutcomeUnknown, Refused, Transient, Unavailable

T = TypeVar("T")

START_S = 60.0
#: Of a run; what its tasks wait for is counted by the driver, which ends them.
RUN_S = 900.0

#: What may be over when it is tried again, however long that takes.
PASSING = (OutcomeUnknown, Refused, Transient, Unavailable)

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 5.0


def given_up(where: str, seconds: float, why: str) -> Unavailable:
    """A store has failed for so long that nobody waits any more."""
    return Unavailable(
        f"{where} has failed for {seconds:g} s. {why}",
        "Look at the store and the network to it; a later start goes on from the checkpoint.",
    )


class Patience:
    """Tries a call to a store again for `limit_s` seconds; one for many calls, of any thread.

    `failed` is told each time why, and may raise to stop the waiting. `works` is told when a call has not failed: True
    at once, False after failures.
    """

    def __init__(
        self,
        limit_s: float = START_S,
        sleep: Callable[[float], None] | None = None,
        failed: Callable[[ChangefeedError], object] = lambda error: None,
        works: Callable[[bool], object] = lambda at_once: None,
        ending: threading.Event | None = None,
    ) -> None:
        """`ending`: once it is set nothing is waited for any more."""
        self._limit_s = limit_s
        self._ending = ending or threading.Event()
        self._sleep = sleep or self._wait
        self._failed = failed
        self._works = works

    def call(self, where: str, attempt: Callable[[], T], again: Callable[[], None] = lambda: None) -> T:
        """What `attempt` gives. After a failure of it that may pass, `again` is called before the next one.

        `where` names the store. Raises Unavailable when it is time to give up, and what can't pass at once.
        """
        wait, spent = _FIRST_WAIT_S, 0.0
        while True:
            began = time.monotonic()
            try:
                given = attempt()
            except PASSING as error:
                spent += time.monotonic() - began
                if spent >= self._limit_s:
                    raise given_up(where, self._limit_s, error.message) from error
                self._failed(error)
                self._sleep(wait)
                spent += wait
                wait = min(wait * 2, _LONGEST_WAIT_S)
            else:
                self._works(not spent)
                return given
            again()

    def _wait(self, seconds: float) -> None:
        if self._ending.wait(seconds):
            raise Unavailable("The run ends.", "A later start goes on from the checkpoint.")
