"""`changefeed verify` for a MySQL sink: compares its tables with the upstream's, as of the log's checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from changefeed.log.state import State
from changefeed.objectstore.patience import Patience
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.progress import NoProgress, ReadingProgress
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.mysql.claim import is_past, mysql_endpoint
from changefeed.sink.mysql.definitions.check import compare as definitions
from changefeed.sink.mysql.definitions.difference import Difference
from changefeed.sink.mysql.rows.literals import identifier
from changefeed.sink.mysql.server import Row, Session
from changefeed.spec.model import Changefeed
from changefeed.upstream.decoders import decoder_of
from changefeed.verify.mysql.values import expression, of_downstream
from changefeed.verify.recorded import routes_of
from changefeed.verify.result import RowsVerdict
from changefeed.verify.tables.compared import compared
from changefeed.verify.tables.comparison import RowComparison
from changefeed.verify.tables.oracle import TablesOracle
from changefeed.verify.upstream.expected import key_indexes

_PAGE = 1000  # rows


async def verify(
    changefeed: Changefeed, secrets_dir: Path | None = None, progress: ReadingProgress | None = None
) -> RowsVerdict:
    """Raises NotVerifiable when there is no answer, also while the changefeed runs."""
    endpoint = mysql_endpoint(changefeed, secrets_dir)
    session = Session(endpoint.server())

    async def compare(feed: TablesOracle) -> None:
        await asyncio.to_thread(Patience().call, endpoint.uri, lambda: session.rows(b"SELECT 1"))
        if feed.is_at_rest:
            await asyncio.to_thread(_check_ddls, changefeed, session, feed.state)
        await _compare(feed, session)

    try:
        return await compared(changefeed, secrets_dir, progress or NoProgress(), compare)
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


async def _compare(feed: TablesOracle, session: Session) -> None:
    tables = await feed.tables()
    comparable: dict[tuple[str, str], list[TableInfo]] = {}
    for info, differences in await asyncio.to_thread(definitions, session, tables):
        _tell(info, differences, feed.result)
        shards = comparable.setdefault(info.qualified, [])
        if not any(each.is_missing for each in differences) and feed.has_all_changes(info):
            shards.append(info)
    for written, shards in comparable.items():
        if shards and len(shards) == sum(info.qualified == written for info in tables):
            await compare_table(shards, feed, session)
    upstream = {(info.schema_name.lower(), info.name.lower()) for info in tables}
    routes = routes_of(feed.state)
    for schema_name, name in sorted(await asyncio.to_thread(_tables, session)):
        if routes.is_written(schema_name, name) and (schema_name.lower(), name.lower()) not in upstream:
            feed.result.note(f"{schema_name}.{name} is there, but not in the upstream.")


def _tell(info: TableInfo, differences: list[Difference], result: RowsVerdict) -> None:
    for each in differences:
        told = f"{info.full_name} differs from the upstream: {each.what}."
        if each.is_harmless:
            result.note(told)
        else:
            result.problem(told)


async def compare_table(shards: Sequence[TableInfo], feed: TablesOracle, session: Session) -> None:
    """Adds to the result what differs in a table that can be read. `shards`: what is written there."""
    info = shards[0]
    common = set.intersection(*({column.name for column in shard.output_columns} for shard in shards))
    columns = [column for column in info.output_columns if column.name in common]
    key = key_indexes(info, columns, split_updates=True)
    if not key:
        feed.result.note(f"{info.full_name} has no key that identifies its rows: it was not compared.")
        return
    rows = RowComparison(feed.db, info.full_name, [column.name for column in columns], key)
    for shard in shards:
        own = {column.name: column for column in shard.output_columns}
        await feed.add_upstream(shard, rows, [own[column.name] for column in columns])
    feed.progress.stage(f"{info.full_name}: the rows downstream")
    pages = session.pages(_query(info, columns), _PAGE)
    while page := await asyncio.to_thread(_next, pages):
        cells = zip(*page, strict=True)
        rows.add("downstream", [of_downstream(*pair) for pair in zip(columns, cells, strict=True)])
        feed.progress.advance(len(page))
    feed.judge(info, rows)


def _query(info: TableInfo, columns: Sequence[ColumnInfo]) -> bytes:
    shown = b", ".join(expression(column, pads_char=decoder_of(info).pads_char) for column in columns)
    return b"SELECT " + shown + b" FROM " + identifier(info.schema_name) + b"." + identifier(info.name)


def _next(pages: Iterator[list[Row]]) -> list[Row] | None:
    return next(pages, None)


def _tables(session: Session) -> set[tuple[str, str]]:
    found = session.rows(
        b"SELECT table_schema, table_name FROM information_schema.tables WHERE table_type='BASE TABLE'"
    )
    return {(schema.decode(), name.decode()) for schema, name in found}
