"""One table's files: the oracles for changes stored in order, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from changefeed.objectstore import Object, ObjectStore
from changefeed.reading.layout.files import DirectoryFiles
from changefeed.reading.layout.read_ahead import read_ahead
from changefeed.reading.rows.formats import Formats
from changefeed.reading.rows.gathered import Gathered
from changefeed.verify.comparison import oracles
from changefeed.verify.comparison.ledger import TableLedger
from changefeed.verify.comparison.table import TableCheck, Verified
from changefeed.verify.result import Result
from changefeed.verify.storage.table_files import TableFiles
from changefeed.verify.upstream.lives import Life

_AT_ONCE_BYTES = 8 << 20


@dataclass(frozen=True)
class StoredSubject(Verified):
    """A sink of files."""

    result: Result
    store: ObjectStore
    formats: Formats


async def check_table(
    subject: StoredSubject,
    life: Life,
    directories: Sequence[DirectoryFiles],
    schemas: Mapping[tuple[str, int], list[str]],
    ledger: TableLedger,
) -> None:
    """O1, O3, O4 and O6 of one life of a table; O7's moves go on in the ledger. `directories`: in their order."""
    await _FilesTable(subject, life, ledger).check(directories, schemas)


class _FilesTable(TableCheck):
    def __init__(self, subject: StoredSubject, life: Life, ledger: TableLedger) -> None:
        super().__init__(subject, life, (life.physical_id,), ledger)
        self._store, self._files_result = subject.store, subject.result
        name = (life.info.schema_name, life.info.name)
        self._files = TableFiles(subject.store, name, self._shape, subject.formats)
        self._gathered = Gathered(_AT_ONCE_BYTES)

    @property
    def _written(self) -> TableFiles:
        return self._files

    async def check(self, directories: Sequence[DirectoryFiles], schemas: Mapping[tuple[str, int], list[str]]) -> None:
        ledger, to_ts = self._ledger, self._life.to_ts
        self._read_files(directories, schemas)
        await self._read_history()
        if self._life.has_ended and (behind := oracles.first_above(ledger, to_ts)) is not None:
            self._result.problem(
                f"{self._files.where(behind)}: a change of {self._info.full_name} stands there under the definition "
                f"before the DDL at {to_ts}: {self._show_row(behind)}."
            )
        if not oracles.is_same_sequence(ledger, to_ts):
            await self._say_differences(oracles.differences(ledger, to_ts))
            self._say_disorder(*oracles.disorder(ledger))
        await self._check_replay()
        if ledger.table.amount is not None:
            copy = self._life.copy
            with_start = self._life.is_first or copy is not None
            oracles.add_moves(ledger, to_ts, with_start=with_start, start_ts=copy.ts if copy else 0)

    def _read_files(self, directories: Sequence[DirectoryFiles], schemas: Mapping[tuple[str, int], list[str]]) -> None:
        paths = sum(len(directory.readable) for directory in directories)
        self._subject.progress.stage(f"{self._info.full_name}: the files", paths)
        written = self._schema_written(schemas)
        for path, found in read_ahead(self._store, directories):
            self._read_file(path, found, written)
            self._subject.progress.advance(1)
        self._add_gathered()
        self._files_result.files += paths
        ((rows,),) = self._ledger.run("SELECT count(*) FROM files WHERE commit_ts <= ?", [self._subject.checkpoint_ts])
        self._result.rows += rows

    def _read_file(self, path: str, found: Object, schema_written: float | None) -> None:
        if schema_written is not None and found.modified is not None and found.modified < schema_written:
            self._result.problem(f"{path} was written before the schema file of its version.")
        for piece in self._files.read(path, found, self._files_result):
            if self._gathered.are_many or not self._gathered.fits(piece):
                self._add_gathered()
            self._gathered.add(piece)

    def _add_gathered(self) -> None:
        if rows := self._gathered.taken():
            self._ledger.add_files(rows, self._files.rows - rows.num_rows)

    def _schema_written(self, schemas: Mapping[tuple[str, int], list[str]]) -> float | None:
        """When the version's schema file was written; None: the store does not say, or there is none."""
        paths = schemas.get((self._life.folder, self._life.from_ts), [])
        times = [self._store.get(path).modified for path in paths]
        return min((time for time in times if time is not None), default=None)

    def _say_disorder(self, count: int, first: int | None) -> None:
        self._result.out_of_order += count
        if first is not None:
            self._result.problem(
                f"{self._files.where(first)}: a change of {self._info.full_name} comes after a later one: "
                f"{self._show_row(first)}."
            )
