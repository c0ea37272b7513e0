"""Everything between a resource and a running owner, in the only safe order (rules 6, 7, 14, 24, 26).

Hold the state, read the log, hold back GC, read the schema, inspect the sink, write record 1, claim the epoch, claim
the sink, write schema files. Any problem with the resource or its environment is found before record 1, which fixes
startTs and sink: until then, whatever the message says to change can still be changed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Set
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from changefeed.errors import ChangefeedError, Conflict, InvalidSpec, NeedsHuman, Transient, Unavailable
from changefeed.eventstore.run_folder import RunFolder
from changefeed.filter.rows import fingerprint as filter_fingerprint
from changefeed.filter.selection import Selection
from changefeed.log.history import check_claim
from changefeed.log.log import Log
from changefeed.log.state import State
from changefeed.model.table_copy import COPY_TICKS
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.open import Store, open_store, probe_store
from changefeed.owner import locations
from changefeed.owner.alive import Alive
from changefeed.owner.preparation.checks import (
    check_not_ahead,
    check_plans_are_selected,
    check_same,
    due_restart,
    unselected,
)
from changefeed.owner.preparation.copying import check_can_copy, check_copies_are_selected, copy_record, tables_to_copy
from changefeed.owner.preparation.prepared import Prepared
from changefeed.owner.preparation.records import (
    definitions_record,
    epoch_record,
    left_out_record,
    rewind_record,
    start_record,
)
from changefeed.routing.column_changes import first_difference
from changefeed.routing.merging import Unmergeable, check_fit
from changefeed.routing.routes import Routes, by_written_name
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import TableInfo
from changefeed.schema.time_zones import check_time_zone
from changefeed.sink.choice import claim_on
from changefeed.sink.claim import SinkClaim, Taken
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective
from changefeed.upstream.contract import HistoryLease, Upstream
from changefeed.upstream.decoders import decoder_of
from changefeed.upstream.written_rows import MaskKeys

_LOG = logging.getLogger(__name__)
_REMOVAL_S = 5.0  # of a hold, when a start has failed


def open_state_and_sink(changefeed: Changefeed, secrets_dir: Path | None = None) -> tuple[Store, SinkClaim]:
    """The state and the sink, probed and held until they are released, or for this process's life.

    Raises Conflict when another process has them, Unavailable, NeedsHuman; Refused for a key of hashes that can't be
    used.
    """
    MaskKeys(secrets_dir).check(Routes.of(effective(changefeed)).columns.secrets)
    location = locations.state_location(changefeed, secrets_dir)
    with ExitStack() as held:
        with _opening("state", locations.STATE_FIELD, changefeed.name):
            state = open_store(location.uri, locations.STATE_FIELD, location.secret)
            held.callback(state.release)
            state.hold()
            probe_store(state)
        with _opening("sink", f"spec.sink.{changefeed.spec.sink.kind}.uri", changefeed.name):
            sink = claim_on(changefeed, secrets_dir)
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
            "The same changefeed is running twice: stop the other run, or leave it running.",
        ) from None


def check_attempt(changefeed: Changefeed, attempt: int, secrets_dir: Path | None = None) -> None:
    """Raises Fenced, Superseded when a driver of this resource and attempt must not start (rule 6). Only reads: nothing
    may happen before it.
    """
    location = locations.state_location(changefeed, secrets_dir)
    state = Log(open_store(location.uri, locations.STATE_FIELD, location.secret)).read()
    check_claim(state, changefeed.metadata.uid, attempt, location.uri)


async def prepare(
    changefeed: Changefeed,
    upstream: Upstream,
    state_store: Store,
    sink: SinkClaim,
    take_over: bool = False,
    attempt: int = 0,
) -> Prepared:
    """Take the changefeed over. Everything that blocks runs in threads.

    `take_over`: also from a driver that has said it is alive less than 15 s ago. `attempt`: 0 where nobody
    counts (docs/design/layouts.md, Epoch and attempt).
    """
    uid, identity = changefeed.metadata.uid, changefeed.identity
    alive = None if isinstance(state_store, LocalStore) else Alive(state_store, uid, changefeed.name)
    log = Log(state_store)
    state = await asyncio.to_thread(log.read)
    if state.n:
        check_claim(state, uid, attempt, state_store.uri)
    if alive and not state.closed:
        await asyncio.to_thread(alive.check, await upstream.now_ms(), take_over)
    check_same(changefeed, state, upstream.cluster_id)
    await _check_upstream(changefeed, upstream)
    nonce = secrets.token_hex(8)
    history = locations.lease_of(changefeed, upstream)
    restart = due_restart(changefeed, state)
    if state.n == 0:
        from_ts = await _first_ts(changefeed, upstream)
    else:
        from_ts = restart.from_ts if restart else state.checkpoint_ts
    is_made_here = state.n == 0 and await makes_hold(changefeed, upstream, attempt)
    removed_from = log if is_made_here else None
    lead = COPY_TICKS if changefeed.spec.initial_copy else 0
    async with history_held(history, from_ts, removed_from, changefeed.spec.start_ts is not None, lead) as start_ts:
        # DDLs that were executed above the checkpoint are a part of what the run begins with.
        schema_ts = max(start_ts, state.last_ddl[0]) if state.last_ddl and not restart else start_ts
        if changefeed.spec.initial_copy:
            begins_at = state.from_ts if state.n and not restart else start_ts
            schema_ts = max(schema_ts, begins_at + COPY_TICKS)
        schema = await upstream.schema(schema_ts, {} if restart else _Known(state))
        tables = select(changefeed, schema, schema_ts, may_be_none=state.last_ddl is not None)
        if not restart:
            written = _WrittenTables(state)
            known = {each: table for each in tables if (table := written.get(each)) is not None}
            check_names_stay(known, tables)
            check_columns_stay(known, Routes.of(effective(changefeed)))
            _check_selected(state, sink, tables.keys(), schema)
        await asyncio.to_thread(sink.check_free, state, identity, state_store.uri)
        if restart:
            await asyncio.to_thread(sink.check_rewind, state, state_store.uri)
    if state.n == 0:
        await asyncio.to_thread(log.append, start_record(changefeed, nonce, start_ts, upstream.cluster_id))
    state = await asyncio.to_thread(log.claim_epoch, lambda before: epoch_record(changefeed, before, nonce, attempt))
    await asyncio.to_thread(sink.check_newest, Taken(state, state_store.uri))
    if restart and restart.nonce != state.restart_nonce:
        await asyncio.to_thread(log.append, rewind_record(state, restart))
        state = log.state
    state = await _leave_out(log, sink, tables.keys())
    if to_copy := tables_to_copy(state, tables.keys()):
        await check_can_copy(changefeed, to_copy, tables, state, schema_ts, upstream)
        await asyncio.to_thread(log.append, await copy_record(state, to_copy, tables, upstream))
        state = log.state
    if not upstream.has_old_definitions and not state.finished:
        state = await _define(log, tables)
    if alive:
        await asyncio.to_thread(alive.refresh, state.epoch.number, await upstream.now_ms())
    run_folder = RunFolder(state_store.location, state.epoch.number, nonce)
    prepared = Prepared(
        changefeed=changefeed,
        upstream=upstream,
        history=history,
        log=log,
        state=state,
        nonce=nonce,
        codec=f"{sink.fingerprint} {filter_fingerprint(changefeed.spec.filter)}".strip(),
        state_location=state_store.location,
        sink=sink,
        schema=schema,
        tables=tables,
        run_folder=run_folder,
        finished=state.finished,
        alive=alive,
    )
    await asyncio.to_thread(_settle_in, prepared, state_store)
    return prepared


async def _check_upstream(changefeed: Changefeed, upstream: Upstream) -> None:
    for warning in await upstream.check(changefeed.spec.filter.table_filter().matches):
        _LOG.warning("%s", warning)


class _WrittenTables(Mapping[int, TableInfo]):
    """By which definition each dispatcher's next rows are written, as far as the log holds it. Read when asked for."""

    def __init__(self, state: State) -> None:
        found = {id_: state.table_infos.get(known.definition) for id_, known in state.dispatchers.items()}
        self._stored = {id_: stored for id_, stored in found.items() if stored is not None}

    def __getitem__(self, dispatcher: int) -> TableInfo:
        return TableInfo.from_json(self._stored[dispatcher])

    def __iter__(self) -> Iterator[int]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class _Known(_WrittenTables):
    """The same as the upstream has them."""

    def __getitem__(self, dispatcher: int) -> TableInfo:
        return super().__getitem__(dispatcher).unrouted


async def _first_ts(changefeed: Changefeed, upstream: Upstream) -> int | None:
    """Where a first start begins, which is a moment earlier with a copy; None: now."""
    spec = changefeed.spec
    if spec.initial_copy:
        upstream.check_can_copy()
    if spec.start_ts is None:
        return None
    await check_not_ahead(spec.start_ts, upstream)
    return spec.start_ts - COPY_TICKS if spec.initial_copy else spec.start_ts


def _check_selected(state: State, sink: SinkClaim, selected: Set[int], schema: SchemaHistory) -> None:
    if not sink.may_leave_out:
        check_plans_are_selected(state, selected, schema)
    check_copies_are_selected(state, selected)


async def _leave_out(log: Log, sink: SinkClaim, selected: Set[int]) -> State:
    """Nothing is planned of what is not selected, where that may be."""
    if sink.may_leave_out and (left_out := unselected(log.state, selected)):
        await asyncio.to_thread(log.append, left_out_record(log.state, left_out))
    return log.state


async def _define(log: Log, tables: Mapping[int, TableInfo]) -> State:
    """The next driver begins with these, however they are altered until then."""
    if (record := definitions_record(log.state, tables)) is not None:
        await asyncio.to_thread(log.append, record)
    return log.state


def select(
    changefeed: Changefeed, schema: SchemaHistory, ts: int, *, may_be_none: bool = False
) -> dict[int, TableInfo]:
    """The tables that the filter selects at `ts`, each supported, as they are written, by physical id.

    Raises InvalidSpec when there are none, unless DDLs may have dropped them all (`may_be_none`), when two of them
    would be written to one, or when a condition or a column selector does not fit one of them.
    """
    table_filter = changefeed.spec.filter.table_filter()
    there = [table for table in schema.tables_at(ts) if not table.is_view and not table.is_sequence]
    selected = [table for table in there if table_filter.matches(*table.qualified)]
    if not selected and not may_be_none:
        names = ", ".join(sorted(table.full_name for table in there)[:8]) or "none at all"
        more = f" and {len(there) - 8} more" if len(there) > 8 else ""
        raise InvalidSpec(
            "spec.filter.rules",
            f"{list(changefeed.spec.filter.rules)} match no table",
            f"Fix them. Tables that exist at ts {ts}: {names}{more}.",
        )
    check_time_zone(changefeed.spec.time_zone)
    config = effective(changefeed)
    selected = _routed(Routes.of(config), selected)
    for table in selected:
        decoder_of(table).check_supported(table.decoded_by)
        Selection.of(config, table)
    return {dispatcher: table for table in selected for dispatcher in table.physical_ids}


def _routed(routes: Routes, tables: list[TableInfo]) -> list[TableInfo]:
    """The tables as they are written. Raises InvalidSpec for two that would be written to one."""
    routed = [routes.routed(table) for table in tables]
    for met in by_written_name(routed).values() if routes else ():
        first, *others = met.values()
        if others:
            _check_merged(routes, first, others)
    return routed


def _check_merged(routes: Routes, first: TableInfo, others: list[TableInfo]) -> None:
    one, other = (".".join(table.upstream_name) for table in (first, others[0]))
    if not all(map(routes.merges, (first, *others))):
        raise InvalidSpec(
            "spec.routes",
            f"{one} and {other} would both be written to {first.full_name}",
            'Give each a table of its own, as by table: "{schema}_{table}", exclude one by spec.filter.rules, or let '
            "the route merge them, if the sink can (merge: true).",
        )
    for number, table in enumerate((first, *others)):
        try:
            check_fit(table, others[number:])
        except Unmergeable as why:
            name = ".".join(table.upstream_name)
            raise InvalidSpec(
                "spec.routes",
                f"{name} can't be merged into {table.full_name}: {why}",
                "Make the shards alike upstream, or exclude one by spec.filter.rules.",
            ) from None


def check_names_stay(known: Mapping[int, TableInfo], tables: Mapping[int, TableInfo]) -> None:
    """Raises InvalidSpec for a table that would be written under another name than before.

    `known`: how the log has those of `tables` that it has.
    """
    for dispatcher, was in known.items():
        table = tables[dispatcher]
        if was.upstream_name == table.upstream_name and was.qualified != table.qualified:
            raise InvalidSpec(
                "spec.routes",
                f"{'.'.join(table.upstream_name)} would be written to {table.full_name}, but is to {was.full_name}",
                "Route it there; to write it elsewhere, create a new changefeed with another sink.",
            )


def check_columns_stay(known: Mapping[int, TableInfo], routes: Routes) -> None:
    """Raises InvalidSpec for a table whose columns would be written otherwise than before. `known`: the log's."""
    for was in known.values():
        if difference := first_difference(was, routes.routed(was.unrouted)):
            raise InvalidSpec(
                "spec.columns",
                f"{'.'.join(was.upstream_name)} is written already, and {difference}",
                "Leave its columns as they are written; to write them otherwise, create a new changefeed with another "
                "sink.",
            )


def _settle_in(prepared: Prepared, state_store: Store) -> None:
    """The first effects, all after this driver's own epoch record."""
    state_store.clean_leftovers()
    prepared.run_folder.delete_lower_epochs()
    state = prepared.state
    tables = []
    for dispatcher, table in prepared.tables.items():
        version = prepared.table_version(dispatcher)
        # Else a DDL has told of it.
        is_new = version == state.first_version(dispatcher) or version != state.table_version(dispatcher)
        tables.append((dispatcher, table, version, is_new))
    prepared.sink.settle_in(prepared.taken, tables)


async def makes_hold(changefeed: Changefeed, upstream: Upstream, attempt: int) -> bool:
    """Whether it is a first start that makes the hold: else `changefeed hold` has, or the operator, which keeps it."""
    if changefeed.spec.start_ts is None:
        return True  # there is nothing to hold before a start
    if attempt:
        return False
    try:
        return locations.service_id(changefeed) not in {hold.name for hold in await upstream.holds()}
    except ChangefeedError:
        return False


@asynccontextmanager
async def history_held(
    history: HistoryLease, ts: int | None, log: Log | None, may_be_repeated: bool, lead: int = 0
) -> AsyncIterator[int]:
    """Changes after `ts` are held before anything is read, and let go of if nobody will need them; gives that ts.

    None: from now on, which is the upstream's to say, and from `lead` before.

    `log`: of a first start that makes the hold, and removes it if it fails.

    `may_be_repeated`: from the same ts. Then a start that failed because something was away leaves its hold to the next
    one, which would find nothing to be lost (exit code 69).
    """
    try:
        if ts is None:
            ts = await history.begin(lead) - lead
        else:
            await history.hold(ts)
        yield ts
    except BaseException as error:
        is_awaited = may_be_repeated and isinstance(error, Transient | Unavailable)
        if log is not None and not is_awaited:
            with suppress(ChangefeedError, TimeoutError):
                async with asyncio.timeout(_REMOVAL_S):
                    if (await asyncio.to_thread(log.read)).n == 0:  # nobody else has started it meanwhile
                        await history.remove()
        raise
