"""Looks at a downstream database at each syncpoint, before its row is written and anything behind it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from changefeed.log.state import State
from changefeed.reading.progress import NoProgress
from changefeed.reading.scratch import scratch_database
from changefeed.schema.table_info import TableInfo
from changefeed.sink.mysql.definitions.check import compare
from changefeed.sink.mysql.server import Session
from changefeed.spec.filter.table_filter import TableFilter
from changefeed.spec.model import Changefeed
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.verify.mysql.report import compare_table
from changefeed.verify.recorded import upstream_of
from changefeed.verify.result import RowsVerdict
from changefeed.verify.tables.at_rest import AtRest
from changefeed.verify.upstream.definitions import Definitions, SettledSchema
from changefeed.verify.upstream.meta import read_meta
from integration_mariadb import MariaDb
from pymysql import connect
from pymysql.connections import Connection

#: TiCDC's table.
_TABLE = (
    "CREATE DATABASE tidb_cdc",
    "CREATE TABLE tidb_cdc.syncpoint_v1 (ticdc_cluster_id VARCHAR(255), changefeed VARCHAR(255), "
    "primary_ts VARCHAR(18), secondary_ts VARCHAR(18), created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, "
    "INDEX (created_at), PRIMARY KEY (changefeed, primary_ts))",
)
_CLOSE, _OPEN = "LOCK TABLES tidb_cdc.syncpoint_v1 READ", "UNLOCK TABLES"
#: Who wants to write there: a syncpoint, or old ones away.
_WAITING = (
    "SELECT info FROM information_schema.processlist WHERE info LIKE '%`syncpoint_v1`%' AND info NOT LIKE 'SELECT%' "
    "AND state LIKE 'Waiting for table%'"
)
_TS = re.compile(r"'(\d{18})'")
_BUILT = re.compile(r"the index .* is not there")


@dataclass
class Syncpoints:
    """What has been compared. `different`: what was found, the first in the order of time."""

    compared: dict[int, int] = field(default_factory=dict)  # rows, by ts
    tables: int = 0
    looks: int = 0  # also repeated ones, where a driver was killed
    different: list[str] = field(default_factory=list)


@contextlib.contextmanager
def watching_syncpoints(database: MariaDb, changefeed: Changefeed, rules: Sequence[str]) -> Iterator[Syncpoints]:
    """While the changefeed runs. Each syncpoint is written once the downstream has been compared with its ts."""
    database.query(*_TABLE)
    found, stop = Syncpoints(), threading.Event()
    gate = connect(host="127.0.0.1", port=database.port, user="root", autocommit=True)
    _ask(gate, _CLOSE)
    watcher = threading.Thread(target=_watch, args=(gate, database, changefeed, TableFilter(rules), found, stop))
    watcher.start()
    try:
        yield found
    finally:
        stop.set()
        watcher.join()
        gate.close()


def _watch(
    gate: Connection[Any],
    database: MariaDb,
    changefeed: Changefeed,
    rules: TableFilter,
    found: Syncpoints,
    stop: threading.Event,
) -> None:
    while not stop.is_set() and not found.different:
        waiting = [str(row[0]) for row in _ask(gate, _WAITING)]
        if not waiting:
            stop.wait(0.02)
            continue
        for ts in {int(each) for text in waiting if text.startswith("INSERT") for each in _TS.findall(text)}:
            try:
                found.different += asyncio.run(_differences(database, changefeed, rules, ts, found))
            except Exception as error:  # noqa: BLE001 - the test fails by it
                found.different.append(f"{ts} was not compared: {error!r}")
        _ask(gate, _OPEN)
        _ask(gate, _CLOSE)  # once who has waited is done with his transaction
    _ask(gate, _OPEN)


async def _differences(
    database: MariaDb, changefeed: Changefeed, rules: TableFilter, ts: int, found: Syncpoints
) -> list[str]:
    async with upstream_of(changefeed, None) as pd:
        schema = SettledSchema(ts, Definitions(await read_meta(pd, ts, ts)))
        chosen = [info for info in schema.tables_at(ts) if rules.matches(info.schema_name, info.name)]
        session = Session(database.server())
        try:
            different = [*_of_names(database, chosen, rules), *_of_definitions(database, session, chosen)]
            result = RowsVerdict(checkpoint_ts=str(ts))
            tables = [info for info in chosen if not (info.is_view or info.is_sequence)]
            if not different:
                await _compare_rows(tables, ts, pd, session, result)
        finally:
            session.close()
    found.looks += 1
    found.compared[ts] = result.rows
    found.tables += len(tables)
    return [f"at {ts}: {each}" for each in (*different, *([result.first_problem] if not result.ok else []))]


def _of_names(database: MariaDb, chosen: Sequence[TableInfo], rules: TableFilter) -> Iterator[str]:
    rows = database.query("SELECT table_schema, table_name FROM information_schema.tables")
    names = [(schema.decode(), name.decode()) for schema, name in rows]
    there = {name for name in names if rules.matches(*name)}
    wanted = {(info.schema_name, info.name) for info in chosen if not info.is_sequence}
    if there != wanted:
        yield f"{sorted(wanted - there)} are missing, {sorted(there - wanted)} are too many"


def _of_definitions(database: MariaDb, session: Session, chosen: Sequence[TableInfo]) -> Iterator[str]:
    """Also those that harm no row, but for an index that is being built."""
    builds = database.query("SELECT 1 FROM changefeed.ddls WHERE is_done = 0 AND build IS NOT NULL")
    for table, differences in compare(session, chosen):
        for each in differences:
            if not (builds and _BUILT.fullmatch(each.what)):
                yield f"{table.full_name}: {each.what}"


@dataclass(frozen=True)
class _At:
    """In the place of a log's state: every table is written up to one ts."""

    ts: int

    def flushed_ts(self, physical_id: int) -> int:
        return self.ts


async def _compare_rows(
    tables: Sequence[TableInfo], ts: int, pd: PdClient, session: Session, result: RowsVerdict
) -> None:
    with scratch_database() as db:
        for info in tables:
            await compare_table([info], AtRest(cast(State, _At(ts)), pd, db, result, NoProgress()), session)


def _ask(connection: Connection[Any], query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())
