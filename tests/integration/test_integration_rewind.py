"""spec.restart: back to a ts that the history still has, into a folder of its own beside the sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import InvalidSpec, NeedsHuman, SnapshotLostByGC
from changefeed.owner.driver import Outcome
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.verify.storage.report import StoredSink, verify
from integration_inprocess import World, new_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def folder(world: World, generation: int) -> Path:
    return world.folder / ("lake" if generation == 1 else f"lake-gen-{generation}")


def ids(world: World, generation: int) -> list[int]:
    files = sorted(folder(world, generation).rglob("CDC*.csv"))
    return [int(line.split(",")[4]) for path in files for line in path.read_text().splitlines()]


async def until_written(world: World, generation: int, wanted: range, **spec: Any) -> Outcome:
    run = world.run(**spec)
    await run.until(lambda: set(wanted) <= set(ids(world, generation)), f"rows {wanted} are in files")
    return await run.drained()


def restart(nonce: int, from_ts: int) -> dict[str, Any]:
    return {"restart": {"nonce": nonce, "fromTs": str(from_ts)}}


async def check_verified(world: World, generation: int, rows: int, newest: bool = False) -> None:
    uri = folder(world, 1 if newest else generation).as_uri()
    result = await verify(StoredSink(uri, newest=newest), TikvAccess((f"http://{world.cluster.pd_address}",)))
    assert result.ok, result.to_json()
    assert result.rows == rows


def everything_in(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


async def test_a_rewind_writes_the_rows_again_into_a_folder_of_its_own(world: World) -> None:
    first = world.insert(range(1, 11))
    world.insert(range(11, 21))
    before = await until_written(world, 1, range(1, 21))
    old = everything_in(folder(world, 1))

    outcome = await until_written(world, 2, range(11, 21), **restart(1, first))
    assert outcome.sink_uri == folder(world, 2).as_uri()
    assert ids(world, 2) == list(range(11, 21))
    assert everything_in(folder(world, 1)) == old, "what was published stays as it was"
    assert world.checkpoint() == before.checkpoint_ts <= outcome.checkpoint_ts
    (record,) = world.records("rewind")
    assert (record["restart_nonce"], record["from_ts"]) == (1, str(first))

    # Once a nonce: the next run, and the one after the spec lost it, go on where it is.
    world.insert(range(21, 31))
    await until_written(world, 2, range(11, 31), **restart(1, first))
    world.insert(range(31, 41))
    await until_written(world, 2, range(11, 41))
    assert ids(world, 2) == list(range(11, 41))
    assert len(world.records("rewind")) == 1
    await check_verified(world, 1, 20)
    await check_verified(world, 2, 30)
    await check_verified(world, 2, 30, newest=True)

    # And once more, to the very beginning.
    await until_written(world, 3, range(1, 41), **restart(2, world.start_ts))
    await check_verified(world, 3, 40, newest=True)
    assert ids(world, 2) == list(range(11, 41))


async def test_a_finished_one_is_rewound_to_its_target(world: World) -> None:
    world.insert(range(1, 11))
    target = world.insert(range(11, 21))
    await world.run(targetTs=str(target)).outcome()
    again = await world.run(targetTs=str(target), **restart(1, world.start_ts)).outcome()
    assert (again.state, again.checkpoint_ts) == ("finished", target)
    await check_verified(world, 2, 20)


async def test_what_can_not_be_rewound_is_refused_before_anything_happens(world: World) -> None:
    world.insert(range(1, 11))
    outcome = await until_written(world, 1, range(1, 11))
    before = everything_in(world.folder)
    with pytest.raises(InvalidSpec, match=r"spec\.restart\.fromTs.*is above the checkpoint") as caught:
        await world.run(**restart(1, outcome.checkpoint_ts + 1)).outcome()
    assert str(outcome.checkpoint_ts) in str(caught.value)
    world.cluster.safepoints.remove(b"changefeed-default-test-local")
    world.cluster.collect_garbage(world.tidb.now())
    with pytest.raises(SnapshotLostByGC):
        await world.run(**restart(1, world.start_ts)).outcome()
    assert everything_in(world.folder) == before


async def test_a_folder_that_is_somebody_elses_is_refused(world: World) -> None:
    first = world.insert(range(1, 11))
    await until_written(world, 1, range(1, 11))
    strange = folder(world, 2) / "metadata"
    strange.parent.mkdir()
    strange.write_text('{"checkpoint-ts":1}')
    with pytest.raises(NeedsHuman, match="SinkOwned"):
        await world.run(**restart(1, first)).outcome()
    assert not world.records("rewind")


async def test_a_new_changefeed_has_nothing_to_rewind(world: World) -> None:
    """Its nonce counts as done: it came with the manifest of one that was deleted."""
    world.insert(range(1, 11))
    await until_written(world, 1, range(1, 11), **restart(5, world.start_ts - 1))
    await until_written(world, 1, range(1, 11), **restart(5, world.start_ts - 1))
    assert not world.records("rewind")
