"""The shape of results, the median of several, and the page that is made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import page
import pytest
from cases import CASES, Case
from results import Result, median

FAST = Result(
    name="insert-csv-scan",
    kind="throughput",
    verified=True,
    rows=1000,
    wall_s=2.0,
    rows_per_s=500.0,
    mb_per_s=1.5,
    cpu_s_per_mrow=9.0,
    stages={"puller": 4.0, "jvm": 5.0},
    marginal={"cpu_s_per_mrow": 3.0, "user": 2.0, "kernel": 1.0, "stages": {"puller": 2.0, "jvm": 1.0}},
    baselines={"cat": {"rows_per_s": 1e6, "cpu_s_per_mrow": 0.1, "kernel": 0.1, "times": 30.0}},
    peak_rss_bytes=2 << 20,
    peak_memory_bytes={"own": 3 << 20, "shared": 1 << 20, "mapped": 5 << 20},
)
SLOW = Result(
    name="idle",
    kind="steady",
    verified=None,
    rows=0,
    wall_s=5.0,
    rows_per_s=0.0,
    cpu_cores=0.25,
    lag_ms={"p50": 10, "p99": 30, "p999": 100, "max": 100},
    peak_rss_bytes=2 << 20,
    peak_memory_bytes={"own": 3 << 20, "shared": 1 << 20, "mapped": 5 << 20},
)
BACK = Result(
    name="catch-up",
    kind="catch-up",
    verified=True,
    rows=50,
    wall_s=1.0,
    rows_per_s=50.0,
    live_multiple=6.5,
    seconds={"backlog": 60.0},
    peak_rss_bytes=1,
    peak_memory_bytes={"own": 1, "shared": 0, "mapped": 0},
)
MACHINE = {"cpu": "A core", "cores": 2, "mem_bytes": 4 << 30, "python": "3.11", "java": 'openjdk "17"', "spark": "4"}


def report(*runs: Result) -> page.Run:
    return {"commit": "abc", "machine": MACHINE, "runs": [run.to_json() for run in runs]}


def test_what_a_case_does_not_have_is_left_out_but_for_whether_it_is_verified() -> None:
    assert "lag_ms" not in FAST.to_json()
    assert SLOW.to_json()["verified"] is None


def test_the_median_is_of_each_figure_and_verified_only_when_all_are() -> None:
    runs = [
        replace(FAST, rows_per_s=speed, stages={"puller": cpu}, verified=verified)
        for speed, cpu, verified in ((300.0, 1.0, True), (100.0, 9.0, False), (200.0, 2.0, True))
    ]
    found = median(runs)
    assert (found.rows_per_s, found.stages, found.verified, found.repeats) == (200.0, {"puller": 2.0}, False, 3)
    assert found.name == FAST.name
    assert median([FAST]) is FAST


def test_the_page_has_each_case_where_it_belongs_and_no_column_without_figures() -> None:
    text = page.page(report(FAST, SLOW, BACK), "pictures")
    assert (
        "| case | rows/s | MB/s | CPU-s per million rows | in the kernel | CPU-s with startup | × cat | memory, MiB |"
        in text
    )
    assert "| insert-csv-scan | 500 | 2 | 3.00 | 1.00 | 9.00 | 30 | 4 |" in text
    assert "| idle | 0 | 10 | 30 | 100 | 0.25 | 4 |" in text
    assert "6.5 times as fast as they were written" in text
    assert "at abc" in text


def test_a_page_without_a_kind_has_no_picture_of_it() -> None:
    runs = report(SLOW)
    assert set(page.pictures(runs)) == {"lag"}
    assert "performance-lag.svg" in page.page(runs, ".")
    assert "performance-cpu.svg" not in page.page(runs, ".")


def test_a_bar_is_as_long_as_its_value_and_its_parts_stand_side_by_side() -> None:
    drawn = page.pictures(report(FAST, replace(FAST, name="half", marginal={"stages": {"puller": 1.5}})))
    rects = [each for each in ElementTree.fromstring(drawn["cpu"]) if each.tag.endswith("rect")][1:]
    places = [(each.attrib["x"], each.attrib["y"], each.attrib["width"]) for each in rects]
    assert places == [("230.0", "58", "373.3"), ("603.3", "58", "186.7"), ("230.0", "82", "280.0")]


def test_the_committed_page_is_made_from_the_committed_results() -> None:
    root = Path(__file__).parents[3]
    made = page.page(page.read(root / "bench" / "results"), "../bench/results")
    assert (root / "docs" / "performance.md").read_text() == made, "make it anew: .venv/bin/python bench/page.py"


def test_the_suite_has_every_shape_by_both_protocols_and_a_lag_at_each_rate() -> None:
    suite = [case for case in CASES.values() if case.in_suite]
    fast = {(case.shape, case.tables, case.protocol) for case in suite if case.kind == "throughput"}
    assert len(fast) == 13  # parquet has one shape
    assert {(case.rate, case.mode, case.store) for case in suite if case.name.startswith("lag")} == {
        (rate, mode, store)
        for rate in (1_000, 10_000, 100_000)
        for mode in ("Throughput", "LowLatency")
        for store in ("disk", "s3")
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_case_that_is_sized_keeps_all_else(case: Case) -> None:
    assert case.sized(None, None) == case
    assert replace(case.sized(7, 3.0), rows=case.rows, seconds=case.seconds) == case
