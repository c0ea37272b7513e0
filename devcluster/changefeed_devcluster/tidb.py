"""The SQL layer of the development cluster without SQL: databases, tables, DDL jobs, transactions, history.

What it leaves in the store is what TiDB leaves there: meta keys, job rows of `mysql.tidb_ddl_job`, record and index
keys (facts, tikv-wire 4 and 5). The store is the truth: a `Tidb` over a restarted cluster reads its catalog from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import keys
from .gc import resolve_locks
from .jobs import Job, JobState, JobType
from .partitions import Partition, partitions_sql
from .rows import Row, address_of, encode_rows, row_of
from .schema import (
    DDL_JOB_TABLE,
    MYSQL_DB_ID,
    Column,
    DbInfo,
    PrimaryKey,
    Table,
    TableInfo,
    create_table_sql,
    ddl_job_table,
    dump,
    make_table,
    with_column,
)
from .transaction import Cluster, Transaction
from .txn import MAX_TS, KeyIsLocked, Lock, Mutation, Op

_BOOTSTRAP_VERSION = b"218"  # TiDB 8.5's
_FIRST_ID = 100
_STEP_VERSIONS = 10_000


class Change(NamedTuple):
    """A committed row change. `op` is insert, update or delete; rows hold the primary key too."""

    commit_ts: int
    start_ts: int
    op: str
    pk: Any  # an int; a tuple if the primary key is not one integer column
    row: Row | None
    old_row: Row | None


class SnapshotTooOld(LookupError):
    """History that garbage collection has deleted was asked for."""


class Tidb:
    """One TiDB server. `last_ddl_ts`: the finish ts of the last DDL that this object ran.

    Transactions may run in several threads, DDLs in one at a time.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self.databases: dict[str, DbInfo] = {}
        self.tables: dict[str, Table] = {}
        self.last_ddl_ts = 0

    def bootstrap(self) -> None:
        """Makes the `mysql` database with its job table, unless it is there; reads the catalog.

        No transaction of this cluster can be open yet: those that a killed process left half done are ended.
        """
        resolve_locks(self._store, MAX_TS)
        done_key = keys.meta_string("BootstrapKey")
        with self.begin() as txn:
            if txn.read(done_key) is None:
                mysql = DbInfo(MYSQL_DB_ID, "mysql")
                _put_db(txn, mysql)
                _put_table(txn, mysql, ddl_job_table())
                txn.write(keys.meta_string("SchemaVersionKey"), b"1")
                txn.write(keys.meta_string("NextGlobalID"), str(_FIRST_ID).encode())
                txn.write(keys.meta_string("DDLTableVersion"), b"5")
                txn.write(done_key, _BOOTSTRAP_VERSION)
        self.read_catalog()

    def now(self) -> int:
        """A fresh ts."""
        return self._cluster.oracle.next()

    def raise_to(self, ts: int) -> None:
        """Every later ts is above `ts`."""
        self._cluster.oracle.raise_to(ts)

    def read_catalog(self) -> None:
        """Databases and tables as they are now."""
        ts = self.now()
        for db_json in self._hash_values("DBs", "DB:", ts):
            db = DbInfo.from_json(db_json)
            self.databases[db.name] = db
            for table_json in self._hash_values(f"DB:{db.id}", "Table:", ts):
                self.remember(Table(db, TableInfo.from_json(table_json)))

    def _hash_values(self, name: str, field: str, ts: int) -> list[dict[str, Any]]:
        prefix = keys.meta_hash_prefix(name)
        pairs = self._store.scan(prefix, keys.prefix_end(prefix), ts)
        return [json.loads(value) for key, value in pairs if keys.meta_field(key, name).startswith(field)]

    def remember(self, table: Table) -> Table:
        self.tables[table.name] = table
        return table

    # --- DDL ---

    def create_database(self, name: str) -> DbInfo:
        """Raises ValueError if it exists."""
        if name in self.databases:
            raise ValueError(f"database {name} exists")
        db_id, job_id = self._allocate_ids(2)
        db = DbInfo(db_id, name)
        args = {"db_info": db.to_json()}
        self._run(Job(job_id, JobType.CREATE_SCHEMA, db, 0, "", f"CREATE DATABASE `{name}`", args, self.now()))
        self.databases[name] = db
        return db

    def create_table(
        self,
        db: str,
        name: str,
        columns: Sequence[Column],
        pk: PrimaryKey = "id",
        regions: int = 1,
        handles: int = 1000,
        partitions: Mapping[str, int | None] | None = None,
    ) -> Table:
        """Makes a table in a database that exists, split into `regions` so that the handles 1..handles fall evenly.

        `pk`: a column or several, clustered, or None for a table with `_tidb_rowid`. Raises ValueError if the table
        can't be made; only one with an int handle has more than one region. `partitions`: by name, in order, the key
        that each is below, None for the last one.
        """
        if f"{db}.{name}" in self.tables:
            raise ValueError(f"table {db}.{name} exists")
        if db not in self.databases:
            raise ValueError(f"there is no database {db}: create it first")
        table_id, job_id = self._allocate_ids(2)
        table = Table(self.databases[db], make_table(table_id, name, columns, pk))
        if regions > 1 and table.info.clustered:
            raise ValueError(f"table {table.name} can't be split: its handle is not an integer")
        if partitions:
            ids = self.new_physical_ids(len(partitions))
            made = tuple(Partition(id_, *each) for id_, each in zip(ids, partitions.items(), strict=True))
            table = replace(table, info=replace(table.info, partitions=made))
        self._cluster.split(keys.table_prefix(table_id))
        for n in range(1, regions):
            self._cluster.split(keys.record_key(table_id, 1 + n * handles // regions))
        args = {"table_info": table.info.to_json(), "on_exist": 0, "old_view_tbl_id": 0, "fk_check": True}
        query = create_table_sql(db, name, columns, pk)
        if partitions:
            query += f" {partitions_sql(table.pk, table.info.partitions)}"
        info = self._run(self._job(job_id, JobType.CREATE_TABLE, table, query, args, table.info))
        return self.remember(Table(table.db, info))

    def add_column(self, table: Table, column: Column) -> Table:
        """The table with the column at its end; old rows have the column's default there."""
        (job_id,) = self._allocate_ids(1)
        after = with_column(table.info, column)
        args = {
            "column": after.columns[-1].to_json(),
            "position": {"Tp": 0, "RelativeColumn": None},
            "offset": 0,
            "ignore_existence_err": False,
        }
        query = f"ALTER TABLE `{table.db.name}`.`{table.info.name}` ADD COLUMN {column.sql()}"
        info = self._run(self._job(job_id, JobType.ADD_COLUMN, table, query, args, after))
        return self.remember(Table(table.db, info))

    def drop_table(self, table: Table) -> None:
        """Takes the table out of the catalog; its rows stay in the store, without an event, as in TiKV before GC."""
        (job_id,) = self._allocate_ids(1)
        query = f"DROP TABLE `{table.db.name}`.`{table.info.name}`"
        self._run(self._job(job_id, JobType.DROP_TABLE, table, query, {"identifiers": None, "fk_check": True}, None))
        del self.tables[table.name]

    def truncate_table(self, table: Table) -> Table:
        """The same table under a new id, empty."""
        table_id, job_id = self._allocate_ids(2)
        self._cluster.split(keys.table_prefix(table_id))
        old = table.info.partitions
        new = tuple(replace(each, id=id_) for each, id_ in zip(old, self.new_physical_ids(len(old)), strict=True))
        args = {
            "new_table_id": table_id,
            "fk_check": True,
            "new_partition_ids": [each.id for each in new] or None,
            "old_partition_ids": [each.id for each in old] or None,
        }
        query = f"TRUNCATE TABLE `{table.db.name}`.`{table.info.name}`"
        after = replace(table.info, id=table_id, partitions=new)
        return self.remember(
            Table(table.db, self._run(self._job(job_id, JobType.TRUNCATE_TABLE, table, query, args, after)))
        )

    def run(
        self,
        kind: JobType,
        table: Table,
        query: str,
        args: dict[str, Any],
        after: TableInfo,
        beside: Table | None = None,
    ) -> TableInfo:
        """A job from its queue to its history; the definition as it is stored then. `beside`: another that changes."""
        (job_id,) = self._allocate_ids(1)
        return self._run(self._job(job_id, kind, table, query, args, after), beside)

    def new_physical_ids(self, count: int) -> range:
        """Each with a region of its own."""
        ids = self._allocate_ids(count)
        for id_ in ids:
            self._cluster.split(keys.table_prefix(id_))
        return ids

    def _job(
        self, job_id: int, kind: JobType, table: Table, query: str, args: dict[str, Any], after: TableInfo | None
    ) -> Job:
        start_ts = self.now()
        return Job(job_id, kind, table.db, table.id, table.info.name, query, args, start_ts, table=after)

    def _run(self, job: Job, beside: Table | None = None) -> TableInfo:
        """Takes a job through its states; gives the table's final definition (a dropped table's: the job table's).

        Meta and the row in state Done are one transaction, so its commit ts is the DDL's finish ts (facts, 4.5).
        """
        jobs = self.tables[f"mysql.{DDL_JOB_TABLE}"]
        with self.begin() as txn:
            txn.insert(
                jobs,
                {
                    "job_id": job.id, "reorg": 0, "schema_ids": str(job.db.id), "table_ids": str(job.table_id),
                    "job_meta": dump(job.to_json()), "type": int(job.type), "processing": 0,
                },
            )  # fmt: skip
        with self.begin() as txn:
            running = replace(job, state=JobState.RUNNING)
            txn.update(jobs, {"job_id": job.id, "job_meta": dump(running.to_json()), "processing": 1})
        with self.begin() as txn:
            done = self._finish(txn, job)
            if beside is not None:
                txn.erase(keys.meta_hash(f"DB:{job.db.id}", f"Table:{job.table_id}"))
                _put_table(txn, beside.db, beside.info)
            txn.update(jobs, {"job_id": job.id, "job_meta": dump(done.to_json())})
        self.last_ddl_ts = txn.commit_ts
        with self.begin() as txn:
            synced = replace(done, state=JobState.SYNCED)
            txn.delete(jobs, job.id)
            txn.write(keys.meta_hash("DDLJobHistory", keys.encode_uint(job.id)), dump(synced.to_json()))
        return done.table or jobs.info

    def _finish(self, txn: Transaction, job: Job) -> Job:
        version_key = keys.meta_string("SchemaVersionKey")
        version = int(txn.read(version_key) or b"0") + 1
        table = replace(job.table, update_ts=txn.start_ts) if job.table else None
        done = replace(job, state=JobState.DONE, schema_version=version, table=table)
        txn.write(version_key, str(version).encode())
        txn.write(keys.meta_string(f"Diff:{version}"), dump(done.diff()))
        if job.type is JobType.CREATE_SCHEMA:
            _put_db(txn, job.db)
        if job.type in (JobType.DROP_TABLE, JobType.TRUNCATE_TABLE):
            txn.erase(keys.meta_hash(f"DB:{job.db.id}", f"Table:{job.table_id}"))
        if table:
            _put_table(txn, job.db, table)
        return done

    def _allocate_ids(self, count: int) -> range:
        key = keys.meta_string("NextGlobalID")
        with self.begin() as txn:
            last = int(txn.read(key) or b"0")
            txn.write(key, str(last + count).encode())
        return range(last + 1, last + count + 1)

    # --- rows ---

    def begin(self, one_phase: bool = False) -> Transaction:
        """A transaction at a fresh start ts; `one_phase` commits it without locks."""
        return Transaction(self._cluster, one_phase)

    def bulk_insert(
        self, table: Table, handles: npt.NDArray[np.int64], columns: Sequence[tuple[str, npt.NDArray[Any]]]
    ) -> int:
        """Writes many new rows in one transaction without locks; gives its commit ts.

        `columns`: every column but the primary key in the table's order, as `rows.encode_rows` takes them. For tables
        without secondary index; the handles must be free.
        """
        ids = {column.name: column.id for column in table.info.columns}
        values = encode_rows([(ids[name], array) for name, array in columns])
        record_keys = keys.record_keys(table.id, handles)
        mutations = [Mutation(Op.PUT, key, value) for key, value in zip(record_keys, values, strict=True)]
        return self._store.one_pc(mutations, self.now(), self.now() + 1)

    def snapshot(self, table: Table, ts: int) -> dict[Any, Row]:
        """All rows at ts by primary key. Raises KeyIsLocked while an older transaction is open, SnapshotTooOld."""
        self._check_age(ts)
        pairs = [pair for id_ in table.physical_ids for pair in self._store.scan(*keys.record_range(id_), ts)]
        return {pk: row for pk, row in (self._row(table, key, value) for key, value in pairs) if row is not None}

    def last_handle(self, table: Table) -> int:
        """The largest handle that has a row now, 0 if the table is empty. Raises KeyIsLocked if it is being changed."""
        found = self._store.read_range(*keys.record_range(table.id), self.now(), limit=1, reverse=True)
        for key, value in found:
            if isinstance(value, Lock):
                raise KeyIsLocked([value])
            return keys.handle_of(key)
        return 0

    def history(self, table: Table, after_ts: int, upto_ts: int) -> list[Change]:
        """Every change committed in (after_ts, upto_ts], in order of (commit ts, start ts, primary key).

        Rows are decoded with the columns that `table` has. A delete of a row that did not exist is no change. Raises
        SnapshotTooOld when versions above after_ts may be gone.
        """
        self._check_age(after_ts)
        upto_seq = self._store.seq
        found = [c for id_ in table.physical_ids for c in self._changes(table, id_, after_ts, upto_ts, upto_seq)]
        return sorted(found, key=lambda change: (change.commit_ts, change.start_ts, change.pk))

    def _changes(self, table: Table, id_: int, after_ts: int, upto_ts: int, upto_seq: int) -> list[Change]:
        found = []
        start: bytes | None
        start, end = keys.record_range(id_)
        while start is not None:
            versions, start = self._store.scan_versions(start, end, after_ts, upto_seq, _STEP_VERSIONS)
            for key, version, old_value in versions:
                if version.commit_ts > upto_ts:
                    continue
                pk, old_row = self._row(table, key, old_value)
                row = self._row(table, key, version.value)[1] if version.op is Op.PUT else None
                if row is not None or old_row is not None:
                    op = "delete" if row is None else "insert" if old_row is None else "update"
                    found.append(Change(version.commit_ts, version.start_ts, op, pk, row, old_row))
        return found

    def _check_age(self, ts: int) -> None:
        """TiDB's check, which TiKV does not make: below the GC safepoint versions are missing without a word."""
        safe_point = self._store.gc_safe_point
        if ts < safe_point:
            raise SnapshotTooOld(f"ts {ts} is below the GC safepoint {safe_point}: what was there then is deleted")

    def _row(self, table: Table, key: bytes, value: bytes | None) -> tuple[Any, Row | None]:
        return address_of(table.info, key), None if value is None else row_of(table.info, key, value)


def _put_db(txn: Transaction, db: DbInfo) -> None:
    txn.write(keys.meta_hash("DBs", f"DB:{db.id}"), dump(db.to_json()))


def _put_table(txn: Transaction, db: DbInfo, table: TableInfo) -> None:
    txn.write(keys.meta_hash(f"DB:{db.id}", f"Table:{table.id}"), dump(table.to_json()))
