"""Readers of Kafka topics under many DDLs and SIGKILLs: do they have the upstream's rows in the end, value by value?

The long form of tests/integration/test_integration_kafka_followed.py, for each protocol and delivery: Flink's formats
debezium-json and canal-json, and Kafka Connect with a JDBC sink into MariaDB, which is killed as well. Adds a line for
each run to bench/results/kafka_consumers.jsonl. `CHANGEFEED_SEED=123` draws the same again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.tidb import Tidb
from measured import ROOT

sys.path.insert(0, str(ROOT / "tests" / "integration"))
sys.path.insert(0, str(ROOT / "tests" / "integration" / "support"))

from conftest import Changefeed, Upstream
from integration_kafka_followed import Protocol, followed

DEATHS = ("driver killed", "worker killed", "driver killed", "connect killed", "jvm killed", "puller killed")
RUNS: tuple[tuple[Protocol, str], ...] = (
    ("debezium", "exactly-once"),
    ("debezium", "at-least-once"),
    ("canal-json", "exactly-once"),
    ("canal-json", "at-least-once"),
)


def measure(given: argparse.Namespace, protocol: Protocol, delivery: str, folder: Path) -> dict[str, Any]:
    deaths = [death for death in DEATHS if protocol == "debezium" or death != "connect killed"]
    with DevCluster(min_ts_interval=0.2) as cluster:
        tidb = Tidb(cluster)
        tidb.bootstrap()
        spec = {
            "upstream": {"pdAddresses": [f"http://{cluster.pd_address}"]},
            "filter": {"rules": ["shop.*"]},
            "state": {"uri": (folder / "state").as_uri()},
        }
        changefeed = Changefeed(folder, spec)
        kills = list(islice(cycle(deaths), given.kills))
        try:
            return followed(
                folder / "readers",
                Upstream(cluster, tidb),
                changefeed,
                protocol,
                delivery,
                given.ddls,
                kills,
                given.rate,
            )
        finally:
            if changefeed.process is not None and changefeed.process.poll() is None:
                changefeed.kill()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=24)
    arguments.add_argument("--ddls", type=int, default=25)
    arguments.add_argument("--rate", type=float, default=60.0, help="rows a second")
    arguments.add_argument("--protocol", choices=("debezium", "canal-json"), help="default: both")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "kafka_consumers.jsonl")
    given = arguments.parse_args()
    for protocol, delivery in [run for run in RUNS if given.protocol in (None, run[0])]:
        with tempfile.TemporaryDirectory(prefix="changefeed-consumers-") as folder:
            line = json.dumps(measure(given, protocol, delivery, Path(folder))) + "\n"
        with given.out.open("a") as file:
            file.write(line)
        sys.stdout.write(line)


if __name__ == "__main__":
    main()
