"""A bank in a PostgreSQL, while the processes of its changefeed are killed, the server is, and connections are cut.

Tables are altered, made and emptied all the while. Whatever happens, what is replayed of the files is what the tables
have, and at each ts no transaction is there in part. `CHANGEFEED_EVIDENCE=FILE`: 50 kills instead of 6, and what was
counted goes there; `CHANGEFEED_SEED=123` draws the same again.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from changefeed.upstream.postgresql.slot.anchors import EMIT
from conftest import Changefeed
from integration_killer import Killer
from integration_postgresql import Postgresql, running
from integration_postgresql_bank import (
    PUBLICATION,
    TABLES,
    Bank,
    Builder,
    changes,
    differences,
    replayed,
    tables,
)
from integration_story import Story

USER, PASSWORD = "keeper", "p@ss/word"
EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
#: What happens to whom, and how often, before the driver is killed.
KILLS = {
    "puller killed": 1,
    "worker killed": 1,
    "server killed": 1,
    "reader cut off": 1,
    "all cut off": 1,
}
LONG = {
    "group killed": 6,
    "driver killed": 5,
    "driver woken": 1,
    "puller killed": 7,
    "puller frozen": 2,
    "worker killed": 6,
    "server killed": 10,
    "reader cut off": 6,
    "all cut off": 6,
}
TRANSFERS_A_SECOND = 40.0
LONGEST_PAUSE_S = 1.0 if EVIDENCE else 0.3  # before the next event
LONGEST_BUILDING_PAUSE_S = 2.0 if EVIDENCE else 1.0
UNREAD_S = 1.0  # how long nobody reads at the end
_CUT_OFF = {
    "reader cut off": "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL",
    "all cut off": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename IS NOT NULL AND "
    "pid <> pg_backend_pid()",
}

pytestmark = pytest.mark.timeout(3600 if EVIDENCE else 600)


@pytest.fixture
def database() -> Iterator[Postgresql]:
    with running(USER, PASSWORD, of="newest") as server:
        server.query(*TABLES, PUBLICATION)
        yield server


@pytest.fixture
def changefeed(database: Postgresql, tmp_path: Path) -> Iterator[Changefeed]:
    secret = tmp_path / "secrets" / "reader"
    secret.mkdir(parents=True)
    for key, value in (("username", USER), ("password", PASSWORD)):
        (secret / key).write_text(value)
    reader = {"secretRef": {"name": "reader"}}
    where = {"host": "127.0.0.1", "port": database.port, "database": "postgres", "credentials": reader}
    storage = {"uri": (tmp_path / "lake").as_uri(), "protocol": "csv", "csv": {"includeCommitTs": True}}
    spec: dict[str, Any] = {
        "upstream": {"postgresql": where},
        "filter": {"rules": ["bank.*"]},
        "state": {"uri": (tmp_path / "state").as_uri()},
        "spark": {"executor": {"instances": 1, "cores": 3}},
        "sink": {"storage": storage | {"flushInterval": "500ms"}},
    }
    made = Changefeed(tmp_path, spec, options=["--secrets-dir", str(tmp_path / "secrets")])
    yield made
    if made.process is not None and made.process.poll() is None:
        print(made.kill())  # noqa: T201 - shown when the test has failed


@dataclass
class Source:
    """As the killer knows it."""

    database: Postgresql

    def now(self) -> int:
        return int(self.database.query(EMIT)[0][0])

    def ports(self) -> set[int]:
        return {self.database.port}


@contextmanager
def under_load(bank: Bank, builder: Builder) -> Iterator[None]:
    """Transfers and changes of schema go on inside; what fails there fails here."""
    stop = Event()
    with ThreadPoolExecutor(2) as pool:
        try:
            writers = [
                pool.submit(bank.run, stop, TRANSFERS_A_SECOND),
                pool.submit(builder.run, stop, LONGEST_BUILDING_PAUSE_S),
            ]
            yield
        finally:
            stop.set()
        for writer in writers:
            writer.result()


def test_each_change_is_there_once_and_each_transaction_whole_whoever_is_killed(
    database: Postgresql, changefeed: Changefeed
) -> None:
    story = Story()
    rng = random.Random(story.seed)
    events = [event for event, times in (LONG if EVIDENCE else KILLS).items() for _ in range(times)]
    rng.shuffle(events)
    source, bank = Source(database), Bank(database, story.seed)
    builder = Builder(database, random.Random(rng.random()), story.say)
    killer = Killer(source, changefeed, 1, story.say)
    seconds: dict[str, list[float]] = {}
    killer.start()
    killer.wait_until_passed()
    bank.open()
    with under_load(bank, builder):
        for event in events:
            time.sleep(rng.uniform(0, LONGEST_PAUSE_S))  # a random moment is what is wanted
            story.say(event)
            seconds.setdefault(event, []).append(round(harm(event, killer, database), 2))
        changefeed.kill()  # the last one: the next run reads to the end
        time.sleep(UNREAD_S)
    changefeed.spec["targetTs"] = str(source.now())
    assert changefeed.run_here() == 0
    found = changes(changefeed.lake)
    here, there = replayed(found), tables(database)
    story.say(f"{bank.transfers} transfers, {dict(builder.done)}, {len(found)} changes, {len(there)} tables")
    assert differences(here, there) == []
    assert builder.done.keys() == {"_add", "_drop", "_make", "_empty"}, "something has happened"
    if EVIDENCE:
        said = {
            "seed": story.seed,
            "kills": {event: len(took) for event, took in seconds.items()} | {"driver killed at the end": 1},
            "recovery_s": {event: sorted(took) for event, took in seconds.items()},
            "transfers": bank.transfers,
            "schema_changes": dict(builder.done),
            "tables": len(there),
            "changes": len(found),
            "differences": 0,
        }
        Path(EVIDENCE).write_text(json.dumps(said, indent=1) + "\n")


def harm(event: str, killer: Killer, database: Postgresql) -> float:
    """Seconds until all that was committed before it was over is in the sink."""
    if event not in ("server killed", *_CUT_OFF):
        return killer.harm(event)
    began = time.monotonic()
    if event == "server killed":
        database.kill()
        database.start()
    else:
        database.query(_CUT_OFF[event])
    killer.wait_until_passed()
    return time.monotonic() - began
