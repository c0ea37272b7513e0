"""Definitions through time, as the upstream's meta keys hold them: in force at a ts, and settled between DDLs. Pure.

While a DDL runs, TiDB changes a definition in steps that its sessions follow. *In force* is what the key held at a ts.
The *settled* definition is what files and tables downstream have: a DDL makes another one as soon as sessions see other
public columns or another name, and at its end at the latest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from changefeed.reading.failures import NotVerifiable
from changefeed.schema.table_info import STATE_PUBLIC, TableInfo, parse_database_info, parse_table_info
from changefeed.upstream.tikv.tidb.keys import DDL_JOB_TABLE
from changefeed.verify.upstream.meta import MetaWrite

_Raw = Mapping[str, Any]
State = tuple[int, _Raw]  # since when, and the definition as TiDB stores it


@dataclass(frozen=True)
class SettledChange:
    """What a DDL has done: the settled definitions before and after it, each of both in the order of their ids.

    `databases`: names of those that were written or have gone.
    """

    before: tuple[TableInfo, ...] = ()
    after: tuple[TableInfo, ...] = ()
    databases: frozenset[str] = frozenset()


class Definitions:
    """Those in force."""

    def __init__(self, written: Iterable[MetaWrite]) -> None:
        self._tables: dict[int, list[tuple[int, int, _Raw | None]]] = defaultdict(list)
        self._databases: dict[int, list[tuple[int, str | None]]] = defaultdict(list)
        self._written: dict[int, tuple[set[int], set[int]]] = {}  # by ts: tables, databases
        # A table that changes its database is taken out of the one and put into the other by one transaction.
        for each in sorted(written, key=lambda each: (each.ts, each.json is not None)):
            tables, databases = self._written.setdefault(each.ts, (set(), set()))
            if each.table_id:
                tables.add(each.table_id)
                self._tables[each.table_id].append((each.ts, each.database_id, each.json))
            else:
                databases.add(each.database_id)
                name = parse_database_info(each.json).name if each.json is not None else None
                self._databases[each.database_id].append((each.ts, name))

    def tables(self) -> list[int]:
        """The ids of all that there ever were."""
        return sorted(self._tables)

    def tables_written_at(self, ts: int) -> set[int]:
        return self._written.get(ts, (set(), set()))[0]

    def databases_written_at(self, ts: int) -> frozenset[str]:
        """Their names; of one that has gone the one that it had."""
        written = self._written.get(ts, (set(), set()))[1]
        return frozenset(self._name(id_, ts) or self._name(id_, ts - 1) or "" for id_ in written)

    def settled(self, table_id: int, ts: int) -> TableInfo | None:
        """As it is in force at `ts`, where no DDL changes it then; None: there is no such table, or none with rows.

        Of a DDL that is under way at `ts`, partitions are shown as they hold rows until its end, and so is a table that
        is about to go.
        """
        states = self._tables.get(table_id, [])
        index = bisect_right(states, ts, key=lambda state: state[0])
        if not index:
            return None
        _, database_id, raw = states[index - 1]
        name = self._name(database_id, ts)
        if raw is None or name is None:
            return None
        info = parse_table_info(_with_all_rows(raw), name)
        is_there = info.state == STATE_PUBLIC or _goes(states[index:])
        return info if is_there and not info.is_sequence and not info.is_temporary else None

    def in_force(self, table_id: int, from_ts: int, upto_ts: int) -> list[State]:
        """All of a table from `from_ts` to below `upto_ts`, and the one before."""
        states = self._tables.get(table_id, [])
        first = max(bisect_right(states, from_ts, key=lambda state: state[0]) - 2, 0)
        return [(ts, raw) for ts, _, raw in states[first:] if ts < upto_ts and raw is not None]

    def _name(self, database_id: int, ts: int) -> str | None:
        states = self._databases.get(database_id, [])
        index = bisect_right(states, ts, key=lambda state: state[0])
        return states[index - 1][1] if index else None


class SettledSchema:
    """The settled definitions, DDL by DDL, from `snapshot_ts` on."""

    def __init__(
        self, snapshot_ts: int, definitions: Definitions, routed: Callable[[TableInfo], TableInfo] = lambda table: table
    ) -> None:
        """`routed`: a table as it is written."""
        self._routed = routed
        self.snapshot_ts = snapshot_ts
        self.definitions = definitions
        self._history: dict[int, list[tuple[int, TableInfo | None]]] = {}
        for table_id in definitions.tables():
            if (table := self._settled(table_id, snapshot_ts)) is not None:
                self._history[table_id] = [(snapshot_ts, table)]

    def _settled(self, table_id: int, ts: int) -> TableInfo | None:
        table = self.definitions.settled(table_id, ts)
        return None if table is None else self._routed(table)

    @property
    def ddl_job_table(self) -> TableInfo:
        """That of the table where DDL jobs stand. Raises NotVerifiable when there is none."""
        for table in self.tables_at(self.snapshot_ts):
            schema, name = table.upstream_name
            if (schema.lower(), name.lower()) == DDL_JOB_TABLE:
                return table
        raise NotVerifiable(
            f"The upstream has no table {'.'.join(DDL_JOB_TABLE)} at ts {self.snapshot_ts}: its DDLs can't be seen.",
            "Use TiDB 7.5 or later with at least one TiDB server bootstrapped.",
        )

    def table(self, table_id: int, ts: int) -> TableInfo | None:
        """After all DDLs that had come true at `ts`; None if there is no such table then."""
        versions = self._history.get(table_id, [])
        index = bisect_right(versions, ts, key=lambda version: version[0])
        return versions[index - 1][1] if index else None

    def tables_at(self, ts: int) -> list[TableInfo]:
        """All tables and views, by id."""
        tables = (self.table(table_id, ts) for table_id in sorted(self._history))
        return [table for table in tables if table is not None]

    def others_in_force(self, ts: int) -> list[TableInfo]:
        """Tables that sessions see at `ts`, and that are not as the settled definitions have them."""
        pairs = ((self.table(id_, ts), self._settled(id_, ts)) for id_ in self.definitions.tables())
        return [new for old, new in pairs if new is not None and (old is None or _shown(old) != _shown(new))]

    def shows_another(self, ts: int) -> bool:
        """Whether the transaction that committed at `ts` shows sessions another table than the settled one.

        Tables that come or go do so at the end of their DDL.
        """
        ids = self.definitions.tables_written_at(ts)
        written = ((self.table(id_, ts), self._settled(id_, ts)) for id_ in ids)
        return any(old is not None and new is not None and _shown(old) != _shown(new) for old, new in written)

    def settle(self, ts: int, named: Collection[int] = ()) -> SettledChange:
        """A DDL has come true at `ts`, after all that were given before; `named`: the tables that its job names.

        What it did is what its transaction wrote; a table that it names it touches even if nothing has changed.
        """
        databases = self.definitions.databases_written_at(ts)
        written = self.definitions.tables_written_at(ts)
        gone = {table.id for table in self.tables_at(ts) if table.upstream_name[0] in databases} if databases else set()
        before, after = [], []
        for table_id in sorted({*written, *named, *gone}):
            old, new = self.table(table_id, ts), self._settled(table_id, ts)
            if old == new and (table_id not in named or old is None):
                continue
            before += [old] if old is not None else []
            after += [new] if new is not None else []
            self._history.setdefault(table_id, []).append((ts, new))
        return SettledChange(tuple(before), tuple(after), databases)


def _goes(later: Sequence[tuple[int, int, _Raw | None]]) -> bool:
    """Whether the next thing that happens to a table which is not public is that it goes: else it comes."""
    following = (raw for _, _, raw in later if raw is None or raw.get("state") == STATE_PUBLIC)
    return next(following, {}) is None


def _shown(table: TableInfo) -> tuple[object, ...]:
    """What sessions see of a table: names, and types without those flags that only guard a DDL under way."""
    columns = (
        (c.id, c.name, c.type, c.is_unsigned, c.flen, c.decimal, c.charset, c.collate, c.elems)
        for c in table.decoded_by.columns
    )
    return *table.upstream_name, *columns


def _with_all_rows(raw: _Raw) -> _Raw:
    """The definition with the partitions that rows are in until a DDL which is under way has finished.

    TiDB shows the partitions that come in place of those that go before the DDL's end, and lists both beside.
    """
    partition = raw.get("partition") or {}
    comes = {each["id"] for each in partition.get("adding_definitions") or ()}
    goes = {each["id"]: each for each in partition.get("dropping_definitions") or ()}
    if not comes and not goes:
        return raw
    stays = {each["id"]: each for each in partition.get("definitions") or () if each["id"] not in comes}
    holds = list({**stays, **goes}.values())
    if [each["id"] for each in holds] == [raw.get("id")]:  # one that had no partitions is its own meanwhile
        return {**raw, "partition": None}
    return {**raw, "partition": {**partition, "definitions": holds}}
