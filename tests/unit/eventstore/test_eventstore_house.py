from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from changefeed.errors import Unavailable
from changefeed.eventstore.house import House


def put(house: House, task: str = "t0", seq: int = 1) -> Path:
    path = house.segment_path(task, seq)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"rows")
    return path


def test_rule_21_only_houses_of_lower_epochs_are_deleted(tmp_path: Path) -> None:
    state = tmp_path.as_uri()
    mine = House(state, 10, "me")
    kept = [put(mine), put(House(state, 10, "twin")), put(House(state, 11, "next")), put(House(state, 100, "later"))]
    stranger = tmp_path / "events" / "notes-9" / "x"
    stranger.parent.mkdir()
    stranger.write_bytes(b"")
    gone = [put(House(state, 9, "a-b")), put(House(state, 2, "b"), "t1", 9)]
    (tmp_path / "log").mkdir()
    assert mine.delete_lower_epochs() == ["2-b", "9-a-b"]
    assert all(path.exists() for path in [*kept, stranger, tmp_path / "log"])
    assert not any(path.exists() for path in gone)
    assert mine.delete_lower_epochs() == []


def test_nothing_to_delete_before_the_first_segment(tmp_path: Path) -> None:
    assert House(tmp_path.as_uri(), 1, "n").delete_lower_epochs() == []


def test_rule_21_a_house_in_use_may_stay_but_a_refusal_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(House(tmp_path.as_uri(), 1, "late"))
    mine = House(tmp_path.as_uri(), 2, "n")

    def fail(error: OSError) -> None:
        def rmtree(path: Path) -> None:
            raise error

        monkeypatch.setattr(shutil, "rmtree", rmtree)

    fail(OSError(39, "Directory not empty"))
    assert mine.delete_lower_epochs() == []
    fail(PermissionError(13, "Permission denied"))
    with pytest.raises(Unavailable, match="1-late: Permission denied"):
        mine.delete_lower_epochs()


def test_rule_21_a_segment_of_another_run_is_not_deleted(tmp_path: Path) -> None:
    mine, other = House(tmp_path.as_uri(), 2, "n"), House(tmp_path.as_uri(), 1, "n")
    path, foreign = put(mine), put(other)
    with pytest.raises(ValueError, match="not a segment of run 2-n"):
        mine.delete_segment(foreign.as_uri())
    assert foreign.exists()
    mine.delete_segment(path.as_uri())
    mine.delete_segment(path.as_uri())
    assert not path.exists()


@pytest.mark.parametrize("task", ["", "../x", "a/b", ".."])
def test_a_task_name_stays_in_the_house(tmp_path: Path, task: str) -> None:
    with pytest.raises(ValueError, match="task attempt"):
        House(tmp_path.as_uri(), 1, "n").segment_path(task, 1)
