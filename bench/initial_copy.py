"""How fast tables are copied that were there before (spec.initialCopy), and whether it holds when it is harmed.

Two sysbench tables, and one more that is written to all the time. `initial-copy`: both are copied at once, unharmed.
`initial-copy-killed`: one is, the driver is killed again and again while regions split, and the rules select the second
one half-way. Prints a line each and writes bench/out/initial_copy.json (docs/design/layouts.md, Benchmark results).
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measured import ROOT, Cluster, bench_cluster, changefeed_run, write_report

_DEADLINE_S = 3600.0
_RULES = ["sbtest.*"], ["sbtest.*", "!sbtest.sbtest2"]
_STORAGE = {"protocol": "csv", "csv": {"includeCommitTs": True}, "flushInterval": "2s"}


@contextmanager
def _upstream(given: argparse.Namespace) -> Iterator[tuple[Cluster, int]]:
    """And the ts at which all rows are there."""
    options = ["--shape", "insert", "--how", "copy", "--tables", "2", "--regions", str(given.regions)]
    rows = str(given.rows // 2)
    with bench_cluster([*options, "--rows", rows, "--busy", str(given.busy)]) as upstream:
        yield upstream, int(upstream.next_line()["ts"])


def unharmed(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with _upstream(given) as (upstream, ts):
        began = time.monotonic()
        with changefeed_run(upstream, folder, _STORAGE, startTs=str(ts), initialCopy=True) as run:
            run.until_published(ts >> 18, "all is copied", _DEADLINE_S)
            seconds = time.monotonic() - began
            run.meter.sample()
            cpu_s, rows = sum(run.meter.total()), run.meter.metric("changefeed_sink_rows_total")
            upstream.end_workload()
            run.drain()
        verified = run.verify()
    return {
        "name": "initial-copy",
        "wall_s": round(seconds, 1),
        "rows": round(rows),
        "rows_per_s": round(rows / seconds),
        "cpu_s_per_million_rows": round(1e6 * cpu_s / rows, 2),
        "peak_rss_bytes": run.meter.peak_rss,
        "verified": verified,
    }


def killed(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    dice, peak, kills, seen = random.Random(given.seed), 0, 0, 0
    with _upstream(given) as (upstream, ts):
        began, copied_s = time.monotonic(), 0.0
        for turn in range(given.kills + 1):
            spec: dict[str, Any] = {
                "startTs": str(ts),
                "initialCopy": True,
                "filter": {"rules": _RULES[turn <= given.kills // 2]},
            }
            with changefeed_run(upstream, folder, _STORAGE, **spec) as run:
                if turn < given.kills:
                    _split(upstream)
                    run.until(lambda run=run, seen=seen: len(run.data_files()) > seen, "files are written", _DEADLINE_S)
                    time.sleep(dice.uniform(0.0, given.pause))  # it dies at any moment
                    run.process.kill()
                    run.process.wait()
                    kills, seen = kills + 1, len(run.data_files())
                else:
                    upstream.end_workload()
                    run.until_published(int(time.time() * 1000), "all is copied, and what came meanwhile", _DEADLINE_S)
                    copied_s = time.monotonic() - began
                    run.drain()
                peak = max(peak, run.meter.peak_rss)
        verified = run.verify()
    return {
        "name": "initial-copy-killed",
        "wall_s": round(copied_s, 1),
        "rows": given.rows,
        "kills": kills,
        "peak_rss_bytes": peak,
        "verified": verified,
    }


def _split(upstream: Cluster) -> None:
    command = [str(Path(sys.executable).parent / "changefeed-devcluster"), "harm", "split", "--pd"]
    subprocess.run([*command, str(upstream.ready["pd"])], check=True, capture_output=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=20_000_000, help="of both tables together")
    arguments.add_argument("--regions", type=int, default=32, help="of each table, at the beginning")
    arguments.add_argument("--busy", type=float, default=1000.0, help="rows a second beside them")
    arguments.add_argument("--kills", type=int, default=10)
    arguments.add_argument("--pause", type=float, default=5.0, help="seconds at most, from a file to the kill")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "initial_copy.json")
    given = arguments.parse_args()
    runs = []
    for measure in (unharmed, killed):
        folder = Path(tempfile.mkdtemp(prefix="changefeed-copy-"))
        try:
            measured = measure(given, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.write(f"{measured}\n")
        runs.append(measured)
        write_report(given.out, runs)


if __name__ == "__main__":
    main()
