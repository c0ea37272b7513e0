"""What goes wrong in a world, and how often; each kind by dice of its own: one can be left out, and the rest stays.

Most seeds have few kinds of faults: many at once hide one another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulated_world import World

#: At each place where it can happen: at most this likely.
ODDS = {
    "store": 0.2,  # a call to the store fails, or its outcome is unknown
    "crash": 0.03,  # of a process inside a call to the store
    "freeze": 0.3,  # such a call takes very long
    "doze": 0.5,  # one of a driver that takes over
    "stall": 0.15,  # the sink stands still for a while
    "task": 0.4,  # a pipeline task fails to write a file, its stream breaks when it says so, or it says so twice
    "stream": 0.1,  # a pipeline task's breaks
    "disorder": 0.35,  # reports overtake one another and come twice
    "late_report": 0.5,  # one of a stream that is over is heard
    "slow_scan": 0.9,  # a registration's scan comes in pieces, between live changes
    "odd_resolved": 0.1,
    "busy": 0.3,  # a registration is refused
    "pd": 0.4,  # PD does not answer
    "stale_pd": 0.4,  # PD tells of regions as they were
    "ddl_stall": 0.6,  # the DDL span stands still for a while
    "leave": 0.03,  # the driver pulls its DDLs anew
    "slow_disk": 0.8,  # writing a segment takes long
}
#: By themselves, at most so often a second.
RATES = {
    "zombie": 0.8,  # another driver is started
    "kill": 0.4,  # of a driver
    "kill_task": 0.3,  # of a pipeline task
    "kill_puller": 0.5,
    "freeze_puller": 0.3,
    "split": 1.5,
    "merge": 1.0,
    "move": 0.6,
    "cut": 0.4,  # a store's streams break
    "storm": 0.6,  # all do, and when they are back there are other regions
    "drain": 0.15,
    "gc": 0.2,  # the upstream forgets, sometimes what is needed
    "parts": 1.0,  # a driver has a table pulled in other parts
}
KINDS = (*ODDS, *RATES)
_SHARE = 0.35
#: What a seed's world is about: who takes over from whom, what becomes of regions, a busy stream of rows, or anything.
TAKEOVERS, REGIONS, ROWS, ANYTHING = range(4)
_FOCUS = {
    TAKEOVERS: ("zombie", "doze", "freeze", "crash", "store", "stall"),
    REGIONS: ("split", "merge", "slow_scan", "pd", "storm"),
    ROWS: ("slow_disk", "disorder", "task", "stream"),
}
_FOCUS_SHARE = 0.8


class Faults:
    """`without`: kinds that are left out, or "all", to find out which a failure needs."""

    def __init__(self, seed: int, without: Collection[str] = ()) -> None:
        rng = Random(f"{seed} faults")
        self.focus = seed % 4
        often = _FOCUS.get(self.focus, ())
        shares = {kind: _FOCUS_SHARE if kind in often else _SHARE for kind in KINDS}
        drawn = {kind: rng.random() if rng.random() < shares[kind] else 0.0 for kind in KINDS}
        self._drawn = {kind: share for kind, share in drawn.items() if share and not {kind, "all"} & set(without)}
        self._dice = {kind: Random(f"{seed} {kind}") for kind in self._drawn}
        self.rng = Random(f"{seed} victims")

    @property
    def kinds(self) -> list[str]:
        """Those that this world has."""
        return list(self._drawn)

    def happens(self, kind: str) -> bool:
        share = self._drawn.get(kind)
        return share is not None and self._dice[kind].random() < share * ODDS[kind]

    def begin(self, world: World) -> None:
        for kind in self._drawn:
            if kind in RATES:
                self._next(world, kind)

    def heal(self) -> None:
        self._drawn.clear()

    def _next(self, world: World, kind: str) -> None:
        def now() -> None:
            if kind in self._drawn:
                self._strike(world, kind)
                self._next(world, kind)

        if kind not in self._drawn:
            return  # healed while it struck
        world.time.after(self._dice[kind].expovariate(self._drawn[kind] * RATES[kind]), now)

    def _strike(self, world: World, kind: str) -> None:
        victim = self._victim
        match kind:
            case "zombie":
                world.start_driver()
            case "kill":
                victim(world.drivers, lambda driver: driver.end("is killed"))
            case "parts":
                victim(world.drivers, lambda driver: driver.split())
            case "kill_task":
                victim(world.pipeline_tasks, lambda task: task.end("is killed"))
            case "kill_puller":
                victim(world.running_pullers(), lambda puller: puller.leave())
            case "freeze_puller":
                victim(world.running_pullers(), lambda puller: puller.freeze(self.rng.uniform(1.0, 8.0)))
            case "storm":
                world.storm()
            case "cut":
                world.cut_store(self.rng)
            case "drain":
                victim(world.drivers, lambda driver: driver.drain())
            case "gc":
                world.collect(self.rng)
            case "split" | "merge" | "move":
                world.say(f"regions: {kind}")
                getattr(world.upstream, kind)()

    def _victim(self, candidates: Collection[Any], strike: Callable[[Any], None]) -> None:
        if candidates:
            strike(self.rng.choice(list(candidates)))
