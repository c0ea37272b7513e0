"""A TiDB session's transaction: rows in, optimistic two-phase commit out (facts, tikv-wire 3.6, client defaults).

It reads the snapshot of its start ts and its own writes. Nothing reaches the store before `prewrite`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from . import keys
from .codec import encode_bytes
from .oracle import Oracle
from .rows import Row, decode_row, encode_row, encode_value, packed_time
from .schema import INTEGERS, TIMES, ColumnInfo, IndexInfo, Table, Tp
from .store import MvccStore
from .txn import AlreadyExist, CommitTsExpired, Mutation, Op, TxnError


class Cluster(Protocol):
    """What the TiDB layer needs of a development cluster."""

    @property
    def store(self) -> MvccStore: ...

    @property
    def oracle(self) -> Oracle: ...

    def split(self, raw_key: bytes, /) -> object: ...


class RowMissing(LookupError):
    """An update or delete of a row that does not exist at the transaction's start ts."""


class Transaction:
    """Use it as a context manager: commits at the end, or rolls back if the block raised.

    Any call that reads may raise KeyIsLocked; `prewrite` and `commit` raise WriteConflict or another TxnError after
    having rolled back. In each case the caller may start a new transaction. Not thread-safe.
    """

    def __init__(self, cluster: Cluster, one_phase: bool = False) -> None:
        """`one_phase`: commit without locks (1PC), as TiDB does with small transactions in one region."""
        self._store = cluster.store
        self._oracle = cluster.oracle
        self._one_phase = one_phase
        self._writes: dict[bytes, bytes | None] = {}
        self._locked: list[bytes] = []
        self.start_ts = self._oracle.next()
        self.commit_ts = 0

    # --- keys ---

    def read(self, key: bytes) -> bytes | None:
        if key in self._writes:
            return self._writes[key]
        return self._store.get(key, self.start_ts)

    def write(self, key: bytes, value: bytes) -> None:
        self._writes[key] = value

    def erase(self, key: bytes) -> None:
        """Deletes a key; one that only this transaction wrote is forgotten, as TiDB does."""
        if self._store.get(key, self.start_ts) is None:
            self._writes.pop(key, None)
        else:
            self._writes[key] = None

    # --- rows ---

    def get(self, table: Table, pk: int) -> Row | None:
        """The row of a primary key (or `_tidb_rowid`), None if there is none."""
        value = self.read(keys.record_key(table.id, pk))
        return None if value is None else {table.pk: pk, **decode_row(table.info, value)}

    def insert(self, table: Table, row: Mapping[str, Any]) -> None:
        """Raises AlreadyExist for a primary or unique key that is taken, ValueError for a row that the table forbids.

        A table without an integer primary key wants `_tidb_rowid` in the row.
        """
        if table.pk not in row:
            raise ValueError(f"an insert into {table.name} needs a value for {table.pk}")
        handle = int(row[table.pk])
        key = keys.record_key(table.id, handle)
        if self.read(key) is not None:
            raise AlreadyExist(key)
        stored = {name: value for name, value in row.items() if name != table.pk}
        value = encode_row(table.info, stored)
        self._write_indexes(table, handle, decode_row(table.info, value))
        self.write(key, value)

    def update(self, table: Table, changes: Mapping[str, Any]) -> None:
        """Changes the columns named beside the primary key. Raises RowMissing, AlreadyExist, ValueError."""
        handle = int(changes[table.pk])
        old = self._existing(table, handle)
        row = {**old, **changes}
        row.pop(table.pk)
        value = encode_row(table.info, row)
        self._erase_indexes(table, handle, old)
        self._write_indexes(table, handle, decode_row(table.info, value))
        self.write(keys.record_key(table.id, handle), value)

    def delete(self, table: Table, pk: int) -> None:
        """Raises RowMissing."""
        self._erase_indexes(table, pk, self._existing(table, pk))
        self.erase(keys.record_key(table.id, pk))

    def _existing(self, table: Table, handle: int) -> Row:
        row = self.get(table, handle)
        if row is None:
            raise RowMissing(f"{table.name} has no row {handle} at ts {self.start_ts}")
        return row

    def _write_indexes(self, table: Table, handle: int, row: Row) -> None:
        for index in table.info.indexes:
            key = _index_key(table, index, handle, row)
            if self.read(key) is not None:
                raise AlreadyExist(key)
            self.write(key, keys.encode_uint(handle & (1 << 64) - 1))

    def _erase_indexes(self, table: Table, handle: int, row: Row) -> None:
        for index in table.info.indexes:
            self.erase(_index_key(table, index, handle, row))

    # --- two phases ---

    def prewrite(self) -> None:
        """Locks everything written: the primary key first, then the rest."""
        mutations = self._mutations()
        primary = mutations[0].key
        self._locked = [mutation.key for mutation in mutations]
        try:
            self._store.prewrite(mutations[:1], primary, self.start_ts)
            if mutations[1:]:
                self._store.prewrite(mutations[1:], primary, self.start_ts)
        except TxnError:
            self.rollback()
            raise

    def commit(self) -> int:
        """Commits, after `prewrite` if that was not done; gives the commit ts, 0 if nothing was written."""
        if not self._writes:
            return 0
        if self._one_phase and not self._locked:
            # TiDB takes a ts for it, so that a snapshot taken before can't be below the commit.
            self.commit_ts = self._store.one_pc(self._mutations(), self.start_ts, self._oracle.next() + 1)
            return self.commit_ts
        if not self._locked:
            self.prewrite()
        self._commit_primary()
        self._store.commit(self._locked[1:], self.start_ts, self.commit_ts)
        return self.commit_ts

    def _commit_primary(self) -> None:
        while True:
            commit_ts = self._oracle.next()
            try:
                self._store.commit(self._locked[:1], self.start_ts, commit_ts)
            except CommitTsExpired:  # a reader pushed the lock's minimum: a fresh ts is above it
                continue
            self.commit_ts = commit_ts
            return

    def rollback(self) -> None:
        """Drops what was written, and the locks if there are any."""
        if self._locked:
            self._store.rollback(self._locked, self.start_ts)
        self._locked = []
        self._writes = {}

    def _mutations(self) -> list[Mutation]:
        return [
            Mutation(Op.DELETE, key) if value is None else Mutation(Op.PUT, key, value)
            for key, value in self._writes.items()
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        elif not self.commit_ts:
            self.rollback()


def _index_key(table: Table, index: IndexInfo, handle: int, row: Row) -> bytes:
    """A unique index's key; one of NULL holds the handle too, because NULLs are not equal."""
    column = next(column for column in table.info.columns if column.name == index.column)
    value = row[column.name]
    if value is None:
        datums = bytes((keys.NULL_FLAG, keys.INT_FLAG)) + keys.encode_int(handle)
    else:
        datums = _datum(column, value)
    return keys.index_key(table.id, index.id, datums)


def _datum(column: ColumnInfo, value: Any) -> bytes:
    """Flag and memcomparable value (facts, 4.1 and 4.2)."""
    field = column.type
    if field.tp in INTEGERS:
        return bytes((keys.UINT_FLAG if field.unsigned else keys.INT_FLAG,)) + (
            keys.encode_uint(value) if field.unsigned else keys.encode_int(value)
        )
    if field.tp in TIMES:
        return bytes((keys.UINT_FLAG,)) + keys.encode_uint(packed_time(value))
    if field.tp is Tp.DECIMAL:
        return bytes((keys.DECIMAL_FLAG,)) + encode_value(field, value)
    if field.tp in (Tp.FLOAT, Tp.DOUBLE):
        return bytes((keys.FLOAT_FLAG,)) + encode_value(field, value)
    raw = encode_value(field, value)
    # utf8mb4_bin compares with trailing spaces taken away.
    return bytes((keys.BYTES_FLAG,)) + encode_bytes(raw.rstrip(b" ") if field.is_text else raw)
