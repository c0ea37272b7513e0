"""What the upstream's DDLs did to the selected tables between two ts, derived independently of any driver.

A *life* of a table is the time between two DDLs that involve it: one definition, one version, one directory. Rows at a
DDL's ts belong to the life before it. Of a DDL's job only its states, its text and its kind are taken, and which tables
it names; what it did to which table, and when, is what its transactions have written into the upstream's meta keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from changefeed.model.table_copy import COPY_TICKS, TableCopy
from changefeed.reading.failures import NotVerifiable
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.ddls import Effect, effect_of
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.tidb.job import Job, decode_job
from changefeed.upstream.tikv.tidb.keys import DDL_JOB_SPAN
from changefeed.verify.upstream.definitions import Definitions, SettledChange, SettledSchema, State
from changefeed.verify.upstream.history import Collected, read_history
from changefeed.verify.upstream.meta import read_meta

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
    states: Sequence[State] = field(default=(), compare=False)  # its definition, step by step (Definitions.in_force)

    @property
    def copy(self) -> TableCopy | None:
        """By which it begins, empty; None: the rows that stood there when it began are in no file."""
        found = self.copies.get(self.physical_id)
        return found if found is not None and found.from_ts == self.from_ts else None

    @property
    def directory_stem(self) -> str:
        """The directory, but for its date."""
        partition = f"/{self.physical_id}" if self.info.partition_ids and not self.by_id else ""
        return f"{self.folder}/{self.from_ts}{partition}"

    @property
    def folder(self) -> str:
        """Where its versions and their schema files are."""
        return str(self.physical_id) if self.by_id else _folder(self.info)


@dataclass
class Lives:
    """`all`: by name and version. `statements`: (folder, ts) of each DDL that a reader must be told of; `kept`: of each
    that no reader may be told of.

    `untold`: (database, table) of those with DDLs that an event filter keeps from readers. `schema`: definitions at any
    ts in between. `copies`: by physical id. `names`: by the ts of each DDL, (database, table) of what it is about,
    as they are called after it; table "": of a database itself.
    """

    schema: SettledSchema
    all: list[Life] = field(default_factory=list)
    statements: list[tuple[str, int]] = field(default_factory=list)
    kept: set[tuple[str, int]] = field(default_factory=set)
    untold: set[tuple[str, str]] = field(default_factory=set)
    copies: Mapping[int, TableCopy] = field(default_factory=dict)
    names: dict[int, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    unexplained: list[TableInfo] = field(default_factory=list)  # selected, in force at the end, and made by no job


async def read_lives(
    pd: PdClient,
    selects: Selects,
    ignores: Ignores,
    from_ts: int,
    to_ts: int,
    by_id: bool = False,
    copies: Mapping[int, TableCopy] | None = None,
    routed: Callable[[TableInfo], TableInfo] = lambda table: table,
) -> Lives:
    """Read the lives of the tables that are selected at some time in between; `by_id`: folders have ids for names.

    `routed`: a table as it is written.

    `copies`: of tables, by physical id; None: the changefeed makes none.

    Raises NotVerifiable for definitions and jobs that can't be read or followed, NeedsHuman for a job that is none.
    """
    schema_ts = from_ts if copies is None else from_ts + COPY_TICKS
    schema = SettledSchema(schema_ts, Definitions(await read_meta(pd, schema_ts, to_ts)), routed)
    jobs = Collected()
    await read_history(pd, *DDL_JOB_SPAN, schema_ts, to_ts, into=jobs)
    found = _FoundLives(from_ts, selects, ignores, schema, by_id, copies or {})
    true = await _shown_before(pd, schema)  # jobs whose result sessions see
    for ts, job in _steps(jobs, schema.ddl_job_table):
        if job.id not in true and (job.is_done or schema.shows_another(ts)):
            true.add(job.id)
            found.select_before(ts)
            found.follow(ts, job, schema.settle(ts, _named(job)))
    found.select_before(to_ts)
    lives = found.until(to_ts)
    lives.unexplained = await _unexplained(pd, schema, selects, to_ts)
    return lives


async def _shown_before(pd: PdClient, schema: SettledSchema) -> set[int]:
    """The jobs whose result was in force already when the history begins, although they were under way."""
    return {job.id for job in await _jobs_at(pd, schema, schema.snapshot_ts) if job.is_shown}


async def _unexplained(pd: PdClient, schema: SettledSchema, selects: Selects, ts: int) -> list[TableInfo]:
    """Definitions that sessions see at `ts`, and that no job has made or is making."""
    jobs = await _jobs_at(pd, schema, ts)
    if any(not job.table_id for job in jobs):
        return []
    going = {job.table_id for job in jobs}
    return [table for table in schema.others_in_force(ts) if table.id not in going and selects(table)]


async def _jobs_at(pd: PdClient, schema: SettledSchema, ts: int) -> list[Job]:
    """Those that are not in the history of jobs yet."""
    stored = [value async for _, value in Snapshot(pd, ts).scan(*DDL_JOB_SPAN)]
    return [decode_job(value, schema.ddl_job_table) for value in stored]


def _steps(jobs: Collected, ddl_job_table: TableInfo) -> list[tuple[int, Job]]:
    """(commit ts, job) of each state that a job was in, in their order."""
    rows = jobs.table()
    values = zip(rows["commit_ts"].to_pylist(), rows["value"].to_pylist(), strict=True)
    decoded = [(ts, decode_job(value, ddl_job_table)) for ts, value in values if value]
    return sorted(decoded, key=lambda each: (each[0], each[1].id))


def _named(job: Job) -> set[int]:
    """The tables that begin another version with the job, even one that leaves their definitions as they are."""
    match effect_of(job.type):
        case Effect.UNFOLLOWABLE:
            raise NotVerifiable(
                f"{job} changes rows or definitions without a trace of what they were.",
                "Verify a sink that ends before it.",
            )
        case Effect.NOTHING:
            return set()
    infos = (job.table_info, *job.table_infos)
    return {job.table_id, *(info.id for info in infos if info is not None)}


class _FoundLives:
    def __init__(
        self,
        from_ts: int,
        selects: Selects,
        ignores: Ignores,
        schema: SettledSchema,
        by_id: bool,
        copies: Mapping[int, TableCopy],
    ) -> None:
        self._from_ts = from_ts
        self._selects_ever = selects
        self._ignores = ignores
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

    def follow(self, ts: int, job: Job, touched: SettledChange) -> None:
        ended = {id_ for table in touched.before for id_ in table.physical_ids}
        for id_ in sorted(ended & self._living.keys()):
            self._end(id_, ts, has_ended=True)
        self._begin(touched.after, ts)
        lives = self._lives
        latest = {table.id: table for table in (*touched.before, *touched.after)}.values()
        lives.names[ts] |= {(table.schema_name, table.name) for table in latest}
        lives.names[ts] |= {(database, "") for database in touched.databases}
        is_kept = {table.id: self._is_kept(job, table, touched) for table in (*touched.before, *touched.after)}
        for table in self._concerned(touched):
            (lives.kept.add if is_kept[table.id] else lives.statements.append)((self._folder_of(table), ts))
        if any(is_kept.values()) or (self._by_id and touched.databases):
            lives.untold |= {(table.schema_name, table.name) for table in (*touched.before, *touched.after)}

    def _concerned(self, touched: SettledChange) -> list[TableInfo]:
        """The tables in whose folders a reader is told: of one that leaves, under its new name."""
        had = [table for table in touched.before if self._selects(table)]
        ids = {table.id for table in had}
        told = [table for table in touched.after if self._selects(table) or table.id in ids]
        return told if told or touched.databases else had

    def _is_kept(self, job: Job, table: TableInfo, touched: SettledChange) -> bool:
        """Whether an event filter keeps the statement from readers. It is asked by the name that the statement has.

        That is the old one of a rename, and the partitioned table's of an exchange.
        """
        match job.type:
            case Action.RENAME_TABLE | Action.RENAME_TABLES:
                table = next((old for old in touched.before if old.id == table.id), table)
            case Action.EXCHANGE_TABLE_PARTITION:
                table = next((each for each in touched.after if each.partition_ids), table)
        return self._ignores(job, *table.upstream_name)

    def until(self, ts: int) -> Lives:
        for id_ in sorted(self._living):
            self._end(id_, ts, has_ended=False)
        self._lives.all.sort(key=lambda life: (life.info.schema_name, life.info.name, life.from_ts, life.physical_id))
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
        states = self._lives.schema.definitions.in_force(info.id, since, ts)
        life = Life(info, physical_id, since, ts, has_ended, is_first, self._by_id, self._lives.copies, states)
        self._lives.all.append(life)

    def _folder_of(self, table: TableInfo) -> str:
        return str(table.id) if self._by_id else _folder(table)


def _folder(table: TableInfo) -> str:
    return f"{table.schema_name}/{table.name}"
