"""What comes of attempts that fail, each in its own way: the sentence in the status, the count, the next attempt.

Real API server, real Spark operator and spark-submit; nodes are played. All ways at once, each by a changefeed of its
own, because a submission takes seconds. Where minutes must pass, the operator's clock is set ahead.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from cluster_changefeed_operator import ForkedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds, Status
from cluster_forks import Forks
from cluster_history import History
from cluster_pods import End, PlayedNode, Pod
from cluster_processes import wait_until
from cluster_spark_operator import SparkOperator

pytestmark = pytest.mark.timeout(1200)

#: More than a driver's pod may wait for anything, and an application for its driver.
LONG_S = 1000.0
#: More than the first wait of any failure.
WAIT_S = 80.0
#: Seconds for a submission, which is a JVM on a busy machine.
SUBMIT_S = 600.0
NO_SUCH_CLASS = {"spec": {"priorityClassName": "gold"}}


#: As the kubelet says it in an event of the pod, and nowhere else (test_cluster_real_faults.py has the real one).
NO_SECRET = 'MountVolume.SetUp failed for volume "changefeed-secret-0" : secret "lake-writer" not found'
NO_BUCKET = {"class": "SinkUnavailable", "message": "The bucket lake does not answer.", "next": "Look at it."}


@dataclass(frozen=True)
class Way:
    """One way to fail. `said`: parts of the sentence; `first_s`: seconds to the second attempt, give or take a fifth.

    `waits`: the driver's pod does not start, for the container's reason; `ends`: how a running driver ends.
    `cause`: the class of the error, where it is not the failure's.
    """

    failure: str
    said: tuple[str, ...]
    first_s: float
    waits: str = ""
    ends: End | None = None
    cause: str = ""


WAYS = {
    "submission": Way(
        "Submission",
        ("The API server rejects the driver's pod", "no PriorityClass with name gold was found"),
        10,
        cause="Refused",
    ),
    "start": Way("DriverStart", (NO_SECRET, "Create what is missing"), 10, "ContainerCreating"),
    "image": Way("ImagePull", ("changefeed-spark:test can't be pulled", "registry"), 60, "ImagePullBackOff"),
    "node": Way("Unschedulable", ("can't be scheduled", "Insufficient cpu", "Free up capacity"), 60, "Unschedulable"),
    "crash": Way("Crash", ("exited with code 1", "changefeed logs"), 5, ends=End(1)),
    "memory": Way("OutOfMemory", ("OOM-killed", "driver.memory"), 10, ends=End(137, "", "OOMKilled")),
    "sink": Way(
        "Unavailable",
        (NO_BUCKET["message"], NO_BUCKET["next"]),
        10,
        ends=End(69, json.dumps(NO_BUCKET)),
        cause="SinkUnavailable",
    ),
}
WAITING = [name for name, way in WAYS.items() if way.waits]


@dataclass(frozen=True)
class Scene:
    operator: ForkedOperator
    feeds: Feeds
    node: PlayedNode


@pytest.fixture(scope="module")
def scene(
    cluster: ControlPlane,
    crd: None,
    spark_operator: SparkOperator,
    history: History,
    forks: Forks,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """An attempt of each changefeed has been made, and of those that end, a second one."""
    namespace = cluster.create_namespace("operator-failures")
    operator = ForkedOperator(cluster, namespace, tmp_path_factory.mktemp("failures"), forks=forks)
    feeds = Feeds(namespace, history)
    with PlayedNode(namespace) as node:
        node.starts = lambda pod: not (_is_first(pod) and WAYS[_name(pod)].waits)
        node.ends = lambda pod: WAYS[_name(pod)].ends if _is_first(pod) else None
        operator.install()
        operator.start()
        try:
            # One after the other: each submission is a JVM. Those that wait come last, as their time runs.
            for name in sorted(WAYS, key=WAITING.__contains__):
                spec: dict[str, Any] = {"spark": {"driver": {"template": NO_SUCH_CLASS}}}
                feeds.create(name, **(spec if name == "submission" else {}))
                wait_until(partial(_is_submitted, feeds, name), f"{name} is submitted", SUBMIT_S)
                if name in WAITING:
                    _let_wait(node, name)
            yield Scene(operator, feeds, node)
        finally:
            operator.end()
    cluster.api.delete(f"/api/v1/namespaces/{namespace.name}")


def _is_submitted(feeds: Feeds, name: str) -> bool:
    """Or its submission has failed; a later attempt may be on its way."""
    status = (feeds.application(name) or {}).get("status") or {}
    return bool(status.get("applicationState", {}).get("state")) or feeds.status(name).get("attempt", 1) > 1


def _name(pod: Pod) -> str:
    return str(pod["metadata"]["labels"]["changefeed.dev/name"])


def _is_first(pod: Pod) -> bool:
    return bool(pod["metadata"]["labels"].get("changefeed.dev/attempt") == "1")  # a Job's has none


def _let_wait(node: PlayedNode, name: str) -> None:
    pod = f"changefeed-{name}-driver"
    wait_until(lambda: node.pod(pod), f"spark-submit has made {pod}", SUBMIT_S)
    reason = WAYS[name].waits
    if reason == "Unschedulable":
        node.unschedulable(pod)
    elif reason == "ContainerCreating":
        node.wait_for_image(pod, reason, "")
        node.tell(pod, "FailedMount", NO_SECRET)
    else:
        node.wait_for_image(pod, reason)


def _time(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def _check(status: Status, way: Way) -> None:
    """Check the status after an attempt that has failed."""
    error = status["lastError"]
    ready = next(found for found in status["conditions"] if found["type"] == "Ready")
    assert (status["state"], ready["status"], ready["reason"]) == ("Warning", "False", "BackOff")
    assert error["class"] == (way.cause or way.failure)
    assert all(text in error["message"] for text in way.said), error
    assert status["restarts"] == {"total": 1, "failures": {way.failure: 1}}
    wait_s = _time(error["nextRetryTime"]) - _time(error["time"])
    assert 0.8 * way.first_s - 1 <= wait_s <= 1.2 * way.first_s + 1
    assert status["message"].startswith(f"Attempt 1 failed: {error['message']}"[:500])
    assert status["message"].endswith(f"The next one starts at {error['nextRetryTime']}.")


@pytest.mark.parametrize("name", [name for name in WAYS if name not in WAITING])
def test_an_attempt_that_ends_is_told_counted_and_followed_by_another(scene: Scene, name: str) -> None:
    way = WAYS[name]
    _check(scene.feeds.wait_until_said(name, "Attempt 1 failed", *way.said), way)
    again = scene.feeds.wait_for(partial(_claimed, scene.feeds, name, 2), f"{name} is tried again")
    assert again["lastError"]["class"] == (way.cause or way.failure), "why stays to be read"
    assert "nextRetryTime" not in again["lastError"]


def _claimed(feeds: Feeds, name: str, attempt: int) -> Status | None:
    """The status in which it was so."""
    said = (status for status in feeds.statuses(name) if status.get("attempt") == attempt)
    return next((status for status in said if status["attemptPhase"] != "Ended"), None)


@pytest.mark.parametrize("name", WAITING)
def test_a_driver_that_cannot_start_says_why_before_its_time_is_up(scene: Scene, name: str) -> None:
    status = scene.feeds.wait_until_said(name, *WAYS[name].said)
    assert (status["attempt"], status["attemptPhase"]) == (1, "Created")
    assert status["restarts"] == {"total": 0}
    assert "lastError" not in status


def test_a_budget_that_is_spent_stalls_until_somebody_says_again(scene: Scene) -> None:
    """The fifth time in a row; three of them are only written down."""
    feeds, namespace = scene.feeds, scene.feeds.namespace
    feeds.wait_for(lambda: _claimed(feeds, "memory", 2), "the second attempt is made")
    pod = "changefeed-memory-driver"
    wait_until(lambda: ((scene.node.pod(pod) or {}).get("status") or {}).get("phase") == "Running", "its driver runs")
    spent: dict[str, Any] = {"status": {"restarts": {"total": 4, "failures": {"OutOfMemory": 4}}}}
    namespace.api.merge(namespace.changefeeds("memory", "status"), spent)
    scene.node.end(pod, End(137, "", "OOMKilled"))

    status = feeds.wait_until("memory", "Failed")
    assert status["message"].startswith("The driver was OOM-killed. Raise spec.spark.driver.memory.")
    assert status["message"].endswith("Then change spec.restartNonce.")
    answers = {found["type"]: (found["status"], found["reason"]) for found in status["conditions"]}
    assert answers["Stalled"] == ("True", "OutOfMemory")
    assert "nextRetryTime" not in status["lastError"]

    feeds.edit("memory", restartNonce=1)
    again = feeds.wait_for(lambda: _claimed(feeds, "memory", 3), "it starts again")
    assert "failures" not in again["restarts"], "with its whole budget"


def test_a_driver_that_did_not_start_in_its_time_is_given_up_and_followed_by_another(scene: Scene) -> None:
    """The last one here: the clock stays ahead."""
    feeds = scene.feeds
    for name in WAITING:
        feeds.wait_until_said(name, *WAYS[name].said)
    _return_after(scene.operator, LONG_S)
    for name in WAITING:
        _check(feeds.wait_until_said(name, "Attempt 1 failed", *WAYS[name].said), WAYS[name])
    _return_after(scene.operator, LONG_S + WAIT_S)
    for name in WAITING:
        feeds.wait_for(partial(_claimed, feeds, name, 2), f"{name} is tried again")


def _return_after(operator: ForkedOperator, seconds: float) -> None:
    operator.stop()
    operator.ahead_s = seconds
    operator.start()
