"""`changefeed verify`: reads a sink and its upstream, holds them against each other, and says what was proved."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NeedsHuman
from changefeed.model.tso import MAX_TS
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.open import open_store
from changefeed.owner.history import State
from changefeed.owner.log import Log
from changefeed.schema.keys import table_span
from changefeed.schema.rowv2 import decode_rows
from changefeed.schema.snapshot import load_schema
from changefeed.schema.table_info import TableInfo
from changefeed.spec.table_filter import TableFilter
from changefeed.upstream.kv import Snapshot
from changefeed.upstream.pd import PdClient
from changefeed.verify import files, oracles
from changefeed.verify.history import read_history
from changefeed.verify.result import Break, NotVerifiable, Result

_HOLD_S = 600
_LOG = "log"


@dataclass(frozen=True)
class _Subject:
    """What is verified: the published part of a sink, `(start_ts, checkpoint_ts]` of the selected tables."""

    store: ObjectStore
    start_ts: int
    checkpoint_ts: int
    filter: TableFilter
    format: files.Format
    split_updates: bool


async def verify(uri: str, pd_addresses: Sequence[str], conserved: str | None = None) -> Result:
    """Check the sink at `uri` against the upstream behind `pd_addresses`.

    `conserved`: a column whose sum over all tables no transaction changes. Raises NotVerifiable when there is no
    answer; a broken promise is a Result that is not ok.
    """
    result = Result()
    store = open_store(uri)
    try:
        subject = _subject(store, result)
        pd = await PdClient.connect(pd_addresses)
        try:
            await _hold(pd, subject.start_ts, conserved, subject, result)
        finally:
            await pd.close()
    except Break as problem:
        result.problem(problem.message)
    return result


def _subject(store: ObjectStore, result: Result) -> _Subject:
    uid, state_uri = files.owner(store)
    state = Log(open_store(state_uri), _LOG).read()
    if state.uid != uid:
        raise NotVerifiable(
            f"{store.uri} belongs to changefeed {uid!r}, but the log at {state_uri} is of {state.uid!r}.",
            "The sink or the state was copied or replaced; verify needs both as the changefeed left them.",
        )
    checkpoint_ts = files.checkpoint(store)
    result.checkpoint_ts = str(checkpoint_ts)
    _check_checkpoint(checkpoint_ts, state)
    config: dict[str, Any] = state.epoch.config["spec"]
    storage = config["sink"]["storage"]
    return _Subject(
        store=store,
        start_ts=state.start_ts,
        checkpoint_ts=checkpoint_ts,
        filter=TableFilter(config["filter"]["rules"], config["filter"]["caseSensitive"]),
        format=files.Format.of(storage),
        split_updates=not storage["outputRawChangeEvent"],
    )


def _check_checkpoint(published: int, state: State) -> None:
    if published > state.checkpoint_ts:
        raise Break(
            f"`metadata` publishes checkpoint {published}, above {state.checkpoint_ts}, the last one in the log: "
            "rows up to it may be missing."
        )


async def _hold(pd: PdClient, start_ts: int, conserved: str | None, subject: _Subject, result: Result) -> None:
    """Read with the history held back from GC, and make sure that it was (rule 23)."""
    holder = f"changefeed-verify-{uuid.uuid4().hex[:12]}"
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
    schema = await load_schema(Snapshot(pd, subject.start_ts), subject.start_ts)
    selected = [t for t in schema.tables_at(subject.start_ts) if subject.filter.matches(t.schema_name, t.name)]
    found = files.directories(subject.store)
    tables: list[oracles.TableRows] = []
    bases: list[pl.DataFrame] = []
    for info in sorted(selected, key=lambda t: t.full_name):
        mine = _directories_of(info, found)
        for directory in mine:
            del found[directory.path]
            for name in files.missing_files(directory):
                result.problem(f"{name} is missing: its directory's index publishes {directory.published} files.")
            result.files += len([i for i in directory.files if i <= directory.published])
        history = await read_history(pd, *table_span(info.id), subject.start_ts, subject.checkpoint_ts)
        result.transactions += (
            history.select(["commit_ts", "start_ts"]).group_by(["commit_ts", "start_ts"]).aggregate([]).num_rows
        )
        table = _table(subject, info, mine, history)
        result.rows += table.files.height
        oracles.check_order(table, result)
        oracles.check_set(table, result)
        tables.append(table)
        if conserved is not None:
            bases.append(await _base(pd, info, subject.start_ts))
    result.tables = len(tables)
    for path in sorted(found):
        result.problem(f"{path} holds files, but no table that the changefeed selects is written there.")
    if conserved is not None:
        oracles.check_conserved(tables, bases, conserved, result)


def _directories_of(info: TableInfo, found: dict[str, files.Directory]) -> list[files.Directory]:
    prefix = f"{info.schema_name}/{info.name}/"
    mine = [directory for path, directory in found.items() if path.startswith(prefix)]

    def version_and_date(directory: files.Directory) -> tuple[int, str]:
        version, _, rest = directory.path.removeprefix(prefix).partition("/")
        if not version.isdecimal():
            raise Break(f"{directory.path} is not named after a table version.")
        return int(version), rest

    return sorted(mine, key=version_and_date)


def _table(
    subject: _Subject, info: TableInfo, directories: list[files.Directory], history: pa.Table
) -> oracles.TableRows:
    names = [column.name for column in info.output_columns]
    parts = [part for d in directories for part in files.rows(subject.store, d, names, subject.format)]
    upstream = _upstream_rows(info, history, subject.split_updates)
    read = pl.concat(parts) if parts else _no_rows(len(names))
    strange = read.filter((pl.col("table") != info.name) | (pl.col("schema") != info.schema_name))
    if strange.height:
        raise Break(
            f"{strange['file'][0]}, row {strange['line'][0]}: a row of {strange['schema'][0]}.{strange['table'][0]} "
            f"stands in a file of {info.full_name}."
        )
    return oracles.TableRows(
        name=info.full_name,
        columns=names,
        key=[f"c{i}" for i, column in enumerate(info.output_columns) if column.is_pk],
        files=read.filter(pl.col("commit_ts") <= subject.checkpoint_ts).drop("table", "schema"),
        upstream=upstream,
    )


def _no_rows(columns: int) -> pl.DataFrame:
    text = ["op", "table", "schema", *[f"c{i}" for i in range(columns)], "file"]
    shape = dict.fromkeys(text, pl.String) | {"commit_ts": pl.UInt64, "line": pl.UInt32}
    return pl.DataFrame(schema=shape)


def _upstream_rows(info: TableInfo, history: pa.Table, split_updates: bool) -> pl.DataFrame:
    """The history as the rows that files are to hold."""
    history = history.combine_chunks()
    deleted = history["delete"]
    fresh = pc.is_null(history["old_value"])
    inserts = history.filter(pc.and_(pc.invert(deleted), fresh))
    updates = history.filter(pc.and_(pc.invert(deleted), pc.invert(fresh)))
    deletes = history.filter(pc.and_(deleted, pc.invert(fresh)))
    before, after = _rows(info, updates, "old_value", "D"), _rows(info, updates, "value", "I")
    moved = _unique_key_moved(info, before, after) if split_updates else pl.repeat(False, before.height, eager=True)
    return pl.concat(
        [
            _rows(info, inserts, "value", "I"),
            _rows(info, deletes, "old_value", "D"),
            before.filter(moved),
            after.filter(moved),
            after.filter(~moved).with_columns(pl.lit("U").alias("op")),
        ]
    )


def _rows(info: TableInfo, history: pa.Table, image: str, op: str) -> pl.DataFrame:
    keys, values = (_one_array(history[name]) for name in ("key", image))
    columns = {
        f"c{i}": pl.Series(pl.from_arrow(a)).cast(pl.String) for i, a in enumerate(decode_rows(info, keys, values))
    }
    commit_ts = pl.Series(pl.from_arrow(history["commit_ts"]))
    return pl.DataFrame({"op": pl.repeat(op, history.num_rows, eager=True), "commit_ts": commit_ts, **columns})


def _unique_key_moved(info: TableInfo, before: pl.DataFrame, after: pl.DataFrame) -> pl.Series:
    """Which updates change a NOT NULL unique key: those are written as a delete and an insert (TiCDC, 2.10)."""
    position = {column.name: i for i, column in enumerate(info.output_columns)}
    not_null = {column.name for column in info.output_columns if not column.nullable}
    moved = pl.repeat(False, before.height, eager=True)
    for index in info.indexes:
        names = [name for name, _ in index.columns]
        if index.is_unique and not_null.issuperset(names):
            for name in names:
                moved = moved | before[f"c{position[name]}"].ne_missing(after[f"c{position[name]}"])
    return moved


async def _base(pd: PdClient, info: TableInfo, ts: int) -> pl.DataFrame:
    """The table's rows at `ts`."""
    pairs = [pair async for pair in Snapshot(pd, ts).scan(*table_span(info.id))]
    keys = pa.array([key for key, _ in pairs], pa.binary())
    values = pa.array([value for _, value in pairs], pa.binary())
    return pl.DataFrame(
        {f"c{i}": pl.Series(pl.from_arrow(a)).cast(pl.String) for i, a in enumerate(decode_rows(info, keys, values))}
    )


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        raise NeedsHuman(
            "A table's history is over 2 GiB: verify can't hold it in one piece.", "Verify a shorter range."
        )
    return array
