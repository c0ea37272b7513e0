"""A changefeed of a cluster that has no Spark operator. Pure."""

from __future__ import annotations

from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.actions import Decision, PatchStatus
from changefeed_operator.api import Json
from changefeed_operator.decision.conditions import Situation, events, readiness
from changefeed_operator.decision.decide import own_status


def no_spark_operator(live: Json, why: str, now: float) -> Decision:
    """Say in its status that it can't run, and `why`, with the next step; all else stays as the last pass left it."""
    before = api.mapping_at(live, "status")
    own, generation = own_status(before), api.whole_at(live, "metadata", "generation")
    situation = Situation(Reason.NO_SPARK_OPERATOR, why)
    told = readiness(situation, before, generation, now)
    types = [each["type"] for each in told]
    others = [each for each in own["conditions"] if api.text_at(each, "type") not in types]
    status = {**own, "state": situation.state, "message": why, "conditions": [*told, *others]}
    if status == own or api.is_hands_off(live):
        return Decision()
    write = PatchStatus(status, api.text_at(live, "metadata", "resourceVersion"))
    return Decision((write, *events(situation, before)))
