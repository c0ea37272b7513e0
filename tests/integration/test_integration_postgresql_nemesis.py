"""A bank and a table of all types in a PostgreSQL, while the processes of its changefeed are killed, the server is, and
connections are cut.

Tables are altered, made and emptied all the while. Whatever happens, what is replayed of the files is what the tables
have, at each ts no transaction is there in part, and each row of each type is what the server said of it in the same
transaction. `CHANGEFEED_EVIDENCE=FILE`: 50 kills instead of 6 on each of the servers, with the promotion of a standby
where the server has that, and in the end its slot is lost; what was counted goes there. `CHANGEFEED_SEED=123` draws the
same again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from changefeed.owner.closing.undriven import hold
from changefeed.spec.parse import parse
from changefeed.upstream.postgresql.slot.anchors import EMIT
from conftest import Changefeed, wait_for
from integration_killer import PASSED_S, Killer
from integration_postgresql import Postgresql, running, standby_of
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
from integration_postgresql_kinds import KINDS, Files, KindsBuilder, KindsWriter, make_kinds, touch_all
from integration_story import Story

USER, PASSWORD = "keeper", "p@ss/word"
EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
#: By the name that `running` knows: 15 is the oldest on which all is tried, and has each type; 18 has the failover.
SERVERS = ("debian", "newest")
FAILS_OVER = "newest"
DRAWN = "drawn"
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
LONGEST_WRITING_PAUSE_S = 0.2
#: A transaction above this goes to the server's disk while it is decoded.
OPTIONS = ("-c", "logical_decoding_work_mem=64kB", "-c", "TimeZone=Asia/Kathmandu", "-c", "DateStyle=SQL, DMY")
UNREAD_S = 1.0  # how long nobody reads at the end
PROMOTION, STANDBY = "standby promoted", "standby_1"
COPIED = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_type = 'logical'"
LOSS_PAUSE_S = 2.0
_CUT_OFF = {
    "reader cut off": "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL",
    "all cut off": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename IS NOT NULL AND "
    "pid <> pg_backend_pid()",
}

pytestmark = pytest.mark.timeout(3600 if EVIDENCE else 600)


@contextmanager
def changefeed_of(database: Postgresql, tmp_path: Path) -> Iterator[Changefeed]:
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


@dataclass
class Load:
    """Who writes to the database, one thread each; what fails there fails where the load ends."""

    bank: Bank
    builder: Builder
    kinds: KindsWriter
    kinds_builder: KindsBuilder

    @contextmanager
    def going_on(self) -> Iterator[None]:
        stop = Event()
        with ThreadPoolExecutor(4) as pool:
            try:
                writers = [
                    pool.submit(self.bank.run, stop, TRANSFERS_A_SECOND),
                    pool.submit(self.builder.run, stop, LONGEST_BUILDING_PAUSE_S),
                    pool.submit(self.kinds.run, stop, LONGEST_WRITING_PAUSE_S),
                    pool.submit(self.kinds_builder.run, stop, LONGEST_BUILDING_PAUSE_S),
                ]
                yield
            finally:
                stop.set()
            for writer in writers:
                writer.result()


@pytest.mark.parametrize("of", SERVERS if EVIDENCE else (DRAWN,))
def test_each_change_is_there_once_and_each_transaction_whole_whoever_is_killed(of: str, tmp_path: Path) -> None:
    story = Story()
    rng = random.Random(story.seed)
    if of == DRAWN:
        of = rng.choice(SERVERS)
    with running(USER, PASSWORD, options=OPTIONS, of=of) as database, ExitStack() as standbys:
        database.query(*TABLES)
        story.say(f"{database.query('SHOW server_version')[0][0]} lacks {make_kinds(database)}")
        database.query(PUBLICATION)
        with changefeed_of(database, tmp_path) as changefeed:
            torment(database, changefeed, standbys, story, rng, can_fail_over=of == FAILS_OVER)


def record(said: dict[str, Any]) -> None:
    """By the server's major version, beside what is there of others."""
    path = Path(EVIDENCE or os.devnull)
    stored = json.loads(path.read_text()) if EVIDENCE and path.exists() else {}
    others = {version: each for version, each in stored.items() if isinstance(each, dict) and "version" in each}
    path.write_text(json.dumps(others | {said["version"].split(".")[0]: said}, indent=1) + "\n")


def torment(
    database: Postgresql,
    changefeed: Changefeed,
    standbys: ExitStack,
    story: Story,
    rng: random.Random,
    *,
    can_fail_over: bool,
) -> None:
    events = [event for event, times in (LONG if EVIDENCE else KILLS).items() for _ in range(times)]
    rng.shuffle(events)
    if EVIDENCE and can_fail_over:
        events.insert(rng.randrange(len(events) // 4, len(events)), PROMOTION)
    source, bank = Source(database), Bank(database, story.seed)
    load = Load(
        bank,
        Builder(database, random.Random(rng.random()), story.say),
        KindsWriter(database, random.Random(rng.random()), story.say),
        KindsBuilder(database, random.Random(rng.random()), story.say),
    )
    killer = Killer(source, changefeed, 1, story.say)
    seconds: dict[str, list[float]] = {}
    killer.start()
    killer.wait_until_passed()
    bank.open()
    with load.going_on():
        for event in events:
            time.sleep(rng.uniform(0, LONGEST_PAUSE_S))  # a random moment is what is wanted
            story.say(event)
            if event == PROMOTION:
                killer = promoted(standbys, database, changefeed, source, story)
                continue
            seconds.setdefault(event, []).append(round(harm(event, killer, database), 2))
        changefeed.kill()  # the last one: the next run reads to the end
        time.sleep(UNREAD_S)
    touch_all(database)
    changefeed.spec["targetTs"] = str(source.now())
    assert changefeed.run_here() == 0
    found = changes(changefeed.lake)
    here, there = replayed(found), tables(database, without=(KINDS,))
    files = Files(changefeed.lake, found)
    done = {name: dict(each.done) for name, each in (("bank", load.builder), ("types", load.kinds_builder))}
    story.say(f"{bank.transfers} transfers, {load.kinds.done}, {done}, {len(found)} changes, {len(there)} tables")
    assert differences(here, there) == []
    assert list(files.faults()) == []
    assert files.against(database) == []
    assert load.builder.done.keys() == {"_add", "_drop", "_make", "_empty"}, "something has happened"
    assert load.kinds.done["commits"] > 0
    said = {
        "version": database.query("SHOW server_version")[0][0],
        "seed": story.seed,
        "kills": {event: len(took) for event, took in seconds.items()} | {"driver killed at the end": 1},
        "standbys_promoted": events.count(PROMOTION),
        "recovery_s": {event: sorted(took) for event, took in seconds.items()},
        "transfers": bank.transfers,
        "commits_of_all_types": load.kinds.done["commits"],
        "rows_of_all_types": len(files.of_table),
        "cells_compared": files.compared,
        "schema_changes": done,
        "tables": len(there),
        "changes": len(found),
        "differences": 0,
    }
    record(said)
    if EVIDENCE:
        record(said | {"slot_lost": lost(database, changefeed, killer, load, story)})


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


def promoted(standbys: ExitStack, database: Postgresql, changefeed: Changefeed, source: Source, story: Story) -> Killer:
    """The server dies under load, with the changefeed, and a standby that has a copy of its slot takes over."""
    standby = standbys.enter_context(standby_of(database, STANDBY))
    standbys.callback(database.stop)
    database.query(f"ALTER SYSTEM SET synchronized_standby_slots = '{STANDBY}'", "SELECT pg_reload_conf()")

    def is_copied() -> bool:  # until what the slot needs is not older than the standby
        asyncio.run(hold(parse(changefeed.file.read_text()), changefeed.folder / "secrets"))
        database.query("SELECT pg_log_standby_snapshot()")
        return bool(standby.query(COPIED) == [[True]])

    wait_for(is_copied, "the standby has a copy of the slot that it would keep", PASSED_S)
    database.kill()
    changefeed.kill()
    standby.query("SELECT pg_promote()")
    database.become(standby)
    changefeed.spec["upstream"]["postgresql"]["port"] = database.port
    killer = Killer(source, changefeed, 1, story.say)
    killer.start()
    killer.wait_until_passed()
    return killer


def lost(database: Postgresql, changefeed: Changefeed, killer: Killer, load: Load, story: Story) -> dict[str, Any]:
    """Under load the server removes WAL that the slot needs: the changefeed says so, and has no gap up to there."""
    del changefeed.spec["targetTs"]
    killer.start()
    killer.wait_until_passed()
    with load.going_on():
        time.sleep(LOSS_PAUSE_S)  # a random moment is what is wanted
        database.query("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        began = time.monotonic()
        while database.query("SELECT wal_status FROM pg_replication_slots WHERE slot_type = 'logical'") != [["lost"]]:
            database.query("CREATE TABLE public.filler ()", "DROP TABLE public.filler", "SELECT pg_switch_wal()")
            database.query("CHECKPOINT")
        code, out, error = changefeed.finish(PASSED_S)
    seconds = round(time.monotonic() - began, 2)
    story.say(f"the slot is lost: {code} after {seconds} s, {out[-600:]}")
    assert '"SnapshotLostByGC"' in out, (out[-2000:], error[-2000:])
    assert "its WAL is removed" in out
    found = [change for change in changes(changefeed.lake) if change.ts <= changefeed.checkpoint()]
    replayed(found)
    files = Files(changefeed.lake, found)
    assert list(files.faults()) == []
    assert files.gaps(database) == []
    return {"exit_code": code, "until_it_ended_s": seconds, "gaps": 0}
