"""One table of an upstream from a ts on: its definition through DDLs, its history held. Shells, for one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import pyarrow as pa

from changefeed.errors import ChangefeedError, InvalidSpec, NeedsHuman, SnapshotLostByGC, Transient, Unavailable
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.ddl_span import DdlSpan
from changefeed.owner.planning.timeline import Timeline
from changefeed.schema.row.rowv2 import check_supported
from changefeed.schema.snapshot import load_schema
from changefeed.schema.storage import SchemaStorage
from changefeed.schema.table_info import TableInfo
from changefeed.source.options import Options, TableName
from changefeed.source.read_schema import ReadSchema, check_metadata, schema_of
from changefeed.source.schema_changes import check_columns, definition_after
from changefeed.upstream.kv import Snapshot
from changefeed.upstream.pd import PdClient
from changefeed.upstream.safepoint import Safepoint

_LOG = logging.getLogger(__name__)
_RENEW_S = 60.0


async def read_schema_at(pd: PdClient, ts: int) -> SchemaStorage:
    return await load_schema(Snapshot(pd, ts), ts)


async def read_schema_now(options: Options) -> ReadSchema:
    """All columns of the table as it is now, or at endingVersion. Raises as `find_table` and `Access.connect` do."""
    pd = await options.access.connect()
    try:
        ts = await pd.tso()
        if options.to_ts is not None:
            ts = min(ts, options.to_ts)
        table = find_table(await read_schema_at(pd, ts), ts, options.table)
        return ReadSchema.of(schema_of(table), table, ts, is_whole=True)
    finally:
        await pd.close()


async def read_schema_of(pd: PdClient, wanted: ReadSchema | pa.Schema, table_id: int) -> ReadSchema:
    """`wanted`: made of the table, or the user's own choice of columns, which the table must have now if it is there.

    Raises InvalidSpec.
    """
    if isinstance(wanted, ReadSchema):
        return wanted
    check_metadata(wanted)
    ts = await pd.tso()
    tables = (await read_schema_at(pd, ts)).tables_at(ts)
    table = next((table for table in tables if table.id == table_id), None)
    read = ReadSchema.of(wanted, table, ts, is_whole=False)
    if table is not None and (found := read.differences(table)):
        raise InvalidSpec('.schema("...")', f"table {table.full_name}: {'; '.join(found)}", "Name columns that it has.")
    return read


def find_table(schema: SchemaStorage, ts: int, name: TableName, table_id: int | None = None) -> TableInfo:
    """By its id, or by its name. Raises InvalidSpec when there is none at `ts`, NeedsHuman if it can't be read."""
    tables = [table for table in schema.tables_at(ts) if not table.is_view and not table.is_sequence]
    for table in tables:
        if table.id == table_id or (table_id is None and name.is_of(table.schema_name, table.name)):
            check_supported(table)
            return table
    names = ", ".join(sorted(table.full_name for table in tables)[:8]) or "none at all"
    raise InvalidSpec(
        "tables",
        f"{name} does not exist at ts {ts}" if table_id is None else f"{name} (id {table_id}) does not exist at {ts}",
        f"Tables that exist then: {names}. A table that was created or renamed later is read from there on: set "
        "startingVersion.",
    )


class FollowedTable:
    """`definition` is that of all rows from the last DDL that was passed up to `limit`.

    `changed` is called when there is news of DDLs, `failed` when they can't be followed.
    """

    def __init__(
        self,
        pd: PdClient,
        schema: SchemaStorage,
        definition: TableInfo,
        name: TableName,
        read: ReadSchema,
        changed: Callable[[], None],
        failed: Callable[[ChangefeedError], None],
        upto_ts: int | None = None,
    ) -> None:
        """`schema`: as of the ts to begin behind. `upto_ts`: DDLs above it are nobody's business; None: all are ours.

        Raises SchemaChanged when the table was not at that ts what was read later.
        """
        self.definition = definition
        self._name = name
        self._read = read
        self._barrier = Barrier(schema.snapshot_ts, upto_ts)
        if schema.snapshot_ts > read.as_of_ts:
            check_columns(definition, read, f"at ts {schema.snapshot_ts}")
        read.shown(definition)
        timeline = Timeline(self._selects, lambda _: False, lambda *_: False, definition.physical_ids)
        self.ddls = DdlSpan(pd, schema, timeline, self._barrier, changed, failed)

    @property
    def known_ts(self) -> int:
        """Every DDL up to it is known."""
        return self._barrier.ceiling()

    def limit(self) -> int:
        """Rows above it may have another definition, or it is not known yet."""
        return self._barrier.lowest_limit(frozenset(self.definition.physical_ids))

    def is_before_ddl(self, ts: int) -> bool:
        """Whether a DDL of the table at `ts` is waited with."""
        return ts == self.limit() < self.known_ts

    def pass_ddls(self, read_ts: int) -> None:
        """All rows up to `read_ts` have been read: the definition may change behind it. Raises as definition_after."""
        while (ddl := self._barrier.due(lambda _: read_ts)) is not None:
            if ddl.involved:
                self.definition = definition_after(ddl, self.definition, self._name, self._read)
            self._barrier.executed()

    def _selects(self, schema: str, table: str) -> bool:
        """By the name that it has, and the one that it was given in options: a rename leads from one to the other."""
        names = (self._name, TableName(self.definition.schema_name, self.definition.name))
        return any(name.is_of(schema, table) for name in names)


async def keep_held(safepoint: Safepoint, ts: Callable[[], int]) -> None:
    """Renew the hold for as long as this runs, at what `ts` says then. Raises SnapshotLostByGC."""
    while True:
        await asyncio.sleep(_RENEW_S)
        try:
            await safepoint.hold(ts())
        except (Transient, Unavailable) as error:
            _LOG.warning("The hold on the upstream's history could not be renewed, and is tried again: %s", error)


async def first_of(work: Iterable[asyncio.Task[None]]) -> None:
    """Wait until one of these ends; the others are cancelled. Raises what it raised."""
    tasks = list(work)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def gc_passed(error: SnapshotLostByGC) -> NeedsHuman:
    """The same, with what a reader of this source can do."""
    return SnapshotLostByGC(
        error.message,
        "Bring what the query has written to what the table holds, and start a stream with a new checkpoint and a "
        "later startingVersion. To outlast longer pauses, set safepointTtl.",
    )
