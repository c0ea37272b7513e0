"""How the operator reports a changefeed's situation: kstatus conditions, a TiCDC-style state, and one message.

All three are derived from one `Situation`, so they can't contradict each other. Messages
contain nothing that changes on its own, such as an age: every change is a write. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from changefeed.spec.reasons import HeldReason, Reason, Shown

from changefeed_operator import api
from changefeed_operator.actions import EmitEvent
from changefeed_operator.api import Json

HANDS_OFF: Final = "ReconcilePaused"
CLEAR_TEXT: Final = "CredentialsInClearText"  # only while it is so
OWN_CONDITIONS: Final = ("Ready", "Reconciling", "Stalled", "HistoryHeld", CLEAR_TEXT, HANDS_OFF)
#: The driver's conditions, and the reason the operator gives them while no driver reports.
RULES: Final = "RulesMatch"
DRIVERS_CONDITIONS: Final = ("SinkAvailable", "UpstreamAvailable", "WithinLag", RULES)
NO_DRIVER: Final = "NoDriver"
#: These count as running, and send the event for `RUNNING`.
_RUNS_TOO: Final = (Reason.IDLE, Reason.CATCHING_UP)
_CAMEL_CASE = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")


@dataclass(frozen=True)
class Situation:
    """The situation of a changefeed. `cause`: for `STALLED`, the class of the error that stopped it."""

    reason: Reason
    message: str
    cause: str = ""
    runs_last_valid: bool = False  # for INVALID_SPEC: a driver runs the last valid spec
    still_ready: bool = False  # there is trouble, but the checkpoint keeps advancing

    @property
    def shown(self) -> Shown:
        assert self.reason.shown is not None, f"{self.reason} is not a reason of a condition"
        return self.reason.shown

    @property
    def state(self) -> str:
        return "Warning" if self.runs_last_valid else self.shown.state

    @property
    def is_ready(self) -> bool:
        return self.still_ready or self.shown.is_ready

    @property
    def is_stalled(self) -> bool:
        return self.shown.is_stalled

    @property
    def shown_reason(self) -> str:
        return self.cause if self.reason is Reason.STALLED and _CAMEL_CASE.fullmatch(self.cause) else str(self.reason)


def conditions(
    situation: Situation, held: tuple[HeldReason, str], clear_text: str, before: Json, generation: int, now: float
) -> list[dict[str, Any]]:
    """Ready, Reconciling, Stalled, HistoryHeld and, with `clear_text`, CredentialsInClearText, which that explains.

    `held`: reason and message of HistoryHeld. `before`: the observed status, whose transition times are kept.
    """
    others = {
        "HistoryHeld": (held[0].status, str(held[0]), held[1]),
        **({CLEAR_TEXT: ("True", "NoTls", clear_text)} if clear_text else {}),
    }
    return [*readiness(situation, before, generation, now), *_conditions(others, before, generation, now)]


def readiness(situation: Situation, before: Json, generation: int, now: float) -> list[dict[str, Any]]:
    """Ready, Reconciling and Stalled."""
    told = (situation.shown_reason, situation.message)
    answers = {
        "Ready": ("True" if situation.is_ready else "False", *told),
        "Reconciling": ("True" if situation.shown.is_reconciling and not situation.is_ready else "False", *told),
        "Stalled": ("True" if situation.is_stalled else "False", *told),
    }
    return _conditions(answers, before, generation, now)


def _conditions(
    answers: Mapping[str, tuple[str, str, str]], before: Json, generation: int, now: float
) -> list[dict[str, Any]]:
    """`answers`: status, reason and message, by type."""
    return [
        {
            "type": kind,
            "status": answer,
            "reason": reason,
            "message": message,
            "lastTransitionTime": transition_time(before, kind, answer, now),
            "observedGeneration": generation,
        }
        for kind, (answer, reason, message) in answers.items()
    ]


def unknown(before: Json, generation: int, now: float) -> list[dict[str, Any]]:
    """The driver's conditions set to Unknown, so that nobody waiting for one sees a stale value."""
    return [
        {
            "type": kind,
            "status": "Unknown",
            "reason": NO_DRIVER,
            "message": "No driver is running, or it has not reported yet.",
            "lastTransitionTime": transition_time(before, kind, "Unknown", now),
            "observedGeneration": generation,
        }
        for kind in DRIVERS_CONDITIONS
        if condition(before, kind)
    ]


def events(situation: Situation, before: Json) -> list[EmitEvent]:
    """The event for a change since the observed status; none while nothing changed."""
    reason = Reason.RUNNING if situation.reason in _RUNS_TOO else situation.reason
    was = condition(before, "Ready")
    if reason.sent is None or api.text_at(was, "reason") == situation.shown_reason:
        return []
    if reason is Reason.RUNNING and api.text_at(was, "status") == "True":
        return []  # lag comes and goes
    return [EmitEvent(reason, situation.message)]


def warnings(clear_text: str, before: Json) -> list[EmitEvent]:
    """The event for what the spec leaves unprotected, once."""
    if not clear_text or api.text_at(condition(before, CLEAR_TEXT), "message") == clear_text:
        return []
    return [EmitEvent(Reason.CREDENTIALS_IN_CLEAR_TEXT, clear_text)]


def condition(status: Json, kind: str) -> Json:
    """The condition of the given type, or an empty one."""
    for each in api.list_at(status, "conditions"):
        if isinstance(each, Mapping) and api.text_at(each, "type") == kind:
            return each
    return {}


def transition_time(before: Json, kind: str, answer: str, now: float) -> str:
    was = condition(before, kind)
    since = api.text_at(was, "lastTransitionTime")
    is_same = api.text_at(was, "status") == answer and api.parse_time(since) is not None
    return since if is_same else api.time_text(now)
