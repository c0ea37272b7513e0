"""A changefeed whose reconciliation is paused by an annotation. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.actions import Decision, EmitEvent, PatchStatus
from changefeed_operator.api import Json
from changefeed_operator.decision.conditions import HANDS_OFF, condition, transition_time

TEXT: Final = (
    f"Reconciliation is paused by the annotation {api.RECONCILE}: paused. The operator does not change, repair or "
    "restart anything; what is running keeps running. Remove the annotation to hand the changefeed back."
)


def hands_off(live: Json, own: Mapping[str, Any], now: float) -> Decision:
    """Report it, and nothing more; everything else stays as the last pass left it.

    `own`: the operator's part of the status.
    """
    before = api.mapping_at(live, "status")
    said = {
        "type": HANDS_OFF,
        "status": "True",
        "reason": "Annotation",
        "message": TEXT,
        "lastTransitionTime": transition_time(before, HANDS_OFF, "True", now),
        "observedGeneration": api.whole_at(live, "metadata", "generation"),
    }
    others = [each for each in own["conditions"] if api.text_at(each, "type") != HANDS_OFF]
    status = {**own, "message": TEXT, "conditions": [*others, said]}
    if status == own:
        return Decision()
    write = PatchStatus(status, api.text_at(live, "metadata", "resourceVersion"))
    if condition(before, HANDS_OFF):
        return Decision((write,))
    return Decision((write, EmitEvent(Reason.RECONCILE_PAUSED, TEXT)))
