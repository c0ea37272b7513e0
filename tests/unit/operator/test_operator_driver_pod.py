"""How a driver's end is read: exit code, last words, and what comes of it (docs/running.md, Exit codes)."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.spec.reasons import Reason
from changefeed_operator import api
from changefeed_operator.decision.attempt.ledger import AttemptOutcome
from changefeed_operator.decision.evidence.driver_pod import (
    disruption_of,
    end_in_text,
    end_of,
    is_over,
    started_at,
    trouble_of,
)


def _pod(code: int, message: str = "", reason: str = "Error", seconds: int = 300) -> dict[str, Any]:
    terminated = {
        "exitCode": code,
        "reason": reason,
        "message": message,
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": api.time_text((api.parse_time("2026-01-01T00:00:00Z") or 0) + seconds),
    }
    statuses = [{"name": api.DRIVER_CONTAINER, "state": {"terminated": terminated}}]
    return {"status": {"phase": "Failed", "containerStatuses": statuses}}


def _said(cause: str) -> str:
    return f'{{"class": "{cause}", "message": "It broke.", "next": "Mend it."}}'


@pytest.mark.parametrize(
    ("pod", "outcome", "cause", "failure"),
    [
        (_pod(0, _said("Finished")), AttemptOutcome.FINISHED, "Finished", None),
        (_pod(0, _said("Drained")), AttemptOutcome.FAILED, "Lost", Reason.LOST),
        (_pod(0), AttemptOutcome.FAILED, "Lost", Reason.LOST),
        (_pod(1, _said("NeedsHuman")), AttemptOutcome.STALLED, "NeedsHuman", None),
        (_pod(1, _said("DuplicateKey")), AttemptOutcome.STALLED, "DuplicateKey", None),
        (_pod(1, _said("ExecuteByHand")), AttemptOutcome.STALLED, "ExecuteByHand", None),
        (_pod(1, _said("SnapshotLostByGC")), AttemptOutcome.STALLED, "SnapshotLostByGC", None),
        (_pod(1, _said("ProtocolViolation")), AttemptOutcome.FAILED, "ProtocolViolation", Reason.CRASH),
        (_pod(1, "Traceback ..."), AttemptOutcome.FAILED, "Crash", Reason.CRASH),
        (_pod(1, seconds=59), AttemptOutcome.FAILED, "FastFail", Reason.FAST_FAIL),
        (_pod(2), AttemptOutcome.STALLED, "InvalidSpec", None),
        (_pod(1, _said("Refused"), seconds=1), AttemptOutcome.FAILED, "Refused", Reason.UNAVAILABLE),
        (_pod(69, _said("Unavailable")), AttemptOutcome.FAILED, "Unavailable", Reason.UNAVAILABLE),
        (_pod(69, seconds=1), AttemptOutcome.FAILED, "Unavailable", Reason.UNAVAILABLE),
        (_pod(75), AttemptOutcome.FAILED, "Fenced", Reason.FENCED),
        (_pod(137), AttemptOutcome.FAILED, "Crash", Reason.CRASH),
        (_pod(137, reason="OOMKilled", seconds=2), AttemptOutcome.FAILED, "OutOfMemory", Reason.OOM),
        (_pod(143), AttemptOutcome.FAILED, "Lost", Reason.LOST),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, AttemptOutcome.FAILED, "Lost", Reason.LOST),
    ],
)
def test_an_end_is_read(pod: dict[str, Any], outcome: AttemptOutcome, cause: str, failure: Reason | None) -> None:
    assert is_over(pod)
    assert started_at(pod) is None
    end = end_of(pod)
    assert (end.outcome, end.cause) == (outcome, cause)
    if failure is not None:
        assert end.failure is failure
        assert end.message.endswith("."), "a sentence"


def test_last_words_are_shown_with_the_next_step() -> None:
    assert end_of(_pod(1, _said("NeedsHuman"))).message == "It broke. Mend it."


def test_what_kubernetes_says_of_a_pod_that_it_takes_away_is_shown() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "message": "Taint manager: deleting due to a taint"}
    pod = {"status": {"phase": "Failed", "conditions": [condition]}}
    assert end_of(pod).message == "The driver's pod failed: Taint manager: deleting due to a taint."
    over = {"status": {"phase": "Failed", "conditions": [{**condition, "status": "False"}]}}
    assert disruption_of(over) == ""


def test_an_end_is_read_from_the_spark_operators_words_when_the_pod_is_gone() -> None:
    end = end_in_text("driver container failed with ExitCode: 137, Reason: OOMKilled")
    assert end is not None
    assert end.failure is Reason.OOM
    assert end_in_text("driver pod not found") is None


def _waiting(reason: str) -> dict[str, Any]:
    return {"status": {"containerStatuses": [{"name": api.DRIVER_CONTAINER, "state": {"waiting": {"reason": reason}}}]}}


@pytest.mark.parametrize(
    ("pod", "failure"),
    [
        (_waiting("ImagePullBackOff"), Reason.IMAGE_PULL),
        (_waiting("ErrImagePull"), Reason.IMAGE_PULL),
        (_waiting("CreateContainerConfigError"), Reason.DRIVER_START),
        ({"status": {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable"}]}}, Reason.UNSCHEDULABLE),
    ],
)
def test_why_a_pod_does_not_start(pod: dict[str, Any], failure: Reason) -> None:
    trouble = trouble_of(pod)
    assert trouble is not None
    assert trouble.failure is failure


def test_a_pod_on_its_way_has_no_trouble() -> None:
    assert trouble_of(_waiting("ContainerCreating")) is None


def test_a_pull_that_fails_two_ways_in_turn_is_told_in_the_same_words() -> None:
    """The kubelet changes between the two; each change of the message would be a write."""
    assert trouble_of(_waiting("ImagePullBackOff")) == trouble_of(_waiting("ErrImagePull"))
