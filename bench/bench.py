"""`make bench`: sysbench rows from a development cluster in its own process, through `changefeed run`, to files.

Prints the figures with a table of stages, and writes bench/out/bench.json (INTERFACES.md, bench.json).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured import ROOT, Run, changefeed_run, cluster, memory_in_use, write_report


@dataclass(frozen=True)
class Case:
    """`shape`: how the upstream has the rows: in the past (scan), there in one transaction, or while it is watched."""

    protocol: str
    shape: str

    @property
    def name(self) -> str:
        return f"sysbench-insert-{self.protocol}" + ("" if self.shape == "scan" else f"-{self.shape}")

    @property
    def storage(self) -> dict[str, Any]:
        if self.protocol == "csv":
            return {"protocol": "csv", "csv": {"includeCommitTs": True}}
        return {"protocol": self.protocol, "canalJson": {"enableTidbExtension": True}}


_TOUCHED_BYTES = 1_000  # a row: about what its segment, its file and the processes' memory come to
CASES = (Case("csv", "scan"), Case("canal-json", "scan"), Case("csv", "live"), Case("csv", "one"))


def bench(case: Case, rows: int, tables: int, regions: int, folder: Path, verify: bool) -> dict[str, Any]:
    """One run; the measured interval begins with the run's first segment and ends with its last commit record."""
    with cluster(
        *("--workload", "sysbench", "--tables", str(tables), "--regions", str(regions)),
        *("--rows", str(rows), "--rate", "0", "--frozen", case.shape),
    ) as upstream:
        target_ts = upstream.next_line()["ts"]
        with memory_in_use(rows * tables * _TOUCHED_BYTES):
            served = upstream.cpu_s()
            began = time.monotonic()
            with changefeed_run(upstream, folder, case.storage, targetTs=target_ts) as run:
                run.wait()
                total_s = time.monotonic() - began
        cluster_cpu_s = upstream.cpu_s() - served
        verified = run.verify() if verify else None
    return figures(case, run, rows * tables, total_s, cluster_cpu_s, verified)


def figures(
    case: Case, run: Run, rows: int, total_s: float, cluster_cpu_s: float, verified: bool | None
) -> dict[str, Any]:
    files = run.data_files()
    last_commit = max(path.stat().st_mtime for path in (run.folder / "state").rglob("log/*.json"))
    assert run.meter.first_segment is not None, "the run ended before a sample was taken: give it more rows"
    wall_s = last_commit - run.meter.first_segment
    written = sum(path.stat().st_size for path in files)
    stages = run.meter.stages()
    millions = rows / 1e6
    return {
        "name": case.name,
        "rows": rows,
        "bytes_out": written,
        "wall_s": round(wall_s, 3),
        "total_s": round(total_s, 3),
        "rows_per_s": round(rows / wall_s),
        "mb_per_s": round(written / wall_s / 1e6, 1),
        "cpu_s_per_mrow": round(sum(stages.values()) / millions, 2),
        "stages": {stage: round(seconds / millions, 3) for stage, seconds in stages.items()},
        "cluster_cpu_s_per_mrow": round(cluster_cpu_s / millions, 2),
        "files": len(files),
        "peak_rss_bytes": run.meter.peak_rss,
        "peak_anonymous_bytes": run.meter.peak_anonymous,
        "verified": verified,
    }


def table(run: dict[str, Any]) -> str:
    """What one run came to, and where the CPU went."""
    lines = [
        f"{run['name']}: {run['rows']:,} rows in {run['wall_s']:.1f} s = {run['rows_per_s']:,} rows/s, "
        f"{run['mb_per_s']} MB/s, {run['files']} files, verified: {run['verified']}",
        f"  {'stage':<14}CPU-s per million rows",
        *(f"  {stage:<14}{seconds:6.2f}" for stage, seconds in run["stages"].items()),
        f"  {'sum':<14}{run['cpu_s_per_mrow']:6.2f}   (dev cluster: {run['cluster_cpu_s_per_mrow']:.2f})",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=5_000_000, help="rows a table")
    arguments.add_argument("--tables", type=int, default=2)
    arguments.add_argument("--regions", type=int, default=4)
    arguments.add_argument("--case", action="append", choices=[case.name for case in CASES], help="default: all")
    arguments.add_argument("--no-verify", action="store_true")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "bench.json")
    given = arguments.parse_args()
    runs = []
    for case in (case for case in CASES if not given.case or case.name in given.case):
        folder = Path(tempfile.mkdtemp(prefix="changefeed-bench-"))
        try:
            runs.append(bench(case, given.rows, given.tables, given.regions, folder, not given.no_verify))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.write(table(runs[-1]))
    write_report(given.out, runs)


if __name__ == "__main__":
    main()
