"""The SQL layer of the development cluster without SQL: databases, tables, transactions, history.

What it leaves in the store is what TiDB leaves there: meta keys, job rows of `mysql.tidb_ddl_job`, record and index
keys (docs/design/tidb.md). The store is the truth: a server over a restarted cluster reads its catalog from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import keys
from ..ddl.jobs import DdlSession
from ..store.gc import resolve_locks
from ..store.txn import MAX_TS, KeyIsLocked, Lock, Mutation, Op
from .large_transaction import LargeTransaction
from .rows import Row, address_of, encode_rows, row_of
from .schema import MYSQL_DB_ID, PUBLIC, DbInfo, NamedTable, TidbTable, ddl_job_table, dump
from .transaction import TidbCluster, Transaction

_BOOTSTRAP_VERSION = b"218"  # TiDB 8.5's
_FIRST_ID = 100
_STEP_VERSIONS = 10_000


class CommittedChange(NamedTuple):
    """A committed row change. `op` is insert, update or delete; rows hold the primary key too."""

    commit_ts: int
    start_ts: int
    op: str
    pk: Any  # an int; a tuple if the primary key is not one integer column
    row: Row | None
    old_row: Row | None


class SnapshotTooOld(LookupError):
    """History that garbage collection has deleted was asked for."""


class TidbServer:
    """One TiDB server but for its DDLs.

    `last_ddl_ts`: at which sessions began to use what the last DDL that this object ran leads to.
    `session`: in which DDLs are typed.

    Transactions may run in several threads, DDLs in one at a time.
    """

    def __init__(self, cluster: TidbCluster) -> None:
        self.cluster = cluster
        self.store = cluster.store
        self.databases: dict[str, DbInfo] = {}
        self.tables: dict[str, NamedTable] = {}
        self.last_ddl_ts = 0
        self.session = DdlSession()

    def bootstrap(self) -> None:
        """Makes the `mysql` database with its job table, unless it is there; reads the catalog.

        No transaction of this cluster can be open yet: those that a killed process left half done are ended.
        """
        resolve_locks(self.store, MAX_TS)
        done_key = keys.meta_string("BootstrapKey")
        with self.begin() as txn:
            if txn.read(done_key) is None:
                mysql = DbInfo(MYSQL_DB_ID, "mysql")
                txn.write(keys.meta_hash("DBs", f"DB:{mysql.id}"), dump(mysql.to_json()))
                put_table(txn, NamedTable(mysql, ddl_job_table()))
                txn.write(keys.meta_string("SchemaVersionKey"), b"1")
                txn.write(keys.meta_string("NextGlobalID"), str(_FIRST_ID).encode())
                txn.write(keys.meta_string("DDLTableVersion"), b"5")
                txn.write(done_key, _BOOTSTRAP_VERSION)
        self.read_catalog()

    def now(self) -> int:
        """A fresh ts."""
        return self.cluster.oracle.next()

    def raise_to(self, ts: int) -> None:
        """Every later ts is above `ts`."""
        self.cluster.oracle.raise_to(ts)

    def read_catalog(self) -> None:
        """Databases and tables as they are now."""
        ts = self.now()
        for db in map(DbInfo.from_json, self._hash_values("DBs", "DB:", ts)):
            if db.state != PUBLIC:
                continue
            self.databases[db.name] = db
            for info in map(TidbTable.from_json, self._hash_values(f"DB:{db.id}", "Table:", ts)):
                if info.state == PUBLIC:
                    self.remember(NamedTable(db, info))

    def _hash_values(self, name: str, field: str, ts: int) -> list[dict[str, Any]]:
        prefix = keys.meta_hash_prefix(name)
        pairs = self.store.scan(prefix, keys.prefix_end(prefix), ts)
        return [json.loads(value) for key, value in pairs if keys.meta_field(key, name).startswith(field)]

    def remember(self, table: NamedTable) -> NamedTable:
        self.tables[table.name] = table
        return table

    def forget(self, *tables: NamedTable) -> None:
        for table in tables:
            if (known := self.tables.get(table.name)) is not None and known.id == table.id:
                del self.tables[table.name]

    def split(self, raw_key: bytes) -> None:
        """A region begins at the key; PD scatters the new one, as TiDB asks it to."""
        left, _ = self.cluster.split(raw_key)
        self.cluster.regions.scatter(left.id)

    def new_physical_ids(self, count: int) -> range:
        """Each with a region of its own."""
        ids = self.allocate_ids(count)
        for id_ in ids:
            self.split(keys.table_prefix(id_))
        return ids

    def allocate_ids(self, count: int) -> range:
        key = keys.meta_string("NextGlobalID")
        with self.begin() as txn:
            used = int(txn.read(key) or b"0")
            txn.write(key, str(used + count).encode())
        return range(used + 1, used + count + 1)

    # --- rows ---

    def begin(self, one_phase: bool = False, source: int = 0) -> Transaction:
        """A transaction at a fresh start ts; `one_phase` commits it without locks. `source`: TiKV's txn_source."""
        return Transaction(self.cluster, one_phase, source)

    def begin_large(self, source: int = 0) -> LargeTransaction:
        """One that sends its rows flush after flush."""
        return LargeTransaction(self.cluster, source)

    def bulk_insert(
        self, table: NamedTable, handles: npt.NDArray[np.int64], columns: Sequence[tuple[str, npt.NDArray[Any]]]
    ) -> int:
        """Writes many new rows in one transaction without locks; gives its commit ts.

        `columns`: every column but the primary key in the table's order, as `rows.encode_rows` takes them. For tables
        without secondary index; the handles must be free.
        """
        ids = {column.name: column.id for column in table.info.columns}
        values = encode_rows([(ids[name], array) for name, array in columns])
        record_keys = keys.record_keys(table.id, handles)
        mutations = [Mutation(Op.PUT, key, value) for key, value in zip(record_keys, values, strict=True)]
        return self.store.one_pc(mutations, self.now(), self.now() + 1)

    def snapshot(self, table: NamedTable, ts: int) -> dict[Any, Row]:
        """All rows at ts by primary key. Raises KeyIsLocked while an older transaction is open, SnapshotTooOld."""
        self._check_age(ts)
        pairs = [pair for id_ in table.physical_ids for pair in self.store.scan(*keys.record_range(id_), ts)]
        return {pk: row for pk, row in (self._row(table, key, value) for key, value in pairs) if row is not None}

    def last_handle(self, table: NamedTable) -> int:
        """The largest handle that has a row now, 0 if the table is empty. Raises KeyIsLocked if it is being changed."""
        found = self.store.read_range(*keys.record_range(table.id), self.now(), limit=1, reverse=True)
        for key, value in found:
            if isinstance(value, Lock):
                raise KeyIsLocked([value])
            return keys.handle_of(key)
        return 0

    def history(self, table: NamedTable, after_ts: int, upto_ts: int) -> list[CommittedChange]:
        """Every change committed in (after_ts, upto_ts], in order of (commit ts, start ts, primary key).

        Rows are decoded with the columns that `table` has. A delete of a row that did not exist is no change. Raises
        SnapshotTooOld when versions above after_ts may be gone.
        """
        self._check_age(after_ts)
        upto_seq = self.store.seq
        found = [c for id_ in table.physical_ids for c in self._changes(table, id_, after_ts, upto_ts, upto_seq)]
        return sorted(found, key=lambda change: (change.commit_ts, change.start_ts, change.pk))

    def _changes(
        self, table: NamedTable, id_: int, after_ts: int, upto_ts: int, upto_seq: int
    ) -> list[CommittedChange]:
        found = []
        start: bytes | None
        start, end = keys.record_range(id_)
        while start is not None:
            versions, start = self.store.scan_versions(start, end, after_ts, upto_seq, _STEP_VERSIONS)
            for key, version, old_value in versions:
                if version.commit_ts > upto_ts:
                    continue
                pk, old_row = self._row(table, key, old_value)
                row = self._row(table, key, version.value)[1] if version.op is Op.PUT else None
                if row is not None or old_row is not None:
                    op = "delete" if row is None else "insert" if old_row is None else "update"
                    found.append(CommittedChange(version.commit_ts, version.start_ts, op, pk, row, old_row))
        return found

    def _check_age(self, ts: int) -> None:
        """TiDB's check, which TiKV does not make: below the GC safepoint versions are missing without a word."""
        safe_point = self.store.gc_safe_point
        if ts < safe_point:
            raise SnapshotTooOld(f"ts {ts} is below the GC safepoint {safe_point}: what was there then is deleted")

    def _row(self, table: NamedTable, key: bytes, value: bytes | None) -> tuple[Any, Row | None]:
        return address_of(table.info, key), None if value is None else row_of(table.info, key, value)


def table_key(table: NamedTable) -> bytes:
    """Return the meta key of a table's definition."""
    return keys.meta_hash(f"DB:{table.db.id}", f"Table:{table.id}")


def put_table(txn: Transaction, table: NamedTable) -> NamedTable:
    """Store a table's definition under its meta key; give it as it is stored."""
    stored = replace(table, info=replace(table.info, update_ts=txn.start_ts))
    txn.write(table_key(table), dump(stored.info.to_json()))
    return stored
