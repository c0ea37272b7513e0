"""A storm of DDLs of all classes into MariaDB, which is the upstream at every syncpoint: definitions, names and rows.

No statement is used as it was typed: all lack their databases, whose names are in mixed case, and hold comments that
some servers execute; text columns have character sets whose collations are others to MariaDB if they are left out.
`CHANGEFEED_SEED=123` draws the same storm again. With `CHANGEFEED_EVIDENCE=FILE` there is a second one, of 300 DDLs
under 20 SIGKILLs; what came out is written there. `CHANGEFEED_TEST_SERVER=mysql-5.6` or `mariadb-11.4`: into another
server.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changefeed.spec.parse import parse
from changefeed.verify.mysql.report import verify
from changefeed_devcluster.ddl import indexes, partitions
from changefeed_devcluster.ddl.jobs import DdlJob
from changefeed_devcluster.tidb.partitions import TidbPartition, partition_holding
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn, TidbColumn
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.workload import ddl_storm, random_values, storm_tables
from changefeed_devcluster.workload.ddl_storm import DdlStorm
from changefeed_devcluster.workload.storm import NothingToAlter
from conftest import Changefeed, Upstream, wait_for
from integration_inprocess import new_world
from integration_killer import Killer
from integration_mariadb import MariaDb, running
from integration_story import Story
from integration_syncpoints import Syncpoints, watching_syncpoints

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
DATABASES = ("Storm", "Storm_Too")
RULES = ["storm*.*", "outside.*", "shop.*"]
#: MariaDB has no such thing, and rows of a table without a primary key can't be told apart.
LEFT_OUT = ("recover table", "add primary key", "drop primary key")
ZONES = [("UTC", 0), ("UTC", 28800), ("Asia/Shanghai", 0), ("Europe/Berlin", 0), ("", 0)]
#: What TiDB's collation of each is called is no server's default.
CHARSETS = ("utf8mb4", "latin1", "ascii")
ROWS_A_SECOND = 150.0
PULLERS = 1
DDLS, KILLS = 300, 20
DEATHS = ("driver killed", "worker killed", "driver killed", "jvm killed", "puller killed")

pytestmark = pytest.mark.timeout(3600 if EVIDENCE else 300)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[MariaDb]:
    with running(tmp_path) as started:
        started.query("CREATE DATABASE shop", "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(64))")
        yield started


@pytest.fixture
def new_storm(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tidb], DdlStorm]:
    """Makes storms of what MariaDB can follow."""
    seed = Story().seed
    monkeypatch.setattr(ddl_storm, "DATABASES", DATABASES)
    monkeypatch.setattr(ddl_storm, "_KEY_COLUMNS", ddl_storm._KEY_COLUMNS[:3])
    monkeypatch.setattr(ddl_storm, "KINDS", [kind for kind in ddl_storm.KINDS if kind.name not in LEFT_OUT])
    monkeypatch.setattr(random_values, "_ODD", "aZ ,'\"\\\n\t|")  # which every character set has
    new_table, to_json, column_to_json = storm_tables._new_table, DdlJob.to_json, TidbColumn.to_json
    monkeypatch.setattr(storm_tables, "_new_table", lambda storm: replace(new_table(storm), pk="id"))

    def typed(job: DdlJob) -> dict[str, Any]:
        made = to_json(job)
        query = re.sub(r"`(Storm|Storm_Too|outside)`\.", "", made["query"])
        return made | {"query": f"{query} /*! COMMENT 'executed' */ /*M! COMMENT 'executed' */"}

    def with_charset(column: TidbColumn, *more: Any) -> dict[str, Any]:
        made = column_to_json(column, *more)
        if column.type.is_text and not column.type.elems and column.name != "name":
            charset = CHARSETS[sum(column.name.encode()) % len(CHARSETS)]
            made["type"] |= {"Charset": charset, "Collate": f"{charset}_bin"}
        return made

    # As TiDB has it, unless an index is GLOBAL: a unique key has the columns that say which partition a row is in.
    add_index, alter_partitioning = indexes.add_index, partitions.alter_partitioning
    exchange_partition = partitions.exchange_partition

    def add_index_(tidb: Tidb, table: NamedTable, name: str, columns: Sequence[str], is_unique: bool) -> NamedTable:
        return add_index(tidb, table, name, columns, is_unique and not table.info.partitions)

    def alter_partitioning_(tidb: Tidb, table: NamedTable, into: Any) -> NamedTable:
        if any(index.is_unique for index in table.info.indexes):
            raise NothingToAlter
        return alter_partitioning(tidb, table, into)

    # MariaDB before 11.4 has no WITHOUT VALIDATION.
    def exchange_partition_(
        tidb: Tidb, table: NamedTable, name: str, other: NamedTable
    ) -> tuple[NamedTable, NamedTable]:
        if not all(is_in(table.info.partitions, name, key) for key in tidb.snapshot(other, tidb.now())):
            raise NothingToAlter
        return exchange_partition(tidb, table, name, other)

    monkeypatch.setattr(partitions, "exchange_partition", exchange_partition_)
    monkeypatch.setattr(indexes, "add_index", add_index_)
    monkeypatch.setattr(partitions, "alter_partitioning", alter_partitioning_)
    monkeypatch.setattr(DdlJob, "to_json", typed)
    monkeypatch.setattr(TidbColumn, "to_json", with_charset)
    return lambda tidb: DdlStorm(tidb, 12, seed=seed)


def is_in(partitions: Sequence[TidbPartition], name: str, key: int) -> bool:
    try:
        return partition_holding(partitions, key).name == name
    except ValueError:
        return False


@contextmanager
def blowing(storm: DdlStorm, ddls: int) -> Iterator[None]:
    """Each statement is of a session in another time zone."""
    rng, stop, failed = random.Random(storm.seed), threading.Event(), list[BaseException]()

    def blow() -> None:
        try:
            while not stop.is_set() and storm.done.total() < ddls:
                storm.tidb.session.time_zone, storm.tidb.session.utc_offset = rng.choice(ZONES)
                rows = storm.step()
                stop.wait((rows or 1) / ROWS_A_SECOND)
            storm.settle()
        except BaseException as error:
            failed.append(error)
            raise

    writer = threading.Thread(target=blow)
    writer.start()
    try:
        yield
        writer.join()
    finally:
        stop.set()
        writer.join()
    assert not failed, failed[0]


def sink(database: MariaDb, interval: str) -> dict[str, Any]:
    uri = f"mysql://127.0.0.1:{database.port}"
    return {"mysql": {"uri": uri, "workerCount": 4, "enableSyncPoint": True, "syncPointInterval": interval}}


def check_end(database: MariaDb, storm: DdlStorm, seen: Syncpoints, least: int) -> None:
    print(dict(storm.done), dict(storm.refused), f"{seen.looks} looks at {len(seen.compared)} syncpoints")  # noqa: T201
    assert seen.different == []
    told = {int(ts) for (ts,) in database.query("SELECT primary_ts FROM tidb_cdc.syncpoint_v1")}
    assert told <= seen.compared.keys()
    assert len(told) >= least
    assert database.query("SELECT * FROM changefeed.ddls WHERE is_done = 0") == []
    assert database.query("SELECT * FROM information_schema.columns WHERE column_comment = 'executed'") == []


async def test_a_storm_of_ddls_leaves_the_upstreams_tables_and_rows_at_every_syncpoint(
    new_storm: Callable[[Tidb], DdlStorm], database: MariaDb, tmp_path: Path
) -> None:
    ddls, kills = 45, 3
    with new_world(tmp_path / "world") as world:
        storm = new_storm(world.tidb)
        storm.create()
        storm.load(threading.Event())
        spec = {"filter": {"rules": RULES}, "sink": sink(database, "2s")}
        with watching_syncpoints(database, world.changefeed(**spec), RULES) as seen:
            with blowing(storm, ddls):
                for number in range(kills):
                    run = world.run(**spec)
                    due = (number + 1) * ddls // (kills + 1)
                    await run.until(lambda: run.driver is not None, "it has taken the changefeed over")  # noqa: B023
                    await run.until(lambda: storm.done.total() >= due or seen.different, f"{due} DDLs are run")  # noqa: B023
                    await run.killed()
            last = world.run(**spec, targetTs=str(world.tidb.now()))
            assert last.ended is not None
            outcome = await last.ended  # of most of the DDLs
        assert outcome.state == "finished"
        check_end(database, storm, seen, least=2)
        verdict = await verify(world.changefeed(**spec, targetTs=str(outcome.checkpoint_ts)))
        assert verdict.ok, verdict.first_problem


def storm_under_sigkills(
    upstream: Upstream,
    new_changefeed: Callable[..., Changefeed],
    new_storm: Callable[[Tidb], DdlStorm],
    database: MariaDb,
) -> None:
    """Kill whole runs: a minute of CPU each, so only for evidence."""
    began, killed = time.monotonic(), Counter[str]()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.2f} {line}")  # noqa: T201 - what a failing run shows

    storm = new_storm(upstream.tidb)
    upstream.tidb.create_database("shop")
    upstream.tidb.create_table(
        "shop", "orders", (NewColumn("id", "bigint"), NewColumn("name", "varchar(64)", nullable=True))
    )
    changefeed = new_changefeed(RULES)
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    changefeed.spec["spark"] = {"pullers": {"count": PULLERS}, "executor": {"instances": 1, "cores": PULLERS + 2}}
    changefeed.spec["sink"] = sink(database, "5s")
    changefeed.write()
    storm.create()
    storm.load(threading.Event())
    killer = Killer(upstream, changefeed, PULLERS, say, downstream_port=database.port)
    with watching_syncpoints(database, parse(changefeed.file.read_text()), RULES) as seen:
        killer.start()
        killer.wait_until_passed()
        with blowing(storm, DDLS):
            for number in range(KILLS):
                storm.limit = due = (number + 1) * DDLS // (KILLS + 1)
                wait_for(lambda: storm.done.total() >= due or seen.different, f"{due} DDLs are run", 600)  # noqa: B023
                assert seen.different == []
                event = DEATHS[number % len(DEATHS)]
                say(f"{event} after {storm.done.total()} DDLs, {len(seen.compared)} syncpoints")
                killer.harm(event)
                killed[event] += 1
            storm.limit = None
        killer.wait_until_passed()
        code, _, err = changefeed.drain()
    assert code == 0, err
    check_end(database, storm, seen, least=KILLS)
    record = {
        "seed": storm.seed,
        "ddls": dict(storm.done),
        "kills": dict(killed),
        "sessions": {"databases": [*DATABASES, "outside"], "time_zones": len(ZONES), "charsets": CHARSETS},
        "syncpoints": len(seen.compared),
        "looks": seen.looks,
        "tables_compared": seen.tables,
        "rows_compared": sum(seen.compared.values()),
        "different": len(seen.different),
        "seconds": round(time.monotonic() - began),
    }
    assert EVIDENCE
    Path(EVIDENCE).write_text(json.dumps(record, indent=1) + "\n")


if EVIDENCE:
    test_a_storm_of_ddls_under_sigkills_is_the_upstream_at_every_syncpoint = storm_under_sigkills
