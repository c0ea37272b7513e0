"""The shape of results, the median of several, and the page that is made of them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import page
import pytest
from cases import CASES, Case
from pydantic import ValidationError
from results import Machine, Report, Result, median, read

ROOT = Path(__file__).parents[3]

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
    return {"schema": 1, "commit": "abc", "machine": MACHINE, "runs": [run.to_json() for run in runs]}


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


def test_the_committed_results_have_the_form_that_is_documented() -> None:
    found = read(ROOT / "bench" / "results" / "bench.json")
    assert {run.kind for run in found.runs} == {"throughput", "steady", "catch-up", "recovery"}
    said = (ROOT / "bench" / "measuring.md").read_text()
    for kind in (Report, Machine, Result):
        assert [each.name for each in fields(kind) if f"`{each.name}`" not in said] == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": 2}, "schema"),
        ({"machine": {**MACHINE, "cores": "2"}}, "machine.cores"),
        ({"machine": {"cpu": "A core"}}, "machine.mem_bytes"),
        ({"runs": [{**FAST.to_json(), "rows_a_second": 1}]}, "runs.0.rows_a_second"),
        ({"runs": [{**FAST.to_json(), "lag_ms": {"p50": 0.5}}]}, "runs.0.lag_ms.p50"),
    ],
)
def test_a_report_of_another_form_is_refused_by_the_name_of_what_is_other(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(report(FAST, SLOW, BACK)))
    assert read(file).runs == [FAST, SLOW, BACK]
    file.write_text(json.dumps({**report(FAST), **change}))
    with pytest.raises(ValidationError) as refused:
        read(file)
    assert named in {".".join(map(str, error["loc"])) for error in refused.value.errors()}


def test_the_page_has_each_case_where_it_belongs_and_no_column_without_figures() -> None:
    text = page.page(report(FAST, SLOW, BACK), "pictures")
    figures = ("CPU-s per million rows", "in the kernel", "$ per billion rows", "CPU-s with startup", "× cat")
    assert f"| case | rows/s | MB/s | {' | '.join(figures)} | memory, MiB |" in text
    assert "| insert-csv-scan | 500 | 2 | 3.00 | 1.00 | 0.042 | 9.00 | 30 | 4 |" in text
    assert "| idle | 0 | 10 | 30 | 100 | 0.25 | 4 |" in text
    assert "6.5 times as fast as they were written" in text
    assert "at abc" in text


def test_lags_stand_beside_one_another_by_mode_and_resolved_ts() -> None:
    lag = {"p50": 1000, "p99": 2000, "p999": 3000, "max": 3000}
    files = replace(SLOW, name="lag-1k-LowLatency-disk", resolved_every_s=1.0, file_lag_ms=lag, own_row_lag_ms=lag)
    topic = replace(SLOW, name="lag-1k-LowLatency-kafka", resolved_every_s=1.0, consumer_lag_ms={**lag, "p50": 900})
    commit = {"resolved_every_s": None, "own_row_lag_ms": None}
    slot = [replace(each, name=f"postgresql-{each.name}", **commit) for each in (files, topic)]
    said = page.page(report(files, topic, *slot, replace(files, name="lag-1k-Throughput-disk")), ".")
    rows = [line for line in said.splitlines() if line.startswith(("| LowLatency", "| Throughput"))]
    assert rows == [
        "| LowLatency | 1 s | 1,000 / 2,000 | 900 / 2,000 | 10 / 30 | 10 / 30 | 1,000 / 2,000 |  |",
        "| LowLatency, PostgreSQL | commit | 1,000 / 2,000 | 900 / 2,000 | 10 / 30 | 10 / 30 |  |  |",
    ], "of Throughput there is no topic"


def test_another_product_stands_beside_by_pairs_of_runs() -> None:
    def run(name: str, cpu_s: float) -> page.Run:
        cpu = {"cpu_s_per_mrow": cpu_s, "cpu_s_per_mrow_with_start": cpu_s + 1}
        sizes = {"rows": 10, "rows_per_s": 5000, "peak_memory_bytes": 2 << 20, "bytes_out": 700}
        return {"name": name, "commit": "abc", "settings": {"max.batch.size": "8", "java": "-Xmx1g"}, **cpu, **sizes}

    pairs = ((2.0, 20.0), (1.0, 40.0), (3.0, 20.0))
    runs = [run(name, cpu) for pair in pairs for name, cpu in zip(("changefeed", "debezium 3.6.1"), pair, strict=True)]
    said = page.page({**report(FAST), "debezium": runs}, ".").splitlines()
    assert "| changefeed, csv | 5,000 | 2.00 (1.00 to 3.00) | 3.00 (2.00 to 4.00) | 2 | 70 |" in said
    assert "| Debezium 3.6.1, JSON | 5,000 | 20.00 (20.00 to 40.00) | 21.00 (21.00 to 41.00) | 2 | 70 |" in said
    assert "The changefeed takes 0.100 times Debezium's CPU, by pair 0.025 to 0.150." in said
    assert any("`max.batch.size` 8, `-Xmx1g`; no Kafka" in line for line in said)


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
    made = page.page(page.read(ROOT / "bench" / "results"), "../bench/results")
    assert (ROOT / "docs" / "performance.md").read_text() == made, "make it anew: .venv/bin/python bench/page.py"


def test_lag_is_measured_by_both_resolved_ts_into_files_and_a_topic() -> None:
    chosen = {(case.mode, case.store, case.resolved_s) for case in CASES.values() if case.name.startswith("lag-1k")}
    for mode in ("Throughput", "LowLatency"):
        assert {(mode, store, resolved) for store in ("disk", "kafka") for resolved in (0.2, 1.0)} <= chosen


def test_the_suite_has_every_shape_by_both_protocols_and_a_lag_at_each_rate() -> None:
    suite = [case for case in CASES.values() if case.in_suite]
    fast = [case for case in suite if case.kind == "throughput"]
    changes = {(case.shape, case.tables, case.protocol) for case in fast if case.how != "copy"}
    assert len(changes) == 13  # parquet has one shape
    assert [case.protocol for case in fast if case.how == "copy"] == ["csv", "canal-json", "parquet", "iceberg"]
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
