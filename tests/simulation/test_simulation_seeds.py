"""The cores together, seed by seed. `make simulate SEEDS=50000` runs more, `make simulate SEED=1` tells one story."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from mutations import MUTATIONS
from simulate import CHUNK, find, run_chunk
from simulated_lake import LakeWorld
from simulated_past import pasts
from simulated_slot import SlotWorld
from simulated_world import Story, World, failing, shrunk, told

_SEEDS = int(os.environ.get("SEEDS") or "5000")
_LAKES = 60
_SLOTS = 400
_MUTATION = "matcher: every put is an insert"

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("first", range(0, _SEEDS, CHUNK))
def test_no_seed_breaks_a_promise(first: int) -> None:
    story = run_chunk(first, min(first + CHUNK, _SEEDS))
    assert story is None, story


@pytest.mark.parametrize("first", range(0, _LAKES, _LAKES // 4))
def test_no_seed_breaks_a_promise_of_iceberg_tables(first: int) -> None:
    broken = failing(map(Story, range(first, first + _LAKES // 4)), LakeWorld)
    assert broken is None, "\n".join([*broken.trace, str(broken)])


@pytest.mark.parametrize("first", range(0, _SLOTS, _SLOTS // 4))
def test_no_seed_breaks_a_promise_of_a_slot(first: int) -> None:
    broken = failing(map(Story, range(first, first + _SLOTS // 4)), SlotWorld)
    assert broken is None, "\n".join([*broken.trace, str(broken)])


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_is_always_the_same_story(seed: int) -> None:
    first, again = World(Story(seed)), World(Story(seed))
    first.run()
    again.run()
    assert list(first.trace) == list(again.trace)
    assert first.store.objects == again.store.objects
    assert first.segments.objects == again.segments.objects


def test_a_story_shrinks_and_the_command_that_is_printed_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = next(each for each in MUTATIONS if str(each) == _MUTATION)
    found = find(mutation)
    assert found is not None
    mutation.apply(monkeypatch)
    smaller = shrunk(found)
    assert len(World(smaller.story).faults.kinds) < len(World(found.story).faults.kinds)
    command = re.search(r"`make simulate (.*)` replays it", told(found))
    assert command
    environment = dict(word.split("=") for word in command[1].split()) | {"POLARS_MAX_THREADS": "1"}
    program = [sys.executable, str(Path(__file__).with_name("simulate.py"))]
    replayed = subprocess.run(
        program, env=os.environ | environment | {"MUTATION": _MUTATION}, capture_output=True, text=True, check=False
    )
    assert replayed.returncode == 1
    assert str(smaller) in replayed.stdout
    healthy = subprocess.run(program, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert healthy.returncode == 0, healthy.stdout


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_gives_the_same_bytes_whatever_goes_wrong(seed: int) -> None:
    """O9: one history upstream, one log; other regions, pullers, kills and failures."""
    world = World(Story(seed, without=("gc",)))
    world.run()
    for number, past in enumerate(islice(pasts(world), 0, None, 3)):
        again = World(Story(1_000 + 3 * seed + number, without=("gc", "drain")), past)
        again.run()
        assert past.files == {path: again.store.objects[path] for path in past.files}
