"""The points of a PostgreSQL's slot (integration_points): what a changefeed asks of the server, and says to it."""

from __future__ import annotations

from changefeed.upstream.postgresql.copies.table_reader import TableReader
from changefeed.upstream.postgresql.slot import slots
from changefeed.upstream.postgresql.slot.lease import SlotLease
from changefeed.upstream.postgresql.slot.replication import Replication
from changefeed.upstream.postgresql.slot.slot_reader import SlotReader
from integration_points import Points, wrap

#: What a point's name begins with that is of the slot, or of the files that its rows come to.
SLOT = (
    "make the slot",
    "begin the hold",
    "say in the WAL what is held",
    "begin to read the slot",
    "confirm to the slot",
    "begin a table's snapshot",
    "end a table's snapshot",
    "create data file",
)


def install(points: Points) -> None:
    """From now on this process passes points."""
    for where, method, name in (
        (slots, "make", "make the slot"),
        (SlotLease, "_begin", "begin the hold"),
        (SlotLease, "_hold", "say in the WAL what is held"),
        (SlotReader, "open", "begin to read the slot"),
        (Replication, "confirm", "confirm to the slot"),
        (TableReader, "begin", "begin a table's snapshot"),
        (TableReader, "end", "end a table's snapshot"),
    ):
        wrap(points, where, method, name)
