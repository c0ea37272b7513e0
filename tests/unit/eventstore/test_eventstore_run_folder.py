from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from changefeed.errors import Unavailable
from changefeed.eventstore.run_folder import RunFolder
from changefeed.objectstore import Location
from changefeed.objectstore.open import local_path


def put(run_folder: RunFolder, task: str = "t0", seq: int = 1) -> Path:
    uri, size = run_folder.create_segment(task, seq, lambda file: file.write(b"rows"))
    assert size == 4
    return local_path(uri)


def test_rule_21_only_folders_of_lower_epochs_are_deleted(tmp_path: Path) -> None:
    state = tmp_path.as_uri()
    mine = RunFolder(Location(state), 10, "me")
    kept = [
        put(mine),
        put(RunFolder(Location(state), 10, "twin")),
        put(RunFolder(Location(state), 11, "next")),
        put(RunFolder(Location(state), 100, "later")),
    ]
    stranger = tmp_path / "events" / "notes-9" / "x"
    stranger.parent.mkdir()
    stranger.write_bytes(b"")
    gone = [put(RunFolder(Location(state), 9, "a-b")), put(RunFolder(Location(state), 2, "b"), "t1", 9)]
    (tmp_path / "log").mkdir()
    assert mine.delete_lower_epochs() == ["2-b", "9-a-b"]
    assert all(path.exists() for path in [*kept, stranger, tmp_path / "log"])
    assert not any(path.exists() for path in gone)
    assert mine.delete_lower_epochs() == []


def test_nothing_to_delete_before_the_first_segment(tmp_path: Path) -> None:
    assert RunFolder(Location(tmp_path.as_uri()), 1, "n").delete_lower_epochs() == []


def test_rule_21_a_folder_in_use_may_stay_but_a_refusal_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(RunFolder(Location(tmp_path.as_uri()), 1, "late"))
    mine = RunFolder(Location(tmp_path.as_uri()), 2, "n")

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
    mine, other = RunFolder(Location(tmp_path.as_uri()), 2, "n"), RunFolder(Location(tmp_path.as_uri()), 1, "n")
    path, foreign = put(mine), put(other)
    with pytest.raises(ValueError, match="not a segment of run 2-n"):
        mine.delete_segment(foreign.as_uri())
    assert foreign.exists()
    mine.delete_segment(path.as_uri())
    mine.delete_segment(path.as_uri())
    assert not path.exists()


@pytest.mark.parametrize("task", ["", "../x", "a/b", ".."])
def test_a_task_name_stays_in_the_folder(tmp_path: Path, task: str) -> None:
    with pytest.raises(ValueError, match="task attempt"):
        RunFolder(Location(tmp_path.as_uri()), 1, "n").create_segment(task, 1, lambda file: file.write(b"rows"))


def test_a_run_clears_its_own_spool_and_a_later_one_what_was_left(tmp_path: Path) -> None:
    early, late = RunFolder(Location(tmp_path.as_uri()), 1, "n"), RunFolder(Location(tmp_path.as_uri()), 2, "n")
    for run_folder in (early, late):
        run_folder.spool_folder.mkdir(parents=True)
        (run_folder.spool_folder / "1-0-x").write_bytes(b"spooled")
    late.clear_spool()
    assert not late.spool_folder.exists()
    assert (early.spool_folder / "1-0-x").exists()
    late.delete_lower_epochs()
    assert not early.spool_folder.exists()
