"""The bench in short: it runs, what it ran is verified, its report has the promised shape. No figure means anything."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"
DEADLINE_S = 280.0

pytestmark = pytest.mark.timeout(300)


def run(
    program: str, out: Path, *options: str, deadline_s: float = DEADLINE_S, codes: Collection[int] = (0,)
) -> dict[str, Any]:
    """The only run in the report of a bench program, which ends with one of `codes`."""
    command = [sys.executable, str(BENCH / program), *options, "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        try:
            said, errors = bench.communicate(timeout=deadline_s)
        finally:
            bench.send_signal(signal.SIGINT)  # it ends what it has started; no error when it is over
    assert bench.returncode in codes, errors
    assert out.exists(), errors
    report: dict[str, Any] = json.loads(out.read_text())
    assert report["schema"] == 1
    assert report["machine"].keys() == {"cpu", "cores", "mem_bytes", "python", "java", "spark"}
    (found,) = report["runs"]
    assert found["name"] in said
    assert found["verified"] is True
    assert found["peak_rss_bytes"] > 0
    measured: dict[str, Any] = found
    return measured


@pytest.mark.parametrize("case", ["insert-csv-scan", "update-csv-live", "copy-iceberg"])
def test_a_throughput_case_is_verified_and_says_what_is_promised(case: str, tmp_path: Path) -> None:
    measured = run("bench.py", tmp_path / "bench.json", "--rows", "20000", "--case", case)
    assert (measured["name"], measured["kind"], measured["rows"]) == (case, "throughput", 40000)
    assert {"rows_per_s", "mb_per_s", "cpu_s_per_mrow", "bytes_out", "wall_s"} <= measured.keys()
    assert {"puller", "owner", "jvm", "encode", "put"} <= measured["stages"].keys()
    assert measured["marginal"].keys() == {"cpu_s_per_mrow", "user", "kernel", "stages"}
    assert 0 < measured["peak_memory_bytes"]["own"] < measured["peak_rss_bytes"]
    assert "cat" in measured["baselines"]


@pytest.mark.parametrize("case", ["postgresql-csv-live", "postgresql-copy-csv"])
def test_rows_of_postgresql_are_compared_and_their_cpu_is_ours_alone(case: str, tmp_path: Path) -> None:
    measured = run("bench.py", tmp_path / "bench.json", "--rows", "20000", "--case", case)
    assert (measured["kind"], measured["rows"]) == ("throughput", 40000)
    assert measured["cluster_cpu_s_per_mrow"] > 0
    assert measured["marginal"].keys() == {"cpu_s_per_mrow", "user", "kernel", "stages"}


@pytest.mark.parametrize("case", ["lag-1k-LowLatency-disk", "postgresql-lag-1k-LowLatency-disk"])
def test_a_lag_case_is_verified_and_says_what_is_promised(case: str, tmp_path: Path) -> None:
    options = ("--case", case, "--rows", "1600", "--seconds", "5")
    measured = run("bench.py", tmp_path / "bench.json", *options)
    for lag in (measured["lag_ms"], measured["file_lag_ms"], measured["resolved_lag_ms"]):
        assert lag.keys() == {"p50", "p99", "p999", "max"}
        assert 0 <= lag["p50"] <= lag["p99"] <= lag["p999"] <= lag["max"]
    assert measured["cpu_cores"] > measured["kernel_cpu_cores"] > 0
    assert {"files", "log_records", "plans", "segments"} == measured["made_per_s"].keys()


def test_what_was_away_catches_up(tmp_path: Path) -> None:
    measured = run("bench.py", tmp_path / "bench.json", "--case", "catch-up", "--rows", "1600", "--seconds", "1")
    assert measured["live_multiple"] > 0
    assert measured["rows"] > 0


def test_the_ddl_bench_is_verified_and_says_what_is_promised(tmp_path: Path) -> None:
    options = ("--tables", "3", "--rows", "100", "--rate", "300", "--seconds", "4", "--every", "2")
    measured = run("ddl_lag.py", tmp_path / "ddl_lag.json", *options, "--flush-interval", "500ms")
    assert (measured["name"], measured["ddls"]) == ("ddl-lag-3", 2)
    for lag in (measured["others_without_ms"], measured["others_with_ms"], measured["ddl_ms"]):
        assert 0 <= lag["p50"] <= lag["p99"] <= lag["max"]


def test_the_open_transaction_bench_is_verified_and_says_what_is_promised(tmp_path: Path) -> None:
    measured = run(
        "open_transaction.py", tmp_path / "open.json", "--stores", "proposed", "--seconds", "6", "--rate", "300"
    )
    assert measured["name"] == "open-transaction-proposed"
    assert measured["requests_per_s"] > 0
    assert measured["blocking_s"] == [0.0, 0.0]
    assert all(0 < lag["p50"] <= lag["max"] for lag in measured["lag_ms"])


def test_the_iceberg_bench_is_verified_and_says_what_is_promised(tmp_path: Path) -> None:
    options = ("--modes", "upsert", "--tables", "2", "--rows", "100", "--rate", "200", "--seconds", "5")
    measured = run("iceberg.py", tmp_path / "iceberg.json", *options)
    assert measured["commits_per_minute"] > 0
    assert 0 <= measured["snapshot_lag_ms"]["p50"] <= measured["snapshot_lag_ms"]["max"]


def test_the_soak_is_verified_and_stays_within_its_limits(tmp_path: Path) -> None:
    options = ("--seconds", "15", "--every", "1", "--rate", "500", "--tables", "2", "--regions", "2")
    measured = run("soak.py", tmp_path / "soak.json", *options)
    assert measured["wrong"] == []
    assert 0 < measured["peak_event_store_bytes"] <= measured["event_store_quota_bytes"]
    assert 0 < measured["peak_puller_rss_bytes"] < measured["peak_rss_bytes"]
    assert sum(measured["harms"].values()) > 0
    assert len(measured["samples"]) >= 2
    picture = (tmp_path / "soak.svg").read_text()
    assert re.findall(r'font-weight="bold">([^<]*)<', picture) == [
        "event store",
        "memory",
        "largest puller",
        "driver, the planner in it",
        "descriptors and threads",
        "files of the state, processes",
        "lag",
    ]
    assert picture.count("<polyline") == 13


@pytest.mark.alone
@pytest.mark.timeout(1600)
def test_a_thousand_quiet_tables_beside_ten_busy_ones_stay_within_their_limits(tmp_path: Path) -> None:
    """Three minutes of what `make evidence` does for thirty. How far it lags is for that to say, on a free machine."""
    options = ("--tables", "1010", "--hot", "10", "--regions", "1", "--rows", "10", "--rate", "250", "--flush", "15s")
    more = ("--unharmed", "--seconds", "180")
    measured = run("soak.py", tmp_path / "tables.json", *options, *more, deadline_s=1500.0, codes=(0, 1))
    assert [line for line in measured["wrong"] if "_lag_s grows" not in line] == []
    assert 0 < measured["peak_event_store_bytes"] <= measured["event_store_quota_bytes"]
