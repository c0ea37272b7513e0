"""A process that dies at any named point leaves what the next goes on from: a part of each list of points a commit.

`make evidence` runs the whole lists, some hundred killed runs, and writes bench/results/crash-points*.md.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from integration_crash import NOT_PASSED, Kind, Outcome, enumerate_all
from integration_crash_table import table

PARTS = 10  # of which a run takes one: of files some 80 killed or frozen runs, of the other sinks some 15 each
#: What it takes to have several plans open, beside what there is to one.
SEVERAL_PLANS = (
    "encode a file: done",
    "create commit record of some open files: linked",
    "create snapshot with files open: linked",
    "lose a pipeline task: done",
)
RESULTS = Path(__file__).parents[2] / "bench" / "results"

pytestmark = pytest.mark.timeout(900)  # on a busy machine


def test_rule_3_8_16_and_21_a_process_may_die_or_sleep_at_any_point(tmp_path: Path) -> None:
    outcome = check_a_part("files", tmp_path, "crash-points.md")
    assert {(takeover, point) for takeover in (False, True) for point in SEVERAL_PLANS} <= outcome.rows.keys()


@pytest.mark.parametrize("kind", ["mysql", "kafka"])
def test_rule_6_and_25_a_process_may_die_or_sleep_at_any_point_of_a_database(kind: Kind, tmp_path: Path) -> None:
    check_a_part(kind, tmp_path, "crash-points-databases.md")


@pytest.mark.parametrize("kind", ["changelog", "upsert"])
def test_rule_16_and_25_a_process_may_die_or_sleep_at_any_point_of_an_iceberg_table(kind: Kind, tmp_path: Path) -> None:
    check_a_part(kind, tmp_path, "crash-points-iceberg.md")


def test_rule_14_and_25_a_process_may_die_or_sleep_at_any_point_of_a_slot(tmp_path: Path) -> None:
    check_a_part("slot", tmp_path, "crash-points-postgresql.md")


def check_a_part(kind: Kind, folder: Path, listed: str) -> Outcome:
    turn = _commit() % PARTS
    outcome = enumerate_all(kind, folder, PARTS, turn)
    print(f"part {turn} of {PARTS}: {len(outcome.cases)} runs, {outcome.cpu_s:.0f} s of CPU")  # noqa: T201 - which part
    assert not outcome.broken, outcome.broken
    done = [text for row in outcome.rows.values() for text in (*row.found.values(), row.woken) if text]
    assert len(done) == len(outcome.cases)
    assert done.count(NOT_PASSED) <= len(done) // 10
    assert any(case.frozen for case in outcome.cases)
    named = set(re.findall(r"^\| ([^|]+: \w[^|]*) \|", (RESULTS / listed).read_text(), re.MULTILINE))
    assert {point for _, point in outcome.rows} <= named, "points have come: run `make evidence`"
    assert all(f"| {case.point} |" in table({kind: outcome}) for case in outcome.cases if not case.frozen)
    return outcome


def _commit() -> int:
    """A number of the commit that is tested, so that a failure comes back when it is tested again."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return int(asked.stdout, 16)
