"""A killed run for each point at which a process can die, and what a next run makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from changefeed.errors import ChangefeedError
from integration_kafka_broker import running as kafka_running
from integration_mariadb import running as mariadb_running
from integration_points_databases import KAFKA, MYSQL
from integration_points_delta import DELTA
from integration_points_iceberg import ICEBERG
from integration_points_slot import SLOT
from integration_postgresql import running as postgresql_running
from integration_processes import Nursery, Process, nursery
from integration_standing import Broken, History, Watch, World, upstream
from integration_standing_delta import DeltaWorld
from integration_standing_files import FileWorld
from integration_standing_iceberg import IcebergWorld
from integration_standing_kafka import KafkaWorld
from integration_standing_lake import Mode
from integration_standing_mysql import MysqlWorld
from integration_standing_slot import PASSWORD, USER, SlotWorld

Kind = Literal["files", "mysql", "kafka", "changelog", "upsert", "delta-changelog", "delta-upsert", "slot"]

AT_MOST = 4  # of one point's passages: the first, the second, the one in the middle, the last
NOT_PASSED = "not passed so often by these runs"
#: How who has been taken over ends: Fenced, or as a task that finds its segments gone before its driver asks the log.
TAKEN_OVER = ("Fenced", "Transient", "Unavailable")
#: Of the log, which is the same whatever the sink is: these points are enough for those that are no files.
_LOG = tuple(
    f"create {record}: {step}"
    for record in ("plan", "commit record", "commit record of some open files", "ddl record")
    for step in ("before", "done")
)


@dataclass(frozen=True)
class Choice:
    """What of runs is harmed: all, or the points whose names begin with one of `begins`, in fewer passages.

    `is_less_later`: of those after a takeover, the first passage is enough, without the log.
    """

    begins: tuple[str, ...] = ()
    is_less_later: bool = True

    def has(self, takeover: bool, point: str) -> bool:
        return not self.begins or point.startswith(self.begins) or (point in _LOG and not self._is_less(takeover))

    def kills(self, takeover: bool, passed: int) -> list[int]:
        """The passages. The last of many may not come in each run: how often a point is passed is a matter of time."""
        if not self.begins:
            return chosen(passed)
        return [1] if self._is_less(takeover) else sorted({1, (passed + 1) // 2, passed - passed // 8})

    def may_freeze(self, takeover: bool, point: str) -> bool:
        return may_freeze(point) and not (self.begins and self._is_less(takeover))

    def _is_less(self, takeover: bool) -> bool:
        return takeover and self.is_less_later


CHOICES: dict[Kind, Choice] = {
    "files": Choice(),
    "mysql": Choice(MYSQL),
    "kafka": Choice(KAFKA),
    "changelog": Choice(ICEBERG),
    "upsert": Choice(ICEBERG),
    "delta-changelog": Choice(DELTA),
    "delta-upsert": Choice(DELTA),
    "slot": Choice(SLOT, is_less_later=False),
}


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
    """A row of the table: a point in one of the two runs."""

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


class Lane:
    """One world, in which cases run one after the other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sink: dict[str, bytes] | None = None  # what a run leaves there that nobody harms, once that is known

    def passages(self) -> Mapping[tuple[bool, str], int]:
        """Count the passages of each point, in runs that nobody harms, from the start and after a takeover."""
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
            try:
                if first.reaches(case.point):
                    return self._wake(first, watch) if case.frozen else self._recover(watch)
            finally:
                first.kill()
        if first.said[-1].get("ended") != "finished":
            raise Broken(f"it was not passed, and the run ends with {first.said[-1]}")
        return NOT_PASSED

    def _recover(self, watch: Watch) -> str:
        watch.look()
        what = self.world.found()
        self._finish(watch)
        if left := self.world.left_over():
            raise Broken(f"left behind: {left[0]}")
        return what

    def _wake(self, first: Process, watch: Watch) -> str:
        watch.look()
        was_finished = self.world.log().finished
        self._finish(watch, shared=True, attempt=2)
        log, downstream = self.world.log(), self.world.downstream()
        first.thaw()
        ended = first.end()
        watch.check_finished(self.sink)
        if self.world.log() != log:
            raise Broken("it has written into the log of another")
        now = self.world.downstream()
        for place in sorted(now.keys() | downstream.keys()):
            if now.get(place) != downstream.get(place):
                raise Broken(f"it has changed {place}: {downstream.get(place)} was there, {now.get(place)} is")
        if "refused" in ended:
            if ended["refused"] not in TAKEN_OVER:
                raise Broken(f"it ends as if nobody had taken over: {ended}")
            return f"{ended['refused']} ({ended['exit_code']})"
        if not was_finished:
            raise Broken(f"it does not know that it is not the driver any more: {ended}")
        return f"{ended['ended']}, as it was before"

    def _begin(self, takeover: bool) -> Watch:
        if takeover:
            self.world.die_inside_a_plan()
        else:
            self.world.clear()
        watch = self.world.watch()
        watch.look()
        return watch

    def _finish(self, watch: Watch, **options: Any) -> dict[str, Any]:
        ended = self.world.start(**options).end()
        if ended.get("ended") != "finished":
            raise Broken(f"the next run ends with {ended}")
        watch.check_finished(self.sink)
        return ended


@contextmanager
def worlds(kind: Kind, forked: Nursery, folder: Path) -> Iterator[Sequence[World]]:
    """As many as runs may be under way at once."""
    if kind == "slot":
        with ExitStack() as stack:
            databases = [stack.enter_context(postgresql_running(USER, PASSWORD)) for _ in range(4)]  # they wait
            folders = [_folder(folder / str(number)) / "world" for number in range(4)]
            yield [SlotWorld(forked, *each) for each in zip(folders, databases, strict=True)]
        return
    with upstream(truncated=kind != "files", indexed=kind == "mysql") as history:
        yield from _worlds(kind, history, forked, folder)


def _worlds(kind: Kind, history: History, forked: Nursery, folder: Path) -> Iterator[Sequence[World]]:
    if kind == "files":
        yield [FileWorld(history, forked, folder / str(number) / "world") for number in range(3)]
        return
    if kind in ("changelog", "upsert", "delta-changelog", "delta-upsert"):
        mode: Mode = "upsert" if kind.endswith("upsert") else "append"
        made = DeltaWorld if kind.startswith("delta") else IcebergWorld
        yield [made(history, forked, folder / str(number) / "world", mode) for number in range(3)]
        return
    with ExitStack() as stack:
        if kind == "mysql":
            # Nobody cuts a server's power: what it has committed need not be on disk.
            servers = [_folder(folder / f"server{number}") for number in range(2)]
            options = ["--innodb-flush-log-at-trx-commit=0"]
            databases = [stack.enter_context(mariadb_running(server, *options)) for server in servers]
            pairs = zip(servers, databases, strict=True)
            yield [MysqlWorld(history, forked, server / "world", database) for server, database in pairs]
        else:
            broker = stack.enter_context(kafka_running(_folder(folder / "server")))
            yield [KafkaWorld(history, forked, folder / name, broker, name) for name in ("one", "two", "three")]


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@dataclass
class Outcome:
    rows: dict[tuple[bool, str], Row]
    broken: list[str]
    cases: list[Case]
    cpu_s: float
    wall_s: float


def enumerate_all(kind: Kind, folder: Path, share: int = 1, turn: int = 0) -> Outcome:
    """The whole list of a sink, or one of `share` parts of it: the one of `turn`."""
    began = time.monotonic()
    choice = CHOICES[kind]
    with (
        nursery() as forked,
        worlds(kind, forked, folder) as there,
    ):
        lanes = [Lane(world) for world in there]
        passages = lanes[0].passages()
        for lane in lanes:
            lane.sink = lanes[0].sink
        rows = {key: Row(count) for key, count in passages.items() if choice.has(*key)}
        cases = [Case(*key, at) for key, row in rows.items() for at in choice.kills(key[0], row.passed)]
        cases += [Case(*key, (row.passed + 1) // 2, True) for key, row in rows.items() if choice.may_freeze(*key)]
        cases = [case for number, case in enumerate(cases) if number % share == turn]
        broken = _run_all(cases, lanes, rows)
        return Outcome(rows, broken, cases, forked.cpu_seconds(), time.monotonic() - began)


def _run_all(cases: Sequence[Case], lanes: Sequence[Lane], rows: Mapping[tuple[bool, str], Row]) -> list[str]:
    """What is broken; the rest goes into `rows`."""
    broken: list[str] = []
    free: SimpleQueue[Lane] = SimpleQueue()
    for lane in lanes:
        free.put(lane)

    def run(case: Case) -> None:
        lane, row = free.get(), rows[case.takeover, case.point]
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
            free.put(lane)

    with ThreadPoolExecutor(len(lanes), "lane") as pool:
        list(pool.map(run, cases))
    return broken
