"""Changefeeds of a cluster with Apache's Spark operator, whose part is played (cluster_played_spark.py).

The CRD is ours, with the fields that are used: neither that operator's chart nor its images can be had here. API
server, garbage collection and our operator's rights are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_api import Namespace
from cluster_changefeed_operator import ChangefeedOperator
from cluster_feeds import Feeds
from cluster_history import History
from cluster_played_driver import ATTEMPT_LABEL
from cluster_played_spark import PlayedSpark
from cluster_processes import wait_until
from spark_applications import APACHE

CLOSE = "changefeed-orders-close"
TARGET_TS = "450000000000000000"
ONLY_APACHE = "spark.operator=Apache"
NO_BUCKET = {"class": "SinkUnavailable", "message": "The bucket lake does not answer.", "next": "Look at it."}
#: How the first driver of a changefeed ends -> class of the failure, and parts of what is said of it.
ENDS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "crash": ({"exitCode": 1, "reason": "Error"}, "Crash", ("exited with code 1", "changefeed logs")),
    "memory": ({"exitCode": 137, "reason": "OOMKilled"}, "OutOfMemory", ("OOM-killed", "spark.driver.memory")),
    "sink": (
        {"exitCode": 69, "reason": "Error", "message": json.dumps(NO_BUCKET)},
        "Unavailable",
        (NO_BUCKET["message"], NO_BUCKET["next"]),
    ),
}
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def feeds(namespace: Namespace, history: History) -> Feeds:
    return Feeds(namespace, history, APACHE)


@pytest.fixture
def spark(namespace: Namespace, apache_crd: None) -> Iterator[PlayedSpark]:
    ends = {name: end for name, (end, _, _) in ENDS.items()}
    with PlayedSpark(namespace.api, [namespace.name], report_s=1.0, group=APACHE, ends=ends) as played:
        yield played
    assert played.broken == []


def test_until_there_is_a_spark_operator_each_changefeed_says_which_one_to_install(
    operator: ChangefeedOperator, feeds: Feeds, request: pytest.FixtureRequest
) -> None:
    """The first one here: its cluster does not have the CRD yet."""
    operator.install(ONLY_APACHE)
    operator.start()
    feeds.create("orders")
    status = feeds.wait_until_said("orders", "sparkapplications.spark.apache.org", "Install Apache's")
    ready = next(each for each in status["conditions"] if each["type"] == "Ready")
    assert (status["state"], ready["status"], ready["reason"]) == ("Warning", "False", "NoSparkOperator")
    assert feeds.driver("orders") is None
    request.getfixturevalue("spark")
    assert feeds.wait_until("orders", "Normal")["attempt"] == 1


def test_a_changefeed_lives_from_its_creation_to_its_deletion_and_leaves_nothing(
    namespace: Namespace, operator: ChangefeedOperator, feeds: Feeds, spark: PlayedSpark
) -> None:
    operator.install(ONLY_APACHE)
    operator.start()
    feeds.create("orders")
    assert feeds.wait_until("orders", "Normal")["image"] == "changefeed-spark:test"
    made = feeds.application("orders")
    assert made is not None
    assert made["apiVersion"] == APACHE
    assert made["spec"]["applicationTolerations"]["resourceRetainPolicy"] == "Always"
    assert len(namespace.api.items(namespace.core("pods"), "spark-role=executor")) == 2

    feeds.edit("orders", paused=True)
    assert feeds.wait_until("orders", "Stopped")["message"].startswith("Paused as requested.")
    assert feeds.application("orders") is None
    assert feeds.driver("orders") is None

    feeds.edit("orders", paused=False)
    assert feeds.wait_until("orders", "Normal")["attempt"] == 2
    feeds.edit("orders", targetTs=TARGET_TS)
    status = feeds.wait_until("orders", "Finished")
    assert (status["attempt"], status["restarts"]["total"]) == (3, 0)
    assert feeds.driver("orders"), "its log can be read"

    feeds.delete("orders")
    wait_until(lambda: _only_the_job_is_left(feeds), "its children are gone")
    assert [attempt for _, _, attempt in spark.started] == [1, 2, 3]
    assert spark.errors == []
    assert operator.number("changefeed_operator_unexpected_errors_total") == 0


def _only_the_job_is_left(feeds: Feeds) -> bool:
    return all(child.startswith((f"jobs/{CLOSE}", f"pods/{CLOSE}")) for child in feeds.children("orders"))


def test_an_operator_that_is_killed_goes_on_where_it_was(
    namespace: Namespace, operator: ChangefeedOperator, feeds: Feeds, spark: PlayedSpark
) -> None:
    operator.install(ONLY_APACHE)
    operator.start()
    feeds.create("orders")
    feeds.wait_until("orders", "Normal")
    before = feeds.driver("orders")
    operator.kill()
    namespace.api.delete(operator.lease)
    operator.start()
    wait_until(lambda: operator.is_quiet, "the next operator has looked")
    assert before is not None
    assert (feeds.driver("orders") or {})["metadata"]["uid"] == before["metadata"]["uid"], "what runs goes on"

    operator.kill()
    namespace.api.delete(operator.lease)
    feeds.edit("orders", sink={"storage": {"flushInterval": "1s"}})
    operator.start()
    status = feeds.wait_until("orders", "Normal")
    assert (status["attempt"], status["restarts"]["total"]) == (2, 0), "an edit is no failure"

    namespace.api.delete(namespace.of(APACHE, "sparkapplications", "changefeed-orders"))
    feeds.wait_for(lambda: feeds.is_in("orders", "Normal") and feeds.status("orders")["attempt"] == 3, "it runs again")
    assert feeds.status("orders")["lastError"]["class"] == "Lost"
    driver = feeds.driver("orders")
    assert driver is not None
    assert driver["metadata"]["labels"][ATTEMPT_LABEL] == "3"
    assert spark.errors == []


def test_why_an_attempt_failed_is_told_and_the_next_one_runs(
    operator: ChangefeedOperator, feeds: Feeds, spark: PlayedSpark
) -> None:
    operator.install(ONLY_APACHE)
    operator.start()
    for name in ENDS:
        feeds.create(name)
    gold = {"spec": {"priorityClassName": "gold"}}
    feeds.create("refused", spark={"driver": {"template": gold}})
    refusal = ("Attempt 1 failed: The API server rejects the driver's pod", "no PriorityClass with name gold was found")
    status = feeds.wait_until_said("refused", *refusal)
    assert status["restarts"] == {"total": 1, "failures": {"Submission": 1}}
    assert status["lastError"]["class"] == "Refused"
    for name, (_, failure, said) in ENDS.items():
        status = feeds.wait_until_said(name, "Attempt 1 failed", *said)
        assert status["restarts"] == {"total": 1, "failures": {failure: 1}}, name
        feeds.wait_for(lambda name=name: feeds.is_in(name, "Normal"), f"{name} runs again")
        assert feeds.status(name)["attempt"] == 2
    (error,) = {error.partition(": ")[2] for error in spark.errors}
    assert error.startswith("403"), "only the pod of gold is refused"
