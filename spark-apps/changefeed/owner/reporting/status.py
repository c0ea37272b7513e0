"""The driver's part of the resource's status: fields and conditions (docs/operator/monitoring.md, Status).

Pure. Status is a copy (rule 22): nothing may be decided from it. All times in it are PD's (rule 27). Messages contain
nothing that changes by itself, because every change of a condition is a write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from changefeed.model.tso import compose, physical_ms, to_datetime
from changefeed.owner.reporting.snapshot import RunSnapshot
from changefeed.owner.reporting.troubles import away_reason, failed_reason
from changefeed.spec.driver_status import OpenTransaction
from changefeed.upstream.contract import HeldUntil

EVERY_S = 10.0
AT_MOST_EVERY_S = 1.0
#: TiDB prolongs a transaction's life to that from each heartbeat on (docs/design/tikv.md, Transactions).
_HEARTBEAT_TTL_MS = 20_000
_QUIET_S = 60.0  # without rows: idle; without rows and resolved-ts: stuck

Answer = Literal["True", "False", "Unknown"]


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

    def due(self, now: float, seen: RunSnapshot) -> dict[str, Any] | None:
        """The status to be written, or None: it is said every 10 s, and within 1 s of another condition or setting.

        `now`: monotonic seconds. What is given out counts as said, whether it arrives or not.
        """
        conditions = self._conditions(seen)
        is_new = _kinds(conditions) != _kinds(self._said) or seen.settings != self._settings
        after = AT_MOST_EVERY_S if is_new else EVERY_S
        if now - self._said_at < after:
            return None
        return self.last(now, seen)

    def last(self, now: float, seen: RunSnapshot) -> dict[str, Any]:
        """The status, due or not."""
        self._said, self._said_at, self._settings = self._conditions(seen), now, seen.settings
        return {
            **({"hold": hold_fields(seen.history)} if seen.history else {}),
            "clusterId": str(seen.cluster_id),
            "startTs": str(seen.start_ts),
            **({"sinkUri": seen.sink_uri} if seen.sink_uri else {}),
            "checkpointTs": str(seen.published_ts),
            "checkpointTime": _time(physical_ms(seen.published_ts)),
            "resolvedTs": str(seen.resolved_ts),
            "lagSeconds": int(self._lag_ms(seen) // 1000),
            "epoch": seen.epoch,
            "tables": seen.table_count,
            "rows": seen.rows,
            **({"eventStoreMode": seen.mode} if seen.mode else {}),
            **({"initialCopy": seen.copied} if seen.copied else {}),
            **({"lastDdl": _ddl(*seen.ddl)} if seen.ddl else {}),
            **({"version": self._version} if self._version else {}),
            "appliedSettings": dict(seen.settings),
            "conditions": [each.as_json(self._since[each.type][1]) for each in self._said],
        }

    def _conditions(self, seen: RunSnapshot) -> list[Condition]:
        if seen.resolved_ts != self._resolved[0]:
            self._resolved = (seen.resolved_ts, seen.at_ms)
        if seen.pulled != self._pulled[0] or not self._pulled[1]:
            self._pulled = (seen.pulled, seen.at_ms)
        conditions = [_sink(seen), self._upstream(seen), self._within_lag(seen), *_rules(seen)]
        for each in conditions:
            known = self._since.get(each.type)
            if known is None or known[0] != each.status:
                self._since[each.type] = (each.status, seen.at_ms)
        return conditions

    def _upstream(self, seen: RunSnapshot) -> Condition:
        if seen.upstream is not None:
            why = f"{seen.server} has not answered since {_time(seen.upstream.since_ms)}: {seen.upstream.message}"
            step = f"Check {seen.server} and the network to it."
            return Condition("UpstreamAvailable", "False", away_reason(seen.server), f"{why} {step}")
        if seen.tikv is not None:
            why = f"Change data has been held up since {_time(seen.tikv.since_ms)}: {seen.tikv.message}"
            return Condition("UpstreamAvailable", "False", seen.tikv.reason, why)
        if not seen.complete:
            return Condition("UpstreamAvailable", "Unknown", "Starting", "The pullers are catching up.")
        if self._is_stuck(seen):
            why = (
                f"Nothing has arrived since {_time(self._resolved[1])}; the resolved-ts is stuck at {seen.resolved_ts}."
            )
            return Condition("UpstreamAvailable", "False", "ResolvedTsStuck", f"{why} Check {seen.source}.")
        return Condition(
            "UpstreamAvailable", "True", "Available", f"{seen.server} answers and the pullers receive changes."
        )

    def _within_lag(self, seen: RunSnapshot) -> Condition:
        limit = f"lagThreshold, {seen.lag_threshold:g} s"
        if self._lag_ms(seen) <= seen.lag_threshold * 1000:
            if seen.complete and seen.at_ms - self._pulled[1] >= _QUIET_S * 1000:
                return Condition("WithinLag", "True", "Idle", "The selected tables are not changing.")
            return Condition("WithinLag", "True", "KeepingUp", f"The lag is within {limit}.")
        reason, why = self._why_late(seen)
        return Condition("WithinLag", "False", reason, f"The lag is above {limit}. {why}")

    def _why_late(self, seen: RunSnapshot) -> tuple[str, str]:
        if seen.sink is not None:
            return "SinkUnavailable", f"Nothing has been written since {_time(seen.sink.since_ms)}."
        if seen.upstream is not None:
            return "UpstreamUnavailable", f"{seen.server} has not answered since {_time(seen.upstream.since_ms)}."
        if seen.tikv is not None:
            return "UpstreamUnavailable", f"Change data has been held up since {_time(seen.tikv.since_ms)}."
        if not seen.complete:
            return "Starting", "The pullers are catching up."
        if seen.at_ms - physical_ms(seen.resolved_ts) <= seen.lag_threshold * 1000:
            return "CatchingUp", "Pulled changes are being written."
        if seen.blocked is not None:
            return (
                "BlockedByLock",
                f"{_by_whom(seen.blocked, seen.at_ms)}: nothing after it can be written until it ends. "
                "Commit it or roll it back.",
            )
        if self._is_stuck(seen):
            return "UpstreamUnavailable", f"Nothing has arrived since {_time(self._resolved[1])}."
        return "CatchingUp", "Changes are being pulled."

    def _is_stuck(self, seen: RunSnapshot) -> bool:
        """Nothing has come for a minute though nothing on our side and no lock keeps it back."""
        still_ms = seen.at_ms - max(self._resolved[1], self._pulled[1])
        return still_ms >= _QUIET_S * 1000 and not (seen.blocked or seen.held or seen.sink)

    def _lag_ms(self, seen: RunSnapshot) -> int:
        return max(0, seen.at_ms - physical_ms(seen.published_ts))


def hold_fields(held: HeldUntil) -> dict[str, Any]:
    """As `status.hold`. All that is said of what is kept: a field that is left out may stay, as another's."""
    fields: dict[str, Any] = {"ts": str(held.ts), "until": _time(held.until_ms)}
    if (kept := held.kept) is None:
        return fields
    return fields | {
        "keptBytes": kept.bytes,
        "mostBytes": kept.most_bytes or 0,
        "walStatus": kept.state,
        "goneAt": _time(kept.gone_ms) if kept.gone_ms is not None else "",
        "warning": kept.warning,
    }


def _sink(seen: RunSnapshot) -> Condition:
    if seen.sink is None:
        return Condition("SinkAvailable", "True", "Available", "Writes are keeping up.")
    why = f"Nothing has been written since {_time(seen.sink.since_ms)}: {seen.sink.message}"
    return Condition("SinkAvailable", "False", failed_reason(seen.sink.answered), f"{why} Retrying.")


def _rules(seen: RunSnapshot) -> Iterator[Condition]:
    """What the spec says of tables to no effect. It is no trouble of the run, which goes on."""
    if (found := seen.rules) is not None:
        yield Condition("RulesMatch", "False" if found.findings else "True", found.reason, found.message)


def _by_whom(blocked: OpenTransaction, pd_ms: int) -> str:
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
