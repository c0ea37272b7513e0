"""A SparkApplication that does not get on, because the Spark operator does not: it is waited for, told, and replaced.

No Spark operator works here; what it once said stands in the application's status. The operator's clock is set ahead.
"""

from __future__ import annotations

from functools import partial

import pytest
from cluster_api import CORE, Namespace
from cluster_changefeed_operator import ForkedOperator
from cluster_feeds import Feeds
from cluster_processes import wait_until
from cluster_spark_operator import PLAYED_LABELS

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("spark_crds")]

#: More than an application may be without a driver; and so much that the wait after it is over too.
STUCK_S = 200.0
STATES = ("SUBMITTED", "PENDING_RERUN", "INVALIDATING")
NEW = "new"  # its application says nothing at all


def test_an_application_that_is_stuck_is_told_and_replaced_by_the_next_attempt(
    namespace: Namespace, forked: ForkedOperator, feeds: Feeds
) -> None:
    namespace.api.merge(f"{CORE}/namespaces/{namespace.name}", {"metadata": {"labels": PLAYED_LABELS}})
    forked.install()
    forked.start()
    names = {_name(state): state for state in STATES}
    for name in (*names, NEW):
        feeds.create(name)
    first = {name: _uid(feeds, name) for name in (*names, NEW)}
    for name, state in names.items():
        told = {"status": {"applicationState": {"state": state, "errorMessage": ""}, "driverInfo": {}}}
        namespace.api.merge(namespace.applications(f"changefeed-{name}", "status"), told)
    for name, state in names.items():
        text = (
            "Waiting for the Spark operator to create the driver's pod."
            if state == "SUBMITTED"
            else f"is {state} and has no"
        )
        assert feeds.wait_until_said(name, text)["state"] == "Pending"

    forked.stop()
    forked.ahead_s = STUCK_S
    forked.start()

    for name, state in names.items():
        status = feeds.wait_until_said(name, f"stuck in {state} without a driver pod. Check the Spark operator's log.")
        assert (status["state"], status["restarts"]["failures"]) == ("Warning", {"Stuck": 1})
        assert status["lastError"]["nextRetryTime"] in status["message"]
    status = feeds.wait_until_said(NEW, "has not picked up the SparkApplication", "spark.jobNamespaces", namespace.name)
    assert status["restarts"]["failures"] == {"Submission": 1}
    for name in (*names, NEW):
        wait_until(partial(_is_replaced, feeds, name, first[name]), f"a second attempt of {name} has taken its place")


def _is_replaced(feeds: Feeds, name: str, uid: str) -> bool:
    """With the clock ahead a second attempt counts as stuck at once, and there may be a third by now."""
    found = feeds.application(name)
    return found is not None and found["metadata"]["uid"] != uid and feeds.status(name)["attempt"] > 1


def _name(state: str) -> str:
    return state.lower().replace("_", "-")


def _uid(feeds: Feeds, name: str) -> str:
    found = wait_until(lambda: feeds.application(name), f"the application of {name} is made")
    return str(found["metadata"]["uid"])
