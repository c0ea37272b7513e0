"""How fast a Spark job reads a changefeed by `format("changefeed")`, beside `changefeed run` on the same rows.

Rows of one table that stand in the upstream's history, met by a scan; each job reads N and then 2N, and the difference
is what the rows alone take. A stream runs with trigger availableNow and the source's default bounds, a batch between
two versions; both are written as Parquet by Spark. Prints a line each and writes bench/out/spark_source.json
(docs/design/layouts.md, Benchmark results).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from cases import Case
from measured import ROOT, Cluster, bench_cluster, memory_in_use, write_report
from meter import Cpu, Meter
from throughput import throughput

_NO_METRICS = 1  # a port at which nobody answers
_JOB = """
import json, sys, time
from pyspark.sql import SparkSession

options, kind = json.loads(sys.argv[1]), sys.argv[2]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(1000).write.format("noop").mode("append").save()
began = time.time()
if kind == "stream":
    rows = spark.readStream.format("changefeed").options(**options).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", "checkpoint").trigger(availableNow=True)
    query = writer.start("lake")
    query.awaitTermination()
    count = sum(each["numInputRows"] for each in query.recentProgress)
else:
    rows = spark.read.format("changefeed").options(**options).load()
    rows.write.parquet("lake")
    count = 0
print(json.dumps({"wall_s": time.time() - began, "rows": count}))
"""


@dataclass(frozen=True)
class _Once:
    rows: int
    wall_s: float
    cpu: Cpu
    peak_rss: int


def measure(kind: str, shape: str, rows: int) -> dict[str, Any]:
    half, whole = (_once(kind, shape, each) for each in (rows // 2, rows))
    millions = (whole.rows - half.rows) / 1e6
    return {
        "name": f"spark-source-{kind}-parquet",
        "kind": "spark-source",
        "rows": whole.rows,
        "wall_s": round(whole.wall_s, 3),
        "rows_per_s": round(whole.rows / whole.wall_s),
        "cpu_s_per_mrow": round(sum(whole.cpu) / whole.rows * 1e6, 2),
        "marginal": {"cpu_s_per_mrow": round((sum(whole.cpu) - sum(half.cpu)) / millions, 2)},
        "peak_rss_bytes": whole.peak_rss,
        "verified": None,
    }


def _once(kind: str, shape: str, rows: int) -> _Once:
    options = [f"--shape={shape}", "--how=scan", "--tables=1", "--regions=4", f"--rows={rows}"]
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-bench-") as name,
        bench_cluster(options) as upstream,
        memory_in_use(),
    ):
        end = upstream.next_line()
        return _job(Path(name), upstream, kind, end["ts"], end["rows"])


def _job(folder: Path, upstream: Cluster, kind: str, end_ts: str, rows: int) -> _Once:
    given = {
        "pdAddresses": f"http://{upstream.ready['pd']}",
        "tables": "sbtest.sbtest1",
        "startingVersion": str(int(upstream.ready["startTs"]) + 1),
        "eventStore": (folder / "events").as_uri(),
    }
    if kind == "batch":
        given["endingVersion"] = end_ts
    command = [sys.executable, "-c", _JOB, json.dumps(given), kind]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "spark-apps")}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    meter = Meter(psutil.Process(process.pid), _NO_METRICS)
    sampler = threading.Thread(target=meter.run)
    sampler.start()
    try:
        out, _ = process.communicate()
    finally:
        meter.done.set()
        sampler.join()
    if process.returncode:
        raise SystemExit(f"the Spark job ended with {process.returncode}:\n{(folder / 'log').read_text()[-4000:]}")
    said = json.loads(out.splitlines()[-1])
    if kind == "stream" and said["rows"] != rows:
        raise SystemExit(f"the stream has read {said['rows']} rows of {rows}")
    return _Once(rows, said["wall_s"], meter.total(), meter.peak_rss)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--shape", default="insert", help="of bench/upstream.py")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "spark_source.json")
    given = arguments.parse_args()
    beside = Case(
        name="changefeed-run-parquet",
        kind="throughput",
        shape=given.shape,
        how="scan",
        protocol="parquet",
        tables=1,
        rows=given.rows // 2,
    )
    runs = [throughput(beside, verify=False).to_json()]
    runs += [measure(kind, given.shape, given.rows) for kind in ("stream", "batch")]
    for run in runs:
        sys.stdout.write(
            f"{run['name']}: {run['rows_per_s']} rows/s, {run['cpu_s_per_mrow']} CPU-s a million rows "
            f"({run['marginal']['cpu_s_per_mrow']} by the rows alone)\n"
        )
    write_report(given.out, runs)


if __name__ == "__main__":
    main()
