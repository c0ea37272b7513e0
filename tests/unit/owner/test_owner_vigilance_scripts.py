"""Vigilance told by testdata/vigilance/*.txt.

heard KIND NUMBER as TASK      Spark's task says something on its stream
left KIND NUMBER               a stream is over
spark TASK... [waiting]        what Spark says from now on: those that run, and whether others find no room
looks N [heard TASK...]        so many looks, before each of which these tasks are heard
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import datadriven
import pytest
from changefeed.owner.serving.vigilance import GiveUp, Kind, Restart, StandIn, Tasks, Vigilance

STORIES = sorted((Path(__file__).parent / "testdata" / "vigilance").glob("*.txt"))


class World:
    def __init__(self) -> None:
        self._vigilance = Vigilance()
        self._streams: dict[int, tuple[Kind, int]] = {}  # by Spark's task
        self._spark = Tasks(())

    def run(self, command: str) -> str:
        name, *words = command.split()
        return "\n".join(getattr(self, "do_" + name)(*words) or ())

    def do_heard(self, kind: Kind, number: str, _: str, task: str) -> None:
        self._streams[int(task)] = kind, int(number)
        self._spark = Tasks({*self._spark.running, int(task)}, self._spark.has_waiting)
        self._hear(int(task))

    def _hear(self, task: int) -> None:
        self._vigilance.heard(*self._streams[task], task)

    def do_left(self, kind: Kind, number: str) -> None:
        self._vigilance.left(kind, int(number))

    def do_spark(self, *words: str) -> None:
        self._spark = Tasks({int(word) for word in words if word != "waiting"}, "waiting" in words)

    def do_looks(self, times: str, *heard: str) -> Iterator[str]:
        for number in range(1, int(times) + 1):
            for task in heard[1:]:
                if task != "unpulled":
                    self._hear(int(task))
            if self._vigilance.look(all_pull="unpulled" not in heard):
                for found in self._vigilance.judge(self._spark):
                    yield f"look {number}: {_shown(found)}"


def _shown(found: Restart | StandIn | GiveUp) -> str:
    match found:
        case Restart(task):
            return f"Spark is to start task {task} again"
        case StandIn(number, puller):
            return f"pipeline task {number} is to take the place of puller {puller}"
        case GiveUp(why):
            return f"the run ends: {why}"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path, rewrite: bool) -> None:
    datadriven.play(story, datadriven.each(World().run), rewrite)
