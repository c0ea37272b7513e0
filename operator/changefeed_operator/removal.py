"""What is done for a Changefeed that is going or gone. Pure.

There is no finalizer: Kubernetes deletes the children with their owner. What remains is outside the cluster, the
upstream's safepoint and the log, and a Job sees to that; when the operator misses it, the safepoint's TTL does.
"""

from __future__ import annotations

from changefeed_operator import api
from changefeed_operator.actions import Action, Create, Decision, Delete
from changefeed_operator.api import Json
from changefeed_operator.children import UID_LABEL, close_job
from changefeed_operator.driver_pod import is_over
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Settings
from changefeed_operator.target import Target, as_target, last_valid

_LOOK_AGAIN_S = 5.0


def going(observed: Observed) -> Decision:
    """Its deletion is under way, but something holds it: its own run ends nevertheless, the driver first."""
    driver, application = observed.driver, observed.application
    if driver is not None and not is_over(driver):
        return Decision(() if api.is_deleting(driver) else (_delete(driver),))
    left = (application, observed.child(api.CRON_JOB, api.hold_cron_job_name(observed.name)))
    return Decision(tuple(_delete(child) for child in left if child is not None and not api.is_deleting(child)))


def gone(observed: Observed, settings: Settings) -> Decision:
    """It does not exist any more."""
    orphans = tuple(_delete(child) for child in observed.children if _is_orphan(observed, child))
    target = _ran(observed)
    if target is None:
        return Decision(orphans)
    uid = target.resource.metadata.uid
    job = observed.child(api.JOB, api.close_job_name(observed.name))
    if job is None:
        return Decision((Create(close_job(target, settings)), *orphans))
    if api.label_of(job, UID_LABEL) == uid:
        return Decision(orphans)
    # The one of a Changefeed that had the name before: it ends within its deadline.
    done = () if api.is_deleting(job) or not _is_done(job) else (_delete(job),)
    return Decision((*done, *orphans), requeue_after=_LOOK_AGAIN_S)


def _ran(observed: Observed) -> Target | None:
    """What it ran; None when nothing tells, or it never ran."""
    if observed.deleted is None:
        return last_valid(observed)
    status = api.mapping_at(observed.deleted, "status")
    if not api.whole_at(status, "attempt"):
        return None
    return last_valid(observed) or as_target(observed.deleted, api.text_at(status, "stateUri"))


def _is_orphan(observed: Observed, child: Json) -> bool:
    """Left by a deletion that let the children be; whoever has an owner goes with it."""
    is_ours = api.label_of(child, api.MANAGED_BY) == api.OPERATOR and api.kind_of(child) in api.KINDS
    is_free = not api.owner_uids(child) and not api.is_deleting(child)
    return is_ours and is_free and api.name_of(child) != api.close_job_name(observed.name)


def _is_done(job: Json) -> bool:
    return any(
        api.text_at(each, "type") in ("Complete", "Failed") and api.text_at(each, "status") == "True"
        for each in api.list_at(job, "status", "conditions")
    )


def _delete(child: Json) -> Action:
    return Delete(api.kind_of(child), api.name_of(child), api.uid_of(child))
