"""The driver's part of the resource's status: fields and conditions (docs/operator/monitoring.md, Status).

Pure. Status is a copy (rule 22): nothing may be decided from it. All times in it are PD's (rule 27). Messages contain
nothing that changes by itself, because every change of a condition is a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from changefeed.model.tso import compose, physical_ms, to_datetime
from changefeed.objectstore.patience import outcome
from changefeed.upstream.tikv.client.safepoint import HeldUntil
from changefeed.upstream.tikv.feed.stopped_stores import BEHIND

EVERY_S = 10.0
AT_MOST_EVERY_S = 1.0
#: TiDB prolongs a transaction's life to that from each heartbeat on (docs/design/tikv.md, Transactions).
_HEARTBEAT_TTL_MS = 20_000
_QUIET_S = 60.0  # without rows: idle; without rows and resolved-ts: stuck
_CALM_MS = 3_000  # a store that has worked at last, and not failed since, is in no trouble any more

#: The condition's reason, by how requests end.
_FAILED = {"away": "StoreAway", "refused": "StoreRefuses", "failed": "WriteFailed"}
PD_AWAY = "PdUnavailable"

Answer = Literal["True", "False", "Unknown"]


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


@dataclass(frozen=True)
class Blocked:
    """A table's resolved-ts waits for a living transaction, which dies `ttl_ms` after its start without a heartbeat."""

    table: str
    start_ts: int
    ttl_ms: int


@dataclass(frozen=True)
class Seen:
    """What the driver knows at one moment; a ts is 0 while it is unknown."""

    pd_ms: int  # PD's clock, or what it would be by now
    epoch: int
    cluster_id: int
    start_ts: int
    checkpoint_ts: int  # published
    resolved_ts: int
    tables: int
    rows: int  # written since the start
    pulled: int  # rows, by this driver
    complete: bool  # every span is pulled
    held: int  # spans that are held back because there is no room
    blocked: Blocked | None = None  # by the oldest transaction whose locks hold a resolved-ts back
    sink: Trouble | None = None
    upstream: Trouble | None = None
    tikv: Trouble | None = None
    history: HeldUntil | None = None  # None: not held yet
    sink_uri: str = ""  # of the newest generation
    ddl: tuple[int, str] | None = None  # the newest that is written: its ts, its statement
    copied: str = ""  # how far initial copies are; "" while there are none
    mode: str = ""  # where new segments are read: Buffer or Archive; "" where there is no buffer
    lag_threshold: float = 60.0  # seconds
    settings: Mapping[str, str] = field(default_factory=dict)  # those that it takes over while it runs, as they are


@dataclass(frozen=True)
class Condition:
    type: str
    status: Answer
    reason: str
    message: str

    def as_json(self, since_ms: int) -> dict[str, str]:
        """`since_ms`: when `status` became what it is."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": _time(since_ms),
        }


class Status:
    """Remembers what a moment can't tell: since when something is so, and what was said last."""

    def __init__(self, version: str = "") -> None:
        """`version`: of this program."""
        self._version = version
        self._settings: Mapping[str, str] = {}  # as said last
        self._since: dict[str, tuple[Answer, int]] = {}  # by type of condition
        self._said: list[Condition] = []
        self._said_at = float("-inf")
        self._resolved = (0, 0)  # the resolved-ts, and PD's clock when it became that
        self._pulled = (0, 0)

    def due(self, now: float, seen: Seen) -> dict[str, Any] | None:
        """The status to be written, or None: it is said every 10 s, and within 1 s of another condition or setting.

        `now`: monotonic seconds. What is given out counts as said, whether it arrives or not.
        """
        conditions = self._conditions(seen)
        is_new = _kinds(conditions) != _kinds(self._said) or seen.settings != self._settings
        after = AT_MOST_EVERY_S if is_new else EVERY_S
        if now - self._said_at < after:
            return None
        return self.last(now, seen)

    def last(self, now: float, seen: Seen) -> dict[str, Any]:
        """The status, due or not."""
        self._said, self._said_at, self._settings = self._conditions(seen), now, seen.settings
        hold = {"ts": str(seen.history.ts), "until": _time(seen.history.until_ms)} if seen.history else None
        return {
            **({"hold": hold} if hold else {}),
            "clusterId": str(seen.cluster_id),
            "startTs": str(seen.start_ts),
            **({"sinkUri": seen.sink_uri} if seen.sink_uri else {}),
            "checkpointTs": str(seen.checkpoint_ts),
            "checkpointTime": _time(physical_ms(seen.checkpoint_ts)),
            "resolvedTs": str(seen.resolved_ts),
            "lagSeconds": int(self._lag_ms(seen) // 1000),
            "epoch": seen.epoch,
            "tables": seen.tables,
            "rows": seen.rows,
            **({"eventStoreMode": seen.mode} if seen.mode else {}),
            **({"initialCopy": seen.copied} if seen.copied else {}),
            **({"lastDdl": _ddl(*seen.ddl)} if seen.ddl else {}),
            **({"version": self._version} if self._version else {}),
            "appliedSettings": dict(seen.settings),
            "conditions": [each.as_json(self._since[each.type][1]) for each in self._said],
        }

    def _conditions(self, seen: Seen) -> list[Condition]:
        if seen.resolved_ts != self._resolved[0]:
            self._resolved = (seen.resolved_ts, seen.pd_ms)
        if seen.pulled != self._pulled[0] or not self._pulled[1]:
            self._pulled = (seen.pulled, seen.pd_ms)
        conditions = [_sink(seen), self._upstream(seen), self._within_lag(seen)]
        for each in conditions:
            known = self._since.get(each.type)
            if known is None or known[0] != each.status:
                self._since[each.type] = (each.status, seen.pd_ms)
        return conditions

    def _upstream(self, seen: Seen) -> Condition:
        if seen.upstream is not None:
            why = f"PD has not answered since {_time(seen.upstream.since_ms)}: {seen.upstream.message}"
            return Condition("UpstreamAvailable", "False", PD_AWAY, f"{why} Check PD and the network to it.")
        if seen.tikv is not None:
            why = f"Change data has been held up since {_time(seen.tikv.since_ms)}: {seen.tikv.message}"
            return Condition("UpstreamAvailable", "False", seen.tikv.reason, why)
        if not seen.complete:
            return Condition("UpstreamAvailable", "Unknown", "Starting", "The pullers are catching up.")
        if self._is_stuck(seen):
            why = (
                f"Nothing has arrived since {_time(self._resolved[1])}; the resolved-ts is stuck at {seen.resolved_ts}."
            )
            return Condition(
                "UpstreamAvailable", "False", "ResolvedTsStuck", f"{why} Check the TiKV stores and the network to them."
            )
        return Condition("UpstreamAvailable", "True", "Available", "PD answers and the pullers receive changes.")

    def _within_lag(self, seen: Seen) -> Condition:
        limit = f"lagThreshold, {seen.lag_threshold:g} s"
        if self._lag_ms(seen) <= seen.lag_threshold * 1000:
            if seen.complete and seen.pd_ms - self._pulled[1] >= _QUIET_S * 1000:
                return Condition("WithinLag", "True", "Idle", "The selected tables are not changing.")
            return Condition("WithinLag", "True", "KeepingUp", f"The lag is within {limit}.")
        reason, why = self._why_late(seen)
        return Condition("WithinLag", "False", reason, f"The lag is above {limit}. {why}")

    def _why_late(self, seen: Seen) -> tuple[str, str]:
        if seen.sink is not None:
            return "SinkUnavailable", f"Nothing has been written since {_time(seen.sink.since_ms)}."
        if seen.upstream is not None:
            return "UpstreamUnavailable", f"PD has not answered since {_time(seen.upstream.since_ms)}."
        if seen.tikv is not None:
            return "UpstreamUnavailable", f"A store has held up change data since {_time(seen.tikv.since_ms)}."
        if not seen.complete:
            return "Starting", "The pullers are catching up."
        if seen.pd_ms - physical_ms(seen.resolved_ts) <= seen.lag_threshold * 1000:
            return "CatchingUp", "Pulled changes are being written."
        if seen.blocked is not None:
            return (
                "BlockedByLock",
                f"{_by_whom(seen.blocked, seen.pd_ms)}: nothing after it can be written until it ends. "
                "Commit it or roll it back.",
            )
        if self._is_stuck(seen):
            return "UpstreamUnavailable", f"Nothing has arrived since {_time(self._resolved[1])}."
        return "CatchingUp", "Changes are being pulled."

    def _is_stuck(self, seen: Seen) -> bool:
        """Nothing has come for a minute though nothing on our side and no lock keeps it back."""
        still_ms = seen.pd_ms - max(self._resolved[1], self._pulled[1])
        return still_ms >= _QUIET_S * 1000 and not (seen.blocked or seen.held or seen.sink)

    def _lag_ms(self, seen: Seen) -> int:
        return max(0, seen.pd_ms - physical_ms(seen.checkpoint_ts))


def _sink(seen: Seen) -> Condition:
    if seen.sink is None:
        return Condition("SinkAvailable", "True", "Available", "Writes are keeping up.")
    why = f"Nothing has been written since {_time(seen.sink.since_ms)}: {seen.sink.message}"
    return Condition("SinkAvailable", "False", failed_reason(seen.sink.answered), f"{why} Retrying.")


def failed_reason(answered: bool | None) -> str:
    """`answered`: see ChangefeedError."""
    return _FAILED[outcome(answered)]


def _by_whom(blocked: Blocked, pd_ms: int) -> str:
    began_ms = physical_ms(blocked.start_ts)
    heartbeat_ms = began_ms + blocked.ttl_ms - _HEARTBEAT_TTL_MS
    alive = f", last heartbeat {_time(heartbeat_ms)}" if heartbeat_ms > began_ms else ""
    return (
        f"Table {blocked.table} is held back {(pd_ms - began_ms) // 1000} s by transaction {blocked.start_ts}, "
        f"started at {_time(began_ms)}{alive}"
    )


def _ddl(ts: int, statement: str) -> dict[str, str]:
    return {"ts": str(ts), "time": _time(physical_ms(ts)), "statement": statement}


def _kinds(conditions: list[Condition]) -> list[tuple[str, Answer, str]]:
    return [(each.type, each.status, each.reason) for each in conditions]


def _time(ms: int) -> str:
    """RFC 3339, whole seconds, UTC."""
    return to_datetime(compose(ms)).strftime("%Y-%m-%dT%H:%M:%SZ")
