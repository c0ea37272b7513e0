"""Follows one table: its definition across DDLs, with its history held at PD. Shells, for one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import pyarrow as pa

from changefeed.errors import ChangefeedError, InvalidSpec, NeedsHuman, SnapshotLostByGC, Transient, Unavailable
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.ddls import Ddls
from changefeed.owner.planning.timeline import Timeline
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import TableInfo
from changefeed.source.options import SourceOptions, TableName
from changefeed.source.read_schema import ReadSchema, check_metadata, schema_of
from changefeed.source.schema_changes import check_columns, definition_after
from changefeed.upstream.contract import HistoryLease, Upstream
from changefeed.upstream.decoders import decoder_of

_LOG = logging.getLogger(__name__)
_RENEW_S = 60.0


async def read_schema_now(options: SourceOptions) -> ReadSchema:
    """All columns of the table now, or at endingVersion. Raises what `find_table` and `Access.connect` raise."""
    upstream = await options.access.connect()
    try:
        ts = await upstream.now()
        if options.to_ts is not None:
            ts = min(ts, options.to_ts)
        table = find_table(await upstream.schema(ts), ts, options.table)
        return ReadSchema.of(schema_of(table), table, ts, is_whole=True)
    finally:
        await upstream.close()


async def read_schema_of(upstream: Upstream, wanted: ReadSchema | pa.Schema, table_id: int) -> ReadSchema:
    """`wanted`: the table's columns, or the user's choice, which the table must have now if it still exists.

    Raises InvalidSpec.
    """
    if isinstance(wanted, ReadSchema):
        return wanted
    check_metadata(wanted)
    ts = await upstream.now()
    tables = (await upstream.schema(ts)).tables_at(ts)
    table = next((table for table in tables if table.id == table_id), None)
    read = ReadSchema.of(wanted, table, ts, is_whole=False)
    if table is not None and (found := read.differences(table)):
        raise InvalidSpec('.schema("...")', f"table {table.full_name}: {'; '.join(found)}", "Name columns that it has.")
    return read


def find_table(schema: SchemaHistory, ts: int, name: TableName, table_id: int | None = None) -> TableInfo:
    """Find it by id or by name. Raises InvalidSpec if it does not exist at `ts`, NeedsHuman if it can't be read."""
    tables = [table for table in schema.tables_at(ts) if not table.is_view and not table.is_sequence]
    for table in tables:
        if table.id == table_id or (table_id is None and name.is_of(table.schema_name, table.name)):
            decoder_of(table).check_supported(table)
            return table
    names = ", ".join(sorted(table.full_name for table in tables)[:8]) or "none"
    raise InvalidSpec(
        "tables",
        f"{name}{'' if table_id is None else f' (id {table_id})'} does not exist at ts {ts}",
        f"Tables at that ts: {names}. If it was created or renamed later, set startingVersion to a later version.",
    )


class FollowedTable:
    """`definition` applies to all rows from the last passed DDL up to `limit`.

    Calls `changed` when it learns of DDLs, `failed` when it can't follow them.
    """

    def __init__(
        self,
        upstream: Upstream,
        schema: SchemaHistory,
        definition: TableInfo,
        name: TableName,
        read: ReadSchema,
        changed: Callable[[], None],
        failed: Callable[[ChangefeedError], None],
        upto_ts: int | None = None,
    ) -> None:
        """`schema`: as of the ts to start after. `upto_ts`: ignore DDLs above it; None: follow all.

        Raises SchemaChanged if the table at that ts no longer matches the read schema.
        """
        self.definition = definition
        self._name = name
        self._read = read
        self._barrier = Barrier(schema.snapshot_ts, upto_ts)
        if schema.snapshot_ts > read.as_of_ts:
            check_columns(definition, read, f"at ts {schema.snapshot_ts}")
        read.shown(definition)
        timeline = Timeline(self._selects, lambda _: False, lambda *_: False, definition.physical_ids)
        self.ddls = upstream.schema_feed(schema, Ddls(schema, timeline, self._barrier, changed, failed).take)

    @property
    def known_ts(self) -> int:
        """Every DDL up to this ts is known."""
        return self._barrier.ceiling()

    def limit(self) -> int:
        """Rows above this ts may have another definition, or one that is not known yet."""
        return self._barrier.lowest_limit(frozenset(self.definition.physical_ids))

    def is_before_ddl(self, ts: int) -> bool:
        """Whether a DDL of the table is pending at `ts`."""
        return ts == self.limit() < self.known_ts

    def pass_ddls(self, read_ts: int) -> None:
        """Apply the DDLs up to `read_ts`, where all rows have been read. Raises what definition_after raises."""
        while (ddl := self._barrier.due(lambda _: read_ts)) is not None:
            if ddl.involved:
                self.definition = definition_after(ddl, self.definition, self._name, self._read)
            self._barrier.executed()

    def _selects(self, schema: str, table: str) -> bool:
        """By its current name and by the name in the options: a rename leads from one to the other."""
        names = (self._name, TableName(self.definition.schema_name, self.definition.name))
        return any(name.is_of(schema, table) for name in names)


async def keep_held(safepoint: HistoryLease, ts: Callable[[], int]) -> None:
    """Renew the safepoint at `ts()` for as long as this runs. Raises SnapshotLostByGC."""
    while True:
        await asyncio.sleep(_RENEW_S)
        try:
            await safepoint.hold(ts())
        except (Transient, Unavailable) as error:
            _LOG.warning("Could not renew the safepoint that holds the upstream's history; retrying: %s", error)


async def first_of(work: Iterable[asyncio.Task[None]]) -> None:
    """Wait for the first of these to end and cancel the others. Raises what it raised."""
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
    """The same error, with a next step for users of this source."""
    return SnapshotLostByGC(
        error.message,
        "Bring the data written so far in line with the table, then start a stream with a new checkpoint and a later "
        "startingVersion. To survive longer pauses, raise safepointTtl.",
    )
