"""A storm of DDLs: every class that TiDB has, at random, on tables that are written all the while.

The same `seed` does the same things. Jobs go on state by state between transactions, some of which were begun with the
definition before: with a metadata lock these commit, and no DDL goes on by two states while one is open; without it
they are rolled back once their table has changed, as TiDB refuses them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from ..ddl.tables import NewTable, create_table
from ..store.txn import TxnError
from ..tidb.schema import ROWID, NamedTable, NewColumn
from ..tidb.tidb import Tidb
from ..tidb.transaction import Transaction
from . import RowRate, storm_columns, storm_tables
from .random_values import column, value
from .storm import NothingToAlter, Storm

KINDS = [*storm_columns.KINDS, *storm_tables.KINDS]
DATABASES = ("storm", "storm_too")
OUTSIDE = "outside"  # a database that no changefeed of the storm selects
_KEYS = 160
_DDL = 0.12  # of the steps
_AT_ONCE = 2  # jobs
_HELD = 0.05  # of the transactions are kept open for a while
_KEY_COLUMNS: tuple[tuple[tuple[NewColumn, ...], Any], ...] = (
    ((NewColumn("id", "bigint"),), "id"),
    ((NewColumn("id", "int unsigned"),), "id"),
    ((NewColumn("code", "varchar(16)"), NewColumn("id", "bigint")), ("code", "id")),
    ((NewColumn("id", "bigint"),), None),
)


@dataclass
class _HeldTransaction:
    """An open transaction, and the definitions that it was begun with."""

    txn: Transaction
    tables: list[NamedTable]


@dataclass
class _RunningDdl:
    kind: str
    ids: frozenset[int]  # tables that nobody else may alter meanwhile
    states: Iterator[object]


@dataclass
class DdlStorm:
    """`count` tables, the first ones with partitions; it stops altering them after `limit` DDLs."""

    tidb: Tidb
    count: int = 16
    partitioned: int = 2
    rows: int = 60  # a table, at first
    seed: int = 0
    metadata_lock: bool = True
    limit: int | None = None
    done: Counter[str] = field(default_factory=Counter)  # DDLs by kind
    refused: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._held: list[_HeldTransaction] = []
        self._jobs: list[_RunningDdl] = []
        self._storm = Storm(self.tidb, self._rng, DATABASES, OUTSIDE)

    @property
    def tables(self) -> list[NamedTable]:
        """Return those that are written now."""
        ours = {*DATABASES, OUTSIDE}
        return [table for table in self.tidb.tables.values() if table.db.name in ours and table.info.has_rows]

    @property
    def is_amid_ddl(self) -> bool:
        """A job has begun and is not over."""
        return bool(self._jobs)

    def create(self) -> bool:
        """Makes what is missing; True if anything was."""
        self._storm.names = self.tidb.allocate_ids(1)[0]  # no name that an earlier storm has given
        missing = [name for name in (*DATABASES, OUTSIDE) if name not in self.tidb.databases]
        for name in missing:
            self.tidb.create_database(name)
        for n in range(self.count if missing else 0):
            columns, pk = _KEY_COLUMNS[0 if n < self.partitioned else n % len(_KEY_COLUMNS)]
            more = [column(self._rng, f"c{i}") for i in range(self._rng.randint(1, 4))]
            parts: dict[str, int | None] | None = {f"p{i}": (i + 1) * 40 for i in range(4)}
            new = NewTable(f"t{n}", (*columns, *more), pk, parts if n < self.partitioned else None)
            create_table(self.tidb, DATABASES[0], new)
        return bool(missing)

    def load(self, stop: Event) -> int:
        rows = 0
        for table in self.tables:
            for _ in range(0 if stop.is_set() else self.rows // 2):
                rows += self._transact([table])
        return rows

    def run(self, stop: Event, rate: float = 500.0) -> int:
        pace = RowRate(rate, stop)
        rows = 0
        while not stop.is_set():
            written = self.step()
            rows += written
            pace.keep(written or 1)
        self.settle()
        return rows

    def step(self) -> int:
        """A transaction or a state of a DDL; gives the rows it committed."""
        if self._jobs and self._rng.random() < 0.5:
            self._go_on(self._rng.choice(self._jobs))
            return 0
        is_over = self.limit is not None and self.done.total() >= self.limit
        if not is_over and len(self._jobs) < _AT_ONCE and self._rng.random() < _DDL:
            self._begin_ddl()
            return 0
        if self._held and self._rng.random() < 0.2:
            return self._end(self._held.pop(0))
        tables = self.tables
        return self._transact([self._rng.choice(tables) for _ in range(self._rng.choice((1, 1, 2)))]) if tables else 0

    def settle(self) -> None:
        """Ends what is open."""
        self._end_held()
        while self._jobs:
            self._go_on(self._jobs[0])

    # --- transactions ---

    def _transact(self, chosen: list[NamedTable]) -> int:
        txn = self.tidb.begin(one_phase=self._rng.random() < 0.1)
        try:
            rows = sum(self._write(txn, table) for table in chosen for _ in range(self._rng.randint(1, 3)))
        except (TxnError, ValueError):
            txn.rollback()
            return 0
        held = _HeldTransaction(txn, chosen)
        if rows and self._rng.random() < _HELD:
            self._held.append(held)
            return 0
        return rows if self._commit(held) else 0

    def _write(self, txn: Transaction, table: NamedTable) -> int:
        """One random change. Raises TxnError, and ValueError for a key that no partition holds."""
        address = self._address(table)
        old = txn.get(table, address if len(address) > 1 else address[0])
        if old is None:
            row = {c.name: self._value(c) for c in table.info.public if self._rng.random() < 0.9 or not _can_miss(c)}
            txn.insert(table, {**row, **dict(zip(table.address, address, strict=True))})
        elif self._rng.random() < 0.25:
            txn.delete(table, address if len(address) > 1 else address[0])
        else:
            others = [c for c in table.info.public if c.name not in table.address]
            changed = {c.name: self._value(c) for c in others if self._rng.random() < 0.6}
            txn.update(table, {**changed, **dict(zip(table.address, address, strict=True))})
        return 1

    def _address(self, table: NamedTable) -> tuple[Any, ...]:
        key = self._rng.randint(1, _KEYS)
        return tuple(key if name in ("id", ROWID) else f"k {key % 7}" for name in table.address)

    def _value(self, of: Any) -> Any:
        return None if of.nullable and self._rng.random() < 0.2 else value(self._rng, of.type)

    def _commit(self, held: _HeldTransaction) -> bool:
        known = self.tidb.tables
        has_changed = any(known.get(table.name) is not table for table in held.tables)
        if has_changed and not self.metadata_lock:
            held.txn.rollback()
            return False
        try:
            held.txn.commit()
        except TxnError:
            return False
        return True

    def _end(self, held: _HeldTransaction) -> int:
        return 1 if self._commit(held) else 0

    def _end_held(self) -> None:
        while self._held:
            self._end(self._held.pop())

    # --- DDLs ---

    def _begin_ddl(self) -> None:
        kind = self._rng.choice(KINDS)
        busy = frozenset().union(*(job.ids for job in self._jobs))
        try:
            tables, states = kind.begin(self._storm, busy)
        except NothingToAlter:
            self.refused[kind.name] += 1
            return
        if kind.alone:
            self._end_held()
        job = _RunningDdl(kind.name, frozenset(table.id for table in tables), states)
        self._jobs.append(job)
        self._go_on(job)

    def _go_on(self, job: _RunningDdl) -> None:
        """Move to its next state, once no transaction knows a definition that is older than the present one."""
        known = self.tidb.tables
        for held in [held for held in self._held if any(known.get(t.name) is not t for t in held.tables)]:
            self._held.remove(held)
            self._end(held)
        try:
            next(job.states)
        except StopIteration:
            self._jobs.remove(job)
            self.done[job.kind] += 1
        except (TxnError, NothingToAlter):  # rows are locked or not as wanted: the job is given up
            self._jobs.remove(job)
            self.refused[job.kind] += 1


def _can_miss(of: Any) -> bool:
    """Tell whether a row may be inserted without a value for the column."""
    return bool(of.nullable or of.default is not None)
