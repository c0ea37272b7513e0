"""`make simulate`: many seeds on all cores, or one with its whole story; and the proof that the simulation is awake.

simulate.py SEEDS               seeds 0 .. SEEDS - 1
simulate.py SEEDS --out FILE    the same, its figures into a file; when it is stopped, the next run goes on from there
simulate.py SEEDS --slot        worlds of a slot of PostgreSQL
simulate.py --mutations         each mutation and a seed that finds it, into found.json and bench/results/mutations.md
SEED=123 [WITHOUT=a,b] [HEALED=4.5] [MUTATION="core: what is taken out"] simulate.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from found import Found, known, write
from lake_mutations import LAKE
from mutation import Mutation
from mutations import MUTATIONS
from simulated_lake import LakeWorld
from simulated_slot import SlotWorld
from simulated_world import Broken, Story, World, failing, told
from slot_mutations import SLOT_CORE

CHUNK = 100
BUDGET = 2_000  # seeds in which a mutation must be found


def run_chunk(first: int, end: int) -> str | None:
    """The story of the first seed that breaks something."""
    found = failing(map(Story, range(first, end)))
    return None if found is None else told(found)


def run_slot_chunk(first: int, end: int) -> str | None:
    """The same of a slot's worlds."""
    found = failing(map(Story, range(first, end)), SlotWorld)
    return None if found is None else "\n".join([*found.trace, str(found)])


def find(mutation: Mutation, seeds: int = BUDGET) -> Broken | None:
    """What a seed that shows the mutation breaks: the one that did so the last time, or else the first."""
    before = known().get(str(mutation))
    world = {LAKE: LakeWorld, SLOT_CORE: SlotWorld}.get(mutation.core, World)
    # Some seeds were found when no table was split, nothing overtook a scan, and there were no turns, no copies, or no
    # large transactions.
    since = ("parts", "overtaking", "turns", "copy", "large")
    without = [since[:count] for count in range(len(since) + 1)]
    told = [Story(before.seed, without=kinds) for kinds in without] if before else []
    with pytest.MonkeyPatch.context() as monkeypatch:
        mutation.apply(monkeypatch)
        return failing([*told, *map(Story, range(seeds))], world)


def _one(seed: int) -> int:
    without = tuple(filter(None, os.environ.get("WITHOUT", "").split(",")))
    healed_at = os.environ.get("HEALED")
    with pytest.MonkeyPatch.context() as monkeypatch:
        if name := os.environ.get("MUTATION"):
            {str(mutation): mutation for mutation in MUTATIONS}[name].apply(monkeypatch)
        world = World(Story(seed, without, float(healed_at) if healed_at else None))
        try:
            world.run()
        except Broken as broken:
            _say("\n".join([*broken.trace, "", str(broken)]))
            raise
    _say("\n".join([*world.trace, "", f"{world.story} holds."]))
    return 0


@dataclass
class _Figures:
    seeds: int = 0  # 0 .. seeds - 1 hold
    seconds: float = 0.0
    cores: int = 0


def _many(run: Callable[[int, int], str | None], seeds: int, cores: int, out: Path | None) -> int:
    # Kept beside the result until that is complete.
    kept = out.with_suffix(".part") if out is not None else None
    before = _Figures(**json.loads(kept.read_text())) if kept is not None and kept.exists() else _Figures()
    began = time.monotonic()
    figures = before
    firsts = range(before.seeds, seeds, CHUNK)
    with ProcessPoolExecutor(cores) as pool:
        results: Iterator[str | None] = pool.map(run, firsts, (min(f + CHUNK, seeds) for f in firsts))
        for first, story in zip(firsts, results, strict=True):
            if story is not None:
                _say(story)
                pool.shutdown(cancel_futures=True)
                return 1
            done, seconds = min(first + CHUNK, seeds), time.monotonic() - began
            figures = _Figures(done, before.seconds + seconds, cores)
            if kept is not None:
                kept.write_text(json.dumps(asdict(figures)))
            if done % (50 * CHUNK) == 0:
                _say(f"{done} of {seeds}, {(done - before.seeds) / seconds:.0f} seeds/s")
    rate = figures.seeds / figures.seconds if figures.seconds else 0.0
    _say(f"{figures.seeds} seeds hold, {rate:.0f} seeds/s on {cores} cores.")
    if out is not None and kept is not None:
        said = {"seeds": figures.seeds, "broken": 0, "seconds": round(figures.seconds), "cores": cores}
        out.write_text(json.dumps(said | {"seeds_per_second": round(rate, 1)}, indent=1) + "\n")
        kept.unlink(missing_ok=True)
    return 0


def _search(number: int) -> Found | None:
    found = find(MUTATIONS[number])
    if found is None:
        return None
    first = str(found.error).splitlines()[0] if str(found.error) else ""
    return Found(found.story.seed, f"{type(found.error).__name__}: {first}"[:110].replace("|", "/"))


def _mutations() -> int:
    """What is found is written at once: when this is stopped, the next run goes on from there."""
    found: dict[str, Found] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for mutation, result in zip(MUTATIONS, pool.map(_search, range(len(MUTATIONS))), strict=True):
            _say(f"{mutation}: {result or 'not found'}")
            if result is not None:
                found[str(mutation)] = result
            write(known() | found)
    write(found)
    return int(len(found) < len(MUTATIONS))


def _say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="The cores together, in virtual time.")
    parser.add_argument("seeds", nargs="?", type=int, default=5_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--slot", action="store_true")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutations", action="store_true")
    arguments = parser.parse_args()
    if arguments.mutations:
        return _mutations()
    if seed := os.environ.get("SEED"):
        return _one(int(seed))
    run = run_slot_chunk if arguments.slot else run_chunk
    return _many(run, arguments.seeds, arguments.cores, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
