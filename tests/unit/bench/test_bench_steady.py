"""How a file's lag is counted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from measured import Run, disk
from steady import file_lags, percentiles


def test_each_row_of_the_time_that_is_watched_counts_from_its_commit_to_its_files_name(tmp_path: Path) -> None:
    folder = tmp_path / "lake" / "sbtest" / "sbtest1" / "470000000000000000" / "2026-01-01"
    folder.mkdir(parents=True)
    file = folder / "CDC00000000000000000001.csv"
    committed_ms = [1000, 2000, 2999, 3000]
    lines = [f'"U","sbtest1","sbtest",{ms << 18 | 7},"a,b"\n' for ms in committed_ms]
    file.write_text("".join(lines))
    os.utime(file, (1.0, 1.0))  # when it was written says nothing
    (folder / "CDC00000000000000000002.csv").touch()  # without rows
    (folder / "CDC.index").write_text("CDC00000000000000000002.csv\n")
    nobody: Any = None
    run = Run(tmp_path, disk(tmp_path), nobody, nobody)
    named_ms = file.stat().st_ctime * 1000
    (table,) = file_lags(run, 2000, 3000).items()
    assert table[0] == "sbtest1"
    assert np.array_equal(table[1], np.array([named_ms - 2000, named_ms - 2999]))


def test_percentiles_are_whole_ms() -> None:
    assert percentiles(range(1001)) == {"p50": 500, "p99": 990, "p999": 999, "max": 1000}
