"""What the kubelet says of pods in events: testdata/recorded/kubelet-events.json has its own.

Recorded on a real node by `RECORD=FOLDER pytest tests/cluster/test_cluster_real_faults.py`, of three drivers: one
lacked a Secret, one was frozen, and the image of the last was in a registry that was away.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from changefeed.spec.reasons import Reason
from changefeed_operator import api
from changefeed_operator.decision.evidence.driver_pod import end_of, is_unreachable, trouble_of
from changefeed_operator.decision.evidence.pods import failed_probe, not_pulled, unmounted

EVENTS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "testdata" / "recorded" / "kubelet-events.json").read_text()
)
#: What a driver waits for while its container is made; when each was created.
WAITS = {"name": api.DRIVER_CONTAINER, "state": {"waiting": {"reason": "ContainerCreating"}}}
LACKS_SECRET, FROZEN, NO_REGISTRY = "2026-11-23T14:39:41Z", "2026-11-23T14:41:29Z", "2026-11-23T14:45:08Z"


def _driver(word: str, created: str, container: dict[str, Any] | None = None) -> dict[str, Any]:
    """The driver whose events have that word."""
    uid = next(each["involvedObject"]["uid"] for each in EVENTS if word in each["message"])
    return {
        "metadata": {"name": "changefeed-demo-driver", "uid": uid, "creationTimestamp": created},
        "spec": {"terminationGracePeriodSeconds": 90},
        "status": {"phase": "Pending", "containerStatuses": [container or WAITS]},
    }


def test_a_secret_that_is_missing_is_named_and_what_spark_makes_after_the_pod_is_not() -> None:
    driver = _driver("lake-writer", LACKS_SECRET)
    missing = 'MountVolume.SetUp failed for volume "changefeed-secret-0" : secret "lake-writer" not found'
    assert unmounted(driver, EVENTS) == missing
    trouble = trouble_of(driver, events=EVENTS)
    assert trouble is not None
    assert trouble.failure is Reason.DRIVER_START
    assert missing in trouble.message
    assert unmounted(_driver("away", NO_REGISTRY), EVENTS) == ""


def test_a_registry_that_is_away_is_told_as_the_kubelet_tells_it() -> None:
    driver = _driver("away", NO_REGISTRY)
    assert not_pulled(driver, EVENTS).endswith("dial tcp 127.0.0.1:9: connect: connection refused")
    assert not_pulled(_driver("lake-writer", LACKS_SECRET), EVENTS) == ""


def _ended(finished: str, code: int = 137, **more: str) -> dict[str, Any]:
    """The frozen driver; its last probe failed at 14:43:26, and it was given 90 s to end."""
    terminated = {"exitCode": code, "reason": "Error", "startedAt": FROZEN, "finishedAt": finished, **more}
    return _driver("Liveness", FROZEN, {"name": api.DRIVER_CONTAINER, "state": {"terminated": terminated}})


def test_a_driver_that_was_killed_for_its_probe_hung() -> None:
    end = end_of(_ended("2026-11-23T14:44:57Z"), EVENTS)
    assert (end.failure, end.cause) == (Reason.HUNG, "Hung")
    assert "context deadline exceeded" in end.message


@pytest.mark.parametrize(
    ("pod", "failure"),
    [
        (_ended("2026-11-23T15:44:57Z"), Reason.CRASH),  # its probes failed once, an hour before
        (_ended("2026-11-23T14:44:57Z", reason="OOMKilled"), Reason.OOM),
        (_ended("2026-11-23T14:44:57Z", 69, message='{"class": "Unavailable"}'), Reason.UNAVAILABLE),
    ],
)
def test_one_that_ended_otherwise_did_not_hang(pod: dict[str, Any], failure: Reason) -> None:
    assert end_of(pod, EVENTS).failure is failure


def test_one_that_runs_has_not_been_killed() -> None:
    assert failed_probe(_driver("lake-writer", LACKS_SECRET), EVENTS) == ""


@pytest.mark.parametrize(
    ("is_deleted", "was_ready", "is_ready", "is_lost"),
    [
        (True, True, "False", True),
        (True, True, "True", False),  # it drains
        (True, False, "False", False),  # it has not passed its startup probe
        (False, True, "False", False),  # its node may come back
    ],
)
def test_a_pod_is_unreachable_when_its_container_is_ready_and_it_is_not(
    is_deleted: bool, was_ready: bool, is_ready: str, is_lost: bool
) -> None:
    container = {"name": api.DRIVER_CONTAINER, "ready": was_ready, "state": {"running": {"startedAt": FROZEN}}}
    pod = _driver("lake-writer", FROZEN, container)
    pod["status"]["conditions"] = [{"type": "Ready", "status": is_ready}]
    pod["metadata"] |= {"deletionTimestamp": FROZEN} if is_deleted else {}
    assert is_unreachable(pod) is is_lost
