"""A bank told to a Kafka topic by whole runs, while their processes are killed and the broker is.

A consumer that reads only what is committed reads each change once, those of a row in their order, and no row behind a
resolved-ts that is not below it. `CHANGEFEED_EVIDENCE=FILE`: 50 kills instead of 4, and what was counted goes there;
`CHANGEFEED_SEED=123` draws the same again.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from changefeed_devcluster.workload.bank import Bank
from conftest import Changefeed, Upstream
from integration_kafka_broker import Broker, committed, running
from integration_killer import Killer
from integration_story import Story

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
TABLES, REGIONS, ACCOUNTS = 3, 2, 40
ROWS_A_SECOND = 400.0
PULLERS, PARTITIONS = 2, 4
KILLS = ("driver killed", "worker killed", "broker killed", "puller killed")
EVENTS = 50 if EVIDENCE else 4
TOPIC = "bank"

pytestmark = pytest.mark.timeout(3600 if EVIDENCE else 600)

Key = tuple[str, int]  # table, id


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    folder = tmp_path / "kafka"
    folder.mkdir()
    with running(folder) as server:
        yield server


@dataclass
class Read:
    """A topic as a consumer meets it, partition by partition."""

    changes: Counter[tuple[Key, int]] = field(default_factory=Counter)  # of a row, at a commit ts
    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    out_of_order: int = 0
    late: int = 0  # behind a resolved-ts that is not below them
    resolved: int = 0  # messages
    messages: int = 0

    def take(self, broker: Broker) -> None:
        for partition in range(PARTITIONS):
            resolved_ts = 0
            newest: dict[Key, int] = {}
            for message in committed(broker.cluster, TOPIC, partition, within_s=20):
                self.messages += 1
                said = json.loads(message.value())
                if said["type"] == "TIDB_WATERMARK":
                    resolved_ts = max(resolved_ts, said["_tidb"]["watermarkTs"])
                    self.resolved += 1
                    continue
                (row,), ts = said["data"], said["_tidb"]["commitTs"]
                key = said["table"], int(row["id"])
                self.late += ts <= resolved_ts
                self.out_of_order += ts < newest.get(key, 0)
                newest[key] = max(newest.get(key, 0), ts)
                self.changes[key, ts] += 1
                if said["type"] == "DELETE":
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = row


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"] if not EVIDENCE else ["exactly-once"])
def test_each_change_is_told_whoever_is_killed(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], broker: Broker, delivery: str
) -> None:
    story = Story()
    rng = random.Random(story.seed)
    bank = Bank(upstream.tidb, TABLES, REGIONS, ACCOUNTS, seed=story.seed)
    bank.create()
    start_ts = upstream.tidb.now()
    changefeed = new_changefeed(["bank.*"])
    changefeed.spec["startTs"] = str(start_ts)
    changefeed.spec["spark"] = {"pullers": {"count": PULLERS}, "executor": {"instances": 1, "cores": PULLERS + 2}}
    changefeed.spec["sink"] = {
        "kafka": {
            "uri": f"kafka://127.0.0.1:{broker.port}/{TOPIC}",
            "protocol": "canal-json",
            "canalJson": {"enableTidbExtension": True},
            "delivery": delivery,
            "partitionNum": PARTITIONS,
            "dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}],
        }
    }
    bank.load(Event())
    killer = Killer(upstream, changefeed, PULLERS, story.say, downstream_port=broker.port)
    seconds: dict[str, list[float]] = {}
    stop = Event()
    writer = Thread(target=bank.run, args=(stop, ROWS_A_SECOND))
    writer.start()
    try:
        killer.start()
        killer.wait_until_passed()
        for number in range(EVENTS):
            time.sleep(rng.uniform(0, 1))  # a random moment is what is wanted
            event = KILLS[number % len(KILLS)]
            story.say(event)
            seconds.setdefault(event, []).append(round(harm(event, killer, broker), 2))
    finally:
        stop.set()
        writer.join()
    end_ts = upstream.tidb.now()
    killer.wait_until_passed()
    code, _, err = changefeed.drain()
    assert code == 0, err
    read = Read()
    read.take(broker)
    wanted = {
        ((table.info.name, change.pk), change.commit_ts)
        for table in bank.tables
        for change in upstream.tidb.history(table, start_ts, end_ts)
    }
    missing, surplus = wanted - read.changes.keys(), read.changes.keys() - wanted
    duplicates = sum(read.changes.values()) - len(read.changes)
    story.say(f"{len(wanted)} changes, {len(missing)} missing, {duplicates} twice, {read.messages} messages")
    assert (len(missing), len(surplus)) == (0, 0), (sorted(missing)[:3], sorted(surplus)[:3])
    assert read.late == 0, "a resolved-ts was early"
    assert read.resolved > 0
    balances = {key: int(row["balance"]) for key, row in read.rows.items()}
    if delivery == "exactly-once":
        assert (duplicates, read.out_of_order) == (0, 0)
    assert sum(balances.values()) == 0
    assert len(balances) == sum(len(upstream.tidb.snapshot(table, end_ts)) for table in bank.tables)
    if EVIDENCE:
        found = {
            "seed": story.seed,
            "kills": {event: len(took) for event, took in seconds.items()},
            "recovery_s": {event: sorted(took) for event, took in seconds.items()},
            "changes": len(wanted),
            "missing": len(missing),
            "duplicates": duplicates,
            "out_of_order": read.out_of_order,
            "resolved_early": read.late,
            "resolved_messages": read.resolved,
        }
        Path(EVIDENCE).write_text(json.dumps(found, indent=1) + "\n")


def harm(event: str, killer: Killer, broker: Broker) -> float:
    if event != "broker killed":
        return killer.harm(event)
    began = time.monotonic()
    broker.kill()
    broker.start()
    killer.wait_until_passed()
    return time.monotonic() - began
