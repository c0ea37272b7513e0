"""What is done for a Changefeed that is being deleted, or is gone. Pure.

A finalizer keeps the resource until `changefeed close` has ended the log and let the upstream clean up. A Job that
failed is made anew until one worked; after `CLOSE_LIMIT_S`, or in a namespace that is going as well, it is given up,
with an event: the hold ends with its TTL then, and `changefeed gc` finds what is left. Everything that a pass must know
stands in the cluster, so an operator that was down, or another one, goes on from there.
"""

from __future__ import annotations

from dataclasses import replace

from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.actions import Action, Create, Decision, Delete, Event, SetFinalizer
from changefeed_operator.api import Json
from changefeed_operator.decision.attempt.attempt import LATE_S, Step, View
from changefeed_operator.decision.conditions import Situation
from changefeed_operator.decision.evidence import job
from changefeed_operator.decision.evidence.driver_pod import is_over
from changefeed_operator.decision.evidence.pods import LOOK_S
from changefeed_operator.manifests import pods
from changefeed_operator.manifests.jobs import UID_LABEL, close_job
from changefeed_operator.observe import Observed
from changefeed_operator.target import Target

#: Seconds from the deletion after which it goes through although the log could not be closed.
CLOSE_LIMIT_S = 3600.0

_LOOK_AGAIN_S = 5.0
_BY_HAND = "`changefeed gc` finds what is left."


def finalizer(view: View) -> tuple[Action, ...]:
    """It is set before anything of it is outside the cluster, in a pass of its own, and taken back for `Retain`."""
    live = view.observed.changefeed or {}
    wants = not _retains(live)
    if wants == _has_finalizer(live) or (wants and view.wanted.target is None):
        return ()
    return (_set_finalizer(live, wants),)


def going(view: View) -> Step:
    """Its deletion is under way: the driver ends first, then the log is closed, then it may go."""
    live = view.observed.changefeed or {}
    if not _has_finalizer(live):
        step = _stop(view)
        return step or _deleting(view, "Its own run has ended; somebody else's finalizer keeps it.")
    limit_at = (api.time_at(live, "metadata", "deletionTimestamp") or view.now) + CLOSE_LIMIT_S
    if why := _given_up(view, limit_at):
        text = f"It is deleted without closing its log: {why} {_BY_HAND}"
        step = _deleting(view, text)
        return _released(step, live, Event(Reason.CLOSE_GIVEN_UP, text))
    step = _stop(view) or _close(view, limit_at)
    return replace(step, look_again_at=min(step.look_again_at or limit_at, limit_at))


def gone(observed: Observed) -> Decision:
    """It does not exist any more: what a deletion left behind goes, too; whoever has an owner goes with it."""
    return Decision(tuple(_delete(child) for child in observed.children if _is_orphan(observed, child)))


def _given_up(view: View, limit_at: float) -> str:
    if view.now >= limit_at:
        return f"that did not succeed in {CLOSE_LIMIT_S / 60:.0f} minutes."
    may_come = any(not job.has_failed(each) for each in job.jobs(view.observed, "close"))
    if view.observed.namespace_terminating and not may_come:
        return "its namespace is being deleted, and takes no Job any more."
    return ""


def _stop(view: View) -> Step | None:
    """The driver drains, then what could start it anew goes; None when there is nothing left of either."""
    observed, driver = view.observed, view.observed.driver
    if driver is not None and not is_over(driver):
        late_at = (api.time_at(driver, "metadata", "deletionTimestamp") or view.now) + LATE_S
        if not api.is_deleting(driver):
            return replace(_deleting(view, "Its driver drains."), actions=(_delete(driver),))
        if view.now < late_at:
            return replace(_deleting(view, "Its driver drains."), look_again_at=late_at)
        # Its node is lost; what lives on there is fenced by the log that is closed next.
    hold = api.hold_cron_job_name(observed.name)
    left = (observed.application, observed.child(api.CRON_JOB, hold), observed.child(api.JOB, hold))
    actions = tuple(_delete(child) for child in left if child is not None and not api.is_deleting(child))
    return replace(_deleting(view, "What would start it again is taken away."), actions=actions) if actions else None


def _close(view: View, limit_at: float) -> Step:
    observed, live, target = view.observed, view.observed.changefeed or {}, view.wanted.target
    if _retains(live) or _has_never_run(view):
        return _released(_deleting(view, "There is nothing to close."), live)
    if target is None:
        text = f"It is deleted without closing its log: its spec can't be read. {_BY_HAND}"
        return _released(_deleting(view, text), live, Event(Reason.CLOSE_GIVEN_UP, text))
    found = observed.child(api.JOB, api.close_job_name(observed.name))
    if found is None:
        create = Create(close_job(target, view.settings, _service_account(view, target)))
        return replace(_deleting(view, "A Job is to close its log."), actions=(create,))
    if api.label_of(found, UID_LABEL) != api.uid_of(live):
        # The one of a Changefeed that had the name before.
        done = not (job.is_under_way(found) or api.is_deleting(found))
        step = _deleting(view, "The Job that closes its predecessor's log has to end first.")
        return replace(step, actions=(_delete(found),) if done else (), look_again_at=view.now + _LOOK_AGAIN_S)
    if job.is_done(found):
        text = "Its log is closed, and the upstream may clean up."
        return _released(_deleting(view, text), live, Event(Reason.CLOSED, text))
    if job.has_failed(found):
        error = job.failure(observed, found)
        text = f"Its log could not be closed: {error.message} {_what_next(limit_at)}"
        event = Event(Reason.CLOSE_FAILED, text)
        return replace(_deleting(view, text), events=() if _said(live).startswith(text) else (event,))
    trouble = job.trouble(observed, "close")
    why = f"The Job that closes its log does not start: {trouble.message}" if trouble else "A Job closes its log."
    return replace(_deleting(view, f"{why} {_what_next(limit_at)}"), look_again_at=view.now + LOOK_S)


def _what_next(limit_at: float) -> str:
    return (
        f"It is tried until {api.time_text(limit_at)}, then the deletion goes through. "
        "To give it up now, set spec.deletionPolicy to Retain."
    )


def _retains(live: Json) -> bool:
    return api.text_at(live, "spec", "deletionPolicy") == "Retain"


def _has_never_run(view: View) -> bool:
    """Nothing of it is outside the cluster: no log, no hold."""
    return view.ledger.attempt == 0 and not api.mapping_at(view.observed.changefeed, "status", "hold")


def _service_account(view: View, target: Target) -> str:
    """The driver's, unless it is one of ours that a foreground deletion has taken away."""
    name, ours = pods.service_account(target), api.child_name(target.resource.metadata.name)
    return name if name != ours or view.observed.child(api.SERVICE_ACCOUNT, name) else "default"


def _deleting(view: View, text: str) -> Step:
    return Step(view.ledger, Situation(Reason.DELETING, f"Being deleted. {text}"))


def _released(step: Step, live: Json, *events: Event) -> Step:
    """Events come first: the resource may be gone after the last action."""
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
    """Left by a deletion that let the children be."""
    is_ours = api.label_of(child, api.MANAGED_BY) == api.OPERATOR and api.kind_of(child) in api.KINDS
    is_free = not api.owner_uids(child) and not api.is_deleting(child)
    return is_ours and is_free and api.name_of(child) != api.close_job_name(observed.name)


def _delete(child: Json) -> Delete:
    return Delete(api.kind_of(child), api.name_of(child), api.uid_of(child))
