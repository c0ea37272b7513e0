"""What the upstream's DDLs did to the selected tables between two ts, derived independently of any driver.

A *life* of a table is the time between two DDLs that involve it: one definition, one version, one directory. Rows at a
DDL's ts belong to the life before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from changefeed.model.table_copy import COPY_TICKS, TableCopy
from changefeed.schema.ddl.job import Job, decode_job
from changefeed.schema.keys import DDL_JOB_SPAN
from changefeed.schema.snapshot import load_schema
from changefeed.schema.storage import SchemaStorage, Touched
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.kv import Snapshot
from changefeed.upstream.pd import PdClient
from changefeed.verify.upstream.history import Collected, read_history

Selects = Callable[[TableInfo], bool]
Ignores = Callable[[Job, str, str], bool]  # (job, schema, table): the statement is kept from readers


@dataclass(frozen=True)
class Life:
    """Rows in `(from_ts, to_ts]` that stand under `physical_id`, defined by `info`."""

    info: TableInfo
    physical_id: int
    from_ts: int
    to_ts: int
    has_ended: bool  # by a DDL at to_ts
    is_first: bool  # it began with the changefeed
    by_id: bool = False  # its folder has its id for a name
    copies: Mapping[int, TableCopy] = field(default_factory=dict, compare=False)  # of all tables, by physical id

    @property
    def copy(self) -> TableCopy | None:
        """By which it begins, empty; None: the rows that stood there when it began are in no file."""
        found = self.copies.get(self.physical_id)
        return found if found is not None and found.from_ts == self.from_ts else None

    @property
    def place(self) -> str:
        """The directory, but for its date."""
        partition = f"/{self.physical_id}" if self.info.partition_ids and not self.by_id else ""
        return f"{self.folder}/{self.from_ts}{partition}"

    @property
    def folder(self) -> str:
        """Where its versions and their schema files are."""
        return str(self.physical_id) if self.by_id else _folder(self.info)


@dataclass
class Lives:
    """`all`: by name and version. `statements`: (folder, ts) of each DDL that a reader must be told of.

    `untold`: tables with DDLs that an event filter keeps from readers. `schema`: definitions at any ts in between.
    `copies`: by physical id.
    """

    schema: SchemaStorage
    all: list[Life] = field(default_factory=list)
    statements: list[tuple[str, int]] = field(default_factory=list)
    untold: set[str] = field(default_factory=set)
    copies: Mapping[int, TableCopy] = field(default_factory=dict)


async def read_lives(
    pd: PdClient,
    selects: Selects,
    ignores: Ignores,
    from_ts: int,
    to_ts: int,
    by_id: bool = False,
    copies: Mapping[int, TableCopy] | None = None,
) -> Lives:
    """Of the tables that are selected at some time in between; `by_id`: folders have ids for names.

    `copies`: of tables, by physical id; None: the changefeed makes none.

    Raises what `load_schema` and `decode_job` raise.
    """
    schema_ts = from_ts if copies is None else from_ts + COPY_TICKS
    schema = await load_schema(Snapshot(pd, schema_ts), schema_ts)
    jobs = Collected()
    await read_history(pd, *DDL_JOB_SPAN, schema_ts, to_ts, into=jobs)
    found = _Found(from_ts, selects, schema, by_id, copies or {})
    for ts, job in _finished(jobs, schema):
        found.select_before(ts)
        schema.apply(job, ts)
        touched = schema.touches(job)
        told = found.follow(ts, touched)
        found.told(ts, [table for table in told if not ignores(job, table.schema_name, table.name)])
        if any(ignores(job, table, name) for table, name in touched.tables):
            found.untold({f"{database}.{name}" for database, name in touched.tables})
        if by_id and touched.databases:
            found.untold({table.full_name for table in touched.before})
    found.select_before(to_ts)
    return found.until(to_ts)


def _finished(jobs: Collected, schema: SchemaStorage) -> list[tuple[int, Job]]:
    rows = jobs.table()
    values = zip(rows["commit_ts"].to_pylist(), rows["value"].to_pylist(), strict=True)
    decoded = [(ts, decode_job(value, schema.ddl_job_table)) for ts, value in values if value]
    first: dict[int, tuple[int, Job]] = {}
    for ts, job in sorted((each for each in decoded if each[1].is_done), key=lambda each: (each[0], each[1].id)):
        first.setdefault(job.id, (ts, job))
    return list(first.values())


class _Found:
    def __init__(
        self,
        from_ts: int,
        selects: Selects,
        schema: SchemaStorage,
        by_id: bool,
        copies: Mapping[int, TableCopy],
    ) -> None:
        self._from_ts = from_ts
        self._selects_ever = selects
        self._by_id = by_id
        self._later = {id_: copy.from_ts for id_, copy in copies.items() if copy.from_ts > from_ts}  # not selected yet
        self._lives = Lives(schema, copies=copies)
        self._living: dict[int, tuple[TableInfo, int]] = {}  # by physical id: the definition, and since when
        self._begin(schema.tables_at(schema.snapshot_ts), from_ts)

    def select_before(self, ts: int) -> None:
        """Tables that rules have selected below `ts` begin, each with its copy."""
        for id_, from_ts in sorted(self._later.items(), key=lambda each: each[1]):
            if from_ts < ts:
                del self._later[id_]
                tables = self._lives.schema.tables_at(max(from_ts, self._lives.schema.snapshot_ts))
                table = next((each for each in tables if id_ in each.physical_ids), None)
                if table is not None and self._selects(table):
                    self._living[id_] = table, from_ts

    def _selects(self, table: TableInfo) -> bool:
        return self._selects_ever(table) and not any(id_ in self._later for id_ in table.physical_ids)

    def follow(self, ts: int, touched: Touched) -> list[TableInfo]:
        """The tables whose readers must be told."""
        ended = {id_ for table in touched.before for id_ in table.physical_ids}
        for id_ in sorted(ended & self._living.keys()):
            self._end(id_, ts, has_ended=True)
        after = {table.id: table for table in touched.after}.values()
        self._begin(after, ts)
        had = [table for table in touched.before if self._selects(table)]
        ids = {table.id for table in had}
        told = [table for table in after if self._selects(table) or table.id in ids]  # one that leaves, by its new name
        return told if told or touched.databases else had

    def told(self, ts: int, tables: list[TableInfo]) -> None:
        self._lives.statements += [(str(table.id) if self._by_id else _folder(table), ts) for table in tables]

    def untold(self, names: set[str]) -> None:
        self._lives.untold |= names

    def until(self, ts: int) -> Lives:
        for id_ in sorted(self._living):
            self._end(id_, ts, has_ended=False)
        self._lives.all.sort(key=lambda life: (life.info.full_name, life.from_ts, life.physical_id))
        return self._lives

    def _begin(self, tables: Collection[TableInfo], ts: int) -> None:
        for table in tables:
            if self._selects(table) and not table.is_view and not table.is_sequence:
                self._living.update(dict.fromkeys(table.physical_ids, (table, ts)))

    def _end(self, physical_id: int, ts: int, *, has_ended: bool) -> None:
        info, since = self._living[physical_id]
        if has_ended:
            del self._living[physical_id]
        is_first = since == self._from_ts
        life = Life(info, physical_id, since, ts, has_ended, is_first, self._by_id, self._lives.copies)
        self._lives.all.append(life)


def _folder(table: TableInfo) -> str:
    return f"{table.schema_name}/{table.name}"
