"""O8: walks the sink as a consumer does, and compares the result with the upstream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.objectstore import Object
from changefeed.reading.layout.files import SinkFiles
from changefeed.reading.layout.read_ahead import read_ahead
from changefeed.reading.layout.walk import DataDirectory, WalkedVersion, misplaced, walk, without_schema_file
from changefeed.reading.rows.gathered import Gathered
from changefeed.reading.schema.schema_file import ConsumerSchemaFile, read_schema_file
from changefeed.reading.scratch import with_bytes
from changefeed.schema.table_info import TableInfo
from changefeed.verify.comparison.ledger import TableLedger
from changefeed.verify.consumer.catalog import ConsumerCatalog
from changefeed.verify.consumer.report import ConsumerReport
from changefeed.verify.consumer.rows import ConsumerRows
from changefeed.verify.consumer.table import ConsumerTable, differing, why_unknown
from changefeed.verify.consumer.upstream import UpstreamTables
from changefeed.verify.result import Result
from changefeed.verify.storage.files import StoredSubject
from changefeed.verify.storage.table_files import TableFiles
from changefeed.verify.upstream.lives import Lives

_AT_ONCE_BYTES = 64 << 20

Selects = Callable[[str, str], bool]


async def replay(
    subject: StoredSubject, lives: Lives, selects: Selects, sink: SinkFiles, ledger: TableLedger, by_id: bool = False
) -> None:
    """`selects`: (schema, table) that the changefeed is about. `by_id`: folders have ids for names. Uses the ledger's
    database for tables of its own.
    """
    await _Consumer(subject, lives, selects, sink, ledger, by_id).run()


class _Consumer:
    def __init__(
        self, subject: StoredSubject, lives: Lives, selects: Selects, sink: SinkFiles, ledger: TableLedger, by_id: bool
    ) -> None:
        self._subject = subject
        self._checkpoint_ts = subject.checkpoint_ts
        self._lives = lives
        self._selects = selects
        self._sink = sink
        self._report = ConsumerReport(subject.result)
        self._rows = ConsumerRows(ledger.db)
        how = subject.formats.newest
        self._choice = how.choice
        self._upstream = UpstreamTables(subject.pd, lives.schema, subject.config, how, subject.mask_keys)
        self._by_id = by_id
        copied = {id_: copy.from_ts for id_, copy in lives.copies.items()}
        self._catalog = ConsumerCatalog(
            self._upstream, self._rows, self._report, selects, subject.start_ts, self._choice, by_id, copied
        )
        self._named: dict[str, ConsumerSchemaFile] = {}  # by its directory stem

    async def run(self) -> None:
        for problem in misplaced(self._sink, self._by_id):
            self._report.problem(problem)
        has_dates = self._subject.config["spec"]["sink"]["storage"]["dateSeparator"] != "none"
        self._subject.progress.stage(
            "a consumer's replay", sum(len(d.readable) for d in self._sink.directories.values())
        )
        for version in walk(self._sink, has_dates, self._by_id):
            for problem in without_schema_file(version):
                self._report.problem(problem)
            await self._catalog.execute(self._schema_files(version))
            for (stem, _), group in groupby(version.data, key=lambda data: (data.directory_stem, data.partition)):
                self._take(stem, version.ts, list(group))
        self._check_names()
        for table in self._catalog.tables:
            if not table.is_view:
                await self._check_table(table)
        self._report.end()

    def _schema_files(self, version: WalkedVersion) -> list[ConsumerSchemaFile]:
        """One of each table; by id a partitioned one has several, of which one has the statement."""
        found: dict[tuple[str, str], ConsumerSchemaFile] = {}
        named: dict[str, ConsumerSchemaFile] = {}
        for path in version.schema_files:
            file, problems = read_schema_file(path, self._subject.store.get(path).body, self._by_id)
            for problem in problems:
                self._report.problem(problem)
            if file is None:
                continue
            stem = path.partition("/meta/")[0]
            if (first := named.setdefault(stem, file)) is not file:
                self._report.problem(f"{path} is the second of its version: a consumer only reads {first.path}.")
                continue
            if file.query and (stem, file.version) in self._lives.kept:
                self._report.problem(f"{path} has a statement that an event filter keeps from readers: {file.query}")
            if self._by_id:
                self._check_id(file, int(stem))
            same = found.setdefault((file.schema, file.table), file)
            if same.columns != file.columns or (same is not file and same.query and file.query):
                self._report.problem(f"{path} and {same.path} disagree about {file.name}.")
            if file.query and not same.query:
                found[file.schema, file.table] = file
        self._named = named
        return list(found.values())

    def _check_id(self, file: ConsumerSchemaFile, id_: int) -> None:
        """It stands in a folder of the table that it is about."""
        for ts in (file.version, file.version - 1):
            if (info := self._upstream.table(file.schema, file.table, ts)) is not None:
                if id_ not in (info.id, *info.physical_ids):
                    self._report.problem(f"{file.path} is about {file.name}, which does not have this id at {ts}.")
                return

    # -- rows

    def _take(self, stem: str, version: int, group: Sequence[DataDirectory]) -> None:
        """The rows of one partition under a version."""
        named = self._named.get(stem)  # none: that is said
        schema, _, name = stem.partition("/")
        table = self._catalog.get(*(named.schema, named.table) if named else (schema, name))
        if table is None or (table.version != version and not table.unknown):
            self._report.problem(f"{group[0].directory.path} has rows of a table that no consumer has by then.")
        elif not table.unknown:
            self._apply(table, group)

    def _apply(self, table: ConsumerTable, group: Sequence[DataDirectory]) -> None:
        files = TableFiles(self._subject.store, (table.schema, table.table), table.shape, self._subject.formats)
        changes = Gathered(_AT_ONCE_BYTES)
        for path, found in read_ahead(self._subject.store, [data.directory for data in group]):
            for piece in self._read(files, path, found, table):
                changes.add(piece)
                if changes.are_many:
                    self._merge(table, self._partition(table, group[0]), changes)
            self._subject.progress.advance(1)
        self._merge(table, self._partition(table, group[0]), changes)

    def _partition(self, table: ConsumerTable, data: DataDirectory) -> int:
        """0: the table has none."""
        if not self._by_id:
            return data.partition
        return 0 if int(data.directory_stem) == table.id else int(data.directory_stem)

    def _read(self, files: TableFiles, path: str, found: Object, table: ConsumerTable) -> Iterator[pa.Table]:
        """The file's rows up to the checkpoint, with their indexes."""
        row_index, seen = self._report.begin_file(path), Result()
        for piece in files.read(path, found, seen):
            row_indexes = np.arange(row_index + 1, row_index + 1 + piece.num_rows, dtype=np.uint64)
            row_index += piece.num_rows
            piece = piece.append_column("row_index", pa.array(row_indexes))
            piece = piece.filter(pc.less_equal(piece["commit_ts"], pa.scalar(self._checkpoint_ts, pa.uint64())))
            if piece.num_rows:
                self._check_version(piece, table)
                yield with_bytes(piece, table.shape)
        if seen.first_problem is not None:
            self._report.problem(seen.first_problem)

    def _check_version(self, piece: pa.Table, table: ConsumerTable) -> None:
        """Rows are behind the DDL of their version; who is before the next one is seen when that comes."""
        lowest, highest = pc.min_max(piece["commit_ts"]).as_py().values()
        if lowest <= table.version:
            row_index = piece["row_index"][pc.index(piece["commit_ts"], lowest).as_py()].as_py()
            self._report.problem(
                f"A row of {table.name} has commit ts {lowest}, but is under version {table.version} "
                f"({self._report.where(row_index)})."
            )
        if highest > table.last[0]:
            row_index = piece["row_index"][pc.index(piece["commit_ts"], highest).as_py()].as_py()
            table.last = (highest, row_index)

    def _merge(self, table: ConsumerTable, partition: int, changes: Gathered) -> None:
        if given := changes.taken():
            key = table.written.key
            table.rows = self._rows.apply(table.rows, partition, table.order, key, given)

    # -- the end

    def _check_names(self) -> None:
        """Tables and views are those that the upstream has selected."""
        quiet = self._lives.untold
        for views in (False, True):
            there = [info for info in self._upstream.tables(self._checkpoint_ts) if info.is_view == views]
            names = ((info.schema_name, info.name) for info in there)
            want = {name for name in names if self._selects(*name)}
            tables = (table for table in self._catalog.tables if table.is_view == views)
            have = {(table.schema, table.table) for table in tables if self._selects(table.schema, table.table)}
            what = "view" if views else "table"
            for name in map(".".join, sorted(have - want - quiet)):
                self._report.problem(f"A consumer has a {what} {name} at the checkpoint: the upstream has none.")
            for name in map(".".join, sorted(want - have - quiet)):
                self._report.problem(f"A consumer has no {what} {name} at the checkpoint: the upstream has one.")
            for name in map(".".join, sorted((have ^ want) & quiet)):
                self._report.note(f"Whether a consumer has {name} was not checked: it is not told of all of its DDLs.")

    async def _check_table(self, table: ConsumerTable) -> None:
        info = self._upstream.table(table.schema, table.table, self._checkpoint_ts)
        if info is None or not self._selects(table.schema, table.table):
            return
        if odd := differing(table.columns, info):
            self._report.problem(f"A consumer's newest schema file of {table.name} {odd}")
        elif table.unknown:
            self._say_unknown(table)
        else:
            await self._check_rows(table, info)

    async def _check_rows(self, table: ConsumerTable, info: TableInfo) -> None:
        left_out = {column.name for column in table.columns} - set(table.shape.names)
        if left_out:
            self._report.note(f"No file has these columns of {table.name}: {', '.join(sorted(left_out))}.")
        want = await self._catalog.upstreams(table, info, self._checkpoint_ts)
        if table.unknown:
            self._say_unknown(table)
            return
        pairs = [(column, column) for column in table.order]
        found = self._rows.compare(table.rows, want, pairs, table.written.key)
        self._subject.result.consumed += self._rows.count(want)
        self._rows.drop(want)
        if found.total:
            self._report.rows_differ(table.name, table.shape, found, "at the checkpoint")

    def _say_unknown(self, table: ConsumerTable) -> None:
        """What rules a replay out altogether is noted where the changes are compared (comparison.table)."""
        if table.unknown != why_unknown(table):
            self._report.note(f"A consumer's rows of {table.name} were not compared: {table.unknown}.")
