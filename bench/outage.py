"""Five minutes without a store, under load: what piles up, what is said, how soon it is made good, whether it is right.

State and sink stand on a versitygw server behind the tests' proxy. Two runs: the sink is away, so that the event store
fills; then the whole server, so that the pullers' memory does. Writes bench/results/outage.json. Fails when a quota is
passed, when the run ends, when nothing says what is wrong, or when `verify` does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measured import ROOT, Location, Run, changefeed_run, cluster, write_report

sys.path.insert(0, str(ROOT / "tests" / "integration" / "support"))

from integration_s3_proxy import AWAY, FaultyProxy, before
from integration_s3_servers import BUCKET, KEY, KEY_ID, running

_DEADLINE_S = 600.0
_EVENT_QUOTA = _MEMORY_QUOTA = 64 << 20
_PULLERS = 2
_USED = "changefeed_event_store_used_bytes"
_INFLIGHT = "changefeed_puller_span_pipeline_inflight_bytes"
_HELD = ("changefeed_owner_held_spans_count", "changefeed_puller_held_subscriptions_count")


class Watch:
    """What was the most, of what matters."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.used = self.inflight = self.held = 0.0
        self.warned = False

    def look(self) -> None:
        metric = self._run.meter.metric
        self.used = max(self.used, metric(_USED))
        self.inflight = max(self.inflight, metric(_INFLIGHT))
        self.held = max(self.held, *map(metric, _HELD))
        self.warned = self.warned or metric("changefeed_owner_state_info", "Warning") == 1

    def until(self, condition: Callable[[], object], what: str, seconds: float = _DEADLINE_S) -> float:
        """Say how long it took."""
        began = time.monotonic()

        def looked() -> object:
            self.look()
            return condition()

        self._run.until(looked, what, seconds)
        return time.monotonic() - began


def measure(what: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run with one outage."""
    options = ("--workload", "sysbench", "--tables", "4", "--regions", "4", "--rows", "1000", "--rate", str(given.rate))
    with (
        running("versitygw", folder / "server" / "data") as server,
        before(server) as (proxy, seen),
        cluster(*options) as upstream,
    ):
        storage = {"protocol": "csv", "flushInterval": "1s", "csv": {"includeCommitTs": True}}
        spec: dict[str, Any] = {
            "eventStore": {"quota": str(_EVENT_QUOTA)},
            "spark": {"pullers": {"count": _PULLERS, "memoryQuota": str(_MEMORY_QUOTA)}},
        }
        location = Location(server.folder / BUCKET, seen.uri)
        with changefeed_run(upstream, folder, storage, location=location, **spec) as run:
            watch = Watch(run)
            found = _outage(what, given.seconds, proxy, watch, run)
            run.drain()
        found["verified"] = run.verify()
    return found


def _outage(what: str, seconds: float, proxy: FaultyProxy, watch: Watch, run: Run) -> dict[str, Any]:
    now_ms = time.time() * 1000
    watch.until(lambda: run.checkpoint_ms() >= now_ms, "it has caught up")
    run.meter.sample()
    rss_before, rows_before = run.meter.peak_rss, run.meter.metric("changefeed_puller_events_total", "insert")
    run.meter.peak_rss = 0
    below = "/lake/lake" if what == "sink" else ""
    proxy.strike = lambda _, path: AWAY if below in path else ""
    began = time.monotonic()
    watch.until(lambda: time.monotonic() - began >= seconds, "the outage is over", 2 * seconds + _DEADLINE_S)
    rows = run.meter.metric("changefeed_puller_events_total", "insert") - rows_before
    proxy.heal()
    now_ms = time.time() * 1000
    healed = watch.until(lambda: run.checkpoint_ms() >= now_ms, "it has healed")
    watch.until(lambda: run.meter.metric("changefeed_owner_state_info", "Normal") == 1, "it says so")
    return {
        "name": f"outage-{what}",
        "wall_s": seconds,
        "rows_pulled_meanwhile": round(rows),
        "heal_s": round(healed, 2),
        "event_store_quota_bytes": _EVENT_QUOTA,
        "peak_event_store_bytes": round(watch.used),
        "puller_memory_quota_bytes": _PULLERS * _MEMORY_QUOTA,
        "peak_puller_inflight_bytes": round(watch.inflight),
        "peak_held": round(watch.held),
        "said_warning": watch.warned,
        "rss_before_bytes": rss_before,
        "peak_rss_bytes": run.meter.peak_rss,
        "refused_requests": proxy.struck[AWAY],
    }


def wrong(found: dict[str, Any]) -> list[str]:
    """A sentence for each limit that was passed; the store's has the margin of docs/guarantees.md."""
    said = [] if found["said_warning"] else [f"{found['name']}: nothing said that something is wrong"]
    memory = found["puller_memory_quota_bytes"]
    limits = {
        "peak_event_store_bytes": found["event_store_quota_bytes"] + max(_EVENT_QUOTA // 16, _PULLERS * (4 << 20)),
        "peak_puller_inflight_bytes": memory,
    }
    for peak, limit in limits.items():
        if found[peak] > limit:
            said.append(f"{found['name']}: {peak} is {found[peak]:,}, its limit {limit:,}")
    return said


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=300.0, help="of the outage")
    arguments.add_argument("--rate", type=float, default=2000.0, help="rows a second")
    arguments.add_argument("--what", choices=("sink", "server"), action="append", help="default: one after the other")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "outage.json")
    given = arguments.parse_args()
    os.environ.update(AWS_ACCESS_KEY_ID=KEY_ID, AWS_SECRET_ACCESS_KEY=KEY)
    runs = []
    for what in given.what or ("sink", "server"):
        folder = Path(tempfile.mkdtemp(prefix="changefeed-outage-"))
        try:
            runs.append(measure(what, given, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.write(json.dumps(runs[-1], indent=2) + "\n")
    write_report(given.out, runs)
    if said := [each for run in runs for each in wrong(run)]:
        raise SystemExit("; ".join(said))


if __name__ == "__main__":
    main()
