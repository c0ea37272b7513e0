"""Detects Spark tasks that have stopped working although Spark believes they are running, and picks stand-ins.

Spark notices a worker that exits, but not one that hangs. Every task has a stream to the owner and sends something
every second or two. Pure. It counts checks, one a second, rather than time: if this process itself was suspended, the
tasks are not to blame for the silence.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

SILENT_LOOKS = 10
ASK_LOOKS = 10  # a task that has never come is one of which only Spark knows
_UNEASY_LOOKS = 3
KILLS = 6  # Spark needs 40 s to see that a machine is gone, and until then it asks in vain

Kind = Literal["puller", "pipeline"]


@dataclass(frozen=True)
class Tasks:
    """What Spark says of its tasks. `running`: have begun and not ended; `has_waiting`: some have found no room yet."""

    running: Collection[int]
    has_waiting: bool = False


@dataclass(frozen=True)
class Restart:
    """Spark is to kill this task, and so to start it again."""

    task: int


@dataclass(frozen=True)
class StandIn:
    """Nobody pulls, and Spark has no room for a puller: this pipeline task, by its number, is to pull in its place."""

    number: int
    puller: int


@dataclass(frozen=True)
class GiveUp:
    """The run can't go on."""

    why: str


class Vigilance:
    """Tasks are known by Spark's ids of their attempts, which no other attempt ever has; streams by kind and number."""

    def __init__(self) -> None:
        self._silent: dict[int, int] = {}  # looks since a task was heard; listed by Spark or heard
        self._streams: dict[tuple[Kind, int], int] = {}  # -> task
        self._kills: dict[int, int] = {}
        self._asked = 0  # looks since

    def heard(self, kind: Kind, number: int, task: int) -> None:
        """A task has said something on its stream."""
        self._streams[kind, number] = task
        self._silent[task] = 0

    def left(self, kind: Kind, number: int) -> None:
        """A stream is over, and so is its task, unless it is frozen."""
        if (task := self._streams.pop((kind, number), None)) is not None:
            self._silent[task] = SILENT_LOOKS

    def look(self, all_pull: bool) -> bool:
        """Call it every second. Whether Spark must be asked which tasks run, and `judge` with the answer."""
        for task in self._silent:
            self._silent[task] += 1
        self._asked += 1
        return not all_pull or self._asked >= ASK_LOOKS or max(self._silent.values(), default=0) >= _UNEASY_LOOKS

    def judge(self, tasks: Tasks) -> list[Restart | StandIn | GiveUp]:
        """`tasks`: of all of Spark."""
        self._asked = 0
        self._silent = {task: self._silent.get(task, 0) for task in tasks.running}
        self._kills = {task: times for task, times in self._kills.items() if task in self._silent}
        found: list[Restart | StandIn | GiveUp] = []
        for task, looks in self._silent.items():
            if looks >= SILENT_LOOKS:
                self._silent[task] = 0
                self._kills[task] = self._kills.get(task, 0) + 1
                found.append(Restart(task) if self._kills[task] <= KILLS else GiveUp(_UNENDING.format(task)))
        if tasks.has_waiting and self._silent and self._silent.keys() <= self._pipeline_tasks():
            found.append(self._stand_in())
        return found

    def _pipeline_tasks(self) -> set[int]:
        return {task for (kind, _), task in self._streams.items() if kind == "pipeline"}

    def _stand_in(self) -> StandIn:
        """All that runs are pipeline tasks; one of them then has as long to come as a puller as any other."""
        number = min(number for (kind, number), task in self._streams.items() if task in self._silent)
        self._silent[self._streams.pop(("pipeline", number))] = 0
        return StandIn(number, puller=0)


_UNENDING = "Spark's task {} has stopped working, and Spark can't end it."
