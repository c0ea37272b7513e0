"""What the page shows about changefeeds, whether it comes from a driver, a resource's status or a log. Pure.

Times are in milliseconds since 1970, lags in seconds; 0, None or "" means unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from changefeed.spec.driver_status import DriverStatus, LagSample, OpenTransaction, StageRate, TableStatus

Tone = Literal["good", "warn", "bad", "off"]

#: Maximum rows on a page.
TABLES_SHOWN = 100
CHANGEFEEDS_SHOWN = 200

#: A driver's last report is stale after this long.
FRESH_MS = 15_000

_LOGICAL_BITS = 18
_TONES: dict[str, Tone] = {
    "Normal": "good",
    "Finished": "good",
    "Pending": "warn",
    "Warning": "warn",
    "Failed": "bad",
    "Not answering": "bad",
}
_WORST_FIRST = {"bad": 0, "warn": 1, "off": 2, "good": 3}


def ms_of(ts: int) -> int:
    """The time of a ts."""
    return ts >> _LOGICAL_BITS


def lag_of(now_ms: int, ts: int) -> float:
    """Seconds from the time of a ts to now; 0.0 if a clock is ahead."""
    return max(0.0, (now_ms - ms_of(ts)) / 1000)


@dataclass(frozen=True)
class Failure:
    """An error with what to do about it."""

    kind: str
    message: str
    next_step: str = ""
    at_ms: int = 0
    over: bool = False
    retry_ms: int = 0  # time of the next retry


@dataclass(frozen=True)
class ConditionView:
    type: str
    status: str
    reason: str
    message: str
    since_ms: int = 0


@dataclass(frozen=True)
class ChangefeedView:
    """One changefeed. `now_ms`: the clock that lags are relative to."""

    namespace: str
    name: str
    state: str
    now_ms: int
    message: str = ""
    checkpoint_ts: int = 0
    resolved_ts: int = 0
    notes: tuple[str, ...] = ()  # what is missing from the page, and why
    facts: tuple[tuple[str, str], ...] = ()
    lags: tuple[LagSample, ...] = ()
    stages: tuple[StageRate, ...] = ()
    table_count: int | None = None
    tables: tuple[TableStatus, ...] = ()  # the furthest behind first
    transactions: tuple[OpenTransaction, ...] = ()
    is_live: bool = False  # a driver has just reported
    failure: Failure | None = None
    conditions: tuple[ConditionView, ...] = ()

    @property
    def tone(self) -> Tone:
        return _TONES.get(self.state, "off")

    @property
    def lag(self) -> float | None:
        """Checkpoint lag; None if unknown, or if the changefeed is finished."""
        if not self.checkpoint_ts or not self.now_ms or self.state == "Finished":
            return None
        return lag_of(self.now_ms, self.checkpoint_ts)


@dataclass(frozen=True)
class Overview:
    """All changefeeds, worst and furthest behind first, and notes on what could not be read."""

    changefeeds: tuple[ChangefeedView, ...]
    total: int
    notes: tuple[str, ...] = ()


def overview(changefeeds: Iterable[ChangefeedView], notes: Iterable[str] = ()) -> Overview:
    """Show at most CHANGEFEEDS_SHOWN of them."""
    found = sorted(changefeeds, key=lambda one: (_WORST_FIRST[one.tone], -(one.lag or 0.0), one.namespace, one.name))
    return Overview(tuple(found[:CHANGEFEEDS_SHOWN]), len(found), tuple(notes))


def of_driver(status: DriverStatus) -> ChangefeedView:
    """Make the view from its driver's status."""
    return ChangefeedView(
        namespace=status.namespace,
        name=status.name,
        state=status.state,
        now_ms=status.at_ms,
        message=status.message,
        checkpoint_ts=status.checkpoint_ts,
        resolved_ts=status.resolved_ts,
        facts=tuple(_facts(status)),
        lags=status.lags,
        stages=status.stages,
        table_count=status.table_count,
        tables=status.tables,
        transactions=status.transactions,
        notes=status.findings,
        is_live=True,
        failure=_failure(status),
    )


def with_driver(known: ChangefeedView, status: DriverStatus) -> ChangefeedView:
    """Add what only the driver knows to what the resource says. The resource's message and facts take precedence."""
    live = of_driver(status)
    facts = dict(live.facts)
    facts.update(known.facts)
    return replace(
        known,
        now_ms=live.now_ms or known.now_ms,
        checkpoint_ts=max(known.checkpoint_ts, live.checkpoint_ts),
        resolved_ts=live.resolved_ts or known.resolved_ts,
        facts=tuple(facts.items()),
        lags=live.lags,
        stages=live.stages,
        table_count=live.table_count,
        tables=live.tables,
        transactions=live.transactions,
        notes=(*known.notes, *live.notes),
        is_live=True,
        failure=_newer(known.failure, live.failure),
    )


def unanswered(known: ChangefeedView, why: str, now_ms: int) -> ChangefeedView:
    """The driver's last report, marked as no longer current."""
    note = f"{why} The page shows the driver's last report."
    return replace(known, state="Not answering", now_ms=now_ms, message="", notes=(note, *known.notes), is_live=False)


def _newer(one: Failure | None, other: Failure | None) -> Failure | None:
    found = [each for each in (one, other) if each is not None]
    return max(found, key=lambda each: (not each.over, each.at_ms), default=None)


def _facts(status: DriverStatus) -> Iterable[tuple[str, str]]:
    if status.upstream:
        yield "Upstream", status.upstream
    if status.sink:
        yield "Sink", status.sink
    yield "Rows written", f"{status.rows:,}"
    yield "Driver", f"epoch {status.epoch}, version {status.version or 'unknown'}"


def _failure(status: DriverStatus) -> Failure | None:
    error = status.last_error
    return Failure(error.kind, error.message, error.next_step, error.at_ms, error.over) if error else None
