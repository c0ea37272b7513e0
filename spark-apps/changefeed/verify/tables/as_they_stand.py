"""Compares tables of rows with an upstream that has its tables only as they are now, as PostgreSQL.

They are read as of one moment, between the ts T1 and T2, and what the sink has once its checkpoint is T2 or later. Rows
that were changed meanwhile may differ by then. A changelog says which ones these are. Of other sinks all is looked at
again, up to `LOOKS` times: a row is at fault if it differs in each look, and was the same on both sides in all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb

from changefeed.filter.selection import Selection
from changefeed.log.state import State
from changefeed.reading.progress import ReadingProgress
from changefeed.reading.scratch import scratch_database
from changefeed.restore.rows import batches
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.spec.model import Changefeed
from changefeed.upstream import choice
from changefeed.upstream.written_rows import MaskKeys
from changefeed.verify.recorded import StateLog, check_copied
from changefeed.verify.result import RowsVerdict
from changefeed.verify.snapshot.reached import reached
from changefeed.verify.snapshot.standing import AS_THEY_STAND, InTables, StandingTable, StandingTables, standing_of
from changefeed.verify.tables.comparison import RowComparison
from changefeed.verify.tables.replayed import ReplayedComparison

LOOKS = 3


@dataclass
class AsTheyStand:
    """Implements TablesOracle: one look. `before`: by table, where the look before has kept what differs."""

    state: State
    db: duckdb.DuckDBPyConnection
    result: RowsVerdict
    progress: ReadingProgress
    standing: StandingTables
    number: int
    before: Mapping[str, str]
    time_zone: str = "UTC"
    kept: dict[str, str] = field(default_factory=dict)
    is_at_rest: bool = False
    knows_start: bool = True  # `judge` leaves out what nobody knows
    knows_defaults: bool = False
    upto_ts: int | None = None

    async def tables(self) -> list[TableInfo]:
        """As the log defines them, with the columns that the upstream's still has. Notes tell of all others."""
        found = []
        for there in self.standing.tables.values():
            info = _defined(self.state, there.info)
            if self.state.table_version(info.id) > self.standing.after_ts:
                self.result.note(f"{info.full_name} was altered while it was read: verify again when nothing writes.")
                continue
            columns = tuple(column for column in info.output_columns if _like(column, there) is not None)
            names = {column.name for column in columns}
            if left_out := sorted({column.name for column in (*info.columns, *there.info.output_columns)} - names):
                self.result.note(
                    f"The definition of {info.full_name} is another one than its newest change has: "
                    f"{', '.join(left_out)} was not compared."
                )
            if {column.name for column in info.columns if column.is_pk} <= names:
                found.append(replace(info, columns=columns))
            else:
                self.result.note(f"{info.full_name} has another primary key now: it was not compared.")
        return found

    def has_all_changes(self, info: TableInfo) -> bool:
        if Selection.of(self.state.epoch.config, info).rows.keeps_all:
            return True
        self.result.note(f"Event filters drop changes of {info.full_name}: it was not compared.")
        return False

    async def has_one_life(self, info: TableInfo) -> bool:
        """The log does not say what was done to a table."""
        if self.state.table_version(info.id) == self.state.first_version(info.id):
            return True
        self.result.note(
            f"{info.full_name} was made, altered or emptied since the start, and no message tells which: it was not "
            "compared."
        )
        return False

    async def add_upstream(
        self, info: TableInfo, rows: RowComparison, columns: Sequence[ColumnInfo] | None = None
    ) -> None:
        self.progress.stage(f"{info.full_name}: the upstream's rows")
        there = self._there(info)
        chosen = ", ".join(f"c{_like(column, there)}" for column in columns or info.output_columns)

        def add() -> None:
            for batch in batches(self.db, f"SELECT {chosen} FROM {there.rows}"):
                rows.add("upstream", batch.columns)

        await asyncio.to_thread(add)

    async def add_at_start(self, info: TableInfo, rows: ReplayedComparison) -> None:
        """Nobody knows them; of a table that was copied there are none."""

    def judge(self, info: TableInfo, rows: RowComparison, *, was_emptied: bool = False) -> None:
        name, result = info.full_name, self.result
        if not (was_emptied or info.id in self.state.copied) and (unsaid := rows.leave_unsaid()):
            result.note(
                f"{unsaid} rows of {name} are not in the sink: they have not changed since the changefeed captures the "
                "table, or their insert is missing, which looks the same. They were not compared."
            )
        busy = rows.leave_changed(self.standing.after_ts) if isinstance(rows, ReplayedComparison) else 0
        if older := rows.without_values():
            result.note(f"{older} rows of {name} are older than its columns: only their keys were compared.")
        kept = f"differs{self.number}_{len(self.kept)}"
        found, moved = rows.found_again(self.before.get(name, "") if self.number else None, kept)
        self.kept[name] = kept
        if busy + moved:
            result.note(
                f"{busy + moved} rows of {name} were changed while they were read, and not compared: verify again when "
                "nothing writes."
            )
        result.add(found)

    def _there(self, info: TableInfo) -> StandingTable:
        return next(there for there in self.standing.tables.values() if there.info.id == info.id)


def _defined(state: State, now: TableInfo) -> TableInfo:
    """As the sink has it; as it is now if no record has told yet."""
    known = state.dispatchers.get(now.id)
    stored = state.table_infos.get(known.definition or known.table_info) if known else None
    return now if stored is None else TableInfo.from_json(stored)


def _like(column: ColumnInfo, there: StandingTable) -> int | None:
    """The number of the upstream's column that is the same, if there is one."""
    for number, other in enumerate(there.info.output_columns):
        if _shape(column) == _shape(other):
            return number
    return None


def _shape(column: ColumnInfo) -> tuple[object, ...]:
    return column.name, column.type, column.flen, column.decimal, column.charset, column.is_pk


Compares = Callable[[AsTheyStand], Awaitable[None]]


async def looked_at(
    changefeed: Changefeed,
    secrets_dir: Path | None,
    progress: ReadingProgress,
    compare: Compares,
    *,
    verdict: type[RowsVerdict] = RowsVerdict,
    is_zoned: bool = False,
    flush_s: float = 0.0,
) -> RowsVerdict:
    """What `compare` finds, whose looks are up to `LOOKS`. `is_zoned`: TIMESTAMP is compared in spec.timeZone.

    Raises NotVerifiable, also when the changefeed does not get as far as the upstream.
    """
    recorded, access = StateLog.of(changefeed, secrets_dir), choice.access_of(changefeed, secrets_dir)
    before: Mapping[str, str] = {}
    with ExitStack() as stack:
        db = stack.enter_context(scratch_database())
        for number in range(LOOKS):
            progress.stage("the changefeed's log")
            state = recorded.read()
            time_zone = state.epoch.config["spec"]["timeZone"] if is_zoned else "UTC"
            standing = await standing_of(access, state, db, InTables(time_zone), progress, MaskKeys(secrets_dir))
            await reached(
                lambda: recorded.read().checkpoint_ts, recorded.store.uri, standing.before_ts, flush_s, progress
            )
            state = recorded.read()
            check_copied(state, state.checkpoint_ts)
            result = verdict(checkpoint_ts=str(standing.before_ts))
            result.note(AS_THEY_STAND)
            look = AsTheyStand(state, db, result, progress, standing, number, before, time_zone)
            look.upto_ts = standing.before_ts
            await compare(look)
            if result.ok:
                break
            before = look.kept
    return result
