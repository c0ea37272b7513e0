"""Twenty minutes without a schema registry, under load, with each delivery: what it is asked, what is said and what
ends.

One workload is told by two changefeeds of protocol avro to a real broker. The registry (Apicurio's newest) stands
behind a front that answers 503 for the time of the outage, in which a column is added: from there on each row needs a
schema that nobody has a number for. A run that gives up is started again, as the operator does. Writes
bench/results/registry_outage.json. Fails when a row is missing, when one is there twice in spite of exactly-once, when
a run ends with another code than 69, or when the registry is asked more than MOST times a minute.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.workload import RowRate
from measured import ROOT, write_report

sys.path.insert(0, str(ROOT / "tests" / "integration"))
sys.path.insert(0, str(ROOT / "tests" / "integration" / "support"))

from conftest import BIN, free_port
from integration_kafka_broker import Broker, messages_of, running
from integration_registry import RELEASES, Answer, Front, registry

MOST = 60  # requests a minute: each task, and the driver of a start, waits up to five seconds between two
DELIVERIES = ("exactly-once", "at-least-once")
_AWAY = Answer(503, b"upstream connect error", "text/plain")
_BATCH = 20
_GAVE_UP = 69
_LOOK_S = 1.0
_HEADER = 5  # of a message: a zero byte and the schema's number


class Feed:
    """One changefeed, started again whenever its run gives up; what its status said, and when."""

    def __init__(self, folder: Path, upstream: DevCluster, start_ts: int, broker: Broker, front: Front, delivery: str):
        self.topic = delivery
        self.front = front
        self.exits: list[tuple[float, int]] = []
        self.said: list[tuple[float, str]] = []
        self.outage_at = float("inf")  # monotonic; all that is kept is in seconds since then
        self._port = free_port()
        self._file = folder / f"{delivery}.json"
        sink = {"uri": f"kafka://127.0.0.1:{broker.port}/{self.topic}", "protocol": "avro", "delivery": delivery}
        resource = {
            "apiVersion": "changefeed.dev/v1alpha1",
            "kind": "Changefeed",
            "metadata": {"name": delivery},
            "spec": {
                "upstream": {"pdAddresses": [f"http://{upstream.pd_address}"]},
                "startTs": str(start_ts),
                "filter": {"rules": ["shop.*"]},
                "state": {"uri": (folder / delivery).as_uri()},
                "spark": {"pullers": {"count": 1}, "executor": {"instances": 1, "cores": 2}},
                "sink": {"kafka": sink | {"schemaRegistry": front.uri, "partitionNum": 2}},
            },
        }
        self._file.write_text(json.dumps(resource))
        self._ending = False
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def status(self) -> dict[str, Any]:
        """Return the status; nothing while no run answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/status", timeout=10.0) as answer:
                status: dict[str, Any] = json.loads(answer.read())
                return status
        except (URLError, OSError):
            return {}

    def until(self, ts: int, seconds: float) -> float:
        """Wait for its checkpoint; return how long that took. Ends the program if it takes longer than `seconds`."""
        began = time.monotonic()
        while int(self.status().get("checkpointTs") or 0) < ts:
            if time.monotonic() - began > seconds:
                raise SystemExit(f"{self.topic}: not at {ts} within {seconds:g} s: {self.said[-3:]}, {self.exits}")
            time.sleep(_LOOK_S)
        return time.monotonic() - began

    def drain(self) -> None:
        self._ending = True
        self._watcher.join()
        self._process.terminate()
        if code := self._process.wait():
            raise SystemExit(f"{self.topic}: a drained run ended with {code}")

    def kill(self) -> None:
        self._ending = True
        self._process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [BIN / "changefeed", "run", "-f", self._file, "--metrics-port", str(self._port), "--json"]
        return subprocess.Popen([*command, "--master", "local[4,8]"], stdout=subprocess.DEVNULL)

    def _watch(self) -> None:
        while not self._ending:
            since = round(time.monotonic() - self.outage_at, 1)
            if (code := self._process.poll()) is not None:
                self.exits.append((since, code))
                self._process = self._start()
            self._look(since)
            time.sleep(_LOOK_S)

    def _look(self, since: float) -> None:
        if not (status := self.status()) or since < 0:
            return
        error = status.get("lastError") or {}
        said = f"{status['state']}: {status['message']}" + (f" [{error['message']}]" if error else "")
        if not self.said or _wording(self.said[-1][1]) != _wording(said):
            self.said.append((since, said))


def _wording(said: str) -> str:
    return re.sub(r"[0-9]+", "", said)


class Shop:
    """One table, into which rows are written until it is closed; a column can be added meanwhile."""

    def __init__(self, tidb: Tidb, rate: float) -> None:
        self._tidb, self._rate = tidb, rate
        tidb.create_database("shop")
        self._table = tidb.create_table("shop", "orders", (NewColumn("id", "bigint"), NewColumn("name", "varchar(20)")))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self.rows = 0

    def begin(self) -> None:
        self._writer.start()

    def add_column(self) -> None:
        with self._lock:
            self._table = self._tidb.add_column(self._table, NewColumn("note", "varchar(20)", nullable=True))

    def end(self) -> int:
        """End it; nothing is written after the ts that it gives."""
        self._stop.set()
        self._writer.join()
        return self._tidb.now()

    def _write(self) -> None:
        pace = RowRate(self._rate, self._stop)
        while not self._stop.is_set():
            with self._lock, self._tidb.begin() as txn:
                for number in range(self.rows, self.rows + _BATCH):
                    txn.insert(self._table, {"id": number, "name": f"order {number}"})
            self.rows += _BATCH
            pace.keep(_BATCH)


def measure(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Both deliveries beside each other."""
    with ExitStack() as stack:
        (folder / "registry").mkdir()
        broker = stack.enter_context(running(folder / "kafka"))
        server = stack.enter_context(registry(folder / "registry", RELEASES[-1]))
        upstream = stack.enter_context(DevCluster())
        tidb = Tidb(upstream)
        tidb.bootstrap()
        shop, start_ts = Shop(tidb, given.rate), tidb.now()
        feeds = []
        for delivery in DELIVERIES:
            front = stack.enter_context(Front(server))
            feeds.append(Feed(folder, upstream, start_ts, broker, front, delivery))
            stack.callback(feeds[-1].kill)
        shop.begin()
        for feed in feeds:
            feed.until(tidb.now(), given.seconds + 300)
        asked = _outage(given.seconds, feeds, shop)
        end_ts = shop.end()
        with ThreadPoolExecutor(len(feeds)) as pool:
            healed = list(pool.map(lambda feed: feed.until(end_ts, given.seconds + 300), feeds))
        found = []
        for feed, took in zip(feeds, healed, strict=True):
            feed.drain()
            found.append(_report(given, feed, asked[feed.topic], took, _told(broker, feed.topic), shop.rows))
        return found


def _outage(seconds: float, feeds: list[Feed], shop: Shop) -> dict[str, list[int]]:
    """Requests in each minute of it, by topic."""
    began = time.monotonic()
    for feed in feeds:
        feed.outage_at = began
        feed.front.bad, feed.front.times = _AWAY, sys.maxsize
        feed.front.authorizations.clear()
    shop.add_column()
    asked: dict[str, list[int]] = {feed.topic: [] for feed in feeds}
    seen: Counter[str] = Counter()
    while (left := began + seconds - time.monotonic()) > 0:
        time.sleep(min(60.0, left))
        for feed in feeds:
            count = len(feed.front.authorizations)
            asked[feed.topic].append(count - seen[feed.topic])
            seen[feed.topic] = count
    for feed in feeds:
        feed.front.times = 0
    return asked


def _told(broker: Broker, topic: str) -> Counter[bytes]:
    """Say how often each row is there, by its key."""
    return Counter(message.key()[_HEADER:] for message in messages_of(broker.cluster, topic))


def _report(
    given: argparse.Namespace, feed: Feed, asked: list[int], healed: float, told: Counter[bytes], rows: int
) -> dict[str, Any]:
    missing = rows - len(told)
    twice = sum(told.values()) - len(told)
    return {
        "name": f"registry-outage-{feed.topic}",
        "wall_s": given.seconds,
        "rate": given.rate,
        "requests_a_minute": asked,
        "exits": feed.exits,
        "said": feed.said,
        "heal_s": round(healed, 1),
        "rows": rows,
        "missing": missing,
        "twice": twice,
        "verified": not missing and (not twice or feed.topic == "at-least-once"),
    }


def wrong(found: dict[str, Any]) -> list[str]:
    """A sentence for each thing that is not as for any other service."""
    name, said = found["name"], []
    if (most := max(found["requests_a_minute"])) > MOST:
        said.append(f"{name}: the registry was asked {most} times a minute")
    if codes := {code for _, code in found["exits"]} - {_GAVE_UP}:
        said.append(f"{name}: a run ended with {codes}")
    if not any("schema registry" in text for _, text in found["said"]):
        said.append(f"{name}: no status named the registry")
    return said


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=1200.0, help="of the outage")
    arguments.add_argument("--rate", type=float, default=200.0, help="rows a second")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "registry_outage.json")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="changefeed-registry-") as folder:
        runs = measure(given, Path(folder))
    sys.stdout.write(json.dumps(runs, indent=2) + "\n")
    write_report(given.out, runs)
    if said := [each for run in runs for each in wrong(run)]:
        raise SystemExit("; ".join(said))


if __name__ == "__main__":
    main()
