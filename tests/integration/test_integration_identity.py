"""spec.state.id: a resource that is deleted and created anew goes on from the same log and sink."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import Fenced, SnapshotLostByGC, Superseded
from changefeed.owner.closing.undriven import NothingToHold, close, hold
from changefeed.owner.driver import Outcome, RunOptions, run_on_loop
from changefeed.owner.locations import service_id, state_location
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective, parse
from changefeed.upstream.tikv.client.safepoint import HeldUntil
from changefeed.verify.storage.report import verify
from integration_inprocess import InProcessExecution, Run, Seen, World, new_world

ID = "orders-of-the-shop"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def resource(world: World, uid: str, namespace: str = "shop", name: str = "orders", **spec: Any) -> Changefeed:
    """The world's changefeed with a state id, as one resource after the other has it."""
    state = {"uri": (world.folder / "state").as_uri(), "id": ID}
    document = effective(world.changefeed(**{"state": state, "startTs": None, **spec}))
    return parse(json.dumps(document | {"metadata": {"namespace": namespace, "name": name, "uid": uid}}))


def start(changefeed: Changefeed, attempt: int) -> Run:
    return Run(changefeed, InProcessExecution(), RunOptions(metrics_port=0, attempt=attempt)).start()


async def ran(world: World, changefeed: Changefeed, ids: range, attempt: int = 1) -> Outcome:
    """One run that has written these rows too, and drained."""
    run = start(changefeed, attempt)
    await run.until(lambda: world.folder.joinpath("state").exists() and world.checkpoint(), "it has begun")
    world.insert(ids)
    await run.until(lambda: set(ids) <= set(world.ids()), f"rows {ids} are in files")
    return await run.drained()


def holders(world: World) -> list[str]:
    living = world.cluster.safepoints.living(int(time.time()))
    return [each.service_id.decode() for each in living if each.service_id.startswith(b"changefeed-")]


async def check_verified(world: World, rows: int) -> None:
    result = await verify(world.lake.as_uri(), [f"http://{world.cluster.pd_address}"])
    assert result.ok, result.to_json()
    assert (result.rows, sorted(world.ids())) == (rows, list(range(1, rows + 1)))


async def test_a_deleted_resource_created_anew_with_its_state_id_goes_on(world: World) -> None:
    first = resource(world, "uid-1")
    await ran(world, first, range(1, 11), attempt=1)
    await ran(world, first, range(11, 21), attempt=7)
    assert holders(world) == [service_id(first)]
    assert await close(first)
    assert holders(world) == []
    world.insert(range(21, 31))  # while there is none

    second = resource(world, "uid-2", namespace="sales", name="moved")
    assert state_location(second) == state_location(first)
    held = await hold(second)
    assert isinstance(held, HeldUntil)
    assert held.ts == world.checkpoint()
    await ran(world, second, range(31, 41), attempt=1)
    assert holders(world) == [service_id(first)]
    await check_verified(world, 40)

    # Whatever of the first turns up does nothing, its close included.
    for attempt in (2, 8):
        with pytest.raises(Superseded, match="Changefeed sales/moved, uid uid-2, has taken over"):
            await run_on_loop(first, RunOptions(metrics_port=0, attempt=attempt), InProcessExecution(), Seen())
    assert not await close(first)
    assert await hold(first) == NothingToHold("another Changefeed with its spec.state.id has taken over")
    assert holders(world) == [service_id(first)]
    await ran(world, second, range(41, 51), attempt=2)
    await check_verified(world, 50)


async def test_a_resource_that_was_never_deleted_is_told_who_has_taken_over(world: World) -> None:
    """As after a cluster was rebuilt elsewhere, and the old one comes back."""
    await ran(world, resource(world, "uid-1"), range(1, 11), attempt=3)
    await ran(world, resource(world, "uid-2"), range(11, 21), attempt=1)
    with pytest.raises(Superseded, match="uid uid-2, has taken over") as caught:
        await start(resource(world, "uid-1"), 4).outcome()
    assert "Delete one of the two" in caught.value.next_step
    await check_verified(world, 20)


async def test_a_closed_one_stays_closed_for_its_own_drivers(world: World) -> None:
    first = resource(world, "uid-1")
    await ran(world, first, range(1, 11))
    assert await close(first)
    with pytest.raises(Fenced, match="was deleted"):
        await start(first, 9).outcome()
    assert not await close(first)
    # The next one is deleted before it has ever run.
    second = resource(world, "uid-2")
    assert await close(second)
    with pytest.raises(Fenced, match="was deleted"):
        await start(second, 1).outcome()
    await ran(world, resource(world, "uid-3"), range(11, 21))
    await check_verified(world, 20)


async def test_rule_14_history_lost_between_two_resources_is_said(world: World) -> None:
    first = resource(world, "uid-1")
    await ran(world, first, range(1, 11))
    await close(first)
    world.insert(range(11, 21))
    world.cluster.collect_garbage(world.tidb.now())
    with pytest.raises(SnapshotLostByGC):
        await start(resource(world, "uid-2"), 1).outcome()
    assert world.ids() == list(range(1, 11))
