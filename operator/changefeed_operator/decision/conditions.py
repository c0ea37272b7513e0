"""How the operator says where a changefeed stands: kstatus conditions, TiCDC's word for it, and one sentence.

All three come from one `Situation`, so that they can't contradict each other (facts/kubernetes.md 6.1). Messages hold
nothing that moves by itself: each change is a write. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from changefeed_operator import api
from changefeed_operator.actions import Event, EventReason
from changefeed_operator.api import Json

HANDS_OFF: Final = "ReconcilePaused"
OWN_CONDITIONS: Final = ("Ready", "Reconciling", "Stalled", "HistoryHeld", HANDS_OFF)
#: The driver's, and the reason that the operator gives them while no driver speaks for them.
DRIVERS_CONDITIONS: Final = ("SinkAvailable", "UpstreamAvailable", "WithinLag")
NO_DRIVER: Final = "NoDriver"
_CAMEL_CASE = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")


class Reason(StrEnum):
    """The reasons of Ready, Reconciling and Stalled; docs/reference/events.md says what to do about each.

    A driver that stopped for a person gives its own class as the reason instead of `STALLED`.
    """

    RUNNING = "Running"
    IDLE = "Idle"
    CATCHING_UP = "CatchingUp"
    BLOCKED_BY_LOCK = "BlockedByLock"
    PAUSED = "Paused"
    FINISHED = "Finished"
    STARTING = "Starting"
    REFUSED = "Refused"
    DRIVER_PENDING = "DriverPending"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    EXECUTORS_PENDING = "ExecutorsPending"
    EXECUTOR_OUT_OF_MEMORY = "ExecutorOutOfMemory"
    SINK_UNAVAILABLE = "SinkUnavailable"
    UPSTREAM_UNAVAILABLE = "UpstreamUnavailable"
    DRIVER_SILENT = "DriverSilent"
    DRAINING = "Draining"
    CLEANING_UP = "CleaningUp"
    BACK_OFF = "BackOff"
    INVALID_SPEC = "InvalidSpec"
    STALLED = "Stalled"
    DELETING = "Deleting"


@dataclass(frozen=True)
class _Shown:
    """The answers that a reason gives. `event`: sent when the reason becomes this one; None: none."""

    ready: Literal["True", "False"]
    reconciling: bool
    stalled: bool
    state: Literal["Pending", "Normal", "Warning", "Failed", "Stopped", "Finished"]
    event: EventReason | None = None


_SHOWN: Final = {
    Reason.RUNNING: _Shown("True", False, False, "Normal", EventReason.RUNNING),
    Reason.IDLE: _Shown("True", False, False, "Normal", EventReason.RUNNING),
    Reason.CATCHING_UP: _Shown("True", False, False, "Warning", EventReason.RUNNING),
    Reason.BLOCKED_BY_LOCK: _Shown("True", False, False, "Warning", EventReason.BLOCKED_BY_LOCK),
    Reason.PAUSED: _Shown("True", False, False, "Stopped", EventReason.PAUSED),
    Reason.FINISHED: _Shown("True", False, False, "Finished", EventReason.FINISHED),
    Reason.STARTING: _Shown("False", True, False, "Pending"),
    Reason.REFUSED: _Shown("False", True, False, "Warning", EventReason.REFUSED),
    Reason.DRIVER_PENDING: _Shown("False", True, False, "Warning", EventReason.DRIVER_PENDING),
    Reason.UNSCHEDULABLE: _Shown("False", True, False, "Warning", EventReason.UNSCHEDULABLE),
    Reason.IMAGE_PULL_FAILED: _Shown("False", True, False, "Warning", EventReason.IMAGE_PULL_FAILED),
    Reason.EXECUTORS_PENDING: _Shown("False", True, False, "Warning", EventReason.EXECUTORS_PENDING),
    Reason.EXECUTOR_OUT_OF_MEMORY: _Shown("False", True, False, "Warning", EventReason.EXECUTOR_OUT_OF_MEMORY),
    Reason.SINK_UNAVAILABLE: _Shown("False", True, False, "Warning", EventReason.SINK_UNAVAILABLE),
    Reason.UPSTREAM_UNAVAILABLE: _Shown("False", True, False, "Warning", EventReason.UPSTREAM_UNAVAILABLE),
    Reason.DRIVER_SILENT: _Shown("False", True, False, "Warning", EventReason.DRIVER_SILENT),
    Reason.DRAINING: _Shown("False", True, False, "Pending", EventReason.DRAINING),
    Reason.CLEANING_UP: _Shown("False", True, False, "Pending"),
    Reason.BACK_OFF: _Shown("False", True, False, "Warning"),  # AttemptFailed has said it
    Reason.DELETING: _Shown("False", True, False, "Pending"),
    Reason.INVALID_SPEC: _Shown("False", False, True, "Failed", EventReason.INVALID_SPEC),
    Reason.STALLED: _Shown("False", False, True, "Failed", EventReason.STALLED),
}
_NORMAL_EVENTS = (EventReason.RUNNING, EventReason.PAUSED, EventReason.FINISHED, EventReason.DRAINING)


@dataclass(frozen=True)
class Situation:
    """Where a changefeed stands. `cause`: the class of what stopped it, for `STALLED`."""

    reason: Reason
    message: str
    cause: str = ""
    runs_last_valid: bool = False  # for INVALID_SPEC: a driver runs the spec before this one
    still_ready: bool = False  # trouble beside a checkpoint that follows all the same

    @property
    def state(self) -> str:
        return "Warning" if self.runs_last_valid else _SHOWN[self.reason].state

    @property
    def is_ready(self) -> bool:
        return self.still_ready or _SHOWN[self.reason].ready == "True"

    @property
    def is_stalled(self) -> bool:
        return _SHOWN[self.reason].stalled

    @property
    def shown_reason(self) -> str:
        return self.cause if self.reason is Reason.STALLED and _CAMEL_CASE.fullmatch(self.cause) else str(self.reason)


def conditions(
    situation: Situation, held: tuple[str, str, str], before: Json, generation: int, now: float
) -> list[dict[str, Any]]:
    """Ready, Reconciling, Stalled and HistoryHeld. `before`: the status observed, whose transition times live on.

    `held`: status, reason and message of HistoryHeld.
    """
    shown, told = _SHOWN[situation.reason], (situation.shown_reason, situation.message)
    answers = {
        "Ready": ("True" if situation.is_ready else "False", *told),
        "Reconciling": ("True" if shown.reconciling and not situation.is_ready else "False", *told),
        "Stalled": ("True" if shown.stalled else "False", *told),
        "HistoryHeld": held,
    }
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
    """The driver's conditions, of which nobody knows any more: whoever waits for one must not find its last words."""
    return [
        {
            "type": kind,
            "status": "Unknown",
            "reason": NO_DRIVER,
            "message": "No driver runs, or it has not reported yet.",
            "lastTransitionTime": transition_time(before, kind, "Unknown", now),
            "observedGeneration": generation,
        }
        for kind in DRIVERS_CONDITIONS
        if condition(before, kind)
    ]


def events(situation: Situation, before: Json) -> list[Event]:
    """What changed for a person since the status observed; nothing while it stays the same."""
    reason = _SHOWN[situation.reason].event
    was = condition(before, "Ready")
    if reason is None or api.text_at(was, "reason") == situation.shown_reason:
        return []
    if reason is EventReason.RUNNING and api.text_at(was, "status") == "True":
        return []  # lag comes and goes
    return [Event("Normal" if reason in _NORMAL_EVENTS else "Warning", reason, situation.message)]


def condition(status: Json, kind: str) -> Json:
    """The condition of that type, or an empty one."""
    for each in api.list_at(status, "conditions"):
        if isinstance(each, Mapping) and api.text_at(each, "type") == kind:
            return each
    return {}


def transition_time(before: Json, kind: str, answer: str, now: float) -> str:
    was = condition(before, kind)
    since = api.text_at(was, "lastTransitionTime")
    is_same = api.text_at(was, "status") == answer and api.parse_time(since) is not None
    return since if is_same else api.time_text(now)
