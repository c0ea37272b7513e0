"""A TiDB session's transaction: rows in, optimistic two-phase commit out (docs/design/tikv.md, Transactions).

It reads the snapshot of its start ts and its own writes. Nothing reaches the store before `prewrite`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from .. import keys
from ..pd.oracle import Oracle
from ..pd.regions import Region, Regions
from ..store.store import MvccStore
from ..store.txn import AlreadyExist, CommitTsExpired, Mutation, Op, TxnError
from .rows import Row, encode_datum, encode_row, handle_of, row_of
from .schema import ROWID, NamedTable, TidbIndex


class TidbCluster(Protocol):
    """What the TiDB layer needs of a development cluster."""

    @property
    def store(self) -> MvccStore: ...

    @property
    def oracle(self) -> Oracle: ...

    @property
    def regions(self) -> Regions: ...

    def split(self, raw_key: bytes, /) -> tuple[Region, Region]: ...


class RowMissing(LookupError):
    """An update or delete of a row that does not exist at the transaction's start ts."""


class Transaction:
    """Use it as a context manager: commits at the end, or rolls back if the block raised.

    Any call that reads may raise KeyIsLocked; `prewrite` and `commit` raise WriteConflict or another TxnError after
    having rolled back. In each case the caller may start a new transaction. Not thread-safe.
    """

    def __init__(self, cluster: TidbCluster, one_phase: bool = False, source: int = 0) -> None:
        """`one_phase`: commit without locks (1PC), as TiDB does with small transactions in one region.

        `source`: TiKV's txn_source (docs/design/tikv.md, Transaction sources).
        """
        self._store = cluster.store
        self._oracle = cluster.oracle
        self._one_phase = one_phase
        self._source = source
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

    def get(self, table: NamedTable, pk: Any) -> Row | None:
        """The row of a primary key (`_tidb_rowid`; a tuple if it isn't one integer column), None if there is none."""
        return self._row(table, _key(table, _handle(table, pk)))

    def _row(self, table: NamedTable, key: bytes) -> Row | None:
        value = self.read(key)
        return None if value is None else row_of(table.info, key, value)

    def insert(self, table: NamedTable, row: Mapping[str, Any]) -> None:
        """Raises AlreadyExist for a primary or unique key that is taken, ValueError for a row that the table forbids.

        A table without an integer primary key wants `_tidb_rowid` in the row.
        """
        for name in table.address:
            if name not in row:
                raise ValueError(f"an insert into {table.name} needs a value for {name}")
        handle = handle_of(table.info, row)
        key = _key(table, handle)
        if self.read(key) is not None:
            raise AlreadyExist(key)
        self._put(table, handle, row)

    def _put(self, table: NamedTable, handle: int | bytes, row: Mapping[str, Any]) -> None:
        key = _key(table, handle)
        value = encode_row(table.info, {name: value for name, value in row.items() if name != ROWID})
        self._write_indexes(table, handle, row_of(table.info, key, value))
        self.write(key, value)

    def update(self, table: NamedTable, changes: Mapping[str, Any]) -> None:
        """Changes the columns named beside the primary key. Raises RowMissing, AlreadyExist, ValueError."""
        handle = handle_of(table.info, changes)
        old = self._existing(table, handle)
        self._erase_indexes(table, handle, old)
        self._put(table, handle, {**old, **changes})

    def delete(self, table: NamedTable, pk: Any) -> None:
        """Delete a row.

        `pk` as `get` takes it. Raises RowMissing.
        """
        handle = _handle(table, pk)
        self._erase_indexes(table, handle, self._existing(table, handle))
        self.erase(_key(table, handle))

    def _existing(self, table: NamedTable, handle: int | bytes) -> Row:
        row = self._row(table, _key(table, handle))
        if row is None:
            shown = handle.hex() if isinstance(handle, bytes) else handle
            raise RowMissing(f"{table.name} has no row {shown} at ts {self.start_ts}")
        return row

    def _write_indexes(self, table: NamedTable, handle: int | bytes, row: Row) -> None:
        for index in table.info.secondary:
            key, is_taken_once = index_key(table, index, handle, row)
            if is_taken_once and self.read(key) is not None:
                raise AlreadyExist(key)
            self.write(key, handle if isinstance(handle, bytes) else keys.encode_uint(handle & (1 << 64) - 1))

    def _erase_indexes(self, table: NamedTable, handle: int | bytes, row: Row) -> None:
        for index in table.info.secondary:
            self.erase(index_key(table, index, handle, row)[0])

    # --- two phases ---

    def prewrite(self) -> None:
        """Locks everything written: the primary key first, then the rest."""
        mutations = self._mutations()
        primary = mutations[0].key
        self._locked = [mutation.key for mutation in mutations]
        try:
            self._store.prewrite(mutations[:1], primary, self.start_ts, txn_source=self._source)
            if mutations[1:]:
                self._store.prewrite(mutations[1:], primary, self.start_ts, txn_source=self._source)
        except TxnError:
            self.rollback()
            raise

    def commit(self) -> int:
        """Commits, after `prewrite` if that was not done; gives the commit ts, 0 if nothing was written."""
        if not self._writes:
            return 0
        if self._one_phase and not self._locked:
            # TiDB takes a ts for it, so that a snapshot taken before can't be below the commit.
            self.commit_ts = self._store.one_pc(self._mutations(), self.start_ts, self._oracle.next() + 1, self._source)
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


def _key(table: NamedTable, handle: int | bytes) -> bytes:
    return keys.record_key(table.physical_id(handle), handle)


def _handle(table: NamedTable, pk: Any) -> int | bytes:
    members = pk if isinstance(pk, tuple) else (pk,)
    return handle_of(table.info, dict(zip(table.address, members, strict=True)))


def index_key(table: NamedTable, index: TidbIndex, handle: int | bytes, row: Row) -> tuple[bytes, bool]:
    """A row's key in an index, and whether no other row may have it.

    One with a NULL holds the handle too, because NULLs are not equal, as does one of an index that is not unique.
    """
    columns = [table.info.column(name) for name in index.columns]
    datums = b"".join(
        bytes((keys.NULL_FLAG,)) if row[column.name] is None else encode_datum(column, row[column.name])
        for column in columns
    )
    is_taken_once = index.is_unique and all(row[column.name] is not None for column in columns)
    if not is_taken_once:
        datums += handle if isinstance(handle, bytes) else bytes((keys.INT_FLAG,)) + keys.encode_int(handle)
    return keys.index_key(table.physical_id(handle), index.id, datums), is_taken_once
