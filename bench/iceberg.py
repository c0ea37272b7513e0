"""How many commits of Iceberg tables a minute, and how far readers of the tables are behind.

A changefeed of sysbench tables under a steady load, into a catalog in SQLite and a warehouse on this disk: once as
changelogs, once by primary key. Of the watched time: snapshots of all tables, and how far each is behind the checkpoint
that it tells, as it is dated. Prints a line each and writes bench/out/iceberg.json (docs/design/layouts.md,
Benchmark results).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measured import ROOT, Run, changefeed_run, cluster, write_report
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.snapshots import Snapshot
from steady import percentiles

_CATCH_UP_S = 300.0
_MODES = ("append", "upsert")


def measure(given: argparse.Namespace, mode: str, folder: Path) -> dict[str, Any]:
    catalog = f"sqlite:///{folder}/catalog.db"
    sink = {"warehouse": (folder / "warehouse").as_uri(), "catalog": {"uri": catalog}, "mode": mode}
    options = ("--workload", "sysbench", "--tables", str(given.tables), "--regions", "1")
    with cluster(*options, "--rows", str(given.rows), "--rate", str(given.rate)) as upstream:
        iceberg = {"iceberg": {**sink, "flushInterval": given.flush}}
        with changefeed_run(upstream, folder, {}, sink=iceberg) as run:
            metric = run.meter.metric
            normal = "changefeed_owner_state_info"
            run.until(
                lambda: metric("changefeed_sink_rows_total") and metric(normal, "Normal"), "rows come", _CATCH_UP_S
            )
            before, began = _used(run), time.time()
            time.sleep(given.seconds)  # how long it is watched
            after, ended = _used(run), time.time()
            upstream.end_workload()
            run.drain()
        verified = run.verify()
    commits, lags = _snapshots(catalog, began * 1000, ended * 1000)
    rows, cores = ((new - old) / (ended - began) for new, old in zip(after, before, strict=True))
    return {
        "name": f"iceberg-{mode}",
        "wall_s": given.seconds,
        "tables": given.tables,
        "rows_per_s": round(rows, 1),
        "commits_per_minute": round(60 * commits / (ended - began), 1),
        "snapshot_lag_ms": percentiles(lags),
        "cpu_cores": round(cores, 3),
        "peak_rss_bytes": run.meter.peak_rss,
        "verified": verified,
    }


def _used(run: Run) -> tuple[float, float]:
    """Rows that are committed so far, and CPU seconds."""
    run.meter.sample()
    return run.meter.metric("changefeed_sink_rows_total"), sum(run.meter.total())


def _snapshots(uri: str, after_ms: float, until_ms: float) -> tuple[int, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return those that were made in between: how many, and how far each was behind the checkpoint that it tells."""
    catalog = SqlCatalog("changefeed", uri=uri)
    lags = [
        snapshot.timestamp_ms - _checkpoint_ms(snapshot)
        for name in catalog.list_tables("sbtest")
        for snapshot in catalog.load_table(name).snapshots()
        if after_ms <= snapshot.timestamp_ms < until_ms
    ]
    catalog.close()
    return len(lags), np.array(lags, np.float64)


def _checkpoint_ms(snapshot: Snapshot) -> int:
    assert snapshot.summary is not None
    return int(snapshot.summary["changefeed.checkpoint-ts"] or "0") >> 18


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--modes", nargs="+", choices=_MODES, default=_MODES)
    arguments.add_argument("--tables", type=int, default=16)
    arguments.add_argument("--rows", type=int, default=1000, help="of each table, before the load")
    arguments.add_argument("--rate", type=float, default=1000.0, help="rows a second over all tables")
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--flush", default="1s", help="flushInterval")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "iceberg.json")
    given = arguments.parse_args()
    runs = []
    for mode in given.modes:
        folder = Path(tempfile.mkdtemp(prefix="changefeed-iceberg-"))
        try:
            measured = measure(given, mode, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        lag = measured["snapshot_lag_ms"]
        sys.stdout.write(
            f"{measured['name']}: {measured['commits_per_minute']:,.0f} commits a minute of {given.tables} tables, "
            f"{measured['rows_per_s']:,.0f} rows/s, {measured['cpu_cores']:.2f} cores; a snapshot is "
            f"{lag['p50']:,} ms (p99 {lag['p99']:,}) behind; verified: {measured['verified']}\n"
        )
        runs.append(measured)
        write_report(given.out, runs)


if __name__ == "__main__":
    main()
