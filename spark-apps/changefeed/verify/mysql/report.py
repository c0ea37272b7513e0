"""`changefeed verify` for a MySQL sink: compares its tables with the upstream's, as of the log's checkpoint.

A stopped changefeed has written each table up to a ts of its own, at or above the checkpoint, which the log records
(`State.flushed_ts`). So each table is compared with the upstream at that ts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import duckdb

from changefeed.objectstore.patience import Patience
from changefeed.owner.sinks.mysql import is_past, place_of
from changefeed.owner.transaction_log.state import State
from changefeed.schema.table_info import TableInfo
from changefeed.sink.mysql.definitions.check import compare
from changefeed.sink.mysql.definitions.difference import Difference
from changefeed.sink.mysql.rows.literals import identifier
from changefeed.sink.mysql.server import Row, Session
from changefeed.spec.model import Changefeed
from changefeed.upstream.pd import PdClient
from changefeed.verify.comparison.ledger import scratch_database
from changefeed.verify.comparison.matching import has_all_changes, matching_tables
from changefeed.verify.held import held
from changefeed.verify.mysql.comparison import RowComparison
from changefeed.verify.mysql.upstream import add_upstream
from changefeed.verify.mysql.values import expression, of_downstream
from changefeed.verify.progress import NoProgress, VerifyProgress
from changefeed.verify.recorded import StateLog, check_cluster, check_settled, rules_of, upstream_of
from changefeed.verify.result import NotVerifiable, RowsVerdict
from changefeed.verify.upstream.expected import key_of

_PAGE = 1000  # rows


async def verify(
    changefeed: Changefeed, secrets_dir: Path | None = None, progress: VerifyProgress | None = None
) -> RowsVerdict:
    """Raises NotVerifiable when there is no answer, also while the changefeed runs."""
    progress = progress or NoProgress()
    recorded = StateLog.of(changefeed, secrets_dir)
    place = place_of(changefeed, secrets_dir)
    session = Session(place.server())
    progress.stage("the changefeed's log")
    try:
        async with upstream_of(changefeed, secrets_dir) as pd, recorded.at_rest(pd) as state:
            check_cluster(pd, state)
            check_settled(state)
            await asyncio.to_thread(Patience().call, place.uri, lambda: session.rows(b"SELECT 1"))
            await asyncio.to_thread(_check_ddls, changefeed, session, state)
            async with held(pd, state.checkpoint_ts, "checkpoint"):
                return await _compare(state, pd, session, progress)
    finally:
        session.close()


def _check_ddls(changefeed: Changefeed, session: Session, state: State) -> None:
    assert changefeed.spec.sink.mysql is not None, "the sink is mysql"
    database = changefeed.spec.sink.mysql.progress_database
    if database and is_past(session, database, state):
        raise NotVerifiable(
            "The changefeed was killed while it executed a DDL: tables may be ahead of its log.",
            "Let it run, then pause it or stop it with Ctrl-C, and verify again.",
        )


async def _compare(state: State, pd: PdClient, session: Session, progress: VerifyProgress) -> RowsVerdict:
    result = RowsVerdict(checkpoint_ts=str(state.checkpoint_ts))
    tables = await matching_tables(pd, state)
    compared = await asyncio.to_thread(compare, session, tables)
    with scratch_database() as db:
        for info, differences in compared:
            _tell(info, differences, result)
            can_be_read = not any(each.is_missing for each in differences)
            if can_be_read and has_all_changes(info, state, result):
                await _MysqlTable(info, state, pd, session, db, result, progress).compare()
    upstream = {(info.schema_name.lower(), info.name.lower()) for info in tables}
    rules = rules_of(state)
    for schema_name, name in sorted(await asyncio.to_thread(_tables, session)):
        if rules.matches(schema_name, name) and (schema_name.lower(), name.lower()) not in upstream:
            result.note(f"{schema_name}.{name} is there, but not in the upstream.")
    return result


def _tell(info: TableInfo, differences: list[Difference], result: RowsVerdict) -> None:
    for each in differences:
        told = f"{info.full_name} differs from the upstream: {each.what}."
        if each.is_harmless:
            result.note(told)
        else:
            result.problem(told)


class _MysqlTable:
    def __init__(
        self,
        info: TableInfo,
        state: State,
        pd: PdClient,
        session: Session,
        db: duckdb.DuckDBPyConnection,
        result: RowsVerdict,
        progress: VerifyProgress,
    ) -> None:
        self._info, self._state, self._pd, self._session = info, state, pd, session
        self._db, self._result, self._progress = db, result, progress

    async def compare(self) -> None:
        info, columns = self._info, self._info.output_columns
        key = key_of(info, columns, split_updates=True)
        if not key:
            self._result.note(f"{info.full_name} has no key that identifies its rows: it was not compared.")
            return
        rows = RowComparison(self._db, info.full_name, [column.name for column in columns], key)
        self._progress.stage(f"{info.full_name}: the upstream's rows")
        for physical_id in info.physical_ids:
            at = self._state.flushed_ts(physical_id)
            await add_upstream(self._pd, info, physical_id, at, partial(rows.add, "upstream"), self._progress)
        self._progress.stage(f"{info.full_name}: the rows downstream")
        pages = self._session.pages(self._query(), _PAGE)
        while page := await asyncio.to_thread(_next, pages):
            cells = zip(*page, strict=True)
            rows.add("downstream", [of_downstream(*pair) for pair in zip(columns, cells, strict=True)])
            self._progress.advance(len(page))
        self._result.add(rows.found())

    def _query(self) -> bytes:
        shown = b", ".join(expression(column) for column in self._info.output_columns)
        return b"SELECT " + shown + b" FROM " + identifier(self._info.schema_name) + b"." + identifier(self._info.name)


def _next(pages: Iterator[list[Row]]) -> list[Row] | None:
    return next(pages, None)


def _tables(session: Session) -> set[tuple[str, str]]:
    found = session.rows(
        b"SELECT table_schema, table_name FROM information_schema.tables WHERE table_type='BASE TABLE'"
    )
    return {(schema.decode(), name.decode()) for schema, name in found}
