"""Objects that only the driver writes, when somebody else does (rule 8)."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import owner_records as made
import pytest
from changefeed.errors import Conflict, Fenced, NeedsHuman, OutcomeUnknown, Transient, Unavailable
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, PlanEntry
from changefeed.log.state import State
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.patience import Patience
from changefeed.sink.storage.driver import StorageDriver


class Disturbed(LocalStore):
    """Each swap meets the next failure of `failures`, until there are none."""

    def __init__(self, root: Path, failures: list[Exception]) -> None:
        super().__init__(root)
        self.failures = failures

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return super().swap(path, body, etag)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    opened = Log(LocalStore(tmp_path / "state"))
    opened.append(made.start())
    opened.claim_epoch(lambda before: made.epoch(before, "a"))
    return opened


def first_files(directories: int) -> tuple[list[PlanEntry], CommitRecord]:
    state = State()
    entries = [
        made.entry(state, 110, n, n, directory=f"d{n}", path=f"d{n}/CDC00000000000000000001.csv")
        for n in range(directories)
    ]
    return entries, made.commit(state, 110, files=[made.file(3, n) for n in range(directories)])


def published(folder: Path) -> int:
    return int(json.loads((folder / "metadata").read_text())["checkpoint-ts"])


def test_rule_8_after_a_lost_swap_the_log_is_read_then_the_object_again(tmp_path: Path, log: Log) -> None:
    sink = Disturbed(tmp_path / "lake", [Conflict("changed"), OutcomeUnknown("perhaps")])
    StorageDriver(sink, log.poll_fence).write_checkpoint(105)
    assert published(tmp_path / "lake") == 105
    StorageDriver(sink, log.poll_fence).write_checkpoint(103)
    assert published(tmp_path / "lake") == 105


def test_rule_8_a_lost_swap_with_a_newer_epoch_in_the_log_is_fenced(tmp_path: Path, log: Log) -> None:
    other = Log(LocalStore(tmp_path / "state"))
    other.claim_epoch(lambda before: made.epoch(before, "b"))
    sink = Disturbed(tmp_path / "lake", [Conflict("changed")])
    with pytest.raises(Fenced, match="epoch 2"):
        StorageDriver(sink, log.poll_fence).publish(*first_files(1))
    assert not (tmp_path / "lake" / "d0").exists()


def test_rule_8_a_stranger_that_goes_on_writing_is_named(tmp_path: Path, log: Log) -> None:
    sink = Disturbed(tmp_path / "lake", [Conflict("metadata was changed by someone else.")] * 9)
    with pytest.raises(NeedsHuman, match="SinkOwned: metadata was changed"):
        StorageDriver(sink, log.poll_fence).write_checkpoint(105)


def test_a_sink_that_stays_away_ends_the_run_and_a_short_absence_does_not(log: Log, tmp_path: Path) -> None:
    slept: list[float] = []
    sink = Disturbed(tmp_path / "lake", [Transient("away")] * 5)
    StorageDriver(sink, log.poll_fence, Patience(sleep=slept.append)).write_checkpoint(105)
    assert slept == [0.05, 0.1, 0.2, 0.4, 0.8]
    slept.clear()
    sink = Disturbed(tmp_path / "lake", [Transient("away")] * 100)
    with pytest.raises(Unavailable, match=r"lake has failed for 60 s\. away"):
        StorageDriver(sink, log.poll_fence, Patience(sleep=slept.append)).write_checkpoint(106)
    assert 60 <= sum(slept) < 70


class Counted(LocalStore):
    """Holds each swap back until `together` of them are under way; BrokenBarrierError when that takes 5 s."""

    def __init__(self, root: Path, together: int) -> None:
        super().__init__(root)
        self._barrier = threading.Barrier(together, timeout=5.0)

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        self._barrier.wait()
        return super().swap(path, body, etag)


def test_index_files_of_many_directories_are_written_at_once(tmp_path: Path, log: Log) -> None:
    StorageDriver(Counted(tmp_path / "lake", 8), log.poll_fence).publish(*first_files(8))
    assert len(list((tmp_path / "lake").rglob("CDC.index"))) == 8


def test_an_index_file_that_cannot_be_written_fails_the_publication(tmp_path: Path, log: Log) -> None:
    sink = Disturbed(tmp_path / "lake", [NeedsHuman("no", "no")])
    with pytest.raises(NeedsHuman, match="no"):
        StorageDriver(sink, log.poll_fence).publish(*first_files(8))
