"""Which of Spark's tasks have stopped working, though Spark believes that they run.

Spark notices a worker that ends, not one that freezes. Every puller reports each second, a task of the pipeline says
every two seconds that it works, and the query asks for plans all the time. Pure. It counts looks, one a second, not
time: when this process itself stood still nobody else has been silent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

SILENT_LOOKS = 10  # of a task
QUERY_SILENT_LOOKS = 20
_UNEASY_LOOKS = 3
KILLS = 6  # Spark needs 40 s to see that a machine is gone, and until then it asks in vain


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
class GiveUp:
    """The run can't go on."""

    why: str


class Vigilance:
    """Tasks are known by Spark's ids of their attempts, which no other attempt ever has."""

    def __init__(self) -> None:
        self._silent: dict[int, int] = {}  # looks since a task was heard; listed by Spark or heard
        self._pullers: dict[int, int] = {}  # puller -> its task
        self._kills: dict[int, int] = {}
        self._query: int | None = None  # looks since it was heard; None: never

    def query_heard(self) -> None:
        self._query = 0

    def heard(self, task: int) -> None:
        """A task of the pipeline works."""
        self._silent[task] = 0
        self._query = 0

    def puller_heard(self, puller: int, task: int) -> None:
        self._pullers[puller] = task
        self._silent[task] = 0

    def puller_left(self, puller: int) -> None:
        """Its stream is over, and so is its task, unless it is frozen."""
        if puller in self._pullers:
            self._silent[self._pullers.pop(puller)] = SILENT_LOOKS

    def look(self, all_pull: bool) -> bool:
        """Call it every second. Whether Spark must be asked which tasks run, and `judge` with the answer."""
        for task in self._silent:
            self._silent[task] += 1
        if self._query is not None:
            self._query += 1
        return not all_pull or max([self._query or 0, *self._silent.values()]) >= _UNEASY_LOOKS

    def judge(self, tasks: Tasks) -> list[Restart | GiveUp]:
        """`tasks`: of all of Spark, pullers included."""
        since = self._query or 0  # a task that nobody knew has begun after the query was heard
        self._silent = {task: self._silent.get(task, since) for task in tasks.running}
        self._kills = {task: times for task, times in self._kills.items() if task in self._silent}
        found: list[Restart | GiveUp] = []
        for task, looks in self._silent.items():
            if looks >= SILENT_LOOKS:
                self._silent[task] = 0
                self._kills[task] = self._kills.get(task, 0) + 1
                found.append(Restart(task) if self._kills[task] <= KILLS else GiveUp(_UNENDING.format(task)))
        # The query waits for its tasks, which wait for an executor where a quota or a full cluster allows none.
        if tasks.has_waiting or self._silent.keys() - self._pullers.values():
            self._query = None if self._query is None else 0
        elif self._query is not None and self._query >= QUERY_SILENT_LOOKS:
            found.append(GiveUp(_IDLE.format(QUERY_SILENT_LOOKS)))
        return found


_IDLE = "The streaming query has neither asked for work nor run a task for {} s."
_UNENDING = "Spark's task {} has stopped working, and Spark can't end it."
