"""What a table says of itself: `txn` actions, which Delta Lake keeps whatever becomes of rows and versions.

Each is an application's id with a number that only grows. All ids begin with the name of the changefeed's log, which no
other changefeed has; the id that is nothing else has the number of the log's record that was published last.
"""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import DeltaTable, Transaction

from changefeed.sink.contract import EntryId
from changefeed.sink.table_format.relied import Relied

LOG = "changefeed.log"  # of the table's configuration, since it was made
RECORD = ""  # the id that is nothing but the log's name
EPOCH, TABLE, VERSION, TRUNCATED, LEFT = "/epoch", "/table-id", "/ddl-ts", "/truncated-ts", "/left-ts"

_ENTRIES = 1 << 24  # of a plan, at most
NONE = -1  # is before all others


class Marks:
    """Those of a changefeed, `log`, in a table."""

    def __init__(self, table: DeltaTable, log: str) -> None:
        self._table, self._log = table, log

    def of(self, name: str) -> int:
        """0: there is none."""
        return self._table.transaction_version(f"{self._log}{name}") or 0

    def done(self, dispatcher: int) -> int:
        """The last entry of the dispatcher that the table has, by `number_of`; NONE: it has none."""
        found = self._table.transaction_version(f"{self._log}{done_name(dispatcher)}")
        return NONE if found is None else found

    @property
    def is_left(self) -> bool:
        """Whether the upstream's table is no longer this one: it was dropped, or renamed."""
        return self.of(LEFT) == self.of(VERSION) != 0

    def lost(self, relied: Mapping[int, Relied]) -> tuple[int, EntryId] | None:
        """A dispatcher whose entry, which is relied on, the table does not have."""
        version = self.of(VERSION)
        lacking = (
            (dispatcher, known.last)
            for dispatcher, known in relied.items()
            if version <= known.version and self.done(dispatcher) < number_of(known.last)
        )
        return next(lacking, None)


def done_name(dispatcher: int) -> str:
    return f"/{dispatcher}"


def number_of(entry: EntryId) -> int:
    """Return a number for it, which grows from entry to entry of a dispatcher."""
    assert 0 <= entry.entry < _ENTRIES, entry
    return entry.plan * _ENTRIES + entry.entry


def transactions(log: str, marks: Mapping[str, int]) -> list[Transaction]:
    return [Transaction(f"{log}{name}", version) for name, version in marks.items()]
