"""What tables of rows are compared with, whichever upstream they are of; what reads a sink knows it by this alone.

An upstream that has history is read as of what a changefeed at rest has written (`at_rest`). One that has none is read
as it stands, while the changefeed runs and catches up (`as_they_stand`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import duckdb

from changefeed.log.state import State
from changefeed.reading.progress import ReadingProgress
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.verify.result import RowsVerdict
from changefeed.verify.tables.comparison import RowComparison
from changefeed.verify.tables.replayed import ReplayedComparison


class TablesOracle(Protocol):
    """The upstream's side of a comparison. `result`: what has been found so far.

    `time_zone`: in which TIMESTAMP is compared. `is_at_rest`: nothing writes to the sink. `upto_ts`: what a changelog
    has behind it does not count; None: all of it does. `knows_start`: `add_at_start` adds all that stood there.
    `knows_defaults`: definitions say what rows have that are older than a column.
    """

    state: State
    db: duckdb.DuckDBPyConnection
    result: RowsVerdict
    progress: ReadingProgress
    time_zone: str
    is_at_rest: bool
    upto_ts: int | None
    knows_start: bool
    knows_defaults: bool

    async def tables(self) -> list[TableInfo]:
        """Those that the filter's rules match, as they are downstream."""
        ...

    def has_all_changes(self, info: TableInfo) -> bool:
        """Whether event filters keep all that happens to the table; if not, the result says so."""
        ...

    async def has_one_life(self, info: TableInfo) -> bool:
        """Whether all rows that were ever written by the table's name are rows of it; if not, the result says so."""
        ...

    async def add_upstream(
        self, info: TableInfo, rows: RowComparison, columns: Sequence[ColumnInfo] | None = None
    ) -> None:
        """Adds the upstream's rows, in these columns or in all."""
        ...

    async def add_at_start(self, info: TableInfo, rows: ReplayedComparison) -> None:
        """Adds the rows that stood where the changefeed began, of which it has written nothing unless they changed."""
        ...

    def judge(self, info: TableInfo, rows: RowComparison, *, was_emptied: bool = False) -> None:
        """Adds to the result what both sides' rows have come to. `was_emptied`: no row is older than the changefeed."""
        ...
