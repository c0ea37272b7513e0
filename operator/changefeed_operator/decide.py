"""From what was observed to what to do: pure and total (DESIGN.md 4).

The status is written before anything is done, and says all that the next pass must know. Nothing here may raise,
read a clock or remember.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from changefeed_operator import api, removal
from changefeed_operator.actions import Action, Apply, Decision, Delete, PatchStatus
from changefeed_operator.api import Json
from changefeed_operator.attempt import Step, View, advance
from changefeed_operator.children import children
from changefeed_operator.conditions import OWN_CONDITIONS, Reason, Situation, conditions, events
from changefeed_operator.ledger import Ledger, Outcome, Phase
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Settings
from changefeed_operator.target import Wanted, wanted

#: The status fields of the operator, conditions aside.
OWN_FIELDS = (
    "observedGeneration",
    "state",
    "message",
    "sink",
    "attempt",
    "attemptPhase",
    "attemptOutcome",
    "effectiveSpecHash",
    "stateUri",
    "restarts",
    "lastError",
)

_LONGEST_MESSAGE = 2000
#: Seconds after which a child that is being deleted is looked for again: it has to be gone before it is made anew.
_GONE_BY_S = 5.0


def decide(observed: Observed, settings: Settings) -> Decision:
    """The next actions for one changefeed; equal input gives equal output, and no input raises."""
    if observed.namespace_terminating:
        return Decision()
    if observed.changefeed is None:
        return removal.gone(observed, settings)
    if api.is_deleting(observed.changefeed):
        return removal.going(observed)
    before = api.mapping_at(observed.changefeed, "status")
    want = wanted(observed, settings)
    ledger = Ledger.read(before)
    step = advance(View(observed, settings, want, ledger))
    situation = _situation(step, want)
    status = _status(observed, step, situation, want)
    actions: list[Action] = []
    if status != own_status(before):
        actions.append(PatchStatus(status, api.text_at(observed.changefeed, "metadata", "resourceVersion")))
    actions += _children(observed, settings, want, step)
    actions += step.actions
    actions += step.events
    actions += events(situation, before)
    return Decision(tuple(actions), _wait(observed, step))


def _wait(observed: Observed, step: Step) -> float | None:
    """Seconds to the moment at which time alone changes something."""
    times = [] if step.look_again_at is None else [step.look_again_at]
    if any(api.is_deleting(child) for child in observed.children):
        times.append(observed.now + _GONE_BY_S)
    return min((time - observed.now for time in times if time > observed.now), default=None)


def _situation(step: Step, want: Wanted) -> Situation:
    situation = step.situation
    if want.problem:
        runs = _runs(step.ledger, want)
        kept = "The last valid spec keeps running meanwhile." if runs else "Nothing runs until then."
        situation = Situation(Reason.INVALID_SPEC, f"{want.problem}. Mend it. {kept}", runs_last_valid=runs)
    return replace(situation, message=situation.message[:_LONGEST_MESSAGE])


def _runs(ledger: Ledger, want: Wanted) -> bool:
    """Whether a driver is there, or will be by itself."""
    is_over = want.target is None or want.paused or ledger.outcome in (Outcome.STALLED, Outcome.FINISHED)
    return ledger.phase is not Phase.ENDED or not is_over


def _status(observed: Observed, step: Step, situation: Situation, want: Wanted) -> dict[str, Any]:
    """All that the operator owns of the status."""
    live: Json = observed.changefeed or {}
    generation = api.whole_at(live, "metadata", "generation")
    status = {
        "observedGeneration": generation,
        "state": situation.state,
        "message": situation.message,
        **step.ledger.fields(),
        "conditions": conditions(situation, api.mapping_at(live, "status"), generation, observed.now),
    }
    return {**status, "sink": want.target.sink} if want.target else status


def own_status(before: Json) -> dict[str, Any]:
    """The operator's part of the status observed."""
    own = {name: before[name] for name in OWN_FIELDS if name in before}
    said = [each for each in api.list_at(before, "conditions") if api.text_at(each, "type") in OWN_CONDITIONS]
    said.sort(key=lambda each: OWN_CONDITIONS.index(api.text_at(each, "type")))
    return {**own, "conditions": said}


def _children(observed: Observed, settings: Settings, want: Wanted, step: Step) -> list[Action]:
    """Writes for the children that are not as they should be; none when all are."""
    if want.target is None:
        return []
    actions: list[Action] = []
    live = observed.changefeed or {}
    manifests = children(want.target, settings, live, _is_held(want, step.ledger))
    for manifest in manifests:
        found = observed.child(api.KINDS[manifest["kind"]], manifest["metadata"]["name"])
        if found is None or (_applied(found) != _applied(manifest) and not api.is_deleting(found)):
            actions.append(Apply(manifest))
    named = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    optional = (
        (api.CRON_JOB, api.hold_cron_job_name(observed.name)),
        (api.NETWORK_POLICY, api.child_name(observed.name)),
    )
    for kind, name in optional:
        found = observed.child(kind, name)
        if found is not None and (kind.kind, name) not in named and not api.is_deleting(found):
            actions.append(Delete(kind.kind, name, api.uid_of(found)))
    return actions


def _is_held(want: Wanted, ledger: Ledger) -> bool:
    """Whether a CronJob must keep the upstream's safepoint alive, because no driver does for long (rule 14)."""
    if ledger.attempt == 0 or ledger.outcome is Outcome.FINISHED:
        return False
    return want.paused or ledger.outcome is Outcome.STALLED or ledger.is_crash_looping


def _applied(manifest: Json) -> str:
    return api.text_at(manifest, "metadata", "annotations", api.APPLIED)
