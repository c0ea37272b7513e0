"""What the log knows to be in a table, whoever has committed it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from changefeed.log.state import State
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import EntryId


@dataclass(frozen=True)
class Relied:
    """What is known to be in a table: a dispatcher's last entry, when the table had followed the DDL of `version`.

    Later DDLs may end the dispatcher or move it elsewhere: a table of a higher version need not have the entry.
    """

    version: int
    last: EntryId


def relied_on(state: State, tables: Mapping[int, tuple[TableInfo, int]]) -> dict[int, dict[int, Relied]]:
    """Return by table's id and dispatcher what the log says of each table that it knows to be there.

    `tables`: definition and version of the table that each dispatcher is of.
    """
    relied: dict[int, dict[int, Relied]] = defaultdict(dict)
    for dispatcher, (table, _) in tables.items():
        known = state.dispatchers.get(dispatcher)
        if known is not None and known.table_version != state.first_version(dispatcher):
            relied[table.id] |= {}  # a DDL has made it, or was followed
        if known is not None and (newest := known.newest) is not None:
            relied[table.id][dispatcher] = Relied(newest.table_version, EntryId(newest.plan, newest.entry))
    return relied
