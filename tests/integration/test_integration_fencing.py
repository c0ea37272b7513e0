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
def place(unharmed: Unharmed, tmp_path: Path) -> Iterator[Fenced]:
    made = Fenced(unharmed, tmp_path)
    yield made
    made.kill_all()


def check_fenced(process: Process) -> None:
    ended = process.end()
    assert (ended.get("refused"), ended.get("exit_code")) == ("Fenced", 75), ended


@pytest.mark.parametrize("point", ["create plan: before", "create plan: written", "create commit record: before"])
def test_rule_5_and_6_a_driver_that_sleeps_through_a_takeover_and_a_fold_is_fenced(place: Fenced, point: str) -> None:
    zombie = place.frozen(point, 2)
    number = place.world.log().n + 1  # of the record that it is about to create
    place.finish(place.driver())
    log, records = place.world.log(), place.records()
    assert max(name for name in records if name.startswith("snapshot")) > f"snapshot-{number:020}"
    zombie.thaw()
    check_fenced(zombie)
    assert (place.world.log(), place.records()) == (log, records)
    place.check_finished()


def test_rule_5_a_claimant_that_sleeps_until_its_number_is_folded_away_is_fenced(place: Fenced) -> None:
    driver = place.frozen("create plan: before", 2)
    number = place.world.log().n + 1
    claimant = place.frozen("create epoch record: before")
    driver.thaw()
    place.finish(driver)
    log = place.world.log()
    free = f"{number:020}.json"
    assert free not in place.records()
    claimant.thaw()
    check_fenced(claimant)
    assert free in place.records()  # it could be created; it is no part of the log
    assert place.world.log() == log
    place.finish(place.driver())


# Indexes are written side by side: at the first of them nobody else has the lock for swaps in his hand yet.
@pytest.mark.parametrize(
    ("point", "at"), [("replace index: before", 1), ("replace metadata: before", 2), ("create index: before", 2)]
)
def test_rule_8_a_zombies_index_and_metadata_do_not_go_back(place: Fenced, point: str, at: int) -> None:
    zombie = place.frozen(point, at)
    place.finish(place.driver())
    zombie.thaw()
    check_fenced(zombie)
    place.check_finished()


def test_rule_6_the_same_attempt_started_twice_is_one_driver(place: Fenced) -> None:
    twins = [place.frozen("create epoch record: before", attempt=7) for _ in range(2)]
    for twin in twins:
        twin.thaw()
    ended = [twin.end() for twin in twins]
    assert sorted(one["ended"] if "ended" in one else one["refused"] for one in ended) == ["Fenced", "finished"]
    assert place.world.log().epoch.number == 1
    place.check_finished()


@pytest.mark.parametrize("point", ["take the store's lock: before", "create epoch record: before"])
def test_rule_6_an_older_attempt_that_comes_late_is_fenced(place: Fenced, point: str) -> None:
    """It had passed the check at its start when the newer one came."""
    late = place.frozen(point, attempt=3)
    place.finish(place.driver(attempt=4))
    log = place.world.log()
    late.thaw()
    check_fenced(late)
    assert place.world.log() == log
    place.check_finished()


@pytest.mark.parametrize("point", ["create commit record: before", "replace index: before", "replace metadata: before"])
def test_rule_6_a_zombie_of_a_deleted_changefeed_is_fenced(place: Fenced, unharmed: Unharmed, point: str) -> None:
    zombie = place.frozen(point)
    closed = unharmed.forked.start("integration_driven:close", resource=place.world.resource()).end()
    assert closed == {"closed": True}
    sink, log, records = place.world.sink(), place.world.log(), place.records()
    zombie.thaw()
    check_fenced(zombie)
    assert place.world.log() == log
    added = place.records().keys() - records.keys()
    assert all(name.startswith("snapshot-") for name in added), "of what it has read, which says nothing new"
    place.look()
    # What it was about to do is done, and says nothing that the log does not say; nothing comes after it.
    changed = {path for path, body in place.world.sink().items() if sink.get(path) != body}
    changed -= place.open_files()  # a task had it in hand; that no index vouched for it before is what `look` has seen
    assert not changed or ("metadata" in point and changed == {METADATA}) or all(map(parse_index_path, changed))
    assert published(place.world) <= place.world.log().checkpoint_ts
    sink = place.world.sink()
    check_fenced(place.driver())
    assert (place.world.sink(), place.records()) == (sink, records)


@pytest.mark.parametrize("point", ["create data file: written", "create data file: linked"])
def test_rule_16_an_executor_of_a_driver_that_is_gone_uploads_what_stands_there(place: Fenced, point: str) -> None:
    driver = place.driver(elsewhere=True)
    tasks = driver.hear("tasks")
    place.task("pull", tasks, attempt=0)
    executor = place.task("write", tasks, point=point, at=1, then="stop")
    assert executor.reaches(point)
    driver.kill()
    place.finish(place.driver())
    executor.thaw()
    assert executor.end().get("refused") in DRIVER_GONE
    place.check_finished()


def test_rule_16_and_20_two_attempts_of_a_task_write_one_file(place: Fenced) -> None:
    """The first is frozen while it uploads, the second does its work and goes on; late, the first uploads as well."""
    driver = place.driver(elsewhere=True)
    tasks = driver.hear("tasks")
    place.task("pull", tasks, attempt=0)
    first = place.task("write", tasks, point="create data file: written", at=1, then="stop")
    assert first.reaches("create data file: written")
    second = place.task("write", tasks, point="create data file: before", at=FILES_OF_A_STEP + 1, then="stop")
    assert second.reaches("create data file: before"), (second.said, driver.end())
    place.look()
    assert place.world.log().checkpoint_ts >= place.world.history.steps[0], "the files of the first step are committed"
    first.thaw()
    assert first.end() == {"ended": "let go"}  # it finds its file there, and nobody hears that it is put
    second.thaw()
    place.finish(driver)


@pytest.mark.parametrize(
    "point", ["encode a file: done", "create data file: written", "create data file: linked", "create data file: done"]
)
@pytest.mark.parametrize("number", [0, 1], ids=["started again", "another"])
def test_rule_16_what_a_pipeline_task_had_in_hand_when_it_died_is_written_by_another(
    place: Fenced, point: str, number: int
) -> None:
    driver = place.driver(elsewhere=True)
    tasks = driver.hear("tasks")
    place.task("pull", tasks, attempt=0)
    killed = place.task("write", tasks, point=point, at=2)
    assert killed.reaches(point)
    place.look()
    assert place.world.log().plans, "it had files"
    place.task("write", tasks, number=number)
    place.finish(driver)
    assert not [path for path in place.world.left_over() if "spool" in path]


def test_rule_2_a_puller_that_has_been_replaced_is_not_heard(place: Fenced) -> None:
    driver = place.driver(elsewhere=True)
    tasks = driver.hear("tasks")
    zombie = place.task("pull", tasks, attempt=0, point="create segment: done", then="stop")
    assert zombie.reaches("create segment: done")
    place.task("pull", tasks, attempt=1)
    executor = place.task("write", tasks, point="create data file: before", then="stop")
    assert executor.reaches("create data file: before")
    zombie.thaw()
    assert "refused" in (ended := zombie.end()) or ended["ended"] == "let go"
    executor.thaw()
    place.finish(driver)


def test_rule_21_a_puller_of_a_driver_that_is_gone_reaches_nobody(place: Fenced) -> None:
    driver = place.driver(elsewhere=True)
    tasks = driver.hear("tasks")
    zombie = place.task("pull", tasks, attempt=0, point="create segment: before", then="stop")
    assert zombie.reaches("create segment: before")
    driver.kill()
    place.finish(place.driver())
    zombie.thaw()
    assert zombie.end().get("refused") in DRIVER_GONE
    place.finish(place.driver())  # which removes what it has written late
    assert not [path for path in place.world.left_over() if path.endswith(".arrow")]


@pytest.mark.parametrize("off_s", [3600, -3600, 90_000])
def test_rule_27_a_clock_that_is_off_changes_no_file(place: Fenced, off_s: int) -> None:
    """The driver that dies inside a plan has a fast clock, its successor a slow one, or the other way round."""
    point, at = FileWorld.inside_a_plan
    assert place.driver(point=point, at=at, clock_off_s=off_s).reaches(point)
    place.finish(place.driver(clock_off_s=-off_s))
