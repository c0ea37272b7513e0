"""What a table says of itself in its properties, which stay whatever becomes of its snapshots."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from changefeed.sink.contract import EntryId
from changefeed.sink.table_format.relied import Relied

LOG, EPOCH, TABLE, VERSION = "changefeed.log", "changefeed.epoch", "changefeed.table-id", "changefeed.version"
DONE = "changefeed.done."
SNAPSHOT = "changefeed.snapshot"  # the changefeed's last one: its id and its sequence number
NONE = EntryId(0, -1)  # is before all others


def done(table: Table) -> dict[int, EntryId]:
    """The last entry of each dispatcher that the table has."""
    marks = {name[len(DONE) :]: mark for name, mark in table.metadata.properties.items() if name.startswith(DONE)}
    return {int(dispatcher): EntryId(*map(int, mark.split("/"))) for dispatcher, mark in marks.items()}


def done_properties(entries: Mapping[int, EntryId]) -> dict[str, str]:
    return {f"{DONE}{dispatcher}": f"{last.plan}/{last.entry}" for dispatcher, last in entries.items()}


def lost(table: Table, relied: Mapping[int, Relied]) -> tuple[int, EntryId] | None:
    """A dispatcher whose entry, which is relied on, the table does not have."""
    marks, version = done(table), version_of(table)
    lacking = (
        (dispatcher, known.last)
        for dispatcher, known in relied.items()
        if version <= known.version and marks.get(dispatcher, NONE) < known.last
    )
    return next(lacking, None)


def snapshot_property(last: Snapshot) -> dict[str, str]:
    return {SNAPSHOT: f"{last.snapshot_id}/{last.sequence_number}"}


def rolled_back(table: Table) -> int | None:
    """The changefeed's last snapshot, if what the table shows now does not come after it.

    Nothing is known behind a snapshot whose parent has expired: some libraries then remove the parent's id, too.
    """
    metadata = table.metadata
    last, _, sequence = metadata.properties.get(SNAPSHOT, "").partition("/")
    if not last:
        return None
    shown = metadata.current_snapshot()
    while shown is not None and (shown.sequence_number or 0) >= int(sequence):
        before = None if shown.parent_snapshot_id is None else metadata.snapshot_by_id(shown.parent_snapshot_id)
        if shown.snapshot_id == int(last) or before is None:
            return None
        shown = before
    return int(last)


def id_of(table: Table) -> int:
    """Return the id of the upstream's table that the table has."""
    return int(table.metadata.properties.get(TABLE, "0"))


def version_of(table: Table) -> int:
    """The ts of the last DDL that it has followed."""
    return int(table.metadata.properties.get(VERSION, "0"))
