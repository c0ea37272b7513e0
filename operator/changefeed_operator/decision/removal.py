"""Handles a Changefeed that is being deleted, or is gone. Pure.

A finalizer keeps the resource until `changefeed close` has closed the log and released the hold on the upstream's
history. A failed Job is replaced until one succeeds. After `CLOSE_LIMIT_S`, or if the namespace is being deleted too,
the operator gives up, with an event: the hold then expires with its TTL, and `changefeed gc` cleans up. All state is in
the cluster, so an operator that was down, or another one, picks up where this one left off.
"""

from __future__ import annotations

from dataclasses import replace

from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.actions import Action, Create, Decision, DeleteObject, EmitEvent, SetFinalizer
from changefeed_operator.api import Json
from changefeed_operator.decision.attempt.attempt import LATE_S, PassInput, Step
from changefeed_operator.decision.conditions import Situation
from changefeed_operator.decision.evidence import job
from changefeed_operator.decision.evidence.driver_pod import is_over
from changefeed_operator.decision.evidence.pods import LOOK_S
from changefeed_operator.manifests import pods
from changefeed_operator.manifests.jobs import UID_LABEL, close_job
from changefeed_operator.observe import Observed
from changefeed_operator.target import Target

#: Seconds after which a deletion goes through even if the log could not be closed.
CLOSE_LIMIT_S = 3600.0

_LOOK_AGAIN_S = 5.0
_BY_HAND = "Run `changefeed gc` to clean up."


def finalizer(view: PassInput) -> tuple[Action, ...]:
    """Set in a pass of its own, before the changefeed creates anything outside the cluster; removed for `Retain`."""
    live = view.observed.changefeed or {}
    wants = not _retains(live)
    if wants == _has_finalizer(live) or (wants and view.wanted.target is None):
        return ()
    return (_set_finalizer(live, wants),)


def going(view: PassInput) -> Step:
    """Being deleted: first the driver stops, then the log is closed, then the finalizer is removed."""
    live = view.observed.changefeed or {}
    if not _has_finalizer(live):
        step = _stop(view)
        return step or _deleting(view, "The operator is done; someone else's finalizer holds up the deletion.")
    limit_at = (api.time_at(live, "metadata", "deletionTimestamp") or view.now) + CLOSE_LIMIT_S
    if why := _given_up(view, limit_at):
        text = f"The log was left open: {why} {_BY_HAND}"
        step = _deleting(view, text)
        return _released(step, live, EmitEvent(Reason.CLOSE_GIVEN_UP, text))
    step = _stop(view) or _close(view, limit_at)
    return replace(step, look_again_at=min(step.look_again_at or limit_at, limit_at))


def gone(observed: Observed) -> Decision:
    """The Changefeed no longer exists: delete what it left behind. Garbage collection takes children with an owner."""
    return Decision(tuple(_delete(child) for child in observed.children if _is_orphan(observed, child)))


def _given_up(view: PassInput, limit_at: float) -> str:
    if view.now >= limit_at:
        return f"it could not be closed within {CLOSE_LIMIT_S / 60:.0f} minutes."
    may_come = any(not job.has_failed(each) for each in job.jobs(view.observed, "close"))
    if view.observed.namespace_terminating and not may_come:
        return "its namespace is being deleted and accepts no new Jobs."
    return ""


def _stop(view: PassInput) -> Step | None:
    """Drain the driver, then delete whatever could start it again; None when nothing of either is left."""
    observed, driver = view.observed, view.observed.driver
    if driver is not None and not is_over(driver):
        late_at = (api.time_at(driver, "metadata", "deletionTimestamp") or view.now) + LATE_S
        if not api.is_deleting(driver):
            return replace(_deleting(view, "The driver is draining."), actions=(_delete(driver),))
        if view.now < late_at:
            return replace(_deleting(view, "The driver is draining."), look_again_at=late_at)
        # Its node is lost; a driver still running there is fenced once the log is closed.
    hold = api.hold_cron_job_name(observed.name)
    left = (observed.application, observed.child(api.CRON_JOB, hold), observed.child(api.JOB, hold))
    actions = tuple(_delete(child) for child in left if child is not None and not api.is_deleting(child))
    return (
        replace(_deleting(view, "Removing its SparkApplication and hold Jobs."), actions=actions) if actions else None
    )


def _close(view: PassInput, limit_at: float) -> Step:
    observed, live, target = view.observed, view.observed.changefeed or {}, view.wanted.target
    if _retains(live) or _has_never_run(view):
        return _released(_deleting(view, "There is nothing to close."), live)
    if target is None:
        text = f"The log was left open: the spec can't be read. {_BY_HAND}"
        return _released(_deleting(view, text), live, EmitEvent(Reason.CLOSE_GIVEN_UP, text))
    found = observed.child(api.JOB, api.close_job_name(observed.name))
    if found is None:
        create = Create(close_job(target, view.settings, _service_account(view, target)))
        return replace(_deleting(view, "Creating a Job to close the log."), actions=(create,))
    if api.label_of(found, UID_LABEL) != api.uid_of(live):
        # From an earlier Changefeed of the same name.
        done = not (job.is_under_way(found) or api.is_deleting(found))
        step = _deleting(view, "Waiting for the Job that closes its predecessor's log.")
        return replace(step, actions=(_delete(found),) if done else (), look_again_at=view.now + _LOOK_AGAIN_S)
    if job.is_done(found):
        text = "The log is closed and the hold on the upstream's history is released."
        return _released(_deleting(view, text), live, EmitEvent(Reason.CLOSED, text))
    if job.has_failed(found):
        error = job.failure(observed, found)
        text = f"The log could not be closed: {error.message} {_what_next(limit_at)}"
        event = EmitEvent(Reason.CLOSE_FAILED, text)
        return replace(_deleting(view, text), events=() if _said(live).startswith(text) else (event,))
    trouble = job.trouble(observed, "close")
    why = f"The Job that closes the log does not start: {trouble.message}" if trouble else "A Job is closing the log."
    return replace(_deleting(view, f"{why} {_what_next(limit_at)}"), look_again_at=view.now + LOOK_S)


def _what_next(limit_at: float) -> str:
    return (
        f"It is retried until {api.time_text(limit_at)}; then the deletion goes through anyway. "
        "To give up now, set spec.deletionPolicy to Retain."
    )


def _retains(live: Json) -> bool:
    return api.text_at(live, "spec", "deletionPolicy") == "Retain"


def _has_never_run(view: PassInput) -> bool:
    """Nothing exists outside the cluster: no log, no hold."""
    return view.ledger.attempt == 0 and not api.mapping_at(view.observed.changefeed, "status", "hold")


def _service_account(view: PassInput, target: Target) -> str:
    """The driver's, unless it is ours and a foreground deletion has already removed it."""
    name, ours = pods.service_account(target), api.child_name(target.resource.metadata.name)
    return name if name != ours or view.observed.child(api.SERVICE_ACCOUNT, name) else "default"


def _deleting(view: PassInput, text: str) -> Step:
    return Step(view.ledger, Situation(Reason.DELETING, f"Being deleted. {text}"))


def _released(step: Step, live: Json, *events: EmitEvent) -> Step:
    """Events first: the resource may be gone after the last action."""
    return replace(step, actions=(*events, _set_finalizer(live, False)))


def _has_finalizer(live: Json) -> bool:
    return api.FINALIZER in api.list_at(live, "metadata", "finalizers")


def _set_finalizer(live: Json, present: bool) -> SetFinalizer:
    others = [each for each in api.list_at(live, "metadata", "finalizers") if each != api.FINALIZER]
    version = api.text_at(live, "metadata", "resourceVersion")
    return SetFinalizer((*others, api.FINALIZER) if present else tuple(others), version)


def _said(live: Json) -> str:
    return api.text_at(live, "status", "message").removeprefix("Being deleted. ")


def _is_orphan(observed: Observed, child: Json) -> bool:
    """Left behind by a deletion with orphaned dependents."""
    kinds = (api.APPLICATION, *api.KINDS)
    is_ours = api.label_of(child, api.MANAGED_BY) == api.OPERATOR and api.kind_of(child) in kinds
    is_free = not api.owner_uids(child) and not api.is_deleting(child)
    return is_ours and is_free and api.name_of(child) != api.close_job_name(observed.name)


def _delete(child: Json) -> DeleteObject:
    return DeleteObject(api.kind_of(child), api.name_of(child), api.uid_of(child))
