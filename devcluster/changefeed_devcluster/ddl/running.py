"""A job on its way from the job table to its history, state by state.

1. It is queued: a row of `mysql.tidb_ddl_job`.
2. Each state that sessions have to know is a transaction: the definition in its meta key, a schema version, the row.
3. Meta and the row in state Done are one transaction too, so its commit ts is the DDL's finish ts (docs/design/tidb.md,
   DDL jobs).
4. The row is deleted, the job goes to the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import keys
from ..tidb.schema import DDL_JOB_TABLE, NONE, PUBLIC, DbInfo, NamedTable, TidbTable, dump
from ..tidb.server import TidbServer, put_table, table_key
from ..tidb.transaction import Transaction
from .jobs import DdlJob, JobState, JobType

#: The definitions that sessions use from one state of a job on, the last one when it is done.
States = Iterator[NamedTable]


class RunningJob:
    """One job. `at_once`: it is done in the transaction that would queue it, as the fast way to make tables does."""

    def __init__(
        self,
        tidb: TidbServer,
        kind: JobType,
        db: DbInfo,
        table: tuple[int, str],
        query: str,
        args: Mapping[str, Any] | None = None,
        sub_jobs: Iterable[tuple[JobType, Mapping[str, Any]]] = (),
        at_once: bool = False,
        involving: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """`table`: id and name of the one that it is about; (0, "") if none. `involving`: see `DdlJob`."""
        self._tidb = tidb
        self._jobs = tidb.tables[f"mysql.{DDL_JOB_TABLE}"]
        self._before = {each.id: _shape(each) for each in tidb.tables.values()}
        self._shown_ts = 0
        (job_id,) = tidb.allocate_ids(1)
        self._job = DdlJob(
            job_id, kind, db, *table, query, args or {}, tidb.now(), sub_jobs=tuple(sub_jobs),
            involving=tuple(involving), session=replace(tidb.session),
        )  # fmt: skip
        self._is_queued = not at_once
        if self._is_queued:
            with tidb.begin() as txn:
                self._insert(txn, self._job)

    def show(self, table: NamedTable, *others: NamedTable, erased: Iterable[NamedTable] = ()) -> NamedTable:
        """A state on the way: sessions use these definitions from now on; the first of them.

        Where they are what the job leads to, its other states are of what is on its way out.
        """
        erased = tuple(erased)
        self._job = replace(self._job, **self._reached((table, *others)))
        with self._tidb.begin() as txn:
            for each in erased:
                txn.erase(table_key(each))
            self._step(txn)
            shown = [put_table(txn, each) for each in (table, *others)]
            self._update(txn, self._job)
        self._reach(txn.commit_ts)
        self._tidb.forget(*erased)
        first, *_ = [self._tidb.remember(each) for each in shown]
        return first

    def show_database(self, db: DbInfo) -> None:
        """A state on the way of a database to being gone."""
        self._job = replace(self._job, schema_state=db.state)
        with self._tidb.begin() as txn:
            self._step(txn)
            txn.write(keys.meta_hash("DBs", f"DB:{db.id}"), dump(db.to_json()))
            self._update(txn, self._job)

    def _reached(self, tables: Iterable[NamedTable]) -> dict[str, Any]:
        """The members of the job that say how far it is, with these definitions in force."""
        hidden = [each for table in tables for each in [table.info.state] if each != PUBLIC]
        hidden += [column.state for table in tables for column in table.info.columns if not column.is_public]
        is_shown = any(_shape(table) != self._before.get(table.id) for table in tables)
        is_behind = is_shown and self._job.type is JobType.MODIFY_COLUMN
        state = PUBLIC if is_shown and (is_behind or not hidden) else hidden[0] if hidden else NONE
        return {"schema_state": state, "is_shown": is_shown}

    def _step(self, txn: Transaction) -> None:
        started = self._job.real_start_ts or txn.start_ts
        version = _next_version(txn)
        self._job = replace(self._job, state=JobState.RUNNING, schema_version=version, real_start_ts=started)
        _put_diff(txn, self._job)

    def _reach(self, ts: int) -> None:
        if self._job.is_shown and not self._shown_ts:
            self._tidb.last_ddl_ts = self._shown_ts = ts

    def finish(
        self,
        *stored: NamedTable,
        erased: Iterable[NamedTable] = (),
        carried: Iterable[TidbTable] = (),
        db: DbInfo | None = None,
        erased_db: DbInfo | None = None,
    ) -> tuple[NamedTable, ...]:
        """The job is done: these definitions are stored, those erased; gives the stored ones as they are then.

        The first of them is the job's own; `carried`: of several, in the statement's order.
        """
        erased = tuple(erased)
        if self._is_queued:
            with self._tidb.begin() as txn:
                started = self._job.real_start_ts or txn.start_ts
                self._job = replace(self._job, state=JobState.RUNNING, real_start_ts=started)
                self._update(txn, self._job)
        with self._tidb.begin() as txn:
            for table in erased:
                txn.erase(table_key(table))
            stored = tuple(put_table(txn, table) for table in stored)
            if db is not None:
                txn.write(keys.meta_hash("DBs", f"DB:{db.id}"), dump(db.to_json()))
            if erased_db is not None:
                txn.erase(keys.meta_hash("DBs", f"DB:{erased_db.id}"))
            several = tuple(replace(info, update_ts=txn.start_ts) for info in carried)
            done = replace(self._job, state=JobState.DONE, schema_version=_next_version(txn), tables=several)
            done = replace(done, table=self._own(stored, several, erased))
            _put_diff(txn, done)
            (self._update if self._is_queued else self._insert)(txn, done)
        self._tidb.last_ddl_ts = self._shown_ts or txn.commit_ts
        self._into_history(replace(done, state=JobState.SYNCED))
        self._tidb.forget(*erased)
        return tuple(self._tidb.remember(table) for table in stored)

    def _own(
        self, stored: Sequence[NamedTable], several: Sequence[TidbTable], erased: Sequence[NamedTable]
    ) -> TidbTable | None:
        """The definition that the job carries as its own; a dropped table's too."""
        if several:
            return several[-1] if self._job.type is JobType.RENAME_TABLES else None
        if self._job.type in (JobType.DROP_TABLE, JobType.DROP_VIEW, JobType.DROP_SEQUENCE):
            return erased[0].info.of_state(NONE)
        return stored[0].info if stored else None

    def roll_back(self, table: NamedTable) -> NamedTable:
        """The job fails: `table` is as it was before."""
        with self._tidb.begin() as txn:
            rolling = replace(self._job, state=JobState.ROLLING_BACK, schema_version=_next_version(txn))
            _put_diff(txn, rolling)
            restored = put_table(txn, table)
            self._update(txn, rolling)
        failed = replace(rolling, state=JobState.ROLLBACK_DONE)
        with self._tidb.begin() as txn:
            self._update(txn, failed)
        self._into_history(failed)
        return self._tidb.remember(restored)

    def _into_history(self, job: DdlJob) -> None:
        with self._tidb.begin() as txn:
            txn.delete(self._jobs, job.id)
            txn.write(keys.meta_hash("DDLJobHistory", keys.encode_uint(job.id)), dump(job.to_json()))

    def _insert(self, txn: Transaction, job: DdlJob) -> None:
        txn.insert(
            self._jobs,
            {
                "job_id": job.id, "reorg": 0, "schema_ids": str(job.db.id), "table_ids": str(job.table_id),
                "job_meta": dump(job.to_json()), "type": int(job.type), "processing": 0,
            },
        )  # fmt: skip

    def _update(self, txn: Transaction, job: DdlJob) -> None:
        txn.update(self._jobs, {"job_id": job.id, "job_meta": dump(job.to_json()), "processing": 1})


def about(
    tidb: TidbServer, kind: JobType, table: NamedTable, query: str, args: Mapping[str, Any] | None = None
) -> RunningJob:
    """A job about one table that exists."""
    return RunningJob(tidb, kind, table.db, (table.id, table.info.name), query, args)


def last(states: States) -> NamedTable:
    """Runs a job to its end; the table as it is then."""
    *_, table = states
    return table


def sql(table: NamedTable) -> str:
    return f"`{table.db.name}`.`{table.info.name}`"


def _shape(table: NamedTable) -> tuple[Any, ...]:
    """Return what sessions see of it by name."""
    columns = [(column.id, column.name) for column in table.info.public]
    return table.db.id, table.info.name, columns


def involving(*tables: NamedTable, shared: Iterable[NamedTable] = ()) -> list[dict[str, Any]]:
    """Return what a job waits for, as it names that: in lower case. `shared`: what it only reads."""
    return [
        {
            "database": table.db.name.lower(),
            "table": table.info.name.lower(),
            **({"mode": 1} if table in shared else {}),
        }
        for table in (*tables, *shared)
    ]


def involving_database(name: str) -> list[dict[str, Any]]:
    """Involve a database with all of its tables."""
    return [{"database": name.lower(), "table": "*"}]


def _next_version(txn: Transaction) -> int:
    key = keys.meta_string("SchemaVersionKey")
    version = int(txn.read(key) or b"0") + 1
    txn.write(key, str(version).encode())
    return version


def _put_diff(txn: Transaction, job: DdlJob) -> None:
    txn.write(keys.meta_string(f"Diff:{job.schema_version}"), dump(job.diff()))
