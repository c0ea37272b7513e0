"""Deletion: a finalizer keeps the resource until a Job has closed its log, or that was given up. See testdata, too."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.spec.reasons import Reason
from changefeed_operator import api
from changefeed_operator.actions import Action, Create, Decision, DeleteObject, SetFinalizer
from changefeed_operator.manifests.jobs import UID_LABEL
from operator_world import NAME, World

CLOSE = api.close_job_name(NAME)


def _running(**spec: Any) -> World:
    world = World()
    world.create(**spec)
    world.settle()
    return world


def _ending() -> World:
    """Being deleted, and its driver has ended."""
    world = _running()
    world.delete()
    world.reconcile()
    for _ in ("driver", "executors"):
        world.end_deletions()
        world.reconcile()
    return world


def _created(actions: list[Action]) -> list[str]:
    return [action.manifest["metadata"]["name"] for action in actions if isinstance(action, Create)]


def _is_there(world: World) -> bool:
    return ("Changefeed", NAME) in world.objects


def test_the_finalizer_is_there_before_anything_else_is() -> None:
    world = World()
    world.create()
    (action,) = world.one_pass().actions
    assert isinstance(action, SetFinalizer)
    assert world.changefeed["metadata"]["finalizers"] == [api.FINALIZER]


def test_somebody_elses_finalizers_are_left_alone() -> None:
    world = _running()
    world.changefeed["metadata"]["finalizers"] = ["theirs", api.FINALIZER]
    world.edit("deletionPolicy", "Retain")
    world.reconcile()
    assert world.changefeed["metadata"]["finalizers"] == ["theirs"]
    attempt = world.status["attempt"]
    world.edit("deletionPolicy", None)
    world.settle()
    assert world.changefeed["metadata"]["finalizers"] == ["theirs", api.FINALIZER]
    assert world.status["attempt"] == attempt, "no driver is restarted for it"


def test_the_close_job_is_of_this_changefeed() -> None:
    world = _ending()
    assert world.job(CLOSE)["metadata"]["labels"][UID_LABEL] == world.changefeed["metadata"]["uid"]


def test_one_that_never_ran_and_holds_nothing_goes_at_once() -> None:
    world = World()
    world.create(paused=True)
    world.settle()
    world.delete()
    assert _created(world.reconcile()) == []
    assert not _is_there(world)


def test_one_that_never_ran_and_holds_history_is_closed() -> None:
    world = World()
    world.create(paused=True, startTs="450000000000000000")
    world.settle()
    world.delete()
    assert _created(world.reconcile()) == [CLOSE]


def test_a_close_that_failed_is_tried_until_it_worked() -> None:
    world = _ending()
    for _ in range(3):
        world.run_job(CLOSE, 69, **{"class": "Unavailable", "message": "The bucket does not answer."})
        world.reconcile()
        assert "The bucket does not answer." in world.status["message"]
        assert _created(world.reconcile()) == [], "not before the failed one is gone"
        world.now += 60
        world.expire_jobs()
        assert _created(world.reconcile()) == [CLOSE]
    assert [event.reason for event in world.events].count(Reason.CLOSE_FAILED) == 3
    world.run_job(CLOSE)
    world.reconcile()
    assert not _is_there(world)
    assert world.events[-1].reason == Reason.CLOSED


def test_an_operator_that_was_down_goes_on_from_what_stands_in_the_cluster() -> None:
    """It remembers nothing: a pass is a function of what it sees. Here the Job ended and went while nobody looked."""
    world = _ending()
    world.run_job(CLOSE)
    world.expire_jobs()
    assert _created(world.reconcile()) == [CLOSE], "closing twice does no harm"
    world.run_job(CLOSE)
    world.reconcile()
    assert not _is_there(world)


def test_after_an_hour_it_is_given_up_with_an_event() -> None:
    world = _ending()
    world.now += 3599
    world.reconcile()
    assert _is_there(world)
    assert world.one_pass().requeue_after == 1.0
    world.now += 1
    world.reconcile()
    assert not _is_there(world)
    assert world.events[-1].reason == Reason.CLOSE_GIVEN_UP


def test_what_the_api_server_refuses_is_told_while_it_is_tried() -> None:
    world = _running()
    world.delete()
    world.reconcile()
    for _ in ("driver", "executors"):
        world.end_deletions()
        world.refused = "The API server rejects Job changefeed-orders-close: exceeded quota: small."
        world.reconcile()
    assert world.status["message"].endswith(world.refused)


def test_a_node_that_was_lost_with_the_driver_keeps_it_for_minutes_only() -> None:
    world = _running()
    world.delete()
    world.reconcile()
    world.now += 30 + 90
    assert _created(world.reconcile()) == [], "it drains"
    world.now += 120
    world.reconcile()
    assert ("Job", CLOSE) in world.objects, "what lives on there is fenced by the closing epoch"


def test_a_namespace_that_goes_is_not_held_up() -> None:
    world = _running()
    world.namespace_terminating = True
    world.delete()
    world.reconcile()
    assert not _is_there(world)
    assert world.events[-1].reason == Reason.CLOSE_GIVEN_UP


def test_a_namespace_that_goes_waits_for_a_close_that_is_under_way() -> None:
    world = _ending()
    world.namespace_terminating = True
    assert world.reconcile() == []
    world.run_job(CLOSE)
    world.reconcile()
    assert not _is_there(world)
    assert world.events[-1].reason == Reason.CLOSED


@pytest.mark.parametrize("deleted", [False, True])
def test_nothing_new_is_made_in_a_namespace_that_is_going(deleted: bool) -> None:
    world = _running(deletionPolicy="Retain")
    world.namespace_terminating = True
    if deleted:
        world.changefeed["metadata"]["finalizers"] = ["theirs"]
        world.delete()
    assert _created(world.reconcile()) == []


def test_a_foreground_deletion_takes_the_children_first_and_it_is_closed_all_the_same() -> None:
    world = _running()
    world.delete()
    for kind, name in [key for key in world.objects if key[0] in ("ConfigMap", "ServiceAccount", "Role")]:
        del world.objects[kind, name]
    world.reconcile()
    world.end_deletions()
    world.reconcile()
    pod = world.job(CLOSE)["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "default"
    assert not [volume for volume in pod["volumes"] if "configMap" in volume]


def test_the_close_job_of_the_name_before_is_waited_for() -> None:
    world = _ending()
    before = world.job(CLOSE)
    world.now += 3600
    world.reconcile()
    assert not _is_there(world), "given up"
    world.create()
    world.settle()
    before.pop("status")  # as though it were still at work
    uid = world.changefeed["metadata"]["uid"]
    world.delete()
    world.reconcile()
    world.end_deletions()
    world.reconcile()
    assert world.one_pass() == Decision((), 5.0)
    before["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert world.one_pass().actions == (DeleteObject("Job", CLOSE, before["metadata"]["uid"]),)
    world.reconcile()
    assert world.job(CLOSE)["metadata"]["labels"][UID_LABEL] == uid


def test_children_that_a_deletion_left_without_an_owner_are_taken_away() -> None:
    world = _ending()
    for found in world.objects.values():
        found["metadata"].pop("ownerReferences", None)
    world.run_job(CLOSE)
    world.reconcile()
    world.reconcile()
    left = {kind for kind, _ in world.objects}
    assert left == {"Job", "Pod"}, "the Job, and its pod, go by themselves"


def test_one_whose_deletion_somebody_else_holds_stops_its_driver_first() -> None:
    world = _running(deletionPolicy="Retain")
    world.changefeed["metadata"]["finalizers"] = ["theirs"]
    world.delete()
    (action,) = [action for action in world.reconcile() if isinstance(action, DeleteObject)]
    assert action.name == api.driver_pod_name(NAME)
    world.end_deletions()
    (action,) = [action for action in world.reconcile() if isinstance(action, DeleteObject)]
    assert action.kind == "SparkApplication"
    assert _is_there(world)
