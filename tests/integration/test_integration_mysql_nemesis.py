"""A bank applied to a MariaDB by whole runs, while their processes are killed and connections end around a COMMIT.

At each syncpoint the downstream was as the upstream is at its ts: MariaDB keeps the past of these tables. So it is each
time that nothing more is written upstream, and the total is what it was. `CHANGEFEED_EVIDENCE=FILE`: 50 kills instead
of 3, and what was counted goes there; `CHANGEFEED_SEED=123` draws the same again.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.workload.bank import Bank
from conftest import Changefeed, Upstream
from integration_killer import Killer
from integration_mariadb import MariaDb, Proxy, running
from integration_story import Story

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
TABLES, REGIONS, ACCOUNTS = 3, 2, 40  # few accounts: most transactions meet another's rows
ROWS_A_SECOND = 400.0
PULLERS = 2
KILLS = ("driver killed", "worker killed", "puller killed")
EVENTS = 50 if EVIDENCE else 3
REST_EVERY = 5  # events
SYNCPOINT_EVERY = "2s"
CUT_EVERY = 150  # commits; half of the cuts are between the COMMIT and its answer

#: TiCDC's table, but to the microsecond: which rows were there when it was written.
_SYNCPOINTS = (
    "CREATE DATABASE tidb_cdc",
    "CREATE TABLE tidb_cdc.syncpoint_v1 (ticdc_cluster_id VARCHAR(255), changefeed VARCHAR(255), "
    "primary_ts VARCHAR(18), secondary_ts VARCHAR(18), created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), "
    "PRIMARY KEY (changefeed, primary_ts))",
)

pytestmark = pytest.mark.timeout(3600 if EVIDENCE else 600)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[MariaDb]:
    folder = tmp_path / "mariadb"
    folder.mkdir()
    with running(folder, "--system-versioning-alter-history=KEEP") as server:
        yield server


@contextmanager
def written(bank: Bank) -> Iterator[None]:
    stop = Event()
    writer = Thread(target=bank.run, args=(stop, ROWS_A_SECOND))
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def upstream_rows(upstream: Upstream, table: NamedTable, ts: int) -> dict[int, tuple[Any, ...]]:
    names = [column.name for column in table.info.columns]
    rows = upstream.tidb.snapshot(table, ts)
    return {row["id"]: tuple(row[name] for name in names) for row in rows.values()}


def downstream_rows(database: MariaDb, table: NamedTable, moment: str | None = None) -> dict[int, tuple[Any, ...]]:
    """`moment`: of the server's clock; None: now."""
    names = [column.name for column in table.info.columns]
    as_of = "" if moment is None else f" FOR SYSTEM_TIME AS OF TIMESTAMP'{moment}'"
    found = {}
    for values in database.query(f"SELECT {', '.join(names)} FROM {table.name}{as_of}"):
        row = [None if value is None else value.decode() for value in values]
        numbers = [
            int(value) if value is not None and name != "owner" else value
            for name, value in zip(names, row, strict=True)
        ]
        found[numbers[0]] = tuple(numbers)
    return found


def test_rule_25_the_downstream_equals_the_upstream_at_every_syncpoint(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], database: MariaDb
) -> None:
    story = Story()
    rng = random.Random(story.seed)
    bank = Bank(upstream.tidb, TABLES, REGIONS, ACCOUNTS, seed=story.seed)
    bank.create()
    columns = "id BIGINT PRIMARY KEY, owner VARCHAR(32), balance BIGINT NOT NULL"
    database.query(
        "CREATE DATABASE bank",
        *(f"CREATE TABLE {table.name} ({columns}) WITH SYSTEM VERSIONING" for table in bank.tables),
        *_SYNCPOINTS,
    )
    proxy = Proxy(database.port, lambda commit: commit % CUT_EVERY == 0)
    changefeed = new_changefeed(["bank.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    changefeed.spec["spark"] = {"pullers": {"count": PULLERS}, "executor": {"instances": 1, "cores": PULLERS + 2}}
    changefeed.spec["sink"] = {
        "mysql": {
            "uri": f"mysql://127.0.0.1:{proxy.port}",
            "maxTxnRow": 16,
            "enableSyncPoint": True,
            "syncPointInterval": SYNCPOINT_EVERY,
        }
    }
    bank.load(Event())
    killer = Killer(upstream, changefeed, PULLERS, story.say, downstream_port=proxy.port)
    seconds: dict[str, list[float]] = {}
    rests = rows = 0

    def compare(ts: int, moment: str | None = None) -> int:
        total = compared = 0
        for table in bank.tables:
            there, here = upstream_rows(upstream, table, ts), downstream_rows(database, table, moment)
            assert here == there, f"{table.name} differs at {ts}"
            total += sum(row[2] for row in here.values())
            compared += len(here)
        assert total == 0
        return compared

    try:
        killer.start()
        killer.wait_until_passed()
        for first in range(0, EVENTS, REST_EVERY):
            with written(bank):
                killer.wait_until_passed()
                for number in range(first, min(first + REST_EVERY, EVENTS)):
                    time.sleep(rng.uniform(0, 1))  # a random moment is what is wanted
                    event = KILLS[number % len(KILLS)]
                    story.say(event)
                    seconds.setdefault(event, []).append(round(killer.harm(event), 2))
                altered = rng.randrange(TABLES)
                story.say(f"another column of {bank.tables[altered].name}")
                column = NewColumn(f"added_{rests}", "bigint", nullable=True)
                bank.tables[altered] = upstream.tidb.add_column(bank.tables[altered], column)
            killer.wait_until_passed()
            rows += compare(upstream.tidb.now())
            rests += 1
        code, _, err = changefeed.drain()
        assert code == 0, err
        compare(upstream.tidb.now())
        told = database.query("SELECT primary_ts, created_at FROM tidb_cdc.syncpoint_v1")
        rows += sum(compare(int(ts), created.decode()) for ts, created in told)
    finally:
        proxy.close()
    assert proxy.lost > 0, "no connection was cut"
    assert len(told) > EVENTS, "syncpoints are missing"
    story.say(f"{len(told)} syncpoints, {rests} rests, {rows} rows compared, {proxy.commits} commits, {proxy.lost} cut")
    if EVIDENCE:
        Path(EVIDENCE).write_text(
            json.dumps(
                {
                    "seed": story.seed,
                    "kills": {event: len(took) for event, took in seconds.items()},
                    "recovery_s": {event: sorted(took) for event, took in seconds.items()},
                    "syncpoints": len(told),
                    "rests": rests,
                    "rows_compared": rows,
                    "commits": proxy.commits,
                    "connections_cut": proxy.lost,
                },
                indent=1,
            )
            + "\n"
        )
