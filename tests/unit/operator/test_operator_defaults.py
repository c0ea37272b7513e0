"""Resources that an installation sets for changefeeds that name none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from changefeed.errors import InvalidSpec
from changefeed_operator import api
from changefeed_operator.settings import Settings, parse_defaults
from operator_world import NAME, World

DEFAULTS = {"driver": {"memory": "3Gi"}, "executor": {"cores": 4, "memory": "8Gi"}}


def _running(defaults: dict[str, dict[str, Any]], **changes: Any) -> World:
    world = World(Settings(image="changefeed-spark:1", defaults=defaults))
    world.create(**changes)
    world.settle()
    return world


def _pods(world: World) -> dict[str, tuple[int, int]]:
    """Cores, and MiB of a container, of the newest attempt's driver and executors."""
    assert world.application is not None
    spec = world.application["spec"]
    mib = {
        role: [int(spec[role][part][:-1]) for part in ("memory", "memoryOverhead")] for role in ("driver", "executor")
    }
    return {role: (spec[role]["cores"], sum(parts)) for role, parts in mib.items()}


def _config(world: World) -> dict[str, Any]:
    """The accepted config, as a driver and a person read it."""
    name = api.config_map_name(NAME, world.status["configDigest"])
    config: dict[str, Any] = json.loads(world.objects["ConfigMap", name]["data"]["changefeed.yaml"])
    return config


def test_a_changefeed_that_names_none_has_the_operators() -> None:
    world = _running(DEFAULTS)
    assert _pods(world) == {"driver": (1, 3 << 10), "executor": (4, 8 << 10)}


def test_what_a_changefeed_names_itself_wins() -> None:
    world = _running(DEFAULTS, spark={"executor": {"memory": "2Gi", "instances": 3}})
    assert _pods(world) == {"driver": (1, 3 << 10), "executor": (4, 2 << 10)}


def test_the_config_shows_what_is_in_force_and_where_it_comes_from() -> None:
    config = _config(_running(DEFAULTS, spark={"executor": {"memory": "2Gi"}}))
    assert config["spec"]["spark"] == {"driver": {"memory": "3Gi"}, "executor": {"cores": 4, "memory": "2Gi"}}
    assert config["metadata"]["annotations"] == {api.DEFAULTED: "driver.memory,executor.cores"}


def test_other_defaults_restart_nothing_and_count_from_the_next_start_on() -> None:
    world = _running({})
    for memory in ("3Gi", "5Gi"):
        world.settings = Settings(image="changefeed-spark:1", defaults={"driver": {"memory": memory}})
        world.settle()
        assert world.status["attempt"] == 1
        assert _config(world)["spec"]["spark"]["driver"] == {"memory": memory}

    world.edit("restartNonce", 1)
    world.settle()
    assert world.status["attempt"] == 2
    assert _pods(world)["driver"] == (1, 5 << 10)


def test_the_last_valid_spec_goes_on_while_defaults_change_beside_an_invalid_one() -> None:
    world = _running(DEFAULTS)
    world.edit("filter", {"rules": ["nodot"]})
    world.settings = Settings(image="changefeed-spark:1", defaults={"driver": {"memory": "4Gi"}})
    world.settle()
    assert world.condition("Ready")["reason"] == "InvalidSpec"
    assert world.status["attempt"] == 1
    assert world.status["state"] == "Warning"


def test_a_problem_that_the_defaults_make_says_so() -> None:
    world = _running({"executor": {"cores": 1}}, spark={"pullers": {"count": 3}})
    assert "spec.spark.executor: " in world.status["message"]
    assert "set by the operator's defaults: spec.spark.executor.cores" in world.status["message"]
    world = _running({"driver": {"memory": "600Mi"}})
    assert "spec.spark.driver.memory: 600Mi; allowed in a cluster: 768Mi or more (set by" in world.status["message"]


def test_the_chart_tells_them_as_json() -> None:
    assert parse_defaults(json.dumps(DEFAULTS)) == DEFAULTS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "allowed: JSON with driver and executor, in each cores and memory"),
        ('{"driver": 1}', "in each cores and memory"),
        ('{"executor": {"instances": 3}}', "in each cores and memory"),
        ('{"driver": {"memory": "3 GB"}}', 'spec.spark.driver.memory: "3 GB"; allowed: a size from 512Mi'),
        ('{"executor": {"cores": 0}}', "spec.spark.executor.cores: 0; allowed: a whole number from 1 to 64"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_defaults(text)
    assert words in str(refused.value)
