"""What a DDL on one of many tables costs: how far the files of the others are behind, with and without it.

A row's lag is from its commit to its file, by the one clock of this machine. First the workload runs alone, then one
table gets a column every few seconds. Prints a table and writes bench/out/ddl_lag.json (docs/design/layouts.md,
Benchmark results).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from measured import ROOT, Cluster, Run, changefeed_run, cluster, write_report
from readers import Arrivals, FileReader
from steady import Watch, percentiles

_DDL = Path(sys.executable).parent / "changefeed-devcluster"
_ALTERED = "sbtest1"


def add_columns(upstream: Cluster, run: Run, count: int, every_s: float) -> list[float]:
    """A column every so often; ms from each DDL to the schema file that tells of it."""
    delays = []
    meta = run.folder / "lake" / "sbtest" / _ALTERED / "meta"
    for number in range(count):
        began = time.monotonic()
        column = f"added_{number} int"
        command = [_DDL, "ddl", "add-column", f"sbtest.{_ALTERED}", column, "--pd", upstream.ready["pd"]]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        ts = json.loads(done.stdout)["ts"]
        run.until(lambda: list(meta.glob(f"schema_{ts}_*")), "the DDL is written", 120.0)  # noqa: B023
        (file,) = meta.glob(f"schema_{ts}_*")
        delays.append(file.stat().st_mtime * 1000 - (int(ts) >> 18))
        time.sleep(max(0.0, every_s - (time.monotonic() - began)))  # so often is what is wanted
    return delays


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    ddls = max(1, int(given.seconds / given.every))
    with cluster(
        *("--workload", "sysbench", "--tables", str(given.tables), "--regions", "1"),
        *("--rows", str(given.rows), "--rate", str(given.rate)),
    ) as upstream:
        storage = {"protocol": "csv", "csv": {"includeCommitTs": True}, "flushInterval": given.flush_interval}
        with changefeed_run(upstream, folder, storage) as run:
            watch = Watch(run, upstream, FileReader(run))
            watch.until_caught_up()
            begins = [time.time() * 1000]
            watch.sample(given.seconds)
            begins.append(time.time() * 1000)
            delays = add_columns(upstream, run, ddls, given.every)
            begins.append(time.time() * 1000)
            watch.until_caught_up()
            run.drain()
            alone, altered = (watch.reader.arrivals(*bounds) for bounds in pairwise(begins))
        verified = None if given.no_verify else run.verify()
    return {
        "name": f"ddl-lag-{given.tables}",
        "wall_s": 2 * given.seconds,
        "rate": given.rate,
        "ddls": ddls,
        "others_without_ms": _others(alone),
        "others_with_ms": _others(altered),
        "altered_without_ms": percentiles(alone[_ALTERED].lags) if _ALTERED in alone else None,
        "altered_with_ms": percentiles(altered[_ALTERED].lags) if _ALTERED in altered else None,
        "ddl_ms": percentiles(delays),
        "peak_rss_bytes": run.meter.peak_rss,
        "verified": verified,
    }


def _others(rows: dict[str, Arrivals]) -> dict[str, int]:
    return percentiles(np.concatenate([each.lags for table, each in rows.items() if table != _ALTERED]))


def table(run: dict[str, Any]) -> str:
    lines = [
        f"{run['name']}: {run['rate']:g} rows/s, {run['ddls']} DDLs, verified: {run['verified']}",
        f"  {'a file is behind, s':<34}{'p50':>8}{'p99':>8}{'max':>8}",
    ]
    for name, lag in (
        ("other tables, no DDL", run["others_without_ms"]),
        ("other tables, DDLs on one", run["others_with_ms"]),
        ("the altered table, no DDL", run["altered_without_ms"]),
        ("the altered table, DDLs", run["altered_with_ms"]),
        ("from a DDL to its schema file", run["ddl_ms"]),
    ):
        if lag is not None:
            lines.append(f"  {name:<34}" + "".join(f"{lag[which] / 1000:8.2f}" for which in ("p50", "p99", "max")))
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tables", type=int, default=1000)
    arguments.add_argument("--rows", type=int, default=10, help="rows a table before the workload")
    arguments.add_argument("--rate", type=float, default=100.0, help="rows a second over all tables")
    arguments.add_argument("--seconds", type=float, default=90.0, help="how long without DDLs, and with them")
    arguments.add_argument("--every", type=float, default=5.0, help="seconds from one DDL to the next")
    arguments.add_argument("--flush-interval", default="5s")
    arguments.add_argument("--no-verify", action="store_true")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "ddl_lag.json")
    given = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="changefeed-ddl-lag-"))
    try:
        run = measure(given, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(table(run))
    write_report(given.out, [run])


if __name__ == "__main__":
    main()
