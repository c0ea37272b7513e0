"""How long a store may fail before the driver gives up. Giving up is safe: a later run reads what has happened."""

from __future__ import annotations

from collections.abc import Callable

from changefeed.errors import ChangefeedError, Unavailable

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 5.0
_PATIENCE_S = 60.0


class Patience:
    """The pauses between the attempts of one call; `where` names the store."""

    def __init__(self, sleep: Callable[[float], None], where: str) -> None:
        self._sleep = sleep
        self._where = where
        self._wait = _FIRST_WAIT_S
        self._waited = 0.0

    def wait(self, error: ChangefeedError) -> None:
        """Before the next attempt, after one that ended with `error`. Raises Unavailable when it is time to give up."""
        if self._waited >= _PATIENCE_S:
            raise Unavailable(
                f"{self._where} has failed for {_PATIENCE_S:g} s. {error.message}",
                "Look at the store and the network to it; a later start goes on from the checkpoint.",
            ) from error
        self._sleep(self._wait)
        self._waited += self._wait
        self._wait = min(self._wait * 2, _LONGEST_WAIT_S)
