"""`python bench/watermark_scale.py`: large transactions over very many regions, by what stores ask and remember.

The advancers and store-level queries of a mechanism that is proposed, and that no TiKV has, in virtual time, 24 s of
it: 100,000 regions on 50 stores, 500 large transactions that are open all the time, each with rows in a thousand of the
regions. Counted are the requests that a store gets a second, beside those that it would get if each region asked for
itself (the proposal's own estimate: 100,000 a second for one transaction, at most N with N stores); what
the advancers hold, beside TiKV's mechanism's key by key; and how far watermarks are behind, by how often transactions
tell of themselves. Prints it and writes bench/results/watermark_scale.json.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from changefeed.model.tso import compose, physical_ms
from changefeed_devcluster.watermark.advancer import WatermarkAdvancer
from changefeed_devcluster.watermark.gate import VersionGate
from changefeed_devcluster.watermark.statuses import Statuses
from measured import ROOT, write_report

REGIONS, STORES, LARGE, REGIONS_OF_EACH = 100_000, 50, 500, 1_000
ROWS_OF_EACH = 5_000_000  # sysbench's, 1 GB
SECONDS, BEGAN_MS = 24, 1_600_000_000_000
KEYS_WEIGHED = 100_000
HEARTBEATS_S = (10, 1)  # TiDB's, and one that keeps up with a round


@dataclass
class Primaries:
    """What stores say of transactions: each is open, and has promised to commit late. Stands in for their keys."""

    promised: dict[int, int] = field(default_factory=dict)

    def check_txn_status(self, primary: bytes, start_ts: int, current_ts: int) -> Any:
        return SimpleNamespace(lock=SimpleNamespace(min_commit_ts=self.promised[start_ts]), commit_ts=0)


def _at(second: float) -> int:
    return compose(BEGAN_MS + int(second * 1000))


def _start_ts(number: int) -> int:
    return _at(0) + number


def _primary(number: int) -> bytes:
    return number.to_bytes(8, "big")


def measure(heartbeat_s: int) -> dict[str, Any]:
    dice, primaries, now = random.Random(1), Primaries(), 0.0
    gate = VersionGate(range(1, STORES + 1), proposed=STORES)
    leader = {_primary(number): dice.randint(1, STORES) for number in range(LARGE)}
    # Of a store it asks nothing but what Primaries answers.
    statuses = Statuses(primaries, leader.__getitem__, gate, lambda: now)  # type: ignore[arg-type]
    regions, held = _locked(dice)
    beats = {_start_ts(number): dice.uniform(0, heartbeat_s) for number in range(LARGE)}
    by_store = {store: regions[store - 1 :: STORES] for store in range(1, STORES + 1)}
    by_region: Counter[int] = Counter()
    for advancer in regions:
        by_region.update(leader[large.primary] for large in advancer.large.values())
    lags, spent = list[float](), list[float]()
    for second in range(1, SECONDS + 1):
        now = float(second)
        for start_ts, first in beats.items():
            told = first + (second - first) // heartbeat_s * heartbeat_s if second >= first else 0.0
            primaries.promised[start_ts] = _at(told)
        began = time.process_time()
        statuses.ask(by_store)
        spent.append(time.process_time() - began)
        if second > heartbeat_s:
            waiting = (each.lowest for each in regions if each.large)
            lags += [second - (physical_ms(lowest) - BEGAN_MS) / 1000 for lowest in waiting]
    return {
        "name": f"watermark-heartbeat-{heartbeat_s}s",
        "regions": REGIONS,
        "stores": STORES,
        "large_transactions": LARGE,
        "requests_a_store_s": round(max(statuses.requests.values()) / SECONDS, 1),
        "requests_a_store_s_by_region": max(by_region.values()),
        "bytes_held": held,
        "bytes_held_by_key": round(_bytes_a_key() * ROWS_OF_EACH * LARGE),
        "lag_s": {"p50": round(statistics.median(lags), 2), "max": round(max(lags), 2)},
        "lag_s_by_key": SECONDS,  # since the oldest began
        "round_cpu_s": round(statistics.median(spent), 3),  # of all stores
        "verified": None,
    }


def _locked(dice: random.Random) -> tuple[list[WatermarkAdvancer], int]:
    """The regions' advancers, and the bytes by which their transactions made them larger."""
    regions = [WatermarkAdvancer(spares_large=True) for _ in range(REGIONS)]
    tracemalloc.start()
    for number in range(LARGE):
        start_ts, primary = _start_ts(number), _primary(number)
        for region in dice.sample(regions, REGIONS_OF_EACH):
            region.locked(start_ts, (), primary)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return regions, held


def _bytes_a_key() -> float:
    """Return what the old mechanism holds of one."""
    advancer = WatermarkAdvancer(spares_large=False)
    tracemalloc.start()
    advancer.locked(1, (b"t" + number.to_bytes(26, "big") for number in range(KEYS_WEIGHED)))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held / KEYS_WEIGHED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "watermark_scale.json")
    given = parser.parse_args()
    runs = [measure(heartbeat_s) for heartbeat_s in HEARTBEATS_S]
    for run in runs:
        lag = run["lag_s"]
        sys.stdout.write(
            f"{run['name']}: {run['requests_a_store_s']:g} requests a store and second (by region "
            f"{run['requests_a_store_s_by_region']:,}); {run['bytes_held'] / 1e6:,.0f} MB held (by key "
            f"{run['bytes_held_by_key'] / 1e9:,.0f} GB); watermarks are p50 {lag['p50']} s, at most {lag['max']} s "
            f"behind (by key {run['lag_s_by_key']} s)\n"
        )
    write_report(given.out, runs)


if __name__ == "__main__":
    main()
