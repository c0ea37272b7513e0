"""What a run waits for, since when, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from changefeed.objectstore.patience import outcome
from changefeed.upstream.contract import BEHIND

_CALM_MS = 3_000  # a store that has worked at last, and not failed since, is in no trouble any more

#: The condition's reason, by how requests end.
_FAILED = {"away": "StoreAway", "refused": "StoreRefuses", "failed": "WriteFailed"}


def away_reason(server: str) -> str:
    """Return the reason for an upstream that does not answer: PdUnavailable, of PD."""
    return f"{server.capitalize()}Unavailable"


def failed_reason(answered: bool | None) -> str:
    """`answered`: see ChangefeedError."""
    return _FAILED[outcome(answered)]


@dataclass(frozen=True)
class Trouble:
    since_ms: int  # PD's clock
    message: str
    answered: bool | None = None  # see ChangefeedError
    reason: str = ""  # of TiKV's: the condition's
    next_step: str = ""


class Troubles:
    """What fails now, and since when. `pd_ms`: PD's clock."""

    def __init__(self) -> None:
        self._stores: dict[str, Trouble] = {}  # by who can't use the sink or the state
        self._late: set[str] = set()  # of these, for whom it has worked since it failed last
        self.upstream: Trouble | None = None
        self._tikv: dict[str, Trouble] = {}  # by who pulls from it

    @property
    def sink(self) -> Trouble | None:
        """The oldest: the sink or the state can't be used."""
        return _oldest(self._stores.values())

    @property
    def failing(self) -> Trouble | None:
        """The oldest of a store that has not worked since."""
        return _oldest(trouble for who, trouble in self._stores.items() if who not in self._late)

    def store_failed(
        self, who: str, pd_ms: int, message: str, answered: bool | None = None, next_step: str = ""
    ) -> None:
        """`who` could not read or write something; it will be tried again."""
        self._stores.setdefault(who, Trouble(pd_ms, message, answered, next_step=next_step))
        self._late.discard(who)

    def store_works(self, who: str) -> None:
        self._stores.pop(who, None)
        self._late.discard(who)

    def store_worked_late(self, who: str, pd_ms: int) -> None:
        """After it had failed: what fails each time at first is in trouble still, from now on."""
        if (known := self._stores.get(who)) is not None:
            self._stores[who] = replace(known, since_ms=pd_ms)
            self._late.add(who)

    def upstream_failed(self, pd_ms: int, message: str) -> None:
        """PD did not answer; it will be asked again."""
        self.upstream = self.upstream or Trouble(pd_ms, message)

    def upstream_answered(self, pd_ms: int) -> None:
        self.upstream = None
        for who in [who for who in self._late if self._stores[who].since_ms + _CALM_MS <= pd_ms]:
            self.store_works(who)

    @property
    def tikv(self) -> Trouble | None:
        """The oldest: a TiKV store sends no or not all change data. One that is of our making comes first: what
        one puller does not read may be all that another one sees of it."""
        return min(self._tikv.values(), key=lambda each: (each.reason != BEHIND, each.since_ms), default=None)

    def tikv_stopped(self, who: str, pd_ms: int, reason: str, message: str) -> bool:
        """`who` gets no change data from a store. Whether that is new."""
        known = self._tikv.get(who)
        is_new = known is None or (known.reason, known.message) != (reason, message)
        self._tikv[who] = Trouble(known.since_ms if known else pd_ms, message, reason=reason)
        return is_new

    def tikv_sends(self, who: str) -> None:
        self._tikv.pop(who, None)


def _oldest(troubles: Iterable[Trouble]) -> Trouble | None:
    return min(troubles, key=lambda trouble: trouble.since_ms, default=None)
