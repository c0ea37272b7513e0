"""How far a changefeed is behind while a large transaction is open, as TiKV is and as it might be.

As it might be: design 2 of docs/design/README.md.

The transaction is in all eight regions of a table, beside updates of other tables, and says twice a second that it
lives. `today`: every store's watermark waits for it, as TiKV's do. `proposed`: none does, by a mechanism that no TiKV
has. `mixed`: two of the three stores get it when half of the time is over, and the gate keeps all of them waiting till
then. Prints a line each and writes bench/out/open_transaction.json (docs/design/layouts.md, Benchmark results).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measured import ROOT, bench_cluster, changefeed_run, write_report
from readers import FileReader
from steady import Watch, percentiles

_WORKLOAD = ("--shape=update", "--how=written", "--tables=4", "--regions=4", "--rows=10000")
_STORES = {
    "today": (),
    "proposed": ("--proposed-watermark=3",),
    "mixed": ("--proposed-watermark=1", "--upgrade"),
}
_STORAGE = {"protocol": "csv", "csv": {"includeCommitTs": True}, "flushInterval": "500ms"}
_BEGINS_S = 1.5  # what came before it, or before the upgrade, is in the files
_CATCH_UP_S = 300.0


def measure(stores: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    options = [*_WORKLOAD, f"--rate={given.rate}", f"--large={given.seconds}", *_STORES[stores]]
    with bench_cluster(options) as upstream:
        with changefeed_run(upstream, folder, _STORAGE, mode="LowLatency") as run:
            halves = [Watch(run, upstream, FileReader(run)) for _ in range(2)]
            halves[0].until_caught_up()
            upstream.begin_workload()
            start_ts = int(upstream.next_line()["large"])
            began, blocking = time.monotonic(), []
            for half in halves:
                _sample(half, given.seconds / 2)
                blocking.append(max(run.meter.metric("changefeed_puller_blocking_seconds", puller) for puller in "01"))
            large = upstream.next_line()
            rows = upstream.end_workload()["rows"]
            rows_per_s = rows / (time.monotonic() - began)
            run.until_published(int(large["commitTs"]) >> 18, "it is in the files", _CATCH_UP_S)
            run.drain()
        verified = run.verify()
    return {
        "name": f"open-transaction-{stores}",
        "wall_s": given.seconds,
        "rows": large["rows"],
        "open_ms": (int(large["commitTs"]) >> 18) - (start_ts >> 18),
        "other_rows_per_s": round(rows_per_s),
        "lag_ms": [percentiles(half.checkpoint_ms) for half in halves],
        "blocking_s": [round(seconds, 1) for seconds in blocking],
        "requests_per_s": round(large["requests"] / given.seconds, 2),
        "peak_rss_bytes": run.meter.peak_rss,
        "verified": verified,
    }


def _sample(watch: Watch, seconds: float) -> None:
    """The middle of this time: what lies at its ends belongs to what was before and comes after."""
    margin_s = min(_BEGINS_S, seconds / 4)
    time.sleep(margin_s)
    watch.sample(seconds - 2 * margin_s)


def line(run: dict[str, Any]) -> str:
    halves = zip(run["lag_ms"], run["blocking_s"], strict=True)
    behind = "".join(
        f"  half {number}: checkpoint lag p50 {lag['p50']:,} ms, max {lag['max']:,} ms; it holds regions for {held} s\n"
        for number, (lag, held) in enumerate(halves, 1)
    )
    return (
        f"{run['name']}: open for {run['open_ms'] / 1000:.1f} s beside {run['other_rows_per_s']:,} rows/s, "
        f"{run['requests_per_s']} requests between stores a second, verified: {run['verified']}\n{behind}"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--stores", choices=tuple(_STORES), action="append", help="default: all")
    arguments.add_argument("--seconds", type=float, default=60.0, help="how long it is open")
    arguments.add_argument("--rate", type=float, default=2000.0, help="rows a second in other tables")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "open_transaction.json")
    given = arguments.parse_args()
    runs = []
    for stores in given.stores or _STORES:
        with tempfile.TemporaryDirectory(prefix="changefeed-open-transaction-") as folder:
            runs.append(measure(stores, given, Path(folder)))
        sys.stdout.write(line(runs[-1]))
    write_report(given.out, runs)


if __name__ == "__main__":
    main()
