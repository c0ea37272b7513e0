"""How lags of rows and checkpoints are counted, and what of them is the changefeed's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from measured import Run, disk
from readers import Arrivals, FileReader, own_lags, own_row_lags
from steady import percentiles


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
    (table,) = FileReader(run).arrivals(2000, 3000).items()
    assert table[0] == "sbtest1"
    assert np.array_equal(table[1].lags, np.array([named_ms - 2000, named_ms - 2999]))


def test_percentiles_are_whole_ms() -> None:
    assert percentiles(range(1001)) == {"p50": 500, "p99": 990, "p999": 999, "max": 1000}


def test_what_is_the_changefeeds_own_begins_with_the_resolved_ts_that_lets_a_row_pass() -> None:
    published = {1000: 1060.0, 2000: 2090.0, 3000: 3150.0}
    rows = Arrivals(np.array([400.0, 1000.0, 1001.0, 2999.0, 3001.0]), np.array([1050, 1050, 2070, 3100, 4000.0]))
    assert own_row_lags(rows, published).tolist() == [50, 50, 70, 100], "of the last row no resolved-ts is known"
    assert own_lags(published, 1500, 4000).tolist() == [90, 150]
    assert own_lags(published, 0, 3100).tolist() == [60, 90], "the last one was not there yet"
