"""A killed run for each point at which a process can die, and what a next run makes of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from changefeed.errors import ChangefeedError
from integration_processes import Nursery, Process, nursery
from integration_standing import Broken, History, Watch, World, found, upstream

AT_MOST = 4  # of one point's passages: the first, the second, the one in the middle, the last
LANES = 3  # at once
NOT_PASSED = "not passed so often by these runs"
#: Where the driver dies whose place the runs of "takeover" take: one of a plan's two files is put.
INSIDE_A_PLAN = ("create data file: done", 1)


@dataclass(frozen=True)
class Case:
    """One run that is killed at a passage of a point, or frozen there until another has finished."""

    takeover: bool  # of a driver that died inside a plan; else from the start
    point: str
    at: int
    frozen: bool = False

    def __str__(self) -> str:
        what = "frozen" if self.frozen else "killed"
        return f"{'takeover' if self.takeover else 'run'} {what} at {self.point}, passage {self.at}"


@dataclass
class Row:
    """Of the table: a point in one of the two runs."""

    passed: int
    found: dict[int, str] = field(default_factory=dict)  # by passage: what a kill has left
    woken: str = ""  # how the run ended that was frozen there


def chosen(passed: int) -> list[int]:
    """All passages, or the first, the second, the one in the middle and the last."""
    if passed <= AT_MOST:
        return list(range(1, passed + 1))
    return sorted({1, 2, (passed + 1) // 2, passed})


def may_freeze(point: str) -> bool:
    """Not with the lock for swaps in its hand: that is of local files, where no second driver comes so far."""
    return not (point.startswith("replace") and point.endswith((": written", ": replaced")))


def frozen_at(point: str, passed: int) -> int:
    """The passage in the middle; of swaps that are done the last, for another thread may have the lock until then."""
    return passed if point.startswith("replace") and point.endswith(": done") else (passed + 1) // 2


class Lane:
    """One folder, in which cases run one after the other."""

    def __init__(self, history: History, forked: Nursery, folder: Path, sink: dict[str, bytes] | None = None) -> None:
        """`sink`: what a run leaves there that nobody harms, once that is known."""
        self.world = World(history, forked, folder / "world")
        self.sink = sink
        self._template = folder / "killed-inside-a-plan"
        self._make_template()

    def passages(self) -> Mapping[tuple[bool, str], int]:
        """Of each point, in runs that nobody harms, from the start and after a takeover."""
        passages: dict[tuple[bool, str], int] = {}
        for takeover in (False, True):
            watch = self._begin(takeover)
            passages |= {(takeover, point): count for point, count in self._finish(watch)["passed"].items()}
            self.sink = self.world.sink()
        return passages

    def run(self, case: Case) -> str:
        """For the table: what a kill has left, or how the one that was frozen ended. Raises Broken."""
        for _ in range(3):  # what a timer does may come once less
            watch = self._begin(case.takeover)
            if case.frozen:
                first = self.world.start(case.point, case.at, "stop", shared=True, attempt=1)
            else:
                first = self.world.start(case.point, case.at)
            if first.reaches(case.point):
                return self._wake(first, watch) if case.frozen else self._recover(watch)
        if first.said[-1].get("ended") != "finished":
            raise Broken(f"it was not passed, and the run ends with {first.said[-1]}")
        return NOT_PASSED

    def _recover(self, watch: Watch) -> str:
        watch.look()
        what = found(self.world)
        self._finish(watch)
        if left := self.world.left_over():
            raise Broken(f"left behind: {left[0]}")
        return what

    def _wake(self, first: Process, watch: Watch) -> str:
        watch.look()
        was_finished = self.world.log().finished
        self._finish(watch, shared=True, attempt=2)
        log = self.world.log()
        first.thaw()
        ended = first.end()
        watch.check_finished(self.sink)
        if self.world.log() != log:
            raise Broken("it has written into the log of another")
        if "refused" in ended:
            return f"{ended['refused']} ({ended['exit_code']})"
        if not was_finished:
            raise Broken(f"it does not know that it is not the driver any more: {ended}")
        return f"{ended['ended']}, as it was before"

    def _begin(self, takeover: bool) -> Watch:
        self.world.clear(self._template if takeover else None)
        watch = Watch(self.world)
        watch.look()
        return watch

    def _finish(self, watch: Watch, **options: Any) -> dict[str, Any]:
        ended = self.world.start(**options).end()
        if ended.get("ended") != "finished":
            raise Broken(f"the next run ends with {ended}")
        watch.check_finished(self.sink)
        return ended

    def _make_template(self) -> None:
        """The folder as a driver leaves it that dies with one of a plan's two files put."""
        self.world.clear()
        point, at = INSIDE_A_PLAN
        assert self.world.start(point, at).reaches(point)
        open_ = self.world.log().open_entries()
        assert sorted((self.world.lake / entry.path).exists() for _, entry in open_) == [False, True]
        shutil.copytree(self.world.folder, self._template)


@dataclass
class Outcome:
    rows: dict[tuple[bool, str], Row]
    broken: list[str]
    cases: list[Case]
    cpu_s: float
    wall_s: float


def enumerate_all(folder: Path, share: int = 1, turn: int = 0) -> Outcome:
    """The whole list, or one of `share` parts of it: the one of `turn`."""
    began = time.monotonic()
    with upstream() as history, nursery() as forked:
        first = Lane(history, forked, folder / "0")
        rows = {key: Row(count) for key, count in first.passages().items()}
        lanes: SimpleQueue[Lane] = SimpleQueue()
        for lane in (first, *(Lane(history, forked, folder / str(n), first.sink) for n in range(1, LANES))):
            lanes.put(lane)
        cases = [Case(*key, at) for key, row in rows.items() for at in chosen(row.passed)]
        cases += [Case(*key, frozen_at(key[1], row.passed), True) for key, row in rows.items() if may_freeze(key[1])]
        cases = [case for number, case in enumerate(cases) if number % share == turn]
        broken: list[str] = []

        def run(case: Case) -> None:
            lane, row = lanes.get(), rows[case.takeover, case.point]
            try:
                what = lane.run(case)
            except (AssertionError, ChangefeedError) as error:
                broken.append(f"{case}: {error}")
            else:
                if case.frozen:
                    row.woken = what
                else:
                    row.found[case.at] = what
            finally:
                lanes.put(lane)

        with ThreadPoolExecutor(LANES, "lane") as pool:
            list(pool.map(run, cases))
        return Outcome(rows, broken, cases, forked.cpu_seconds(), time.monotonic() - began)
