"""The scratch folder of a run: gone with it, however it ended, and never taken from a living one."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from changefeed.spark.scratch import Scratch

_DRIVER = """
import sys, pathlib
from changefeed.spark.scratch import Scratch
scratch = Scratch(pathlib.Path(sys.argv[1]))
(scratch.folder / "local").mkdir()
scratch.log.touch()
print(scratch.folder, flush=True)
sys.stdin.read()
"""


def _driver(root: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_start_removes_what_killed_drivers_have_left_and_nothing_of_living_ones(tmp_path: Path) -> None:
    killed, left = _driver(tmp_path)
    killed.kill()
    killed.communicate()
    assert left.is_dir()
    living, kept = _driver(tmp_path)
    scratch = Scratch(tmp_path)
    try:
        assert {path.name for path in tmp_path.iterdir()} == {kept.name, f"{kept.name}.log", scratch.folder.name}
        assert (kept / "local").is_dir()
    finally:
        living.kill()
        living.communicate()
        scratch.remove(keep_log=False)


@pytest.mark.parametrize("keep_log", [True, False])
def test_nothing_is_left_of_a_run_but_a_log_that_somebody_was_told_of(tmp_path: Path, keep_log: bool) -> None:
    scratch = Scratch(tmp_path)
    (scratch.folder / "python").touch()
    scratch.log.touch()
    scratch.remove(keep_log)
    assert list(tmp_path.iterdir()) == ([scratch.log] if keep_log else [])
    Scratch(tmp_path).remove(keep_log=False)
    assert scratch.log.exists() == keep_log


def test_what_only_looks_like_a_scratch_folder_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "changefeed-scratch-link").symlink_to(elsewhere, target_is_directory=True)
    (tmp_path / "changefeed-scratch-file").touch()
    before = set(tmp_path.iterdir())
    Scratch(tmp_path).remove(keep_log=False)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("when", ["before it is opened", "before it is locked"])
def test_a_folder_that_another_start_has_removed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    make, lock = tempfile.mkdtemp, fcntl.flock
    made: list[Path] = []

    def mkdtemp(**where: Any) -> str:
        folder: str = make(**where)
        made.append(Path(folder))
        if when == "before it is opened" and len(made) == 1:
            shutil.rmtree(folder)
        return folder

    def flock(descriptor: int, how: int) -> None:
        if when == "before it is locked" and len(made) == 1:
            shutil.rmtree(made[0])
        lock(descriptor, how)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(fcntl, "flock", flock)
    scratch = Scratch(tmp_path)
    assert (scratch.folder, len(made)) == (made[1], 2)
    assert scratch.folder.is_dir()
    scratch.remove(keep_log=False)
