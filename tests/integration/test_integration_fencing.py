"""Who has been taken over, and does not know it: frozen by SIGSTOP, thawed when another has gone on (promise 6).

Each is a process of its own. The stores are local files without the lock that keeps a second driver of a machine out,
so that only the rules are between a zombie and the files; bench/results/crash-points.md has the same at every point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from changefeed.sink.storage.layout import METADATA, parse_index_path
from integration_processes import Nursery, Process, nursery
from integration_standing import History, upstream
from integration_standing_files import FileWorld, published

pytestmark = pytest.mark.timeout(600)  # on a busy machine; each takes about three seconds

FILES_OF_A_STEP = 4  # of two tables
#: How a task ends whose driver is gone, and its segments with it.
DRIVER_GONE = ("Fenced", "Unavailable", "Transient")


@dataclass(frozen=True)
class Unharmed:
    history: History
    forked: Nursery
    sink: dict[str, bytes]  # what a run leaves there that nobody harms


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unharmed]:
    with upstream() as history, nursery() as forked:
        world = FileWorld(history, forked, tmp_path_factory.mktemp("unharmed") / "world")
        world.clear()
        assert world.start().end()["ended"] == "finished"
        yield Unharmed(history, forked, world.sink())


class Fenced:
    """A world that is watched, and who has been started in it."""

    def __init__(self, unharmed: Unharmed, folder: Path) -> None:
        self._unharmed = unharmed
        self.world = FileWorld(unharmed.history, unharmed.forked, folder / "world")
        self.world.clear()
        self._watch = self.world.watch()
        self.started: list[Process] = []

    def driver(self, **options: Any) -> Process:
        self.started.append(self.world.start(shared=True, **options))
        return self.started[-1]

    def frozen(self, point: str, at: int = 1, **options: Any) -> Process:
        driver = self.driver(point=point, at=at, then="stop", **options)
        assert driver.reaches(point)
        self._watch.look()
        return driver

    def task(self, function: str, tasks: dict[str, Any], **options: Any) -> Process:
        self.started.append(self._unharmed.forked.start(f"integration_driven:{function}", tasks=tasks, **options))
        return self.started[-1]

    def finish(self, driver: Process) -> None:
        ended = driver.end()
        assert ended.get("ended") == "finished", ended
        self.check_finished()

    def check_finished(self) -> None:
        self._watch.check_finished(self._unharmed.sink)

    def look(self) -> None:
        self._watch.look()

    def open_files(self) -> set[str]:
        """Return the files of plans that the log has, and that are in no commit record."""
        return {entry.output["path"] for _, entry in self.world.log().open_entries()}

    def records(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.world.state / "log").glob("*.json")}

    def kill_all(self) -> None:
        for process in self.started:
            process.kill()


@pytest.fixture
def fenced(unharmed: Unharmed, tmp_path: Path) -> Iterator[Fenced]:
    made = Fenced(unharmed, tmp_path)
    yield made
    made.kill_all()


def check_fenced(process: Process) -> None:
    ended = process.end()
    assert (ended.get("refused"), ended.get("exit_code")) == ("Fenced", 75), ended


@pytest.mark.parametrize("point", ["create plan: before", "create plan: written", "create commit record: before"])
def test_rule_5_and_6_a_driver_that_sleeps_through_a_takeover_and_a_fold_is_fenced(fenced: Fenced, point: str) -> None:
    zombie = fenced.frozen(point, 2)
    number = fenced.world.log().n + 1  # of the record that it is about to create
    fenced.finish(fenced.driver())
    log, records = fenced.world.log(), fenced.records()
    assert max(name for name in records if name.startswith("snapshot")) > f"snapshot-{number:020}"
    zombie.thaw()
    check_fenced(zombie)
    assert (fenced.world.log(), fenced.records()) == (log, records)
    fenced.check_finished()


def test_rule_5_a_claimant_that_sleeps_until_its_number_is_folded_away_is_fenced(fenced: Fenced) -> None:
    driver = fenced.frozen("create plan: before", 2)
    number = fenced.world.log().n + 1
    claimant = fenced.frozen("create epoch record: before")
    driver.thaw()
    fenced.finish(driver)
    log = fenced.world.log()
    free = f"{number:020}.json"
    assert free not in fenced.records()
    claimant.thaw()
    check_fenced(claimant)
    assert free in fenced.records()  # it could be created; it is no part of the log
    assert fenced.world.log() == log
    fenced.finish(fenced.driver())


# Indexes are written side by side: at the first of them nobody else has the lock for swaps in his hand yet.
@pytest.mark.parametrize(
    ("point", "at"), [("replace index: before", 1), ("replace metadata: before", 2), ("create index: before", 2)]
)
def test_rule_8_a_zombies_index_and_metadata_do_not_go_back(fenced: Fenced, point: str, at: int) -> None:
    zombie = fenced.frozen(point, at)
    fenced.finish(fenced.driver())
    zombie.thaw()
    check_fenced(zombie)
    fenced.check_finished()


def test_rule_6_the_same_attempt_started_twice_is_one_driver(fenced: Fenced) -> None:
    twins = [fenced.frozen("create epoch record: before", attempt=7) for _ in range(2)]
    for twin in twins:
        twin.thaw()
    ended = [twin.end() for twin in twins]
    assert sorted(one["ended"] if "ended" in one else one["refused"] for one in ended) == ["Fenced", "finished"]
    assert fenced.world.log().epoch.number == 1
    fenced.check_finished()


@pytest.mark.parametrize("point", ["take the store's lock: before", "create epoch record: before"])
def test_rule_6_an_older_attempt_that_comes_late_is_fenced(fenced: Fenced, point: str) -> None:
    """It had passed the check at its start when the newer one came."""
    late = fenced.frozen(point, attempt=3)
    fenced.finish(fenced.driver(attempt=4))
    log = fenced.world.log()
    late.thaw()
    check_fenced(late)
    assert fenced.world.log() == log
    fenced.check_finished()


@pytest.mark.parametrize("point", ["create commit record: before", "replace index: before", "replace metadata: before"])
def test_rule_6_a_zombie_of_a_deleted_changefeed_is_fenced(fenced: Fenced, unharmed: Unharmed, point: str) -> None:
    zombie = fenced.frozen(point)
    closed = unharmed.forked.start("integration_driven:close", resource=fenced.world.resource()).end()
    assert closed == {"closed": True}
    sink, log, records = fenced.world.sink(), fenced.world.log(), fenced.records()
    zombie.thaw()
    check_fenced(zombie)
    assert fenced.world.log() == log
    added = fenced.records().keys() - records.keys()
    assert all(name.startswith("snapshot-") for name in added), "of what it has read, which says nothing new"
    fenced.look()
    # What it was about to do is done, and says nothing that the log does not say; nothing comes after it.
    changed = {path for path, body in fenced.world.sink().items() if sink.get(path) != body}
    changed -= fenced.open_files()  # a task had it in hand; that no index vouched for it before is what `look` has seen
    assert not changed or ("metadata" in point and changed == {METADATA}) or all(map(parse_index_path, changed))
    assert published(fenced.world) <= fenced.world.log().checkpoint_ts
    sink = fenced.world.sink()
    check_fenced(fenced.driver())
    assert (fenced.world.sink(), fenced.records()) == (sink, records)


@pytest.mark.parametrize("point", ["create data file: written", "create data file: linked"])
def test_rule_16_an_executor_of_a_driver_that_is_gone_uploads_what_stands_there(fenced: Fenced, point: str) -> None:
    driver = fenced.driver(elsewhere=True)
    tasks = driver.hear("tasks")
    fenced.task("pull", tasks, attempt=0)
    executor = fenced.task("write", tasks, point=point, at=1, then="stop")
    assert executor.reaches(point)
    driver.kill()
    fenced.finish(fenced.driver())
    executor.thaw()
    assert executor.end().get("refused") in DRIVER_GONE
    fenced.check_finished()


def test_rule_16_and_20_two_attempts_of_a_task_write_one_file(fenced: Fenced) -> None:
    """The first is frozen while it uploads, the second does its work and goes on; late, the first uploads as well."""
    driver = fenced.driver(elsewhere=True)
    tasks = driver.hear("tasks")
    fenced.task("pull", tasks, attempt=0)
    first = fenced.task("write", tasks, point="create data file: written", at=1, then="stop")
    assert first.reaches("create data file: written")
    second = fenced.task("write", tasks, point="create data file: before", at=FILES_OF_A_STEP + 1, then="stop")
    assert second.reaches("create data file: before"), (second.said, driver.end())
    fenced.look()
    assert fenced.world.log().checkpoint_ts >= fenced.world.history.steps[0], "the first step's files are committed"
    first.thaw()
    assert first.end() == {"ended": "let go"}  # it finds its file there, and nobody hears that it is put
    second.thaw()
    fenced.finish(driver)


@pytest.mark.parametrize(
    "point", ["encode a file: done", "create data file: written", "create data file: linked", "create data file: done"]
)
@pytest.mark.parametrize("number", [0, 1], ids=["started again", "another"])
def test_rule_16_what_a_pipeline_task_had_in_hand_when_it_died_is_written_by_another(
    fenced: Fenced, point: str, number: int
) -> None:
    driver = fenced.driver(elsewhere=True)
    tasks = driver.hear("tasks")
    fenced.task("pull", tasks, attempt=0)
    killed = fenced.task("write", tasks, point=point, at=2)
    assert killed.reaches(point)
    fenced.look()
    assert fenced.world.log().plans, "it had files"
    fenced.task("write", tasks, number=number)
    fenced.finish(driver)
    assert not [path for path in fenced.world.left_over() if "spool" in path]


def test_rule_2_a_puller_that_has_been_replaced_is_not_heard(fenced: Fenced) -> None:
    driver = fenced.driver(elsewhere=True)
    tasks = driver.hear("tasks")
    zombie = fenced.task("pull", tasks, attempt=0, point="create segment: done", then="stop")
    assert zombie.reaches("create segment: done")
    fenced.task("pull", tasks, attempt=1)
    executor = fenced.task("write", tasks, point="create data file: before", then="stop")
    assert executor.reaches("create data file: before")
    zombie.thaw()
    assert "refused" in (ended := zombie.end()) or ended["ended"] == "let go"
    executor.thaw()
    fenced.finish(driver)


def test_rule_21_a_puller_of_a_driver_that_is_gone_reaches_nobody(fenced: Fenced) -> None:
    driver = fenced.driver(elsewhere=True)
    tasks = driver.hear("tasks")
    zombie = fenced.task("pull", tasks, attempt=0, point="create segment: before", then="stop")
    assert zombie.reaches("create segment: before")
    driver.kill()
    fenced.finish(fenced.driver())
    zombie.thaw()
    assert zombie.end().get("refused") in DRIVER_GONE
    fenced.finish(fenced.driver())  # which removes what it has written late
    assert not [path for path in fenced.world.left_over() if path.endswith(".arrow")]


@pytest.mark.parametrize("off_s", [3600, -3600, 90_000])
def test_rule_27_a_clock_that_is_off_changes_no_file(fenced: Fenced, off_s: int) -> None:
    """The driver that dies inside a plan has a fast clock, its successor a slow one, or the other way round."""
    point, at = FileWorld.inside_a_plan
    assert fenced.driver(point=point, at=at, clock_off_s=off_s).reaches(point)
    fenced.finish(fenced.driver(clock_off_s=-off_s))
