"""Whether a running driver makes progress: what it reports, and what its silence means. Pure.

Nothing here ends an attempt: the driver's reports are shown, not acted on (rule 22).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.actions import EmitEvent
from changefeed_operator.api import Json
from changefeed_operator.decision.conditions import DRIVERS_CONDITIONS, NO_DRIVER, RULES, Situation, condition
from changefeed_operator.decision.evidence.driver_pod import started_at, trouble_of
from changefeed_operator.decision.evidence.pods import EXECUTORS_S, LOOK_S, lacks_executors, out_of_memory
from changefeed_operator.decision.evidence.spark_words import AGAINST_REFUSAL, refusal_in
from changefeed_operator.observe import Observed

#: Seconds within which a driver must report for the first time.
FIRST_REPORT_S = 180.0
#: A driver reports every 10 s; after this many seconds without a report it counts as silent.
SILENT_S = 300.0

#: Seconds that Spark has to create all executors before an unexplained shortage is reported.
ALL_EXECUTORS_S = 120.0

_OVERFLOWED = "The pullers' segments exceed spec.eventStore.bufferSize and are read from the archive meanwhile."

_SILENT = "Check its log (changefeed logs) and its connection to the API server."


def progress(
    observed: Observed, driver: Json, executors: tuple[Json, ...], attempt: str
) -> tuple[Situation, float | None]:
    """The situation of a changefeed whose driver is running, and when (Unix seconds) silence alone would change it.

    `executors`: of its attempt.
    """
    situation, look_again_at = _reported(observed, driver, _executor_trouble(observed, driver, executors, attempt))
    is_waiting = any(api.text_at(pod, "status", "phase") == "Pending" for pod in executors)
    if is_waiting or lacks_executors(observed, driver, 0.0):
        look_again_at = min(observed.now + LOOK_S, look_again_at or observed.now + LOOK_S)
    return situation, look_again_at


def _reported(observed: Observed, driver: Json, trouble: Situation | None) -> tuple[Situation, float | None]:
    """Judged by the driver's last report, if there is one. `trouble`: with its executors."""
    reported = _report_time(observed.changefeed or {})
    created = api.time_at(driver, "metadata", "creationTimestamp") or 0.0
    if reported is None or reported < created:
        deadline = (started_at(driver) or created) + FIRST_REPORT_S
        if observed.now < deadline:
            starting = Situation(Reason.STARTING, "The driver is running; waiting for its first report.")
            return trouble or starting, deadline
        message = f"The driver is running but has not reported within {FIRST_REPORT_S:.0f} s. {_SILENT}"
        return trouble or Situation(Reason.DRIVER_SILENT, message), None
    if observed.now >= reported + SILENT_S:
        message = f"The driver is running but has not reported for {SILENT_S:.0f} s. {_SILENT}"
        return Situation(Reason.DRIVER_SILENT, message), None
    return _told(api.mapping_at(observed.changefeed, "status"), trouble), reported + SILENT_S


def _told(status: Json, trouble: Situation | None) -> Situation:
    """The first of the driver's problems that explains the others."""
    sink, upstream, lag = (condition(status, kind) for kind in ("SinkAvailable", "UpstreamAvailable", "WithinLag"))
    if _answer(sink) == "False":
        return Situation(Reason.SINK_UNAVAILABLE, _message(sink, "The sink can't be written to."))
    if trouble is not None:
        return replace(trouble, still_ready=_answer(lag) == "True")
    if api.text_at(lag, "reason") == "BlockedByLock":
        return Situation(Reason.BLOCKED_BY_LOCK, _message(lag, "An open transaction's locks hold back the checkpoint."))
    if _answer(upstream) == "False":
        return Situation(Reason.UPSTREAM_UNAVAILABLE, _message(upstream, "The upstream does not respond."))
    if _answer(upstream) == "Unknown":
        return Situation(Reason.STARTING, _message(upstream, "The pullers are starting."))
    if _answer(lag) == "False":
        return Situation(Reason.CATCHING_UP, _message(lag, "The lag is above lagThreshold."))
    if api.text_at(lag, "reason") == "Idle":
        return Situation(Reason.IDLE, "Running; the selected tables have no changes at the moment.")
    return Situation(Reason.RUNNING, "Running; see status.checkpointTs for progress.")


def mode_changed(observed: Observed) -> tuple[EmitEvent, ...]:
    """A switch between buffer and archive that the driver has reported since the previous pass."""
    match observed.mode_before, api.text_at(observed.changefeed or {}, "status", "eventStoreMode"):
        case "Buffer", "Archive":
            return (EmitEvent(Reason.BUFFER_OVERFLOWED, _OVERFLOWED),)
        case "Archive", "Buffer":
            return (EmitEvent(Reason.BUFFER_IN_USE, "Segments are read from the pullers' memory again."),)
    return ()


def unmatched(changefeed: Json) -> str | None:
    """What the driver says of rules that match nothing, "" if there are none; None while no driver says anything."""
    told = condition(api.mapping_at(changefeed, "status"), RULES)
    match _answer(told):
        case "False":
            return _message(told, "A rule of the spec matches nothing.")
        case "True":
            return ""
    return None


def rules_changed(observed: Observed) -> tuple[EmitEvent, ...]:
    """Rules that match nothing, if the driver says something else of them than at the previous pass."""
    said = unmatched(observed.changefeed or {})
    return (EmitEvent(Reason.RULES_UNMATCHED, said),) if said and said != observed.unmatched_before else ()


def _executor_trouble(observed: Observed, driver: Json, executors: tuple[Json, ...], attempt: str) -> Situation | None:
    for pod in executors:
        trouble = trouble_of(pod, api.EXECUTOR_CONTAINER, observed.pod_events)
        if trouble is not None and api.text_at(pod, "status", "phase") == "Pending":
            return Situation(Reason.EXECUTORS_PENDING, trouble.message)
    if lacks_executors(observed, driver, EXECUTORS_S) and (refusal := refusal_in(observed.driver_log)):
        text = f"The API server rejects an executor's pod: {refusal}. {AGAINST_REFUSAL}"
        return Situation(Reason.REFUSED, text)
    if (killed := out_of_memory(observed, attempt)) is not None:
        text = f"Executor {api.name_of(killed)} was OOM-killed. Raise spec.spark.executor.memory."
        return Situation(Reason.EXECUTOR_OUT_OF_MEMORY, text)
    if lacks_executors(observed, driver, ALL_EXECUTORS_S) and not _keeps_up(observed):
        wanted = api.whole_at(observed.application, "spec", "executor", "instances")
        text = f"Spark has created {len(executors)} of {wanted} executors. Check the driver's log: changefeed logs."
        return Situation(Reason.EXECUTORS_PENDING, text)
    return None


def _keeps_up(observed: Observed) -> bool:
    """Spark replaces an executor in seconds; a missing one is only reported if the changefeed falls behind."""
    return _answer(condition(api.mapping_at(observed.changefeed, "status"), "WithinLag")) == "True"


def is_heard(observed: Observed) -> bool:
    """Tell whether the running driver has reported."""
    driver = observed.driver
    if driver is None or started_at(driver) is None:
        return False
    reported = _report_time(observed.changefeed or {})
    return reported is not None and reported >= (api.time_at(driver, "metadata", "creationTimestamp") or 0.0)


def _report_time(changefeed: Json) -> float | None:
    """Say when the driver last changed its fields of the status, by the API server's clock.

    None if the fields are no longer the driver's, because none was running.
    """
    status = api.mapping_at(changefeed, "status")
    if any(api.text_at(condition(status, kind), "reason") == NO_DRIVER for kind in DRIVERS_CONDITIONS):
        return None
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
