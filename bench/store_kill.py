"""How soon a changefeed goes on after one of the upstream's stores was killed, under load.

Again and again the store that leads most regions is killed, for a quarter of a minute. Nine seconds later its regions
have new leaders, which PD knows, as measured with TiKV (`changefeed-devcluster harm kill`). Counted from then on: until
the checkpoint has passed the moment of the kill. Of that, up to two seconds are the new leaders' own: a resolved-ts
comes every second, the first one with the second turn. Writes bench/results/store_kill.json. Fails when `verify` does
not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from measured import ROOT, Run, changefeed_run, cluster, write_report
from readers import FileReader
from steady import Watch

_DEVCLUSTER = Path(sys.executable).parent / "changefeed-devcluster"
_ELECTION_S, _AWAY_S, _DEADLINE_S = 9.0, 15.0, 60.0
_STORAGE = {"protocol": "csv", "csv": {"includeCommitTs": True}, "flushInterval": "1s"}


def kill(run: Run, pd: str) -> float:
    """Return how many seconds after the election the checkpoint passed the kill."""
    leaders = Counter(region["leader_store"] for region in _harm("regions", "--pd", pd)["regions"])
    ((store, _),) = leaders.most_common(1)
    _harm("kill", "--store", str(store), "--election", str(_ELECTION_S), "--seconds", str(_AWAY_S), "--pd", pd)
    elected = time.time() + _ELECTION_S  # the command ends as soon as the store is dead
    half_way_ms = (elected - _ELECTION_S / 2) * 1000  # no resolved-ts is between the kill and the election
    run.until_published(half_way_ms, f"the regions of store {store} are followed again", _DEADLINE_S)
    return time.time() - elected


def _harm(*options: str) -> dict[str, Any]:
    done = subprocess.run([_DEVCLUSTER, "harm", *options], check=True, capture_output=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    options = ("--workload", "sysbench", "--tables", "4", "--regions", "6", "--rows", "1000", "--rate", str(given.rate))
    with cluster(*options) as upstream:
        with changefeed_run(upstream, folder, _STORAGE, mode=given.mode) as run:
            watch = Watch(run, upstream, FileReader(run))
            watch.until_caught_up()
            watch.sample(10.0)
            after, chance = [], random.Random(1)
            for _ in range(given.kills):
                time.sleep(_AWAY_S + chance.random())  # the last one is back; not always at the same moment of a turn
                after.append(round(kill(run, upstream.ready["pd"]), 2))
            peak = run.meter.peak_rss
            run.drain()
        verified = run.verify()
    return {
        "name": f"store-kill-{given.mode}",
        "wall_s": round(sum(after), 2),
        "election_s": _ELECTION_S,
        "after_election_s": after,
        "peak_rss_bytes": peak,
        "verified": verified,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=6)
    arguments.add_argument("--rate", type=float, default=1000.0, help="rows a second")
    arguments.add_argument("--mode", choices=("Throughput", "LowLatency"), default="LowLatency")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "store_kill.json")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="changefeed-store-kill-") as name:
        found = measure(given, Path(name))
    sys.stdout.write(json.dumps(found) + "\n")
    write_report(given.out, [found])


if __name__ == "__main__":
    main()
