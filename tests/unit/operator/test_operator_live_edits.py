"""Edits that take no restart, and what becomes of a driver when operator and image are of different versions."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from changefeed.spec.field.kind import LIVE
from changefeed.spec.live import at, marked, settings_of, with_settings, without
from changefeed.spec.parse import from_effective
from changefeed.spec.problem import InvalidResource
from changefeed_operator import api
from changefeed_operator.decision.children.upkeep import REPAIR_EVERY_S
from changefeed_operator.settings import Settings
from changefeed_operator.target import Target, unknown_to_image
from operator_world import NAME, SPEC, World

#: Another value of each.
EDITS = {
    "lagThreshold": "10m",
    "drainTimeout": "5s",
    "upstream.safepointTtl": "48h",
    "deletionPolicy": "Retain",
}
PINNED = "registry/changefeed-spark:0.1"


def _running(**changes: Any) -> World:
    world = World()
    world.create(**changes)
    world.settle()
    world.now += REPAIR_EVERY_S
    return world


def _pods(world: World) -> dict[str, str]:
    """Their uids, and that of the application."""
    named = {name: found for (kind, name), found in world.objects.items() if kind in ("Pod", "SparkApplication")}
    return {name: str(found["metadata"]["uid"]) for name, found in named.items()}


def _read_config(world: World) -> dict[str, Any]:
    """The spec that a driver reads which starts now."""
    name = api.config_map_name(NAME, world.status["configDigest"])
    spec: dict[str, Any] = json.loads(world.objects["ConfigMap", name]["data"]["changefeed.yaml"])["spec"]
    return spec


def test_every_field_that_is_marked_is_tried_here() -> None:
    assert set(EDITS) == set(marked(LIVE))


@pytest.mark.parametrize("path", EDITS)
def test_an_edit_of_it_restarts_nothing_and_reaches_the_driver(path: str) -> None:
    world = _running()
    pods, events = _pods(world), len(world.events)
    world.edit(path, EDITS[path])
    world.settle()
    assert _pods(world) == pods
    assert world.status["observedGeneration"] == world.changefeed["metadata"]["generation"]
    assert (world.status["state"], world.status["attempt"]) == ("Normal", 1)
    assert world.events[events:] == []
    if path == "deletionPolicy":
        return
    assert world.status["liveSettings"][path] == EDITS[path]
    world.report()
    world.settle()
    assert world.one_pass().actions == ()
    assert _pods(world) == pods
    world.exit_driver(1)
    world.settle()
    assert at(_read_config(world), path) == EDITS[path], "the next attempt begins with it"


def test_what_a_driver_is_told_is_what_was_accepted() -> None:
    world = _running(lagThreshold="5m")
    told = world.status["liveSettings"]
    assert told == {"lagThreshold": "5m", "drainTimeout": "1m", "upstream.safepointTtl": "24h"}
    world.edit("lagThreshold", "6m")
    world.edit("timeZone", "no time zone")
    world.settle()
    assert world.status["state"] == "Warning"
    assert world.status["liveSettings"] == told
    world.edit("timeZone", None)
    for _ in range(10):  # told of no config before its ConfigMap stands
        world.one_pass(1)
        names = {name for kind, name in world.objects if kind == "ConfigMap"}
        accepted = world.status["liveSettings"]["lagThreshold"] == "6m"
        assert not accepted or api.config_map_name(NAME, world.status["configDigest"]) in names
        assert not accepted or _read_config(world)["lagThreshold"] == "6m"
    world.settle()
    assert world.status["liveSettings"]["lagThreshold"] == "6m"
    assert world.status["attempt"] == 1


def test_the_driver_is_given_the_drain_that_stands_in_the_spec_now() -> None:
    world = _running()
    world.edit("drainTimeout", "10m")
    world.settle()
    world.edit("paused", True)
    world.reconcile()
    assert world.driver is not None
    assert world.driver["metadata"]["deletionGracePeriodSeconds"] == 630


def test_a_longer_hold_needs_no_job_until_the_driver_has_taken_it_over() -> None:
    world = _running()
    world.report()
    world.edit("upstream.safepointTtl", "720h")
    world.reconcile()
    assert not [name for kind, name in world.objects if kind in ("CronJob", "Job")]
    world.report()
    world.reconcile()
    assert not [name for kind, name in world.objects if kind in ("CronJob", "Job")]
    assert world.status["appliedSettings"]["upstream.safepointTtl"] == "720h"
    # A driver that stops renewing is noticed by the longer one.
    world.now += 721 * 3600 / 3
    world.reconcile()
    assert [name for kind, name in world.objects if kind == "CronJob"]


def test_after_such_an_edit_a_change_of_the_application_is_still_seen() -> None:
    world = _running()
    world.edit("drainTimeout", "5s")
    world.settle()
    assert world.application is not None
    world.application["spec"]["image"] = "evil:1"
    world.settle()
    assert world.status["attempt"] == 2
    assert "spec.image" in world.status["lastError"]["message"]


def test_the_image_is_that_of_the_newest_attempt() -> None:
    world = _running()
    assert world.status["image"] == "changefeed-spark:1"
    world.settings = Settings(image="changefeed-spark:2")
    world.settle()
    assert world.status["image"] == "changefeed-spark:1", "an upgrade restarts nothing"
    world.edit("restartNonce", 1)
    world.settle()
    assert world.status["image"] == "changefeed-spark:2"


def test_settings_of_another_version_are_passed_over() -> None:
    target = _resource()
    assert with_settings(target, {"of.tomorrow": "1", "lagThreshold": "2m"}).spec.lag_threshold == 120.0
    assert with_settings(target, {}) == target
    assert settings_of(with_settings(target, {"upstream.safepointTtl": "1h"}))["upstream.safepointTtl"] == "1h"
    for wrong in ("soon", 7, None, "25h"):
        with pytest.raises(InvalidResource, match="lagThreshold"):
            with_settings(target, {"lagThreshold": wrong})


def test_a_path_is_taken_out_and_nothing_else() -> None:
    spec = {"a": 1, "b": {"a": 2, "c": {"d": 3}}}
    assert without(spec, frozenset({"b.c.d", "a"})) == {"b": {"a": 2, "c": {}}}
    assert spec == {"a": 1, "b": {"a": 2, "c": {"d": 3}}}


@pytest.mark.parametrize("left_out", [(), ("lagThreshold",)])
def test_an_upgrade_from_a_version_that_restarted_for_it_restarts_nothing(left_out: tuple[str, ...]) -> None:
    world = _running(lagThreshold="5m", drainTimeout="2m", upstream={**SPEC["upstream"], "safepointTtl": "12h"})
    spec = {name: value for name, value in world.changefeed["spec"].items() if name not in left_out}
    known = api.digest(spec)
    world.status["effectiveSpecHash"] = known
    for found in (world.application, world.driver, *world.executors):
        assert found is not None
        found["metadata"]["labels"][api.SPEC_HASH_LABEL] = known
    del world.status["liveSettings"], world.status["image"]
    driver = copy.deepcopy(world.driver)
    world.settle()
    assert world.driver == driver
    assert world.status["liveSettings"]["drainTimeout"] == "2m"
    assert (world.status["image"], world.status["attempt"]) == ("changefeed-spark:1", 1)


# A driver of another version than the operator


def test_a_driver_that_knows_no_settings_goes_on_and_has_them_at_its_next_start() -> None:
    """An image of before: it says nothing of settings, nor of its version."""
    world = _running(spark={"image": PINNED})
    driver = copy.deepcopy(world.driver)
    for field in ("appliedSettings", "version"):
        world.status.pop(field, None)
    world.edit("drainTimeout", "5s")
    world.edit("upstream.safepointTtl", "12h")
    world.settle()
    assert world.driver == driver
    assert world.status["state"] == "Normal"
    assert _read_config(world)["drainTimeout"] == "5s"


def test_a_driver_of_a_later_version_may_say_more() -> None:
    world = _running(spark={"image": PINNED})
    world.report()
    applied = {"of.tomorrow": "1", "upstream.safepointTtl": "a fortnight"}
    world.status.update(version="9.0.0", ofTomorrow={"a": 1}, appliedSettings=applied)
    driver = copy.deepcopy(world.driver)
    world.settle()
    assert world.driver == driver
    assert world.status["ofTomorrow"] == {"a": 1}
    world.exit_driver(99, said="OfTomorrow")
    world.settle()
    assert world.status["attempt"] == 2, "what it does not know is a crash, and tried again"


def _resource(**spec: Any) -> Any:
    metadata = {"name": NAME, "namespace": "shop"}
    document = {"apiVersion": api.API_VERSION, "kind": "Changefeed", "metadata": metadata, "spec": {**SPEC, **spec}}
    return from_effective(document)


@pytest.mark.parametrize(
    ("image", "version", "refused"),
    [
        (PINNED, "0.1.0", True),
        (PINNED, "0.1", True),
        (PINNED, "0.2.0", False),
        (PINNED, "0.10.0rc1", False),
        (PINNED, "1", False),
        (PINNED, "", False),  # it has not run yet: the driver itself refuses it
        ("registry/changefeed-spark:0.2", "0.1.0", False),  # not what has run
    ],
)
def test_a_field_that_the_pinned_image_does_not_know_is_not_sent(image: str, version: str, refused: bool) -> None:
    target = Target(_resource(spark={"image": PINNED}, timeZone="CET"), "")
    status = {"image": image, "version": version}
    problem = unknown_to_image(target, status, {"timeZone": "0.2.0", "integrity.level": "0.2.0"})
    assert bool(problem) == refused
    assert not refused or problem == (
        f"spec.timeZone: requires version 0.2.0 or newer; spec.spark.image, {PINNED}, is version {version}"
    )
    assert unknown_to_image(Target(_resource(timeZone="CET"), ""), status, {"timeZone": "0.2.0"}) == ""


def test_a_spec_that_was_written_for_the_pinned_image_goes_to_it_as_it_was() -> None:
    """Byte by byte, so that not even the digest is another: neither defaults nor live fields stand in it."""
    world = _running(spark={"image": PINNED})
    assert _read_config(world) == {**SPEC, "spark": {"image": PINNED}}
