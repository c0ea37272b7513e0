"""An edit of where PostgreSQL is restarts the driver; one that would lose rows is refused, also by the operator."""

from __future__ import annotations

import json
from typing import Any

import pytest
from changefeed_operator import api
from operator_world import NAME, SPEC, World

POSTGRESQL = {"host": "db", "database": "shop", "credentials": {"secretRef": {"name": "reader"}}}


def running(upstream: dict[str, Any]) -> World:
    world = World()
    world.create(upstream=upstream)
    world.settle()
    assert world.status["attempt"] == 1
    return world


def test_another_host_is_followed() -> None:
    world = running({"postgresql": POSTGRESQL})
    world.edit("upstream.postgresql.host", "db-1")
    world.settle()
    assert world.status["attempt"] == 2
    name = api.config_map_name(NAME, world.status["configDigest"])
    config = json.loads(world.objects["ConfigMap", name]["data"]["changefeed.yaml"])
    assert config["spec"]["upstream"] == {"postgresql": {**POSTGRESQL, "host": "db-1"}}
    assert config["spec"]["spark"]["pullers"] == {"count": 1}


@pytest.mark.parametrize(
    ("before", "path", "value", "said"),
    [
        (
            {"postgresql": POSTGRESQL},
            "upstream.postgresql.database",
            "bank",
            "spec.upstream.postgresql.database: bank; allowed: shop, the value at creation",
        ),
        (
            {"postgresql": POSTGRESQL},
            "upstream.postgresql.slot",
            "other",
            "spec.upstream.postgresql.slot: other; allowed: unset, the value at creation",
        ),
        (
            SPEC["upstream"],
            "upstream",
            {"postgresql": POSTGRESQL},
            "spec.upstream.postgresql.database: shop; allowed: unset, the value at creation",
        ),
        (
            {"postgresql": POSTGRESQL},
            "upstream",
            SPEC["upstream"],
            "spec.upstream.postgresql.database: unset; allowed: shop, the value at creation",
        ),
    ],
)
def test_another_history_is_refused(before: dict[str, Any], path: str, value: Any, said: str) -> None:
    world = running(before)
    world.edit(path, value)
    world.settle()
    assert world.status["attempt"] == 1
    assert said in world.status["message"]


def test_the_other_form_of_tikv_is_no_change() -> None:
    world = running(SPEC["upstream"])
    world.edit("upstream", {"tikv": SPEC["upstream"]})
    world.settle()
    assert world.status["attempt"] == 1
    assert world.status["state"] == "Normal"
