"""Whether a driver that runs gets on: what it says of itself, and what its silence says. Pure.

Nothing here ends an attempt: the driver's words are shown, not acted on (rule 22).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.conditions import Reason, Situation, condition
from changefeed_operator.driver_pod import started_at, trouble_of
from changefeed_operator.observe import Observed

#: Seconds that a driver has for its first report.
FIRST_REPORT_S = 180.0
#: A driver reports every 10 s; one that hasn't for this many seconds is silent.
SILENT_S = 300.0

_SILENT = "Look at its log (changefeed logs), and at its way to the API server."


@dataclass(frozen=True)
class Progress:
    """`look_again_at`: Unix seconds at which silence alone would change the situation."""

    situation: Situation
    look_again_at: float | None = None


def progress(observed: Observed, driver: Json, executors: tuple[Json, ...]) -> Progress:
    """Where a changefeed stands whose driver runs."""
    status = api.mapping_at(observed.changefeed, "status")
    reported = _report_time(observed.changefeed or {})
    created = api.time_at(driver, "metadata", "creationTimestamp") or 0.0
    if reported is None or reported < created:
        return _unheard(observed.now, (started_at(driver) or created) + FIRST_REPORT_S, executors)
    if observed.now >= reported + SILENT_S:
        message = f"The driver runs, but has not reported for {SILENT_S:.0f} s. {_SILENT}"
        return Progress(Situation(Reason.DRIVER_SILENT, message))
    return Progress(_told(status, executors), reported + SILENT_S)


def _unheard(now: float, deadline: float, executors: tuple[Json, ...]) -> Progress:
    pending = _pending(executors)
    if now >= deadline:
        message = f"The driver runs, but has not reported in {FIRST_REPORT_S:.0f} s. {_SILENT}"
        return Progress(pending or Situation(Reason.DRIVER_SILENT, message))
    return Progress(pending or Situation(Reason.STARTING, "The driver runs, its first report is awaited."), deadline)


def _told(status: Json, executors: tuple[Json, ...]) -> Situation:
    """The first of the driver's troubles that explains the others."""
    sink, upstream, lag = (condition(status, kind) for kind in ("SinkAvailable", "UpstreamAvailable", "WithinLag"))
    if _answer(sink) == "False":
        return Situation(Reason.SINK_UNAVAILABLE, _message(sink, "The sink can't be written to."))
    if _answer(lag) != "True" and (pending := _pending(executors)):
        return pending
    if api.text_at(lag, "reason") == "BlockedByLock":
        return Situation(Reason.BLOCKED_BY_LOCK, _message(lag, "A transaction's locks hold the checkpoint back."))
    if _answer(upstream) == "False":
        return Situation(Reason.UPSTREAM_UNAVAILABLE, _message(upstream, "The upstream does not answer."))
    if _answer(upstream) == "Unknown":
        return Situation(Reason.STARTING, _message(upstream, "The pullers are on their way."))
    if _answer(lag) == "False":
        return Situation(Reason.CATCHING_UP, _message(lag, "The lag is above lagThreshold."))
    if api.text_at(lag, "reason") == "Idle":
        return Situation(Reason.IDLE, "Running; the selected tables do not change at present.")
    return Situation(Reason.RUNNING, "Running; status.checkpointTs says how far.")


def _pending(executors: tuple[Json, ...]) -> Situation | None:
    for pod in executors:
        trouble = trouble_of(pod, api.EXECUTOR_CONTAINER)
        if trouble is not None and api.text_at(pod, "status", "phase") == "Pending":
            return Situation(Reason.EXECUTORS_PENDING, trouble.message)
    return None


def _report_time(changefeed: Json) -> float | None:
    """When the driver's fields of the status changed last, by the API server's clock."""
    times = (
        api.time_at(entry, "time")
        for entry in api.list_at(changefeed, "metadata", "managedFields")
        if isinstance(entry, Mapping) and api.text_at(entry, "manager") == api.DRIVER_FIELD_MANAGER
    )
    return max((time for time in times if time is not None), default=None)


def _answer(told: Json) -> str:
    return api.text_at(told, "status")


def _message(told: Json, otherwise: str) -> str:
    return api.text_at(told, "message") or otherwise
