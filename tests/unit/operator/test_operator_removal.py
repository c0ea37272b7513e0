"""Deletion: no finalizer; a Job that nobody owns closes the log; what nobody owns otherwise is taken away."""

from __future__ import annotations

from changefeed_operator import api
from changefeed_operator.actions import Create, Decision, Delete
from changefeed_operator.children import UID_LABEL
from changefeed_operator.decide import decide
from changefeed_operator.observe import Observed
from operator_world import NAME, World


def _running() -> World:
    world = World()
    world.create()
    world.settle()
    return world


def test_a_changefeed_that_is_gone_gets_one_close_job() -> None:
    world = _running()
    uid = world.changefeed["metadata"]["uid"]
    world.delete()
    (job,) = [action.manifest for action in world.reconcile() if isinstance(action, Create)]
    assert job["metadata"]["labels"][UID_LABEL] == uid
    assert world.gone is None
    del world.objects["Job", api.close_job_name(NAME)]
    assert world.one_pass() == Decision(), "it is not made again when its time is over"


def test_one_that_never_ran_has_nothing_to_close() -> None:
    world = World()
    world.create(paused=True)
    world.settle()
    world.delete()
    assert world.reconcile() == []


def test_the_config_map_tells_what_ran_when_the_deletion_was_missed() -> None:
    world = _running()
    kept = world.objects["ConfigMap", api.child_name(NAME)]
    world.delete()
    world.gone = None
    world.objects["ConfigMap", api.child_name(NAME)] = kept
    (job,) = [action.manifest for action in world.one_pass().actions if isinstance(action, Create)]
    assert job["metadata"]["name"] == api.close_job_name(NAME)


def test_the_close_job_of_the_name_before_is_waited_for() -> None:
    world = _running()
    world.delete()
    world.reconcile()
    job = world.objects["Job", api.close_job_name(NAME)]
    world.end_deletions()
    world.create()
    world.settle()
    uid = world.changefeed["metadata"]["uid"]
    world.delete()
    decision = world.one_pass()
    assert decision == Decision((), 5.0)
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert world.one_pass().actions == (Delete("Job", job["metadata"]["name"], job["metadata"]["uid"]),)
    world.reconcile()
    assert world.objects["Job", api.close_job_name(NAME)]["metadata"]["labels"][UID_LABEL] == uid
    assert world.gone is None


def test_children_that_a_deletion_left_without_an_owner_are_taken_away() -> None:
    world = _running()
    for found in world.objects.values():
        found["metadata"].pop("ownerReferences", None)
    world.delete()
    world.reconcile()
    world.end_deletions()
    world.reconcile()
    assert set(world.objects) == {("Job", api.close_job_name(NAME))}


def test_one_whose_deletion_somebody_holds_stops_its_driver_first() -> None:
    world = _running()
    world.changefeed["metadata"]["deletionTimestamp"] = api.time_text(world.now)
    (action,) = world.one_pass().actions
    assert isinstance(action, Delete)
    assert action.name == api.driver_pod_name(NAME)
    assert world.one_pass().actions == ()
    world.end_deletions()
    (action,) = world.one_pass().actions
    assert isinstance(action, Delete)
    assert action.kind == "SparkApplication"


def test_nothing_is_done_in_a_namespace_that_is_going() -> None:
    world = _running()
    observed = world.observe()
    ending = Observed(
        observed.namespace, observed.name, observed.now, None, observed.changefeed, namespace_terminating=True
    )
    assert decide(ending, world.settings) == Decision()
