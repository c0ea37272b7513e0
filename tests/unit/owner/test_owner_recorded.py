"""Logs that 0.1.0 wrote are read and carried on: the same plans, names and bytes as by 0.1.0 itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from changefeed.log.log import Log
from changefeed.objectstore.local import LocalStore
from owner_recorded import ITEMS, KINDS, ORDERS, P0, P1, START_TS, carry_on, record

LOGS = Path(__file__).parent / "testdata" / "logs"


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_log_of_0_1_0_says_what_is_written_and_what_is_not(kind: str, tmp_path: Path) -> None:
    shutil.copytree(LOGS / kind / "log", tmp_path / "log")
    state = Log(LocalStore(tmp_path)).read()
    assert (state.checkpoint_ts - START_TS, state.rows) == (29, 6)
    ends = [[e.dispatcher, e.from_.commit_ts - START_TS, e.to.commit_ts - START_TS] for _, e in state.open_entries()]
    assert ends == [[P0, 29, 60], [ORDERS, 60, 95]]
    reached = {each: (known.flushed_ts, known.planned_ts) for each, known in state.dispatchers.items()}
    assert {each: (flushed - START_TS, planned - START_TS) for each, (flushed, planned) in reached.items()} == {
        ORDERS: (60, 95),
        ITEMS: (80, 80),
        P0: (29, 60),
        P1: (29, 29),
    }


def test_a_log_of_0_1_0_is_carried_on_as_by_0_1_0(kind: str, tmp_path: Path) -> None:
    shutil.copytree(LOGS / kind / "log", tmp_path / "log")
    carried = carry_on(tmp_path, tmp_path / "lake", kind)
    assert carried == json.loads((LOGS / kind / "carried-on.json").read_text())
    names = [name for *_, name in carried["planned"] if name]
    assert len(names) == len(set(names)), "nothing is written twice"


def test_a_log_of_today_is_carried_on_as_one_of_0_1_0(kind: str, tmp_path: Path) -> None:
    record(tmp_path, tmp_path / "lake", kind)
    carried = carry_on(tmp_path, tmp_path / "other", kind)
    assert carried == json.loads((LOGS / kind / "carried-on.json").read_text())
