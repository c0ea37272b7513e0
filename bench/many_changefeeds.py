"""What several changefeeds on one cluster pull, each for itself: rows, bytes, registrations and CPU.

Three times over the same history: one changefeed of all tables, three of a third each, three of all. Prints a table and
writes bench/results/many_changefeeds.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measured import ROOT, Run, bench_cluster, changefeed_run, disk, memory_in_use, write_report

_TABLES, _REGIONS = 3, 4
_DEADLINE_S = 300.0
_STORAGE = {"protocol": "csv", "csv": {"includeCommitTs": True}}
_ALL = [f"sbtest.sbtest{number + 1}" for number in range(_TABLES)]
_FILTERS = {"one of all tables": [_ALL], "three of a third": [[table] for table in _ALL], "three of all": [_ALL] * 3}
_PULLED = {
    "rows": ("changefeed_puller_events_total", "insert"),
    "bytes": ("changefeed_puller_bytes_total", ""),
    "registrations": ("changefeed_puller_region_registrations_total", ""),
    "puller_cpu_s": ("changefeed_puller_cpu_seconds_total", ""),
}


def measure(what: str, filters: Sequence[Sequence[str]], rows: int) -> dict[str, Any]:
    options = {"shape": "insert", "how": "scan", "tables": _TABLES, "regions": _REGIONS, "rows": rows // _TABLES}
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-many-") as name,
        bench_cluster([f"--{option}={value}" for option, value in options.items()]) as upstream,
        memory_in_use(),
    ):
        end_ms, before, began = int(upstream.next_line()["ts"]) >> 18, upstream.cpu_s(), time.monotonic()
        with ExitStack() as stack:
            runs = []
            for number, rules in enumerate(filters):
                folder = Path(name) / str(number)
                folder.mkdir()
                spec = {"name": f"bench{number}", "location": disk(folder), "filter": {"rules": rules}}
                runs.append(stack.enter_context(changefeed_run(upstream, folder, _STORAGE, **spec)))
            for run in runs:
                run.until_published(end_ms + 1, "all rows are in the sink", _DEADLINE_S)
                run.meter.sample()
            pulled = [_pulled(run) for run in runs]
            took = time.monotonic() - began
            for run in runs:
                run.drain()
        return {
            "name": what,
            "wall_s": round(took, 2),
            "verified": None,
            "pulled": pulled,
            "cpu_s": [round(sum(run.meter.total()), 2) for run in runs],
            "upstream_cpu_s": round(upstream.cpu_s() - before, 2),
        }


def _pulled(run: Run) -> dict[str, float]:
    return {what: round(run.meter.metric(*metric), 2) for what, metric in _PULLED.items()}


def line(found: dict[str, Any]) -> str:
    cells = [" + ".join(f"{each[what]:,.10g}" for each in found["pulled"]) for what in _PULLED]
    cpu_s = " + ".join(f"{each:g}" for each in found["cpu_s"])
    return f"| {found['name']} | {' | '.join(cells)} | {cpu_s} | {found['upstream_cpu_s']:g} |\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=600_000, help="of all tables")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "many_changefeeds.json")
    given = arguments.parse_args()
    found = [measure(what, filters, given.rows) for what, filters in _FILTERS.items()]
    sys.stdout.write(f"| changefeeds | {' | '.join(_PULLED)} | cpu_s | upstream_cpu_s |\n")
    sys.stdout.writelines(map(line, found))
    write_report(given.out, found)


if __name__ == "__main__":
    main()
