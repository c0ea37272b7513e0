"""One table: its files and its upstream go through the ledger, and what the oracles find is said with its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa

from changefeed.filter.selection import Selection
from changefeed.objectstore import Object, ObjectStore
from changefeed.schema.keys import table_span
from changefeed.upstream.kv import Snapshot
from changefeed.upstream.pd import PdClient
from changefeed.verify.comparison import oracles
from changefeed.verify.comparison.ledger import Ledger, RegionsOfLedger, TableShape
from changefeed.verify.comparison.oracles import Differences, Replay, Version
from changefeed.verify.progress import Progress
from changefeed.verify.result import Result
from changefeed.verify.sink.files import Directory
from changefeed.verify.sink.formats import Formats
from changefeed.verify.sink.gathered import Gathered
from changefeed.verify.sink.lines import show, show_values
from changefeed.verify.sink.read_ahead import read_ahead
from changefeed.verify.sink.reading import TableFiles
from changefeed.verify.upstream.expected import images, key_of, shape_of, written_values
from changefeed.verify.upstream.history import Collected, read_history
from changefeed.verify.upstream.lives import Life
from changefeed.verify.upstream.standing import rows_at

_AT_ONCE_BYTES = 8 << 20


@dataclass(frozen=True)
class Subject:
    """What is verified: the published part of a sink, `(start_ts, checkpoint_ts]` of the selected tables.

    `config`: the effective resource.
    """

    config: Mapping[str, Any]
    store: ObjectStore
    pd: PdClient
    formats: Formats
    start_ts: int
    checkpoint_ts: int
    conserved: str | None
    progress: Progress
    result: Result


async def check_table(
    subject: Subject,
    life: Life,
    directories: Sequence[Directory],
    schemas: Mapping[tuple[str, int], list[str]],
    ledger: Ledger,
) -> None:
    """O1, O3, O4 and O6 of one life of a table; O7's moves go on in the ledger. `directories`: in their order."""
    await _Table(subject, life, ledger).check(directories, schemas)


class _Table:
    def __init__(self, subject: Subject, life: Life, ledger: Ledger) -> None:
        self._subject = replace(subject, start_ts=life.from_ts, checkpoint_ts=life.to_ts)
        self._life = life
        self._info = info = life.info
        self._ledger = ledger
        self._result = subject.result
        self._format = subject.formats.newest
        self._selection = Selection.of(subject.config, info)
        written = self._selection.columns
        self._shape = shape_of(info, written, self._format.choice)
        self._key = key_of(info, written, self._format.split_updates)
        self._files = TableFiles(subject.store, (info.schema_name, info.name), self._shape, subject.formats)
        self._gathered = Gathered(_AT_ONCE_BYTES)
        names = self._shape.names
        self._replaced: set[str] = set()  # places of columns in which the files have U+FFFD for other bytes
        amount = names.index(subject.conserved) if subject.conserved in names else None
        ledger.begin(TableShape(info.full_name, self._shape, self._key, amount))

    async def check(self, directories: Sequence[Directory], schemas: Mapping[tuple[str, int], list[str]]) -> None:
        subject, ledger = self._subject, self._ledger
        self._read_files(directories, schemas)
        subject.progress.stage(f"{self._info.full_name}: the upstream's history")
        into = RegionsOfLedger(ledger, self._images, subject.progress.advance)
        span = table_span(self._life.physical_id)
        await read_history(subject.pd, *span, subject.start_ts, subject.checkpoint_ts, into=into)
        if self._life.has_ended and (behind := oracles.first_above(ledger, subject.checkpoint_ts)) is not None:
            self._result.problem(
                f"{self._files.where(behind)}: a change of {self._info.full_name} stands there under the definition "
                f"before the DDL at {subject.checkpoint_ts}: {self._show_row(behind)}."
            )
        if not oracles.is_same_sequence(ledger, subject.checkpoint_ts):
            await self._say_differences(oracles.differences(ledger, subject.checkpoint_ts))
            self._say_disorder(*oracles.disorder(ledger))
        adds_up = ledger.table.amount is not None
        if self._key or adds_up:
            await self._read_rows("at_start", subject.start_ts)
        if self._replaced:
            self._note_replaced()
        if not self._selection.rows.keeps_all:
            self._result.note(
                f"Event filters leave changes of {self._info.full_name} out, as the changefeed itself finds them: the "
                "others were compared, but not replayed."
            )
        elif self._key:
            await self._replay()
        else:
            self._result.note(
                f"{self._info.full_name} has no key in its files: its changes were compared, but not replayed."
            )
        if adds_up:
            oracles.add_moves(ledger, subject.checkpoint_ts, with_start=self._life.is_first)

    def _images(self, versions: pa.Table) -> pl.DataFrame:
        return images(self._info, versions, self._selection, self._format, self._replaced.add)

    def _values(self, keys: pa.Array, values: pa.Array) -> dict[str, pa.Array]:
        return written_values(self._info, self._selection.columns, keys, values, self._format, self._replaced.add)

    def _note_replaced(self) -> None:
        """Rows that differ in such bytes look the same; where they are in the key nothing tells rows any more."""
        pairs = zip(self._shape.names, self._shape.places, strict=True)
        named = ", ".join(name for name, place in pairs if place in self._replaced)
        self._result.note(
            f"{self._info.full_name} holds bytes that are not UTF-8 in {named}: canal-json has U+FFFD for each of "
            "them, so two values that differ in such bytes alone were not told apart."
        )
        if any(self._shape.places[number] in self._replaced for number in self._key):
            self._key = []
            self._ledger.without_key()

    # -- reading

    def _read_files(self, directories: Sequence[Directory], schemas: Mapping[tuple[str, int], list[str]]) -> None:
        paths = sum(len(directory.readable) for directory in directories)
        self._subject.progress.stage(f"{self._info.full_name}: the files", paths)
        written = self._schema_written(schemas)
        for path, found in read_ahead(self._subject.store, directories):
            self._read_file(path, found, written)
            self._subject.progress.advance(1)
        self._add_gathered()
        self._result.files += paths
        ((rows,),) = self._ledger.run("SELECT count(*) FROM files WHERE commit_ts <= ?", [self._subject.checkpoint_ts])
        self._result.rows += rows

    def _read_file(self, path: str, found: Object, schema_written: float | None) -> None:
        if schema_written is not None and found.modified is not None and found.modified < schema_written:
            self._result.problem(f"{path} was written before the schema file of its version.")
        for piece in self._files.read(path, found, self._result):
            if self._gathered.are_many or not self._gathered.fits(piece):
                self._add_gathered()
            self._gathered.add(piece)

    def _add_gathered(self) -> None:
        if rows := self._gathered.taken():
            self._ledger.add_files(rows, self._files.rows - rows.num_rows)

    def _schema_written(self, schemas: Mapping[tuple[str, int], list[str]]) -> float | None:
        """When the version's schema file was written; None: the store does not say, or there is none."""
        paths = schemas.get((f"{self._info.schema_name}/{self._info.name}", self._life.from_ts), [])
        times = [self._subject.store.get(path).modified for path in paths]
        return min((time for time in times if time is not None), default=None)

    async def _read_rows(self, name: str, ts: int) -> None:
        """The table as it stood at `ts`, into the ledger."""
        self._subject.progress.stage(f"{self._info.full_name}: its rows at {name.replace('at_', '')}")
        async for keys, values in rows_at(self._subject.pd, self._life.physical_id, ts):
            self._ledger.add_rows(name, keys, self._values(keys, values))
            self._subject.progress.advance(len(keys))

    async def _replay(self) -> None:
        """O4, from the rows at startTs."""
        subject, result = self._subject, self._result
        await self._read_rows("at_end", subject.checkpoint_ts)
        subject.progress.stage(f"{self._info.full_name}: the replay")
        found = oracles.replay(self._ledger, subject.checkpoint_ts)
        result.replayed += found.rows
        result.replay_missing += found.missing
        result.replay_extra += found.extra
        result.replay_different += found.different
        if found.missing or found.extra or found.different:
            await self._say_replay(found)

    # -- saying

    async def _say_differences(self, found: Differences) -> None:
        result, name = self._result, self._info.full_name
        result.missing += found.missing
        result.duplicate += found.duplicate
        result.unexpected += found.unexpected
        if found.first_unexpected is not None:
            instead = f"; it has {await self._show(found.instead)}" if found.instead else ""
            where, row = self._files.where(found.first_unexpected), self._show_row(found.first_unexpected)
            result.problem(f"{where}: the upstream has no such change of {name}: {row}{instead}.")
        if found.first_duplicate is not None:
            where, row = self._files.where(found.first_duplicate), self._show_row(found.first_duplicate)
            result.problem(f"{where}: a change of {name} stands there again: {row}.")
        if found.first_missing is not None:
            row = await self._show(found.first_missing)
            result.problem(f"A change of {name} is in no file: {row}; {self._belongs(found.missing_after)}.")

    def _say_disorder(self, count: int, first: int | None) -> None:
        self._result.out_of_order += count
        if first is not None:
            self._result.problem(
                f"{self._files.where(first)}: a change of {self._info.full_name} stands behind a later one: "
                f"{self._show_row(first)}."
            )

    async def _say_replay(self, found: Replay) -> None:
        start = await self._row_at(self._subject.start_ts, found.start_key)
        end = await self._row_at(self._subject.checkpoint_ts, found.end_key)
        if found.place is not None:
            _, _, values = self._files.row(found.place)
            start, where = show_values(self._shape, values), f"by {self._files.where(found.place)}"
        else:
            where = "as at startTs"
        have = f"{start} ({where})" if start else "no such row"
        self._result.problem(
            f"The files of {self._info.full_name}, replayed up to the checkpoint, give {have}; the upstream has "
            f"{end or 'no such row'}. In all {found.missing} rows are missing, {found.extra} too many, "
            f"{found.different} different."
        )

    def _belongs(self, after: int | None) -> str:
        if after is not None:
            return f"it belongs after {self._files.where(after)}"
        return f"it belongs before {self._files.where(0)}" if self._files.rows else "no file of the table has a row"

    def _show_row(self, place: int) -> str:
        op, commit_ts, values = self._files.row(place)
        return show(op, commit_ts, self._shape, values)

    async def _show(self, version: Version) -> str:
        """One change of the upstream, read again."""
        found = Collected()
        bounds = (version.commit_ts - 1, version.commit_ts)
        await read_history(self._subject.pd, version.key, version.key + b"\0", *bounds, into=found)
        for row in self._images(found.table()).iter_rows(named=True):
            if row["op"] == version.op:
                values = [row[place] for place in self._shape.places]
                return show(version.op, version.commit_ts, self._shape, values)
        return f"{version.op}, commit ts {version.commit_ts}, key {version.key.hex()}"

    async def _row_at(self, ts: int, key: bytes | None) -> str:
        value = None if key is None else await Snapshot(self._subject.pd, ts).get(key)
        if key is None or value is None:
            return ""
        columns = self._values(pa.array([key], pa.binary()), pa.array([value], pa.binary()))
        return show_values(self._shape, [columns[place][0].as_py() for place in self._shape.places])
