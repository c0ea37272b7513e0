"""`python bench/planner_scale.py`: what the planner costs by the number of dispatchers when ten of them change.

Prints, and writes to bench/results/planner_scale.json: CPU of a tick (rows of ten dispatchers, and a plan when one is
due), and what a dispatcher that nothing happens to holds. Idle dispatchers must cost nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from pathlib import Path

from changefeed.model.position import Position
from changefeed.owner.planning.planner import Planner
from changefeed.owner.pulling.segments import Segment
from measured import ROOT, write_report

DISPATCHERS = (10, 100, 1_000, 10_000, 100_000)
ACTIVE = 10
TICKS = 5_000
TICK_S = 0.05
FLUSH_S = 5.0
FILE_SIZE = 64 << 20
ROW_BYTES = 190
START_TS = 1 << 58


def rows(dispatcher: int, ts: int) -> Segment:
    at = Position.end_of(ts)
    return Segment(dispatcher, dispatcher, "", ROW_BYTES, 1, 1, ROW_BYTES, at, at, 0, 1, ())


def measure(dispatchers: int) -> dict[str, object]:
    tracemalloc.start()
    planner = Planner(FILE_SIZE, FLUSH_S)
    for dispatcher in range(dispatchers):
        planner.add(dispatcher, START_TS)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    plans = 0
    began = time.process_time()
    for tick in range(1, TICKS + 1):
        ts = START_TS + tick
        for dispatcher in range(ACTIVE):
            planner.on_rows(tick * TICK_S, rows(dispatcher, ts))
        plans += bool(planner.due(tick * TICK_S, lambda dispatcher, ts=ts: ts))  # type: ignore[misc]
    spent = time.process_time() - began
    return {
        "name": f"planner-{dispatchers}",
        "dispatchers": dispatchers,
        "active": ACTIVE,
        "ticks": TICKS,
        "plans": plans,
        "tick_us": round(spent / TICKS * 1e6, 1),
        "bytes_a_dispatcher": round(held / dispatchers),
        "verified": None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "planner_scale.json")
    runs = [measure(dispatchers) for dispatchers in DISPATCHERS]
    for run in runs:
        cost = f"{run['tick_us']} us a tick, {run['bytes_a_dispatcher']} bytes each"
        sys.stdout.write(f"{run['dispatchers']:>7} dispatchers: {cost}\n")
    write_report(parser.parse_args().out, runs)


if __name__ == "__main__":
    main()
