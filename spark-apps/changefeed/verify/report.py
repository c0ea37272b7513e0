"""`changefeed verify`: reads a sink and its upstream, holds them against each other, and says what was proved."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from changefeed.model.tso import MAX_TS
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.open import open_store
from changefeed.owner.history import State
from changefeed.owner.log import Log
from changefeed.schema.keys import table_span
from changefeed.schema.snapshot import load_schema
from changefeed.schema.table_info import TableInfo
from changefeed.spec.table_filter import TableFilter
from changefeed.upstream.kv import Snapshot
from changefeed.upstream.pd import PdClient
from changefeed.verify import files, oracles
from changefeed.verify.expected import rows_at, upstream_rows
from changefeed.verify.history import read_history
from changefeed.verify.result import NotVerifiable, Result

_HOLD_S = 600
_LOG = "log"


@dataclass(frozen=True)
class _Subject:
    """What is verified: the published part of a sink, `(start_ts, checkpoint_ts]` of the selected tables."""

    store: ObjectStore
    checkpoint_ts: int
    state: State
    filter: TableFilter
    format: files.Format
    split_updates: bool


async def verify(uri: str, pd_addresses: Sequence[str], conserved: str | None = None) -> Result:
    """Check the sink at `uri` against the upstream behind `pd_addresses`.

    `conserved`: a column whose sum over all tables no transaction changes. Raises NotVerifiable when there is no
    answer; a broken promise is a Result that is not ok.
    """
    result = Result()
    subject = _subject(open_store(uri), result)
    if not _is_checkpoint_right(subject, result):
        return result
    pd = await PdClient.connect(pd_addresses)
    try:
        await _hold(pd, subject, conserved, result)
    finally:
        await pd.close()
    return result


def _subject(store: ObjectStore, result: Result) -> _Subject:
    uid, state_uri = files.owner(store)
    # Before the log: what `metadata` says stands in the log by then, also while the changefeed runs.
    checkpoint_ts = files.checkpoint(store)
    result.checkpoint_ts = str(checkpoint_ts)
    state = Log(open_store(state_uri), _LOG).read()
    if state.epoch.number == 0:
        raise NotVerifiable(
            f"The changefeed's log is not at {state_uri}, which {files.OWNER} in {store.uri} names.",
            "Run verify where the state can be read, before it is deleted.",
        )
    if state.uid != uid:
        raise NotVerifiable(
            f"{store.uri} belongs to changefeed {uid!r}, but the log at {state_uri} is of {state.uid!r}.",
            "The sink or the state was copied or replaced; verify needs both as the changefeed left them.",
        )
    config: dict[str, Any] = state.epoch.config["spec"]
    storage = config["sink"]["storage"]
    return _Subject(
        store=store,
        checkpoint_ts=checkpoint_ts,
        state=state,
        filter=TableFilter(config["filter"]["rules"], config["filter"]["caseSensitive"]),
        format=files.Format.of(storage),
        split_updates=not storage["outputRawChangeEvent"],
    )


def _is_checkpoint_right(subject: _Subject, result: Result) -> bool:
    """Rows can be compared only up to a checkpoint that the changefeed has reached."""
    published, reached, start = subject.checkpoint_ts, subject.state.checkpoint_ts, subject.state.start_ts
    if published > reached:
        result.problem(
            f"`metadata` publishes checkpoint {published}, above {reached}, the last one in the log: "
            "rows up to it may be missing."
        )
    if published < start:
        result.problem(f"`metadata` publishes checkpoint {published}, below startTs {start}: it has gone back.")
    return result.ok


async def _hold(pd: PdClient, subject: _Subject, conserved: str | None, result: Result) -> None:
    """Read with the history held back from GC, and make sure that it was (rule 23)."""
    if pd.cluster_id != subject.state.cluster_id:
        raise NotVerifiable(
            f"The sink is of cluster {subject.state.cluster_id}, but PD is of cluster {pd.cluster_id}.",
            "Give the PD of the changefeed's upstream.",
        )
    holder = f"changefeed-verify-{uuid.uuid4().hex[:12]}"
    start_ts = subject.state.start_ts
    try:
        await _check_held(pd, holder, start_ts)
        await _compare(pd, subject, conserved, result)
        await _check_held(pd, holder, start_ts)
    finally:
        await pd.update_safepoint(holder, 0, MAX_TS)


async def _check_held(pd: PdClient, holder: str, start_ts: int) -> None:
    lowest = await pd.update_safepoint(holder, _HOLD_S, start_ts - 1)
    if lowest > start_ts - 1:
        raise NotVerifiable(
            f"The upstream has collected its history up to {lowest}, after the changefeed's startTs {start_ts}.",
            "The changes before that can't be compared any more; files are checked best soon after they are written.",
        )


async def _compare(pd: PdClient, subject: _Subject, conserved: str | None, result: Result) -> None:
    start_ts, checkpoint_ts = subject.state.start_ts, subject.checkpoint_ts
    selected = await _selected(pd, subject, conserved)
    sink = files.read_layout(subject.store, result)
    _check_published(subject.state, sink, result)
    tables: list[oracles.TableRows] = []
    bases: list[pl.DataFrame] = []
    transactions = []
    for info in selected:
        directories = _directories_of(info, sink, result)
        _check_schemas(subject.store, info, directories, sink, result)
        result.files += sum(len(directory.readable) for directory in directories)
        history = await read_history(pd, *table_span(info.id), start_ts, checkpoint_ts)
        transactions.append(history.select(["commit_ts", "start_ts"]))
        table = _table(subject, info, directories, history, result)
        result.rows += table.files.filter(pl.col("commit_ts") <= checkpoint_ts).height
        oracles.check_set(table, checkpoint_ts, result)
        oracles.check_order(table, result)
        tables.append(table)
        if conserved is not None:
            bases.append(await rows_at(pd, info, start_ts))
    result.tables = len(tables)
    result.transactions = (
        pa.concat_tables(transactions).group_by(["commit_ts", "start_ts"]).aggregate([]).num_rows if transactions else 0
    )
    for path in sorted(sink.directories):
        result.problem(f"{path} holds files, but no table that the changefeed selects is written there.")
    if conserved is not None:
        oracles.check_conserved(tables, bases, conserved, checkpoint_ts, result)


async def _selected(pd: PdClient, subject: _Subject, conserved: str | None) -> list[TableInfo]:
    """The tables that the changefeed writes, by name."""
    start_ts = subject.state.start_ts
    schema = await load_schema(Snapshot(pd, start_ts), start_ts)
    there = [table for table in schema.tables_at(start_ts) if not table.is_view and not table.is_sequence]
    selected = [table for table in there if subject.filter.matches(table.schema_name, table.name)]
    names = {column.name for table in selected for column in table.output_columns}
    if conserved is not None and conserved not in names:
        raise NotVerifiable(
            f"No selected table has a column {conserved!r}: there is nothing conserved to check.",
            f"Name one of {', '.join(sorted(names))}.",
        )
    return sorted(selected, key=lambda table: table.full_name)


def _check_published(state: State, sink: files.Sink, result: Result) -> None:
    """What the log committed is published, and every published file exists (rules 8 and 13)."""
    for known in state.dispatchers.values():
        directory = sink.directories.get(known.directory) or files.Directory(known.directory)
        committed = known.next_index - 1
        if directory.published < committed:
            result.problem(
                f"{directory.index_file} publishes {directory.published} files, but {committed} are committed in the "
                "log: it was set back or deleted."
            )
    for directory in sink.directories.values():
        if hole := directory.first_hole:
            result.problem(f"{hole} is missing: {directory.index_file} publishes {directory.published} files.")


def _directories_of(info: TableInfo, sink: files.Sink, result: Result) -> list[files.Directory]:
    """The table's directories in a consumer's order: by version, then date. They are taken out of `sink`."""
    prefix = f"{info.schema_name}/{info.name}/"
    mine: list[tuple[int, str, files.Directory]] = []
    for path in [path for path in sink.directories if path.startswith(prefix)]:
        version, _, date = path.removeprefix(prefix).partition("/")
        directory = sink.directories.pop(path)
        if version.isdecimal():
            mine.append((int(version), date, directory))
        else:
            result.problem(f"{path} is not named after a version of {info.full_name}.")
    return [directory for _, _, directory in sorted(mine, key=lambda one: one[:2])]


def _check_schemas(
    store: ObjectStore, info: TableInfo, directories: list[files.Directory], sink: files.Sink, result: Result
) -> None:
    """Promise 3: the schema file of a directory's version is there, and names the columns that its rows have."""
    names = [column.name for column in info.output_columns]
    table = f"{info.schema_name}/{info.name}"
    for directory in directories:
        version = int(directory.path.removeprefix(f"{table}/").partition("/")[0])
        paths = sink.schemas.get((table, version), [])
        if not paths:
            result.problem(f"{directory.path} has no schema file {table}/meta/schema_{version}_….json.")
        for path in paths:
            if files.schema_columns(store, path) != names:
                result.problem(f"{path} does not name the columns of {info.full_name}: {', '.join(names)}.")


def _table(
    subject: _Subject, info: TableInfo, directories: list[files.Directory], history: pa.Table, result: Result
) -> oracles.TableRows:
    names = [column.name for column in info.output_columns]
    read = files.read_rows(subject.store, directories, names, subject.format, result)
    is_mine = pl.col("table").eq_missing(pl.lit(info.name)) & pl.col("schema").eq_missing(pl.lit(info.schema_name))
    foreign = read.filter(~is_mine)
    if foreign.height:
        row = foreign.row(0, named=True)
        result.unexpected += foreign.height
        result.problem(
            f"{row['file']}, row {row['line']}: a row of {row['schema']}.{row['table']} stands in a file of "
            f"{info.full_name}."
        )
    return oracles.TableRows(
        name=info.full_name,
        columns=names,
        key=[f"c{i}" for i, column in enumerate(info.output_columns) if column.is_pk],
        files=read.filter(is_mine).drop("place", "table", "schema").with_row_index("place"),
        upstream=upstream_rows(info, history, subject.split_updates),
    )
