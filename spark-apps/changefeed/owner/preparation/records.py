"""The log records with which a driver claims and starts a changefeed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from changefeed.log.records import (
    CommitRecord,
    DefinitionsRecord,
    EpochRecord,
    FileCommitted,
    PlanEntry,
    RewindRecord,
    StartRecord,
)
from changefeed.log.state import State
from changefeed.schema.table_info import TableInfo
from changefeed.spec.model import Changefeed, RestartSpec
from changefeed.spec.parse import effective


def start_record(
    changefeed: Changefeed, nonce: str, start_ts: int, cluster_id: int, *, adopted: bool = False
) -> StartRecord:
    """Record 1."""
    restart = changefeed.spec.restart
    return StartRecord(
        n=1,
        epoch=0,
        nonce=nonce,
        start_ts=start_ts,
        cluster_id=cluster_id,
        uid=changefeed.identity,
        restart_nonce=restart.nonce if restart else None,
        adopted=adopted,
        initial_copy=changefeed.spec.initial_copy,
    )


def rewind_record(state: State, restart: RestartSpec) -> RewindRecord:
    return RewindRecord(
        n=state.n + 1,
        epoch=state.epoch.number,
        nonce=state.epoch.nonce,
        restart_nonce=restart.nonce,
        from_ts=restart.from_ts,
    )


def left_out_record(state: State, entries: Iterable[tuple[int, PlanEntry]]) -> CommitRecord:
    """By which nobody waits any more for these entries, (plan, entry): each is as one without rows."""
    files = [
        FileCommitted(plan=plan, entry=entry.entry, rows=0, raw_rows=0, filtered_rows=0, bytes=0, hash="")
        for plan, entry in entries
    ]
    return CommitRecord(
        n=state.n + 1,
        epoch=state.epoch.number,
        nonce=state.epoch.nonce,
        checkpoint_ts=state.checkpoint_ts,
        files=tuple(files),
    )


def definitions_record(state: State, tables: Mapping[int, TableInfo]) -> DefinitionsRecord | None:
    """By which those of `tables` whose definition the log does not have are defined; None: it has all of them."""
    known = {each.dispatcher for each in state.dispatchers.values() if each.definition}
    new = {dispatcher: table for dispatcher, table in sorted(tables.items()) if dispatcher not in known}
    if not new:
        return None
    infos = {table.hash: table for table in new.values() if table.hash not in state.table_infos}
    return DefinitionsRecord(
        n=state.n + 1,
        epoch=state.epoch.number,
        nonce=state.epoch.nonce,
        dispatchers=tuple(new),
        table_infos=tuple(table.hash for table in new.values()),
        definitions={name: infos[name].to_json() for name in sorted(infos)},
    )


def epoch_record(changefeed: Changefeed, before: State, nonce: str, attempt: int) -> EpochRecord:
    """The record by which run `nonce` of this process takes over what `before` says."""
    return next_epoch(before, nonce, attempt, effective(changefeed))


def next_epoch(before: State, nonce: str, attempt: int, config: dict[str, Any]) -> EpochRecord:
    packages = ("changefeed-operator", "pyspark", "pyarrow", "polars", "ptars")
    return EpochRecord(
        n=before.n + 1,
        epoch=before.epoch.number + 1,
        nonce=nonce,
        attempt=attempt,
        host=socket.gethostname(),
        pid=os.getpid(),
        config=config,
        versions={name: version(name) for name in packages},
    )
