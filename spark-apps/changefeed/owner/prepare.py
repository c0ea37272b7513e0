"""Everything between a resource and a running owner, in the one order that is safe (rules 6, 7, 14, 24, 26).

State is held, the log read, history held back, the schema read, the sink looked at, record 1 written, the epoch
claimed, the sink claimed, schema files written. Whatever is wrong with the resource or its surroundings is found before
record 1, which fixes startTs and sink: what the message says to change can then still be changed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from changefeed.errors import Conflict, InvalidSpec, NeedsHuman, Unavailable
from changefeed.eventstore.house import House
from changefeed.filter.rows import fingerprint as filter_fingerprint
from changefeed.filter.selection import Selection
from changefeed.model.record import EpochRecord, RewindRecord, StartRecord
from changefeed.model.table_copy import COPY_TICKS
from changefeed.objectstore import Place
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.open import Store, canonical, open_store, probe_store
from changefeed.owner import places
from changefeed.owner.alive import Alive
from changefeed.owner.copying import check_copies_are_selected, check_unchanged, copy_record, tables_to_copy
from changefeed.owner.pace import pace_of
from changefeed.owner.planning.planner import Table
from changefeed.owner.planning.syncpoints import Syncpoints
from changefeed.owner.pulling.quota import segment_bytes
from changefeed.owner.sinks.choice import sink_of
from changefeed.owner.sinks.driven import DrivenSink, Taken
from changefeed.owner.transaction_log.history import check_claim
from changefeed.owner.transaction_log.log import Log
from changefeed.owner.transaction_log.state import State
from changefeed.puller.task import Limits, PullerJob
from changefeed.schema.row.rowv2 import check_supported
from changefeed.schema.row.times import check_time_zone
from changefeed.schema.snapshot import load_schema
from changefeed.schema.storage import SchemaStorage
from changefeed.schema.table_info import TableInfo
from changefeed.spec.model import Changefeed, Restart
from changefeed.spec.parse import effective, from_effective
from changefeed.spec.sinks import Sink
from changefeed.upstream.access import Access
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.kv import Snapshot
from changefeed.upstream.pd import PATIENCE, PdClient
from changefeed.upstream.safepoint import Safepoint


@dataclass
class Prepared:
    """A claimed changefeed with all that a run needs."""

    changefeed: Changefeed
    pd: PdClient
    safepoint: Safepoint
    log: Log
    state: State
    nonce: str
    codec: str
    state_place: Place
    sink: DrivenSink
    schema: SchemaStorage
    tables: dict[int, TableInfo]  # by physical id, which is the dispatcher's
    house: House
    finished: bool = False
    alive: Alive | None = None  # where the state has no lock files

    @property
    def epoch(self) -> int:
        return self.state.epoch.number

    @property
    def taken(self) -> Taken:
        return Taken(self.state, self.state_place.uri)

    def puller_job(self, upstream: Access) -> PullerJob:
        """`upstream`: for any cluster; pullers are held to the one that the log is of."""
        spec, pace = self.changefeed.spec, pace_of(self.changefeed)
        return PullerJob(
            count=spec.spark.pullers.count,
            upstream=replace(upstream, cluster_id=self.state.cluster_id),
            state=self.state_place,
            limits=Limits(
                quota_bytes=spec.spark.pullers.memory_quota,
                roll_bytes=segment_bytes(spec.event_store.quota, spec.spark.pullers.count),
                roll_interval=pace.roll_s,
                gather_s=pace.gather_s,
                buffer_bytes=spec.event_store.buffer_size // spec.spark.pullers.count,
                scan_rate=spec.upstream.scan_rate and spec.upstream.scan_rate / spec.spark.pullers.count,
            ),
        )

    def syncpoints(self) -> Syncpoints | None:
        interval_s, state = self.changefeed.spec.sink.syncpoint_interval_s, self.state
        if interval_s is None:
            return None
        return Syncpoints(round(interval_s * 1000), state.checkpoint_ts, state.reached_ts())

    def planned_tables(self) -> dict[int, Table]:
        return {
            dispatcher: Table(
                dispatcher, info.hash, version, self.sink.names.place(info, dispatcher, version), info.full_name
            )
            for dispatcher, info in self.tables.items()
            for version in [self.table_version(dispatcher)]
        }

    def table_version(self, dispatcher: int) -> int:
        """Of the rows that are written next. A table that rules have left out and select again may have changed."""
        if self.state.is_redefined(dispatcher, self.tables[dispatcher].hash):
            return self.schema.snapshot_ts
        return self.state.table_version(dispatcher)

    def table_infos(self) -> dict[str, dict[str, Any]]:
        return {info.hash: info.to_json() for info in self.tables.values()}


def open_places(changefeed: Changefeed, secrets_dir: Path | None = None) -> tuple[Store, DrivenSink]:
    """The state and the sink, probed and held until they are released, or for this process's life.

    Raises Conflict when another process has them, Unavailable, NeedsHuman.
    """
    place = places.state_place(changefeed, secrets_dir)
    with ExitStack() as held:
        with _opening("state", places.STATE_FIELD, changefeed.name):
            state = open_store(place.uri, places.STATE_FIELD, place.secret)
            held.callback(state.release)
            state.hold()
            probe_store(state)
        with _opening("sink", f"spec.sink.{changefeed.spec.sink.kind}.uri", changefeed.name):
            sink = sink_of(changefeed, secrets_dir)
            held.callback(sink.release)
            sink.open()
        held.pop_all()
    return state, sink


@contextmanager
def _opening(what: str, field_name: str, name: str) -> Iterator[None]:
    try:
        yield
    except (Unavailable, NeedsHuman) as error:
        why = f"{field_name}: the {what} can't be used. {error.message}"
        raise type(error)(why, error.next_step) from None
    except Conflict as error:
        raise Conflict(
            f"The {what} of changefeed {name} is in use. {error.message}",
            "The same changefeed runs twice at once: stop the other run, or let it go on.",
        ) from None


def check_attempt(changefeed: Changefeed, attempt: int, secrets_dir: Path | None = None) -> None:
    """Raises Fenced, Superseded when a driver of this resource and attempt must not start (rule 6). Only reads: nothing
    may happen before it.
    """
    place = places.state_place(changefeed, secrets_dir)
    state = Log(open_store(place.uri, places.STATE_FIELD, place.secret), places.LOG).read()
    check_claim(state, changefeed.metadata.uid, attempt, place.uri)


async def prepare(
    changefeed: Changefeed,
    pd: PdClient,
    state_store: Store,
    sink: DrivenSink,
    take_over: bool = False,
    attempt: int = 0,
) -> Prepared:
    """Take the changefeed over. Everything that blocks runs in threads.

    `take_over`: also from a driver that has said it is alive less than 15 s ago. `attempt`: INTERFACES.md, Epoch and
    attempt; 0 where nobody counts.
    """
    uid, identity = changefeed.metadata.uid, changefeed.identity
    alive = None if isinstance(state_store, LocalStore) else Alive(state_store, uid, changefeed.name)
    log = Log(state_store, places.LOG)
    state = await asyncio.to_thread(log.read)
    if state.n:
        check_claim(state, uid, attempt, state_store.uri)
    if alive and not state.closed:
        await asyncio.to_thread(alive.check, await pd.pd_ms(), take_over)
    check_same(changefeed, state, pd.cluster_id)
    nonce = secrets.token_hex(8)
    safepoint = Safepoint(pd, places.service_id(changefeed), int(changefeed.spec.upstream.safepoint_ttl))
    restart = _due_restart(changefeed, state)
    if state.n == 0:
        start_ts = changefeed.spec.start_ts if changefeed.spec.start_ts is not None else await pd.tso()
        await _check_not_ahead(start_ts, pd)
        if changefeed.spec.initial_copy:
            start_ts -= COPY_TICKS
    else:
        start_ts = restart.from_ts if restart else state.checkpoint_ts
    await safepoint.hold(start_ts)
    # DDLs that were executed above the checkpoint are a part of what the run begins with.
    schema_ts = max(start_ts, state.last_ddl[0]) if state.last_ddl and not restart else start_ts
    if changefeed.spec.initial_copy:
        begins_at = state.from_ts if state.n and not restart else start_ts
        schema_ts = max(schema_ts, begins_at + COPY_TICKS)
    schema = await load_schema(Snapshot(pd, schema_ts), schema_ts)
    tables = select(changefeed, schema, schema_ts, may_be_none=state.last_ddl is not None)
    if not restart:
        _check_plans_are_selected(state, tables, schema, schema_ts)
        check_copies_are_selected(state, tables)
    await asyncio.to_thread(sink.check_free, state, identity, state_store.uri)
    if restart:
        await asyncio.to_thread(sink.check_rewind, state, state_store.uri)
    if state.n == 0:
        await asyncio.to_thread(log.append, start_record(changefeed, nonce, start_ts, pd.cluster_id))
    state = await asyncio.to_thread(log.claim_epoch, lambda before: epoch_record(changefeed, before, nonce, attempt))
    await asyncio.to_thread(sink.check_newest, Taken(state, state_store.uri))
    if restart and restart.nonce != state.restart_nonce:
        await asyncio.to_thread(log.append, rewind_record(state, restart))
        state = log.state
    if to_copy := tables_to_copy(state, tables):
        await _check_can_copy(changefeed, to_copy, tables, state, schema_ts, pd)
        await asyncio.to_thread(log.append, await copy_record(state, to_copy, pd))
        state = log.state
    if alive:
        await asyncio.to_thread(alive.refresh, state.epoch.number, await pd.pd_ms())
    house = House(state_store.place, state.epoch.number, nonce)
    prepared = Prepared(
        changefeed=changefeed,
        pd=pd,
        safepoint=safepoint,
        log=log,
        state=state,
        nonce=nonce,
        codec=f"{sink.fingerprint} {filter_fingerprint(changefeed.spec.filter)}".strip(),
        state_place=state_store.place,
        sink=sink,
        schema=schema,
        tables=tables,
        house=house,
        finished=state.finished,
        alive=alive,
    )
    await asyncio.to_thread(_settle_in, prepared, state_store)
    return prepared


def select(
    changefeed: Changefeed, schema: SchemaStorage, ts: int, *, may_be_none: bool = False
) -> dict[int, TableInfo]:
    """The tables that the filter selects at `ts`, each supported, by physical id.

    Raises InvalidSpec when there are none, unless DDLs may have dropped them all (`may_be_none`), or when a condition
    or a column selector does not fit one of them.
    """
    table_filter = changefeed.spec.filter.table_filter()
    there = [table for table in schema.tables_at(ts) if not table.is_view and not table.is_sequence]
    selected = [table for table in there if table_filter.matches(table.schema_name, table.name)]
    if not selected and not may_be_none:
        names = ", ".join(sorted(table.full_name for table in there)[:8]) or "none at all"
        more = f" and {len(there) - 8} more" if len(there) > 8 else ""
        raise InvalidSpec(
            "spec.filter.rules",
            f"{list(changefeed.spec.filter.rules)} match no table",
            f"Mend them. Tables that exist at ts {ts}: {names}{more}.",
        )
    check_time_zone(changefeed.spec.time_zone)
    config = effective(changefeed)
    for table in selected:
        check_supported(table)
        Selection.of(config, table)
    return {dispatcher: table for table in selected for dispatcher in table.physical_ids}


def _settle_in(prepared: Prepared, state_store: Store) -> None:
    """The first effects, all after this driver's own epoch record."""
    state_store.clean_leftovers()
    prepared.house.delete_lower_epochs()
    state = prepared.state
    tables = []
    for dispatcher, table in prepared.tables.items():
        version = prepared.table_version(dispatcher)
        # Else a DDL has told of it.
        begins_at = state.copied[dispatcher].from_ts if dispatcher in state.copied else state.from_ts
        is_new = version == begins_at or version != state.table_version(dispatcher)
        tables.append((dispatcher, table, version, is_new))
    prepared.sink.settle_in(prepared.taken, tables)


def check_same(changefeed: Changefeed, state: State, cluster_id: int) -> None:
    """The resource must still be the one that the log is of."""
    wanted = changefeed.spec.upstream.cluster_id
    if wanted is not None and wanted != cluster_id:
        raise InvalidSpec(
            "spec.upstream.clusterId",
            f"{wanted} is wanted, but PD at {changefeed.spec.upstream.pd_addresses[0]} serves cluster {cluster_id}",
            "Point pdAddresses at the right cluster.",
        )
    if state.n == 0:
        return
    if state.cluster_id != cluster_id:
        raise NeedsHuman(
            f"Changefeed {changefeed.name} belongs to cluster {state.cluster_id}, but PD serves {cluster_id}.",
            "Point spec.upstream.pdAddresses at the changefeed's own cluster, or create a new changefeed.",
        )
    start_ts = changefeed.spec.start_ts
    if changefeed.spec.initial_copy != state.initial_copy:
        raise InvalidSpec(
            "spec.initialCopy",
            f"it differs from {str(state.initial_copy).lower()}, with which the changefeed was started",
            "It can't be changed: set it back, or create a new changefeed with another name and sink.",
        )
    if start_ts is not None and start_ts != state.asked_ts:
        raise InvalidSpec(
            "spec.startTs",
            f'"{start_ts}" differs from "{state.asked_ts}", with which the changefeed was started',
            "It can't be changed: set it back, or create a new changefeed with another name and sink.",
        )
    if state.epoch.number:
        before, now = from_effective(state.epoch.config).spec.sink, changefeed.spec.sink
        if (before.kind, _same(before)) != (now.kind, _same(now)):
            raise InvalidSpec(
                f"spec.sink.{now.kind}.uri",
                f"{now.uri} differs from {before.uri}, with which the changefeed was started",
                "It can't be changed: set it back, or create a new changefeed with another name.",
            )
        for field, value in now.names.items():
            if value != before.names[field]:
                raise InvalidSpec(
                    field,
                    f"{value} differs from {before.names[field]}, with which the changefeed was started",
                    "It can't be changed: set it back, or create a new changefeed with another name and sink.",
                )


def _same(sink: Sink) -> str:
    """Equal for what is the same place."""
    return canonical(sink.uri) if sink.kind == "storage" else sink.uri


def _due_restart(changefeed: Changefeed, state: State) -> Restart | None:
    """spec.restart, when it asks for a rewind that is not done. A new changefeed has nothing to rewind."""
    restart = changefeed.spec.restart
    if restart is None or state.n == 0 or restart.nonce == state.restart_nonce:
        return None
    if restart.from_ts > state.checkpoint_ts:
        raise InvalidSpec(
            "spec.restart.fromTs",
            f'"{restart.from_ts}" is above the checkpoint "{state.checkpoint_ts}"',
            "Name a ts at or below it, or take spec.restart out: what is above comes by itself.",
        )
    return restart


def _check_plans_are_selected(state: State, tables: dict[int, TableInfo], schema: SchemaStorage, ts: int) -> None:
    """Nobody pulls what is not selected: a plan with rows of such a table would wait for ever (rules 3, 10)."""
    for plan, entry in state.open_entries():
        if entry.dispatcher not in tables:
            table = schema.table(entry.dispatcher, ts)
            raise InvalidSpec(
                "spec.filter.rules",
                f"{table.full_name if table else entry.dispatcher} is not selected any more, but plan {plan} "
                "still has rows of it to write",
                "Select it again, let a run drain, then change the rules. If that plan fails: rewind (spec.restart).",
            )


async def _check_can_copy(
    changefeed: Changefeed,
    dispatchers: list[int],
    tables: dict[int, TableInfo],
    state: State,
    schema_ts: int,
    pd: PdClient,
) -> None:
    """That these tables can be read at the ts of their copies as they are defined at `schema_ts`."""
    ts = state.checkpoint_ts + COPY_TICKS
    target_ts = changefeed.spec.target_ts
    if target_ts is not None and target_ts <= ts:
        raise InvalidSpec(
            "spec.targetTs", f'"{target_ts}" is not above "{ts}", as of which tables are copied', "Give a later one."
        )
    attempts = Attempts(f"Waiting for the upstream to pass {ts}", PATIENCE)
    while await pd.tso() <= ts:
        await attempts.pause("its clock stands below")
    if ts > schema_ts:
        check_unchanged(dispatchers, tables, await load_schema(Snapshot(pd, ts), ts), ts)


async def _check_not_ahead(start_ts: int, pd: PdClient) -> None:
    now = await pd.tso()
    if start_ts > now:
        raise InvalidSpec(
            "spec.startTs", f'"{start_ts}" is in the future: the upstream is at "{now}"', "Leave it out to start now."
        )


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
        initial_copy=changefeed.spec.initial_copy and not adopted,
    )


def rewind_record(state: State, restart: Restart) -> RewindRecord:
    return RewindRecord(
        n=state.n + 1,
        epoch=state.epoch.number,
        nonce=state.epoch.nonce,
        restart_nonce=restart.nonce,
        from_ts=restart.from_ts,
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
