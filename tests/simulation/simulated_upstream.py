"""The upstream's truth: tables, transactions of all kinds in every state, regions that split, merge and move, DDLs.

A transaction happens in steps (locks, the primary's commit, the others' some time later), each as a store would do it.
The history that files are held against is written down where the upstream itself decides: at the primary's commit.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.model.table_copy import COPY_TICKS, TableCopy
from changefeed.model.tso import compose
from changefeed.upstream.tikv.tidb.keys import table_prefix, table_span
from simulated_transactions import START_TS, Lock, Odds, Region, Row, Shape, SimulatedDdl, Transaction

if TYPE_CHECKING:
    from simulated_cdc import ChangeData
    from simulated_time import Timeline
_LARGE_KEYS = 3  # of each table
_LONG = 300  # bytes of a value that no commit repeats


class Upstream:
    def __init__(
        self,
        time: Timeline,
        rng: Random,
        shape: Shape,
        large: Random | None = None,
        copied: bool = False,
        again: Random | None = None,
    ) -> None:
        """`large`: dice of large transactions, which have keys of their own; None: there are none.

        `copied`: what stands at startTs is written as well. `again`: dice of worlds in which large transactions write
        most of their keys again, values are empty or long, and regions begin anew meanwhile; None: they do not.
        """
        self._time = time
        self._rng = rng
        self._large = large if shape.transactions else None
        self._again = again
        self._shape = shape
        self.copied = copied
        self._last_ts = START_TS
        self.read_ts = START_TS  # no commit <= it comes any more, but of what holds a lock
        self.gc_ts = 0
        self.quiet_since = START_TS  # the last transaction has ended
        self.cdc: ChangeData | None = None
        self.tables = list(range(1, shape.tables + 1))
        self.keys = [_key(table, handle) for table in self.tables for handle in range(shape.keys)]
        handles = range(shape.keys, shape.keys + _LARGE_KEYS) if large else ()
        self.large_keys = [_key(table, handle) for table in self.tables for handle in handles]
        self.locks: dict[bytes, Lock] = {}
        self.versions: dict[bytes, list[Row]] = {key: [] for key in (*self.keys, *self.large_keys)}
        self._stood: dict[bytes, bytes] = {}  # at startTs
        self.rows: dict[int, list[Row]] = {table: [] for table in self.tables}
        self.on_decided: Callable[[Transaction], None] = lambda transaction: None
        self._running = 0  # transactions
        self._begun = 0
        self._large_to_come = 0
        self.ending = False
        self.odds = Odds(*(rng.choice((0.0, 1.0, 1.0)) * odd for odd in (0.15, 0.15, 0.5, 0.15)))
        self.regions = self._first_regions(shape)
        self._region_ids = len(self.regions)
        self._spans = {table: table_span(table) for table in self.tables}
        self.target_ts = self.ahead(rng.uniform(0.5, shape.busy_s * 1.5)) if rng.random() < 0.2 else None
        self.ddls: list[SimulatedDdl] = []
        self.first_tables = frozenset(self.tables)  # that are selected at startTs
        self._prepare()

    def _prepare(self) -> None:
        """Rows from before startTs, and when everything begins."""
        rng = self._rng
        if not self._shape.transactions:
            return
        for key in self.keys:
            if rng.random() < 0.5:
                ts = START_TS - rng.randint(10, 900)
                self.versions[key].append(Row(ts, ts - 1, OP_INSERT, key, b"old", None))
                self._stood[key] = b"old"
        bursts = [rng.random() * self._shape.busy_s for _ in range(3)]
        bursty = rng.random() < 0.5  # else it is even
        for _ in range(self._shape.transactions):
            when = rng.choice(bursts) + rng.random() if bursty else rng.random() * self._shape.busy_s
            self._time.at(when, self._begin)
        if self._large is not None:
            self._large_to_come = self._large.choice((1, 1, 2, 3))
            for _ in range(self._large_to_come):
                self._time.at(self._large.random() * self._shape.busy_s, self._begin_large)
        if len(self.tables) > 1 and rng.random() < 0.3:
            self.first_tables -= {self.tables[-1]}
        for job_id in range(rng.choice((0, 0, 1, 2, 4))):
            self._time.at(rng.random() * self._shape.busy_s * 1.3, lambda job_id=job_id: self._ddl(job_id))  # type: ignore[misc]

    @property
    def first_ts(self) -> int:
        """What is written is above it."""
        return START_TS - COPY_TICKS if self.copied else START_TS

    def copy(self, table: int, copy: TableCopy) -> None:
        """What stands at startTs is from now on what a changefeed writes first, each row at its chunk's ts."""
        assert copy.ts == START_TS, f"{copy} is not as of {START_TS}"
        rows = [Row(copy.ts_of(key), 0, OP_INSERT, key, value, None) for key, value in self._stood.items()]
        self.rows[table] = sorted([*(row for row in rows if self._table_of(row.key) == table), *self.rows[table]])

    def read(self, start: bytes, end: bytes, ts: int) -> list[tuple[bytes, bytes]]:
        """The keys of a range and their values at `ts`, as far as GC has left them; nothing is locked below it."""
        assert not any(lock.transaction.start_ts <= ts for lock in self.locks.values())
        found = []
        for key in sorted(key for key in self.versions if start <= key < end):
            seen = [version for version in self.versions[key] if version.commit_ts <= ts]
            if seen and seen[-1].op != OP_DELETE:
                found.append((key, seen[-1].value))
        return found

    def ahead(self, seconds: float) -> int:
        """The ts of so much later than the start."""
        return START_TS + compose(int(seconds * 1000))

    def tso(self) -> int:
        self._last_ts = max(self._last_ts + 1, self.ahead(self._time.now))
        return self._last_ts

    @property
    def now_ts(self) -> int:
        """Every ts that was given out is <= it."""
        return self._last_ts

    @property
    def quiet(self) -> bool:
        """Nothing more will be written."""
        return self._begun >= self._shape.transactions and not self._large_to_come and self._running == 0

    @property
    def last_row_ts(self) -> int:
        """No row above it may be written."""
        return min(ts for ts in (self._last_ts, self.target_ts) if ts is not None)

    def ddls_after(self, order: tuple[int, int]) -> list[SimulatedDdl]:
        """Those that concern the changefeed, in their order."""
        ends = self.target_ts or self._last_ts
        return sorted((d for d in self.ddls if d.tables and order < d.order and d.ts <= ends), key=lambda d: d.order)

    def selected(self, ts: int) -> frozenset[int]:
        """The tables that are, after the DDLs <= ts."""
        found = self.first_tables
        for ddl in sorted(self.ddls, key=lambda ddl: ddl.order):
            if ddl.ts <= ts:
                found = (found | ddl.joins) - ddl.leaves
        return found

    def version(self, table: int, ts: int) -> int:
        """Return the version of the table's definition after the DDLs <= ts."""
        return max([self.first_ts, *(ddl.ts for ddl in self.ddls if ddl.ts <= ts and table in ddl.alters | ddl.joins)])

    def selected_rows(self, table: int, from_ts: int, to_ts: int) -> list[Row]:
        """The rows in (from_ts, to_ts] of the times at which it is selected; a row at T is before a DDL at T."""
        return [row for row in self.between(table, from_ts, to_ts) if table in self.selected(row.commit_ts - 1)]

    def between(self, table: int, from_ts: int, to_ts: int) -> list[Row]:
        """The rows in (from_ts, to_ts]."""
        rows = self.rows[table]
        first = bisect.bisect_right(rows, from_ts, key=_commit_ts)
        return rows[first : bisect.bisect_right(rows, to_ts, key=_commit_ts)]

    def go_on_from(self, past: Upstream) -> None:
        """Its whole history; nothing is added to it."""
        assert past.quiet
        assert not past.gc_ts
        self.versions, self.rows, self.ddls, self.target_ts = past.versions, past.rows, past.ddls, past.target_ts
        self.first_tables, self.copied = past.first_tables, past.copied
        self._last_ts = self.read_ts = self.quiet_since = past.now_ts

    # Transactions.

    def _begin(self) -> None:
        rng = self._rng
        self._begun += 1
        keys = rng.sample(self.keys, min(len(self.keys), rng.choice((1, 1, 2, 3, 5))))
        start_ts = self.tso()
        writes = {key: None if rng.random() < 0.25 else b"v%d.%d" % (self._begun, i) for i, key in enumerate(keys)}
        transaction = Transaction(start_ts, writes, keys[0])
        self._running += 1
        if rng.random() < self._shape.one_phase:
            self._time.after(rng.random(), lambda: self._one_phase(transaction))
            return
        self._in_steps(keys, 0.3, lambda key: self._prewrite(transaction, key), lambda: self._decide(transaction))

    def _begin_large(self) -> None:
        """It sends flush after flush for seconds, some keys again, and promises now and then to commit late."""
        assert self._large is not None
        rng = self._large
        self._large_to_come -= 1
        self._running += 1
        keys = rng.sample(self.large_keys, rng.randint(2, len(self.large_keys)))
        keys += rng.sample(self.keys, int(rng.random() < 0.3))
        transaction = Transaction(self.tso(), {}, keys[0], large=True)
        self._flush(transaction, keys, 1)

    def _flush(self, transaction: Transaction, keys: list[bytes], flush: int) -> None:
        """Some of `keys`, and maybe one that it has flushed before; the others later."""
        assert self._large is not None
        rng = self._large
        count = rng.randint(1, len(keys)) if keys else 0
        again = rng.sample(sorted(transaction.writes), min(len(transaction.writes), rng.randint(0, 1)))
        if self._again is not None:
            again = [key for key in sorted(transaction.writes) if self._again.random() < 0.7]
        for key in (*keys[:count], *again):
            if transaction.over:
                return
            if key not in transaction.writes and not self._free(key, transaction.start_ts):
                self._roll_back(transaction)
                return
            value = None if rng.random() < 0.25 else b"l%d.%d" % (transaction.start_ts % 1000, flush)
            transaction.writes[key] = value = self._written(key, value)
            self.locks[key] = Lock(transaction, value)
            self.changed().prewritten(key, transaction.start_ts, value, self.value_of(key))
        if rng.random() < 0.7:
            transaction.promise = self.tso()
        rest = keys[count:]
        wait = rng.random() * 1.5
        if self._again is not None and self._again.random() < (0.2, 0.8)[flush == 2]:  # a registration in the middle
            region = self.region_of(self._again.choice(sorted(transaction.writes)))
            self._replace([region], [replace(region, version=region.version + 1)])
        goes_on = rest or (self._again is not None and self._again.random() < 0.7)
        then = (lambda: self._flush(transaction, rest, flush + 1)) if goes_on else lambda: self._decide(transaction)
        self._time.after(wait, then)

    def _written(self, key: bytes, value: bytes | None) -> bytes | None:
        """What a transaction writes that has just locked the key.

        The feed can't tell a delete of an empty value from one of nothing: nobody makes it.
        """
        if self._again is not None and value is not None:
            value = self._again.choice((value, value, value, value, value.ljust(_LONG, b"."), b""))
        return b"put" if value is None and self.value_of(key) == b"" else value

    def _in_steps(
        self, keys: Sequence[bytes], within: float, step: Callable[[bytes], None], then: Callable[[], None]
    ) -> None:
        """Some keys at a time, in this order."""
        if not keys:
            then()
            return
        count = self._rng.randint(1, len(keys))

        def some() -> None:
            for key in keys[:count]:
                step(key)
            self._in_steps(keys[count:], within, step, then)

        self._time.after(self._rng.random() * within, some)

    def _free(self, key: bytes, start_ts: int) -> bool:
        versions = self.versions[key]
        return key not in self.locks and (not versions or versions[-1].commit_ts < start_ts)

    def _one_phase(self, transaction: Transaction) -> None:
        """Its commit ts is a store's, not the oracle's: another one may have the same."""
        self._end(transaction)
        if not all(self._free(key, transaction.start_ts) for key in transaction.writes):
            return
        transaction.writes = {key: self._written(key, value) for key, value in transaction.writes.items()}
        transaction.commit_ts = max(self.read_ts, transaction.start_ts) + 1
        self._last_ts = max(self._last_ts, transaction.commit_ts)
        self._decided(transaction)
        for key in transaction.writes:
            self.changed().committed(self._commit_key(transaction, key))

    def _prewrite(self, transaction: Transaction, key: bytes) -> None:
        if transaction.over:
            return
        if not self._free(key, transaction.start_ts):
            self._roll_back(transaction)
            return
        transaction.writes[key] = value = self._written(key, transaction.writes[key])
        self.locks[key] = Lock(transaction, value)
        self.changed().prewritten(key, transaction.start_ts, value, self.value_of(key))
        if self._rng.random() < self.odds.heartbeat:
            self.changed().heartbeat(key, transaction.start_ts, value, self.value_of(key))

    def _decide(self, transaction: Transaction) -> None:
        if transaction.over:
            return
        fate = self._rng.random()
        if fate < self.odds.rollback:
            self._roll_back(transaction)
        elif fate < self.odds.rollback + self.odds.dead:
            self._time.after(self._rng.uniform(1.0, 4.0), lambda: self._roll_back(transaction))
        else:
            self._time.after(self._rng.random() * 0.5, lambda: self._commit(transaction))

    def _commit(self, transaction: Transaction) -> None:
        transaction.commit_ts = self.tso()
        self._decided(transaction)
        self._commit_lock(transaction, transaction.primary)
        others = [key for key in transaction.writes if key != transaction.primary]
        self._rng.shuffle(others)
        late = self._rng.random() < (0.5 if transaction.large else self.odds.late)
        self._in_steps(
            others,
            4.0 if late else 0.3,
            lambda key: self._commit_lock(transaction, key),
            lambda: self._end(transaction),
        )

    def _decided(self, transaction: Transaction) -> None:
        self.on_decided(transaction)
        for key in transaction.writes:
            row = self._row(transaction, key)
            if row.op != OP_DELETE or row.old is not None:  # a delete of nothing changes nothing
                bisect.insort(self.rows[self._table_of(key)], row)

    def _commit_lock(self, transaction: Transaction, key: bytes) -> None:
        row = self._commit_key(transaction, key)
        del self.locks[key]
        self.changed().commit(row)

    def _commit_key(self, transaction: Transaction, key: bytes) -> Row:
        row = self._row(transaction, key)
        self.versions[key].append(row)
        return row

    def _row(self, transaction: Transaction, key: bytes) -> Row:
        value, old = transaction.writes[key], self.value_of(key)
        op = OP_DELETE if value is None else OP_UPDATE if old else OP_INSERT
        return Row(transaction.commit_ts, transaction.start_ts, op, key, value or b"", old or None)

    def value_of(self, key: bytes) -> bytes | None:
        versions = self.versions[key]
        return versions[-1].value if versions and versions[-1].op != OP_DELETE else None

    def _roll_back(self, transaction: Transaction) -> None:
        if transaction.over:
            return
        transaction.over = True
        keys = list(transaction.writes)  # of those without a lock, too: a rollback without a prewrite
        if transaction.large:
            self._in_steps(keys, 1.0, lambda key: self._unlock(transaction, key), lambda: self._end(transaction))
            return
        for key in keys:
            self._unlock(transaction, key)
        self._end(transaction)

    def _unlock(self, transaction: Transaction, key: bytes) -> None:
        lock = self.locks.get(key)
        if lock is not None and lock.transaction is transaction:
            del self.locks[key]
        elif self._rng.random() < 0.5:
            return
        self.changed().rollback(key, transaction.start_ts)

    def _end(self, transaction: Transaction) -> None:
        transaction.over = True
        self._running -= 1
        self.quiet_since = self.tso()

    def _ddl(self, job_id: int) -> None:
        rng, ts = self._rng, self.tso()
        there = sorted(self.selected(ts))
        others = [table for table in self.tables if table not in there]
        kind = rng.choice(("alters", "alters", "joins", "leaves", "nothing"))
        of = {"alters": there, "leaves": there[1:], "joins": others, "nothing": []}[kind]
        tables = frozenset(rng.sample(of, min(len(of), rng.choice((1, 1, 2)))))
        meant = {kind: tables} if tables else {}
        if tables and Random(ts).random() < 0.4:  # as a DDL of partitions, which does all of it at once
            meant = {"leaves": frozenset(there[1:][-1:]) - tables, "joins": frozenset(others[:1]) - tables} | meant
            tables = frozenset().union(*meant.values())
        self.ddls.append(SimulatedDdl(ts, job_id, **meant))
        if tables:
            self.quiet_since = ts

    def changed(self) -> ChangeData:
        assert self.cdc is not None
        return self.cdc

    def _table_of(self, key: bytes) -> int:
        return next(table for table, (start, end) in self._spans.items() if start <= key < end)

    def collect(self, ts: int) -> None:
        """GC: of each key nothing is left below the version that is seen at ts."""
        self.gc_ts = max(self.gc_ts, ts)
        for key, versions in self.versions.items():
            seen = bisect.bisect_right(versions, ts, key=_commit_ts) - 1
            if seen >= 0:
                self.versions[key] = versions[seen if versions[seen].op != OP_DELETE else seen + 1 :]

    # Regions.

    def _first_regions(self, shape: Shape) -> list[Region]:
        borders = sorted(self._rng.sample(self.keys, min(shape.regions - 1, len(self.keys))))
        starts, ends = [b"", *borders], [*borders, b""]
        return [
            Region(number, start, end, 1, self._rng.randint(1, shape.stores))
            for number, (start, end) in enumerate(zip(starts, ends, strict=True), start=1)
        ]

    def region_of(self, key: bytes) -> Region:
        return next(region for region in self.regions if region.holds(key))

    def split(self) -> None:
        region = self._rng.choice(self.regions)
        inside = [key for key in self.keys if region.holds(key) and key != region.start]
        if not inside:
            return
        border = self._rng.choice(inside)
        self._region_ids += 1
        kept, new = (region.id, self._region_ids) if self._rng.random() < 0.5 else (self._region_ids, region.id)
        halves = [
            Region(kept, region.start, border, region.version + 1, region.store),
            Region(new, border, region.end, region.version + 1, region.store),
        ]
        self._replace([region], halves)

    def merge(self, key: bytes | None = None) -> None:
        """Two regions; `key`: the one that has it, and a neighbour."""
        if len(self.regions) < 2:
            return
        at = self._rng.randrange(len(self.regions) - 1)
        if key is not None:
            of_key = self.regions.index(self.region_of(key))
            at = min(max(0, of_key - self._rng.randint(0, 1)), len(self.regions) - 2)
        left, right = self.regions[at : at + 2]
        into = self._rng.choice((left, right))
        version = max(left.version, right.version) + 1
        self._replace([left, right], [Region(into.id, left.start, right.end, version, into.store)])

    def move(self) -> None:
        """Its leader goes to another store."""
        region = self._rng.choice(self.regions)
        store = self._rng.randint(1, self._shape.stores)
        if store != region.store:
            self._replace([region], [Region(region.id, region.start, region.end, region.version, store)])

    def _replace(self, old: list[Region], new: list[Region]) -> None:
        self.regions = sorted([r for r in self.regions if r not in old] + new, key=lambda region: region.start)
        self.changed().regions_changed(old, new)


def _commit_ts(row: Row) -> int:
    return row.commit_ts


def _key(table: int, handle: int) -> bytes:
    return table_prefix(table) + b"_r" + (handle + (1 << 63)).to_bytes(8, "big")
