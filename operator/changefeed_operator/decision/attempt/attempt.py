"""The lifecycle of an attempt: claimed, created, watched, ended, cleaned up; then perhaps the next one. Pure.

Every step is written to the ledger before it is taken. An attempt is claimed only when nothing is left of the previous
one, and its SparkApplication is created once and never edited.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.actions import Action, Create, DeleteObject, EmitEvent, KeepLog
from changefeed_operator.api import Json
from changefeed_operator.decision.attempt.ledger import AttemptLedger, AttemptOutcome, Phase
from changefeed_operator.decision.attempt.restart import HEALTHY_S
from changefeed_operator.decision.children.drift import changed_by_others
from changefeed_operator.decision.conditions import Situation, condition
from changefeed_operator.decision.evidence.application import end_without_pod, not_submitted
from changefeed_operator.decision.evidence.driver_pod import (
    End,
    disruption_of,
    end_of,
    is_over,
    is_unreachable,
    lost,
    started_at,
    trouble_of,
)
from changefeed_operator.decision.evidence.pods import LOOK_S
from changefeed_operator.decision.progress import progress
from changefeed_operator.manifests.application import application
from changefeed_operator.manifests.last_log import last_log
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Settings
from changefeed_operator.spark_operator.contract import ApplicationStage
from changefeed_operator.target import Wanted

#: Seconds after which a SparkApplication without a driver pod counts as stuck.
STUCK_S = 180.0
#: Seconds that a driver pod may wait for a node, for its image, or for anything else.
PENDING_S = {Reason.UNSCHEDULABLE: 900.0, Reason.IMAGE_PULL: 300.0, Reason.DRIVER_START: 600.0}
#: Seconds that a pod may outlive its grace period; then its node counts as lost and the pod is force-deleted. A driver
#: still running there is fenced by the log (rule 6).
LATE_S = 120.0
#: Seconds until a pod on a lost node is force-deleted, once Kubernetes or the operator has deleted it.
UNREACHABLE_S = 5.0

_EXECUTOR_GRACE_S = 30


@dataclass(frozen=True)
class PassInput:
    """The input of a pass."""

    observed: Observed
    settings: Settings
    wanted: Wanted
    ledger: AttemptLedger

    @property
    def now(self) -> float:
        return self.observed.now

    @property
    def uid(self) -> str:
        return api.uid_of(self.observed.changefeed or {})

    @property
    def drain_s(self) -> int | None:
        return self.wanted.target.drain_s if self.wanted.target else None

    def wants(self, *hashes: str) -> bool:
        """Tell whether attempts with these spec hashes should keep running."""
        target = self.wanted.target
        return not self.wanted.paused and (target is None or set(hashes) == {target.hash})


@dataclass(frozen=True)
class Step:
    """What a pass does about the attempt.

    `look_again_at`: Unix seconds; ignored unless in the future.
    """

    ledger: AttemptLedger
    situation: Situation
    actions: tuple[Action, ...] = ()
    events: tuple[EmitEvent, ...] = ()
    look_again_at: float | None = None
    keeps: tuple[KeepLog, ...] = ()  # done first: what to keep of an attempt before it is cleaned up


@dataclass
class _Removal:
    """Pods that are being removed."""

    actions: list[Action] = field(default_factory=list)
    events: list[EmitEvent] = field(default_factory=list)
    look_again_at: float | None = None

    def take(self, pod: Json, now: float, grace_s: int | None) -> None:
        name, uid = api.name_of(pod), api.uid_of(pod)
        late_at = now + (grace_s or _EXECUTOR_GRACE_S) + LATE_S
        if not api.is_deleting(pod):
            self.actions.append(DeleteObject(api.POD.kind, name, uid, grace_s))
        else:
            ends_at = api.time_at(pod, "metadata", "deletionTimestamp") or now
            text = f"Pod {name} outlived its grace period by {LATE_S:.0f} s and was force-deleted. Check its node."
            late_at = ends_at + LATE_S
            if is_unreachable(pod):
                node = api.text_at(pod, "spec", "nodeName")
                text = f"Pod {name} was force-deleted because its node {node} is lost. Check the node."
                late_at = ends_at - api.whole_at(pod, "metadata", "deletionGracePeriodSeconds") + UNREACHABLE_S
            if now >= late_at:
                self.events.append(EmitEvent(Reason.POD_FORCE_DELETED, text))
                self.actions.append(DeleteObject(api.POD.kind, name, uid, 0))
                late_at = now + LATE_S
        self.look_again_at = min(late_at, self.look_again_at or late_at)


def advance(view: PassInput) -> Step:
    """The next step of the newest attempt, or of the one after it."""
    return _between(view) if view.ledger.phase is Phase.ENDED else _under_way(view)


def _over(view: PassInput, ledger: AttemptLedger, *events: EmitEvent, keeps: tuple[KeepLog, ...] = ()) -> Step:
    """Return what follows an attempt that is over, as recorded in `ledger`."""
    after = _between(replace(view, ledger=ledger))
    return replace(after, events=(*events, *after.events), keeps=keeps)


def _under_way(view: PassInput) -> Step:
    observed, ledger = view.observed, view.ledger
    number = str(ledger.attempt)
    found, driver = observed.application, _of_attempt(observed.driver, number)
    if ledger.phase is Phase.CLAIMED and found is None and observed.driver is None and not observed.executors:
        return _create(view, ledger) if view.wants(ledger.spec_hash) else _over(view, ledger.stopped())
    if driver is not None and is_over(driver):
        return _ended(view, end_of(driver, observed.pod_events, observed.driver_log))
    marks = [api.label_of(each, api.SPEC_HASH_LABEL) for each in (found, driver) if each is not None]
    if not view.wants(ledger.spec_hash, *marks):
        return _over(view, ledger.stopped())
    ours = _of_attempt(found, number)
    if ours is None or view.uid not in api.owner_uids(ours) or api.is_deleting(ours):
        return _ended(view, lost("Its SparkApplication was deleted by someone else."))
    if view.wanted.target is not None:
        made = application(view.wanted.target, view.settings, ledger.attempt, observed.changefeed or {})
        if changed := changed_by_others(view.settings.spark.outline(made), ours):
            return _ended(view, lost(f"Its SparkApplication was modified by someone else: {changed}."))
    view = replace(view, ledger=ledger.created())
    step = _without_driver(view, ours) if driver is None else _with_driver(view, driver)
    goes_on = step.ledger.phase is Phase.CREATED
    return _without_strays(step, observed, number, view.now) if goes_on else step


def _create(view: PassInput, ledger: AttemptLedger) -> Step:
    target = view.wanted.target
    if target is None:
        return _over(view, ledger.stopped())
    manifest = application(target, view.settings, ledger.attempt, view.observed.changefeed or {})
    situation = Situation(Reason.STARTING, "The SparkApplication is being created.")
    return Step(ledger, situation, (Create(manifest),))


def _of_attempt(found: Json | None, number: str) -> Json | None:
    return found if found is not None and api.label_of(found, api.ATTEMPT_LABEL) == number else None


def _without_strays(step: Step, observed: Observed, number: str, now: float) -> Step:
    """Removes pods of other attempts that turn up late."""
    strays = _Removal()
    for pod in (observed.driver, *observed.executors):
        if pod is not None and _of_attempt(pod, number) is None:
            strays.take(pod, now, _EXECUTOR_GRACE_S)
    return replace(
        step,
        actions=(*step.actions, *strays.actions),
        events=(*step.events, *strays.events),
        look_again_at=_sooner(step.look_again_at, strays.look_again_at),
    )


def _ended(view: PassInput, end: End) -> Step:
    """Return what follows from an attempt that ended on its own."""
    ledger = view.ledger
    if end.outcome is AttemptOutcome.FINISHED:
        return _over(view, ledger.finished())
    if not view.wants(ledger.spec_hash):
        return _over(view, ledger.stopped())
    keeps = _kept_log(view)
    if end.outcome is AttemptOutcome.STALLED:
        return _over(view, ledger.stalled(end.cause, end.message, view.now), keeps=keeps)
    if end.newest_attempt > ledger.attempt:
        text = f"Attempt {ledger.attempt} is older than the log's: the status was lost or restored. {end.message}"
        behind = ledger.behind(end.newest_attempt, end.message, view.now)
        return _over(view, behind, EmitEvent(Reason.ATTEMPT_FAILED, text), keeps=keeps)
    failed = ledger.failed_with(end.failure, end.cause, end.message, view.now, view.uid)
    text = f"Attempt {ledger.attempt} failed: {end.message}"
    return _over(view, failed, EmitEvent(Reason.ATTEMPT_FAILED, text), keeps=keeps)


def _kept_log(view: PassInput) -> tuple[KeepLog, ...]:
    """The attempt's pod is about to go, and the next one takes its name."""
    observed = view.observed
    if not observed.driver_log:
        return ()
    return (KeepLog(last_log(observed.name, observed.changefeed or {}, view.ledger.attempt, observed.driver_log)),)


def _without_driver(view: PassInput, ours: Json) -> Step:
    """A SparkApplication without a driver pod: the pod is not created yet, it is stuck, or it is over."""
    spark = view.settings.spark
    state = spark.state(ours)
    if state.stage is ApplicationStage.NOT_SUBMITTED:
        return _ended(view, not_submitted(state.said))
    if state.stage is ApplicationStage.OVER:
        return _ended(view, end_without_pod(state))
    stuck_at = max(_created(ours), _unready_since(view)) + STUCK_S
    if view.now < stuck_at:
        is_new = state.stage in (ApplicationStage.UNSEEN, ApplicationStage.NEW)
        text = f"The SparkApplication is {state.word} and has no driver pod."
        situation = Situation(
            Reason.STARTING, "Waiting for the Spark operator to create the driver's pod." if is_new else text
        )
        return Step(view.ledger, situation, look_again_at=stuck_at)
    if state.stage is ApplicationStage.UNSEEN:
        namespace = view.observed.namespace
        text = (
            "The Spark operator has not picked up the SparkApplication. "
            f"Check that it is running and that its {spark.namespaces_value} include {namespace}."
        )
        return _ended(view, End(AttemptOutcome.FAILED, "NotTakenUp", text, Reason.SUBMISSION))
    text = f"The SparkApplication is stuck in {state.word} without a driver pod. Check the Spark operator's log."
    return _ended(view, End(AttemptOutcome.FAILED, "Stuck", text, Reason.STUCK))


def _with_driver(view: PassInput, driver: Json) -> Step:
    if api.is_deleting(driver):
        going = _Removal()
        going.take(driver, view.now, view.drain_s)
        why = disruption_of(driver)
        who = f"Kubernetes is removing the driver's pod ({why})" if why else "Someone deleted the driver's pod"
        situation = Situation(Reason.CLEANING_UP, f"{who}; the next attempt starts once it is gone.")
        return Step(view.ledger, situation, tuple(going.actions), tuple(going.events), going.look_again_at)
    started = started_at(driver)
    if started is None:
        return _pending(view, driver)
    number = str(view.ledger.attempt)
    executors = tuple(pod for pod in view.observed.executors if _of_attempt(pod, number))
    situation, look_again_at = progress(view.observed, driver, executors, number)
    ledger = view.ledger
    if situation.is_ready and (ledger.failures or ledger.last_error):
        if view.now >= started + HEALTHY_S:
            ledger = ledger.healthy()
        else:
            look_again_at = _sooner(look_again_at, started + HEALTHY_S)
    return Step(ledger, situation, look_again_at=look_again_at)


#: The reason shown until such a failure is declared, where it differs.
_PENDING = {Reason.IMAGE_PULL: Reason.IMAGE_PULL_FAILED, Reason.DRIVER_START: Reason.DRIVER_PENDING}


def _pending(view: PassInput, driver: Json) -> Step:
    trouble = trouble_of(driver, events=view.observed.pod_events)
    failure = trouble.failure if trouble else Reason.DRIVER_START
    deadline = _created(driver) + PENDING_S[failure]
    if view.now >= deadline:
        late = f"The driver's pod did not start within {PENDING_S[failure]:.0f} s; see kubectl describe pod."
        return _ended(view, End(AttemptOutcome.FAILED, str(failure), trouble.message if trouble else late, failure))
    situation = Situation(Reason.STARTING, "The driver's pod is starting.")
    if trouble:
        situation = Situation(_PENDING.get(failure, failure), trouble.message)
    return Step(view.ledger, situation, look_again_at=min(view.now + LOOK_S, deadline))


def _between(view: PassInput) -> Step:
    """No attempt is under way: clean up after the newest one, then rest or claim the next."""
    observed, ledger, paused = view.observed, view.ledger, view.wanted.paused
    if paused and ledger.outcome in (AttemptOutcome.FAILED, AttemptOutcome.STALLED):
        ledger = ledger.stopped()
        view = replace(view, ledger=ledger)
    starts = _may_start(view)
    # An attempt that ended on its own keeps its SparkApplication and dead driver pod, so that its log can be read.
    is_kept = (
        ledger.outcome in (AttemptOutcome.FAILED, AttemptOutcome.STALLED, AttemptOutcome.FINISHED)
        and not starts
        and not paused
    )
    removal = _Removal()
    if observed.driver is not None and not is_over(observed.driver):
        removal.take(observed.driver, view.now, view.drain_s)
        situation = Situation(Reason.DRAINING, _why_draining(view))
    elif observed.executors:
        for pod in observed.executors:
            removal.take(pod, view.now, _EXECUTOR_GRACE_S)
        situation = Situation(Reason.CLEANING_UP, "The previous attempt's executors are terminating.")
    elif not is_kept and (observed.application is not None or observed.driver is not None):
        _remove_application(removal, view)
        situation = Situation(Reason.CLEANING_UP, "The previous attempt's SparkApplication is being deleted.")
    else:
        return _claim(view) if starts else _rest(view)
    if is_kept:
        situation = _rest(view).situation
    rest_at = ledger.retry_at if is_kept and ledger.outcome is AttemptOutcome.FAILED else None
    look_again_at = _sooner(removal.look_again_at, rest_at)
    return Step(ledger, situation, tuple(removal.actions), tuple(removal.events), look_again_at)


def _remove_application(removal: _Removal, view: PassInput) -> None:
    """Deleting it takes its pods along; a dead driver pod without one is deleted directly."""
    found, driver = view.observed.application, view.observed.driver
    if found is None:
        if driver is not None:
            removal.take(driver, view.now, _EXECUTOR_GRACE_S)
    elif not api.is_deleting(found):
        removal.actions.append(DeleteObject(api.APPLICATION, api.name_of(found), api.uid_of(found)))


def _may_start(view: PassInput) -> bool:
    target, ledger = view.wanted.target, view.ledger
    if target is None or view.wanted.paused:
        return False
    if target.hash != ledger.spec_hash or ledger.outcome in (None, AttemptOutcome.STOPPED):
        return True
    return ledger.outcome is AttemptOutcome.FAILED and view.now >= ledger.retry_at


def _claim(view: PassInput) -> Step:
    target = view.wanted.target
    assert target is not None, "_may_start checks for a target"
    ledger = view.ledger.claimed(target.hash, target.state_uri)
    manifest = application(target, view.settings, ledger.attempt, view.observed.changefeed or {})
    situation = Situation(Reason.STARTING, "The SparkApplication is being created.")
    text = f"Created attempt {ledger.attempt} for spec {target.hash}."
    event = EmitEvent(Reason.ATTEMPT_CREATED, text)
    return Step(ledger, situation, (Create(manifest),), (event,))


def _rest(view: PassInput) -> Step:
    """Nothing is left to clean up, and nothing is due."""
    target, ledger, error = view.wanted.target, view.ledger, view.ledger.last_error
    if ledger.outcome is AttemptOutcome.FINISHED and (target is None or target.hash == ledger.spec_hash):
        text = (
            "Finished: everything up to spec.targetTs is in the sink. Raise it to continue, or delete the changefeed."
        )
        return Step(ledger, Situation(Reason.FINISHED, text))
    if view.wanted.paused:
        text = "Paused as requested. Set spec.paused to false to resume from the checkpoint."
        return Step(ledger, Situation(Reason.PAUSED, text))
    if ledger.outcome is AttemptOutcome.STALLED and error is not None:
        text = f"{error.message} Then change spec.restartNonce."
        return Step(ledger, Situation(Reason.STALLED, text, error.cause))
    if ledger.outcome is AttemptOutcome.FAILED and error is not None:
        text = (
            f"Attempt {ledger.attempt} failed: {error.message} The next one starts at {api.time_text(ledger.retry_at)}."
        )
        return Step(ledger, Situation(Reason.BACK_OFF, text), look_again_at=ledger.retry_at)
    return Step(ledger, Situation(Reason.STARTING, "There is no valid spec yet."))


def _why_draining(view: PassInput) -> str:
    if view.wanted.paused:
        return "The driver is draining before the pause."
    if view.ledger.outcome is AttemptOutcome.STOPPED:
        return "The driver is draining; then the changed spec starts from the checkpoint."
    return "The previous attempt's driver is being stopped."


def _created(found: Json) -> float:
    return api.time_at(found, "metadata", "creationTimestamp") or 0.0


def _unready_since(view: PassInput) -> float:
    """Since when the changefeed has not been Ready."""
    ready = condition(api.mapping_at(view.observed.changefeed, "status"), "Ready")
    since = api.time_at(ready, "lastTransitionTime")
    return since if since is not None and api.text_at(ready, "status") == "False" else view.now


def _sooner(one: float | None, other: float | None) -> float | None:
    return min((time for time in (one, other) if time is not None), default=None)
