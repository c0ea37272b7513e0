"""Decides what to do from what was observed: pure and total.

The status is written before any action is taken, and holds everything the next pass must know. Nothing here may raise,
read a clock or keep state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from changefeed.spec.clear_text import in_clear_text
from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.actions import Action, Create, Decision, PatchStatus, SetFinalizer
from changefeed_operator.api import Json
from changefeed_operator.decision import removal
from changefeed_operator.decision.attempt.attempt import PassInput, Step, advance
from changefeed_operator.decision.attempt.ledger import AttemptLedger, AttemptOutcome, Phase
from changefeed_operator.decision.children.upkeep import look_after, superfluous
from changefeed_operator.decision.conditions import (
    DRIVERS_CONDITIONS,
    NO_DRIVER,
    OWN_CONDITIONS,
    Situation,
    conditions,
    events,
    unknown,
    warnings,
)
from changefeed_operator.decision.evidence.pods import is_short
from changefeed_operator.decision.hands_off import hands_off
from changefeed_operator.decision.held_history import HeldHistoryDecision, held_history
from changefeed_operator.decision.progress import is_heard, mode_changed, rules_changed
from changefeed_operator.manifests.children import children
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Settings
from changefeed_operator.spark_operator.contract import SparkApi
from changefeed_operator.target import CONFIG_KEY, Wanted, wanted

#: The operator's status fields, apart from conditions.
OWN_FIELDS = (
    "observedGeneration",
    "state",
    "message",
    "sink",
    "attempt",
    "attemptPhase",
    "attemptOutcome",
    "effectiveSpecHash",
    "configDigest",
    "liveSettings",
    "image",
    "children",
    "stateUri",
    "restarts",
    "lastError",
    "hold",
)

_LONGEST_MESSAGE = 2000
#: Seconds until a child that is being deleted is checked again: it must be gone before it can be recreated.
_GONE_BY_S = 5.0


def decide(observed: Observed, settings: Settings) -> Decision:
    """The next actions for one changefeed. Deterministic; never raises, whatever the input."""
    if observed.changefeed is None:
        return removal.gone(observed)
    before = api.mapping_at(observed.changefeed, "status")
    want = wanted(observed, settings)
    ledger = AttemptLedger.read(before).or_of(observed.application or {}, api.uid_of(observed.changefeed))
    view = PassInput(observed, settings, want, ledger)
    if api.is_deleting(observed.changefeed):
        return _going(view)
    if observed.namespace_terminating:
        return Decision()
    if api.is_hands_off(observed.changefeed):
        return hands_off(observed.changefeed, own_status(before), observed.now)
    if finalizer := removal.finalizer(view):
        return Decision(finalizer)
    step = advance(view)
    held = held_history(observed, settings, want, step.ledger)
    protects = not is_short(observed)
    manifests = children(want.target, settings, observed.changefeed, held.by_jobs, protects) if want.target else []
    upkeep = look_after(observed, manifests, api.list_at(before, "children"))
    if upkeep.in_the_way:
        step = _delayed(step, upkeep.in_the_way)
    situation = _situation(observed, step, want)
    accepted = _accepted(observed, want, before)
    status = _status(observed, settings.spark, step, situation, want, held)
    if accepted:
        status["configDigest"] = accepted
    if settings_told := _settings(want, accepted, before):
        status["liveSettings"] = settings_told
    if standing := upkeep.standing if want.target else api.list_at(before, "children"):
        status["children"] = standing
    actions: list[Action] = [*step.keeps, *_patched(observed, status), *upkeep.actions]
    if want.target:
        actions += superfluous(observed, manifests, _optional(observed), accepted)
    actions += held.create
    actions += step.actions
    actions += (*upkeep.events, *step.events, *held.events, *mode_changed(observed), *rules_changed(observed))
    actions += events(situation, before)
    actions += warnings(_clear_text(want), before)
    wait = _wait(observed, bool(upkeep.in_the_way), step.look_again_at, upkeep.look_again_at, held.look_again_at)
    return Decision(tuple(actions), wait)


def _delayed(step: Step, by: str) -> Step:
    """The step without starting an attempt."""
    kept = tuple(each for each in step.actions if not isinstance(each, Create))
    if kept == step.actions:
        return step
    text = f"The attempt starts once {by} is gone; it is being deleted, or belongs to a deleted changefeed."
    return replace(step, actions=kept, situation=Situation(Reason.CLEANING_UP, text))


def _going(view: PassInput) -> Decision:
    """The changefeed is being deleted; the status goes away with the finalizer."""
    observed, step = view.observed, removal.going(view)
    if any(isinstance(action, SetFinalizer) for action in step.actions):
        return Decision(step.actions)
    held = held_history(observed, view.settings, view.wanted, step.ledger)
    before = api.mapping_at(observed.changefeed, "status")
    message = f"{step.situation.message} {observed.refused}".strip()[:_LONGEST_MESSAGE]
    situation = replace(step.situation, message=message)
    status = _status(observed, view.settings.spark, step, situation, view.wanted, held)
    status |= {name: before[name] for name in ("configDigest", "liveSettings", "children") if name in before}
    actions = (*_patched(observed, status), *step.actions, *step.events)
    return Decision(actions, _wait(observed, False, step.look_again_at))


def _patched(observed: Observed, status: dict[str, Any]) -> list[Action]:
    """The status is written only when it changes."""
    live = observed.changefeed or {}
    if status == own_status(api.mapping_at(live, "status")):
        return []
    return [PatchStatus(status, api.text_at(live, "metadata", "resourceVersion"))]


def _optional(observed: Observed) -> list[tuple[api.Kind, str]]:
    """Children that are needed only some of the time."""
    return [
        (api.CRON_JOB, api.hold_cron_job_name(observed.name)),
        (api.NETWORK_POLICY, api.child_name(observed.name)),
        (api.BUDGET, api.child_name(observed.name)),
    ]


def _wait(observed: Observed, is_soon: bool, *look_again_at: float | None) -> float | None:
    """Seconds until the passage of time alone changes something."""
    times = [time for time in look_again_at if time is not None]
    if is_soon or any(api.is_deleting(child) for child in observed.children):
        times.append(observed.now + _GONE_BY_S)
    return min((time - observed.now for time in times if time > observed.now), default=None)


def _situation(observed: Observed, step: Step, want: Wanted) -> Situation:
    situation = step.situation
    if observed.refused and not situation.is_stalled:
        situation = Situation(Reason.REFUSED, observed.refused, still_ready=situation.is_ready)
    if want.problem:
        runs = _runs(step.ledger, want)
        kept = "The last valid spec keeps running meanwhile." if runs else "Nothing runs until then."
        situation = Situation(Reason.INVALID_SPEC, f"{want.problem}. Fix it. {kept}", runs_last_valid=runs)
    return replace(situation, message=situation.message[:_LONGEST_MESSAGE])


def _runs(ledger: AttemptLedger, want: Wanted) -> bool:
    """Tell whether a driver is running, or will be without intervention."""
    is_over = want.target is None or want.paused or ledger.outcome in (AttemptOutcome.STALLED, AttemptOutcome.FINISHED)
    return ledger.phase is not Phase.ENDED or not is_over


def _status(
    observed: Observed, spark: SparkApi, step: Step, situation: Situation, want: Wanted, held: HeldHistoryDecision
) -> dict[str, Any]:
    """Everything in the status that the operator owns."""
    live: Json = observed.changefeed or {}
    before, generation = api.mapping_at(live, "status"), api.whole_at(live, "metadata", "generation")
    status = {
        "observedGeneration": generation,
        "state": situation.state,
        "message": situation.message,
        **step.ledger.fields(),
        **held.fields,
        **_image(observed, spark, step.ledger, before),
        "conditions": [
            *conditions(situation, held.answer, _clear_text(want), before, generation, observed.now),
            *([] if is_heard(observed) else unknown(before, generation, observed.now)),
        ],
    }
    return {**status, "sink": want.target.sink} if want.target else status


def _clear_text(want: Wanted) -> str:
    return in_clear_text(want.target.resource) if want.target else ""


def _image(observed: Observed, spark: SparkApi, ledger: AttemptLedger, before: Json) -> dict[str, Any]:
    """The newest attempt's image; the previous one's until the newest has a SparkApplication."""
    found: Json = observed.application or {}
    is_newest = api.label_of(found, api.ATTEMPT_LABEL) == str(ledger.attempt)
    image = spark.image(found) if is_newest else api.text_at(before, "image")
    return {"image": image} if image else {}


def _is_own(told: Json) -> bool:
    kind = api.text_at(told, "type")
    return kind in OWN_CONDITIONS or (kind in DRIVERS_CONDITIONS and api.text_at(told, "reason") == NO_DRIVER)


def own_status(before: Json) -> dict[str, Any]:
    """The operator's part of the observed status."""
    own = {name: before[name] for name in OWN_FIELDS if name in before}
    known = (*OWN_CONDITIONS, *DRIVERS_CONDITIONS)
    said = [each for each in api.list_at(before, "conditions") if _is_own(each)]
    said.sort(key=lambda each: known.index(api.text_at(each, "type")))
    return {**own, "conditions": said}


def _settings(want: Wanted, accepted: str, before: Json) -> Json:
    """The live settings for the running driver, always from the accepted spec."""
    is_accepted = want.target is not None and want.target.config_digest == accepted
    return want.target.settings if is_accepted and want.target else api.mapping_at(before, "liveSettings")


def _accepted(observed: Observed, want: Wanted, before: Json) -> str:
    """Digest of the last valid spec; a new one counts only once its ConfigMap exists, so there is one to read."""
    known = api.text_at(before, "configDigest")
    if want.target is None:
        return known
    found = observed.child(api.CONFIG_MAP, want.target.config_map_name) or {}
    return want.target.config_digest if api.text_at(found, "data", CONFIG_KEY) == want.target.config_text else known
