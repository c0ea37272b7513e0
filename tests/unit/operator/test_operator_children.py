"""The resource is the truth: whatever becomes of a changefeed's children, what runs is the accepted spec."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.spec.parse import digest
from changefeed.spec.reasons import Reason
from changefeed_operator import api
from changefeed_operator.actions import Action, Apply, Create, DeleteObject, EmitEvent
from changefeed_operator.decision.children.upkeep import REPAIR_EVERY_S, superfluous
from changefeed_operator.settings import Network, Settings
from changefeed_operator.spark_operator.choice import KNOWN
from changefeed_operator.spark_operator.contract import SparkApi
from operator_world import NAME, SPEC, Manifest, World

CONFIG = "changefeed.yaml"
#: The children and the application as the version before immutable configs wrote them.
PREVIOUS = Path(__file__).parents[2] / "cluster" / "cluster_previous_children.yaml"
LASTING = ("ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Service", "PodDisruptionBudget", "NetworkPolicy")


def _running(**changes: Any) -> World:
    world = World(Settings(image="changefeed-spark:1", network=Network()))
    world.create(**{"filter": {"rules": ["shop.*"]}, **changes})
    world.settle()
    world.now += REPAIR_EVERY_S
    return world


def _paused() -> World:
    world = _running()
    world.edit("paused", True)
    world.settle()
    world.now += REPAIR_EVERY_S
    return world


def _child(world: World, kind: str) -> Manifest:
    return min((found for (each, _), found in world.objects.items() if each == kind), key=api.name_of)


def _edit_config(world: World, edit: Any) -> None:
    """Somebody edits the config in every ConfigMap there is, and touches nothing else."""
    for (kind, _), found in world.objects.items():
        if kind == "ConfigMap":
            config = json.loads(found["data"][CONFIG])
            edit(config["spec"])
            found["data"][CONFIG] = json.dumps(config)


def _config_name(world: World) -> str:
    """Return the name of the ConfigMap that the newest attempt's driver mounts."""
    assert world.application is not None
    volumes = world.application["spec"]["driver"]["template"]["spec"]["volumes"]
    (name,) = (str(volume["configMap"]["name"]) for volume in volumes if "configMap" in volume)
    return name


def _run_config(world: World) -> dict[str, Any]:
    """What the newest attempt's driver reads."""
    spec: dict[str, Any] = json.loads(world.objects["ConfigMap", _config_name(world)]["data"][CONFIG])["spec"]
    return spec


def _said(actions: list[Action]) -> list[str]:
    repaired = Reason.CHILD_REPAIRED
    return [each.message for each in actions if isinstance(each, EmitEvent) and each.reason is repaired]


def test_a_filter_edited_in_the_config_map_is_never_run() -> None:
    world = _running()
    _edit_config(world, lambda spec: spec["filter"].update(rules=["nothing.*"]))
    world.settle()
    world.exit_driver(1)
    world.settle()
    assert world.status["attempt"] == 2
    assert _run_config(world)["filter"]["rules"] == ["shop.*"]


def test_a_sink_edited_in_the_config_map_neither_drains_nor_stalls_the_driver() -> None:
    world = _running()
    driver = copy.deepcopy(world.driver)
    _edit_config(world, lambda spec: spec["sink"]["storage"].update(uri="s3://evil/orders"))
    world.settle()
    assert world.driver == driver
    assert world.condition("Ready")["status"] == "True"
    world.exit_driver(1)
    world.settle()
    assert _run_config(world)["sink"]["storage"]["uri"] == "s3://lake/orders"


@pytest.mark.parametrize("how", ["edited", "deleted"])
def test_while_the_spec_is_invalid_a_foreign_config_is_not_run_and_that_is_said(how: str) -> None:
    world = _running()
    world.edit("timeZone", "no time zone")
    world.settle()
    if how == "edited":
        _edit_config(world, lambda spec: spec["filter"].update(rules=["nothing.*"]))
    else:
        del world.objects["ConfigMap", _config_name(world)]
    world.reconcile()
    assert world.driver is not None, "what runs goes on"
    world.exit_driver(1)
    world.reconcile()
    world.now += 1000
    world.reconcile()
    assert world.status["attempt"] == 1, "nothing else is started"
    assert world.condition("Stalled")["status"] == "True"
    assert "is missing or was replaced" in world.status["message"]
    world.edit("timeZone", None)
    world.settle()
    assert world.status["attempt"] == 2
    assert _run_config(world)["filter"]["rules"] == ["shop.*"]


@pytest.mark.parametrize("spark", KNOWN, ids=lambda spark: spark.name)
def test_the_config_of_an_application_that_has_no_pod_yet_stays_as_long_as_that(spark: SparkApi) -> None:
    world = World(Settings(image="changefeed-spark:1", spark=spark))
    world.create()
    world.reconcile()
    assert world.driver is None
    (config,) = [name for kind, name in world.objects if kind == "ConfigMap"]
    assert superfluous(world.observe(), [], [], "another") == []
    del world.objects[api.APPLICATION, api.child_name(NAME)]
    uid = world.objects["ConfigMap", config]["metadata"]["uid"]
    assert superfluous(world.observe(), [], [], "another") == [DeleteObject("ConfigMap", config, uid)]


def test_each_spec_has_a_config_of_its_own_that_goes_when_no_attempt_reads_it() -> None:
    world = _running()
    first = _config_name(world)
    world.edit("sink.storage.fileSize", "32Mi")
    world.reconcile()
    assert _child_names(world, "ConfigMap") >= {first}, "the driver that drains may still be reading it"
    world.settle()
    assert _child_names(world, "ConfigMap") == {_config_name(world)} != {first}
    assert _child(world, "ConfigMap")["immutable"] is True
    assert world.status["configDigest"] == _config_name(world).rpartition("-")[2]


def _child_names(world: World, kind: str) -> set[str]:
    return {name for each, name in world.objects if each == kind}


def test_the_driver_and_the_hold_are_told_the_digest_of_what_they_read() -> None:
    world = _running()
    assert world.application is not None
    driver = world.application["spec"]["driver"]["template"]["spec"]
    (name,) = (volume["configMap"]["name"] for volume in driver["volumes"] if "configMap" in volume)
    assert name == f"changefeed-orders-{_told_digest(driver)}"
    hold = _child(_paused(), "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    assert digest(hold["metadata"]["annotations"][api.RESOURCE].encode()) == _told_digest(hold["spec"])


def _told_digest(pod: dict[str, Any]) -> str:
    env = {each["name"]: each.get("value", "") for each in pod["containers"][0]["env"]}
    return str(env["CHANGEFEED_CONFIG_DIGEST"])


def test_a_driver_that_found_a_foreign_config_is_followed_by_another() -> None:
    world = _running()
    world.exit_driver(75, "ForeignConfig", after=2)
    world.settle()
    assert world.status["attempt"] == 2
    assert world.status["restarts"]["failures"] == {"Fenced": 1}
    assert world.status["lastError"]["class"] == "ForeignConfig"


@pytest.mark.parametrize("kind", [*LASTING, "CronJob"])
def test_a_child_that_vanished_is_made_again_and_an_event_says_so(kind: str) -> None:
    world = _paused() if kind == "CronJob" else _running()
    gone = _child(world, kind)
    name = api.name_of(gone)
    del world.objects[kind, name]
    done = world.reconcile()
    assert [action.manifest["kind"] for action in done if isinstance(action, Apply)] == [kind]
    assert _said(done) == [f"{kind} {name} was deleted and has been recreated. Find out who did it."]
    assert world.one_pass().actions == ()


EDITS: dict[str, tuple[str, Any]] = {
    "Role": (".rules", lambda found: found.update(rules=[])),
    "RoleBinding": (".subjects", lambda found: found["subjects"][0].update(name="other")),
    "ServiceAccount": (".automountServiceAccountToken", lambda found: found.pop("automountServiceAccountToken")),
    "Service": (".spec.selector", lambda found: found["spec"]["selector"].update(app="evil")),
    "PodDisruptionBudget": (".spec.minAvailable", lambda found: found["spec"].update(minAvailable=99)),
    "NetworkPolicy": (".spec.ingress", lambda found: found["spec"]["ingress"].append({})),
    "CronJob": (".spec.suspend", lambda found: found["spec"].update(suspend=True)),
}


@pytest.mark.parametrize("kind", EDITS)
def test_a_child_that_was_edited_is_put_back_and_an_event_says_so(kind: str) -> None:
    world = _paused() if kind == "CronJob" else _running()
    found, (path, edit) = _child(world, kind), EDITS[kind]
    before = copy.deepcopy({name: part for name, part in found.items() if name != "metadata"})
    edit(found)
    done = world.reconcile()
    after = {name: part for name, part in _child(world, kind).items() if name != "metadata"}
    assert after == before
    (message,) = _said(done)
    assert message.startswith(f"{kind} {api.name_of(found)} was modified ({path[1:]}")
    assert world.one_pass().actions == ()


@pytest.mark.parametrize("kind", ["ConfigMap", "RoleBinding", "Service"])
def test_what_can_not_be_put_back_is_made_anew_with_one_event(kind: str) -> None:
    world = _running()
    found = _child(world, kind)
    uid, before = api.uid_of(found), copy.deepcopy(found)
    if kind == "ConfigMap":
        found["data"][CONFIG] = "{}"
    elif kind == "RoleBinding":
        found["roleRef"]["name"] = "cluster-admin"
    else:
        found["spec"]["ports"].append({"name": "evil", "port": 1, "protocol": "TCP"})
    done = world.reconcile()
    assert DeleteObject(kind, api.name_of(found), uid) in done
    assert len(_said(done)) == 1
    after = _child(world, kind)
    assert api.uid_of(after) != uid
    assert {**after, "metadata": {}} == {**before, "metadata": {}}
    assert world.one_pass().actions == ()


def test_nothing_is_said_of_what_the_operator_does_itself() -> None:
    world = World()
    world.create()
    assert _said(world.reconcile()) == []
    world.settle()
    world.edit("paused", True)
    assert _said(world.reconcile()) == [], "the hold comes"
    world.settle()
    world.edit("paused", False)
    world.settle()
    world.edit("spark", {"executor": {"instances": 5}})
    assert _said(world.reconcile()) == [], "another budget, another config"
    world.settings = Settings(image="changefeed-spark:2", network=Network())
    world.settle()
    assert _said(world.reconcile()) == [], "an upgrade that brings a kind of child"
    del world.objects["NetworkPolicy", api.child_name(NAME)]
    assert len(_said(world.reconcile())) == 1


def test_who_insists_on_his_own_is_answered_twice_a_minute() -> None:
    world = _running()
    role = _child(world, "Role")
    repairs = 0
    for _ in range(120):
        role = _child(world, "Role")
        role["rules"] = []
        repairs += len(_said(list(world.one_pass().actions)))
        world.now += 1
    assert 4 <= repairs <= 5


def test_the_children_of_a_deleted_namesake_are_waited_for_in_silence() -> None:
    world = _running()
    old = {key: copy.deepcopy(found) for key, found in world.objects.items() if key[0] in LASTING}
    world.delete()
    world.settle()
    world.end_deletions()
    world.objects = dict(old)
    world.create(filter={"rules": ["shop.*"]})
    world.one_pass()  # the finalizer
    decision = world.one_pass()
    owned = [action for action in decision.actions if isinstance(action, Apply | Create)]
    assert [action.manifest["kind"] for action in owned] == ["ConfigMap"], "whose name nobody had before"
    assert _said(list(decision.actions)) == []
    assert world.status["message"].startswith("The attempt starts once NetworkPolicy changefeed-orders is gone")
    assert decision.requeue_after is not None
    assert decision.requeue_after <= 5
    for key in old:
        world.objects.pop(key)  # garbage collection
    world.settle()
    assert world.condition("Ready")["status"] == "True"
    assert world.status["attempt"] == 1


def _before_the_upgrade() -> World:
    """A changefeed that runs, as the version before left it."""
    world = World(Settings(image="changefeed-spark:test"))
    world.create()
    uid = world.changefeed["metadata"]["uid"]
    text = PREVIOUS.read_text().replace("the-namespace", "shop").replace("the-uid", uid)
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        world._put(document)
    world.changefeed["status"] = {
        "observedGeneration": 1,
        "attempt": 1,
        "attemptPhase": "Created",
        "effectiveSpecHash": documents[-1]["metadata"]["labels"][api.SPEC_HASH_LABEL],
        "stateUri": SPEC["state"]["uri"],
    }
    while world.play():
        pass
    return world


def test_a_changefeed_of_the_version_before_goes_on_without_a_restart_or_an_event() -> None:
    world = _before_the_upgrade()
    driver = copy.deepcopy(world.driver)
    done = world.reconcile()
    assert _said(done) == []
    assert world.driver == driver
    assert world.status["attempt"] == 1
    assert world.condition("Ready")["status"] == "True"
    assert _child_names(world, "ConfigMap") == {
        "changefeed-orders",
        f"changefeed-orders-{world.status['configDigest']}",
    }, "the application still names the old one"
    world.exit_driver(1)
    world.settle()
    assert _child_names(world, "ConfigMap") == {_config_name(world)}


@pytest.mark.parametrize("edited", [False, True])
def test_of_the_version_before_only_the_config_that_runs_is_believed(edited: bool) -> None:
    world = _before_the_upgrade()
    world.edit("timeZone", "no time zone")
    if edited:
        _edit_config(world, lambda spec: spec["filter"].update(rules=["nothing.*"]))
    world.reconcile()
    assert "configDigest" not in world.status or not edited
    world.exit_driver(1)
    world.now += 1
    if not edited:
        world.settle()
        assert world.status["attempt"] == 2
        assert "filter" not in _run_config(world)
    else:
        world.reconcile()
        world.now += 1000
        world.reconcile()
        assert world.status["attempt"] == 1


def test_a_status_that_was_lost_is_read_off_the_application_and_nothing_restarts() -> None:
    world = _running()
    for _ in range(2):
        world.exit_driver(1)
        world.settle()
    driver, digest = copy.deepcopy(world.driver), world.status["configDigest"]
    world.changefeed["status"] = {"observedGeneration": -1}
    world.reconcile()
    assert world.driver == driver
    assert (world.status["attempt"], world.status["attemptPhase"]) == (3, "Created")
    assert world.status["configDigest"] == digest
    world.exit_driver(1)
    world.settle()
    assert world.status["attempt"] == 4


def test_the_application_of_another_changefeed_tells_nothing() -> None:
    world = _running()
    assert world.application is not None
    world.application["metadata"]["ownerReferences"][0]["uid"] = "another"
    world.changefeed["status"] = {"observedGeneration": -1}
    world.settle()
    assert world.status["attempt"] == 1


def test_an_application_that_was_edited_is_not_run_on() -> None:
    world = _running()
    assert world.application is not None
    image = world.application["spec"]["image"]
    world.application["spec"]["image"] = "evil:1"
    world.application["spec"]["suspend"] = False  # what others add is theirs
    world.settle()
    assert world.status["attempt"] == 2
    assert world.application["spec"]["image"] == image
    assert world.status["lastError"]["message"] == "Its SparkApplication was modified by someone else: spec.image."
    assert world.most_attempts_alive == 1


def test_what_the_api_server_drops_from_a_users_template_is_no_change() -> None:
    world = _running(spark={"driver": {"template": {"spec": {"nodeSelectr": {"a": "b"}}}}})
    assert world.application is not None
    del world.application["spec"]["driver"]["template"]["spec"]["nodeSelectr"]
    world.settle()
    assert world.status["attempt"] == 1


def test_an_application_of_another_version_of_the_operator_runs_on() -> None:
    world = _running()
    world.settings = Settings(image="changefeed-spark:2", network=Network())
    driver = copy.deepcopy(world.driver)
    world.settle()
    assert world.driver == driver
