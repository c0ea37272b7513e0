"""One table: puts its written changes and its upstream through the ledger, and reports what the oracles find."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from changefeed.filter.selection import Selection
from changefeed.model.table_copy import TableCopy
from changefeed.reading.progress import ReadingProgress
from changefeed.reading.rows.formats import Format
from changefeed.reading.rows.lines import LineShape, show, show_values
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.tidb.keys import table_span
from changefeed.upstream.written_rows import NO_KEYS, MaskKeys
from changefeed.verify.comparison import oracles
from changefeed.verify.comparison.ledger import RegionsOfLedger, TableLedger, TableShape
from changefeed.verify.comparison.oracles import ChangeDifferences, Replay, UpstreamChange
from changefeed.verify.result import ChangesVerdict
from changefeed.verify.upstream.expected import images, key_indexes, shape_of, written_values
from changefeed.verify.upstream.history import SCAN_SCHEMA, Collected, read_history
from changefeed.verify.upstream.lives import Life
from changefeed.verify.upstream.sample import first_misread
from changefeed.verify.upstream.standing import rows_at, rows_between
from changefeed.verify.upstream.stored_columns import StoredColumns


@dataclass(frozen=True)
class Verified:
    """What is verified: the published part of a sink, `(start_ts, checkpoint_ts]` of the selected tables.

    `config`: the effective resource. `format`: the newest. `mask_keys`: of hashed columns.
    """

    config: Mapping[str, Any]
    pd: PdClient
    format: Format
    start_ts: int
    checkpoint_ts: int
    conserved: str | None
    progress: ReadingProgress
    result: ChangesVerdict
    mask_keys: MaskKeys = field(default=NO_KEYS, kw_only=True)


class ReadableChanges(Protocol):
    """A table's changes as readers find them, numbered: these numbers are their row indexes."""

    rows: int

    def where(self, row_index: int) -> str:
        """For a person."""
        ...

    def row(self, row_index: int) -> tuple[str, int, list[object]]:
        """(op, commit_ts, values) of one change, read again."""
        ...


class TableCheck:
    """The oracles of one life of a table. `noun`: in what its changes stand."""

    def __init__(
        self, subject: Verified, life: Life, physical_ids: tuple[int, ...], ledger: TableLedger, noun: str = "file"
    ) -> None:
        self._subject = replace(subject, start_ts=life.from_ts, checkpoint_ts=life.to_ts)
        self._life = life
        self._physical_ids = physical_ids
        self._info = info = life.info
        self._ledger = ledger
        self._noun = noun
        self._result = subject.result
        self._format = subject.format
        self._selection = Selection.of(subject.config, info)
        written = self._selection.columns
        self._shape = shape_of(info, written, self._format.choice)
        self._key = key_indexes(info, written, self._format.split_updates)
        self._stored_columns = StoredColumns.of(info, life.from_ts, life.states)
        self._replaced: set[str] = set()  # columns that have U+FFFD for other bytes
        names = self._shape.names
        amount = names.index(subject.conserved) if subject.conserved in names else None
        ledger.begin(TableShape(info.full_name, self._shape, self._key, amount))

    @property
    def shape(self) -> LineShape:
        return self._shape

    @property
    def _written(self) -> ReadableChanges:
        raise NotImplementedError

    async def _read_history(self) -> None:
        self._subject.progress.stage(f"{self._info.full_name}: the upstream's history")
        into = RegionsOfLedger(self._ledger, self._images_of_history, self._check_read, self._subject.progress.advance)
        bounds = self._begins_at, self._subject.checkpoint_ts
        for physical_id in self._physical_ids:
            if self._life.copy is not None:
                await self._read_copy(self._life.copies[physical_id])
            await read_history(self._subject.pd, *table_span(physical_id), *bounds, into=into)

    async def _check_read(self, versions: pa.Table) -> None:
        if (found := await first_misread(self._subject.pd, versions, self._begins_at)) is not None:
            self._result.problem(
                f"The upstream's change feed of {self._info.full_name} is not what it stores: {found}."
            )

    @property
    def _begins_at(self) -> int:
        """Changes above it are the upstream's."""
        return self._subject.start_ts if self._life.copy is None else self._life.copy.ts

    async def _read_copy(self, copy: TableCopy) -> None:
        """Each row that stood there is an insert, at the ts of its chunk."""
        for chunk in copy.chunks(copy.from_ts):
            async for keys, values in rows_between(self._subject.pd, chunk.start, chunk.end, copy.ts):
                await asyncio.to_thread(self._add_copied, chunk.ts, keys, values)
                self._subject.progress.advance(len(keys))

    def _add_copied(self, ts: int, keys: pa.Array, values: pa.Array) -> None:
        count = len(keys)
        columns = {
            "commit_ts": np.full(count, ts, np.uint64),
            "start_ts": np.zeros(count, np.uint64),
            "delete": np.zeros(count, np.bool_),
            "key": keys,
            "value": values,
            "old_value": pa.nulls(count, pa.binary()),
        }
        self._ledger.add_images(self._images(pa.table(columns, SCAN_SCHEMA)))

    async def _check_replay(self, latest: str = oracles.LAST_ROW) -> None:
        """O4 where it can be; what a conserved sum needs is read all the same. `latest`: see oracles.replay."""
        if self._life.copy is None and (self._key or self._ledger.table.amount is not None):
            await self._read_rows("at_start", self._subject.start_ts)
        if self._replaced:
            self._note_replaced()
        if not self._selection.rows.keeps_all:
            self._result.note(
                f"Event filters leave changes of {self._info.full_name} out, as the changefeed itself finds them: the "
                "others were compared, but not replayed."
            )
        elif self._key:
            await self._replay(latest)
        else:
            self._result.note(
                f"{self._info.full_name} has no key in its {self._noun}s: its changes were compared but not replayed."
            )

    def _images(self, versions: pa.Table) -> pl.DataFrame:
        return images(self._info, versions, self._selection, self._format, self._replaced.add, self._subject.mask_keys)

    def _images_of_history(self, versions: pa.Table) -> pl.DataFrame:
        if (sign := self._stored_columns.first_sign(versions)) is not None:
            self._result.problem(
                f"The definition of {self._info.full_name} at {self._life.from_ts} is not the one that its rows were "
                f"written by: {sign}."
            )
        return self._images(versions)

    def _values(self, keys: pa.Array, values: pa.Array) -> dict[str, pa.Array]:
        columns, met = self._selection.columns, self._replaced.add
        return written_values(self._info, columns, keys, values, self._format, met, self._subject.mask_keys)

    def _note_replaced(self) -> None:
        """Rows that differ in such bytes look the same; where they are in the key nothing tells rows any more."""
        pairs = zip(self._shape.names, self._shape.columns, strict=True)
        named = ", ".join(name for name, column in pairs if column in self._replaced)
        self._result.note(
            f"{self._info.full_name} holds bytes that are not UTF-8 in {named}: {self._format.protocol} has U+FFFD for "
            "each of them, so values that differ only in such bytes were treated as equal."
        )
        if any(self._shape.columns[number] in self._replaced for number in self._key):
            self._key = []
            self._ledger.without_key()

    async def _read_rows(self, name: str, ts: int) -> None:
        """The table as it stood at `ts`, into the ledger."""
        self._subject.progress.stage(f"{self._info.full_name}: its rows at {name.replace('at_', '')}")
        for physical_id in self._physical_ids:
            async for keys, values in rows_at(self._subject.pd, physical_id, ts):
                await asyncio.to_thread(self._add_rows, name, keys, values)
                self._subject.progress.advance(len(keys))

    def _add_rows(self, name: str, keys: pa.Array, values: pa.Array) -> None:
        self._ledger.add_rows(name, keys, self._values(keys, values))

    async def _replay(self, latest: str) -> None:
        """O4, from the rows at startTs."""
        subject, result = self._subject, self._result
        await self._read_rows("at_end", subject.checkpoint_ts)
        subject.progress.stage(f"{self._info.full_name}: the replay")
        found = oracles.replay(self._ledger, subject.checkpoint_ts, latest)
        result.replayed += found.rows
        result.replay_missing += found.missing
        result.replay_extra += found.extra
        result.replay_different += found.different
        if found.missing or found.extra or found.different:
            await self._say_replay(found)

    # -- saying

    async def _say_differences(self, found: ChangeDifferences) -> None:
        result, name = self._result, self._info.full_name
        result.missing += found.missing
        result.duplicate += found.duplicate
        result.unexpected += found.unexpected
        if found.first_unexpected is not None:
            instead = f"; it has {await self._show(found.instead)}" if found.instead else ""
            where, row = self._written.where(found.first_unexpected), self._show_row(found.first_unexpected)
            result.problem(f"{where}: the upstream has no such change to {name}: {row}{instead}.")
        if found.first_duplicate is not None:
            where, row = self._written.where(found.first_duplicate), self._show_row(found.first_duplicate)
            result.problem(f"{where}: a change of {name} appears again: {row}.")
        if found.first_missing is not None:
            row = await self._show(found.first_missing)
            result.problem(f"A change of {name} is in no {self._noun}: {row}; {self._belongs(found.missing_after)}.")

    async def _say_replay(self, found: Replay) -> None:
        start = await self._row_at(self._subject.start_ts, found.start_key)
        end = await self._row_at(self._subject.checkpoint_ts, found.end_key)
        if found.row_index is not None:
            _, _, values = self._written.row(found.row_index)
            start, where = show_values(self._shape, values), f"by {self._written.where(found.row_index)}"
        else:
            where = "as at startTs"
        have = f"{start} ({where})" if start else "no such row"
        self._result.problem(
            f"The {self._noun}s of {self._info.full_name}, replayed up to the checkpoint, give {have}; the upstream "
            f"has {end or 'no such row'}. In total, {found.missing} rows are missing, {found.extra} are extra "
            f"and {found.different} differ."
        )

    def _belongs(self, after: int | None) -> str:
        if after is not None:
            return f"it belongs after {self._written.where(after)}"
        return (
            f"it belongs before {self._written.where(0)}"
            if self._written.rows
            else f"no {self._noun} of the table has a row"
        )

    def _show_row(self, row_index: int) -> str:
        op, commit_ts, values = self._written.row(row_index)
        return show(op, commit_ts, self._shape, values)

    async def _show(self, version: UpstreamChange) -> str:
        """One change of the upstream, read again."""
        found = Collected()
        bounds = (version.commit_ts - 1, version.commit_ts)
        await read_history(self._subject.pd, version.key, version.key + b"\0", *bounds, into=found)
        for row in self._images(found.table()).iter_rows(named=True):
            if row["op"] == version.op:
                values = [row[column] for column in self._shape.columns]
                return show(version.op, version.commit_ts, self._shape, values)
        return f"{version.op}, commit ts {version.commit_ts}, key {version.key.hex()}"

    async def _row_at(self, ts: int, key: bytes | None) -> str:
        value = None if key is None else await Snapshot(self._subject.pd, ts).get(key)
        if key is None or value is None:
            return ""
        columns = self._values(pa.array([key], pa.binary()), pa.array([value], pa.binary()))
        return show_values(self._shape, [columns[column][0].as_py() for column in self._shape.columns])
