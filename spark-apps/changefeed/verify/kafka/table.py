"""Compares one life of a table: its rows in the topics against the upstream."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from changefeed.reading.failures import Break
from changefeed.verify.comparison import oracles
from changefeed.verify.comparison.ledger import TableLedger
from changefeed.verify.comparison.oracles import HIGHEST_POSITION, ChangeDifferences
from changefeed.verify.comparison.table import TableCheck, Verified
from changefeed.verify.kafka.rows import rows_of
from changefeed.verify.kafka.stored import StoredLines, TableLines
from changefeed.verify.result import MessagesVerdict
from changefeed.verify.upstream.lives import Life


class TableMessages:
    """Implements Written: a row's index is its number among the table's, by partition and offset."""

    def __init__(self, check: TopicTable, stored: StoredLines, lines: TableLines) -> None:
        self._check, self._stored, self._lines = check, stored, lines
        self.rows = 0

    def where(self, row_index: int) -> str:
        return self._stored.where(self._stored.line(self._lines, row_index)[0])

    def row(self, row_index: int) -> tuple[str, int, list[object]]:
        _, line = self._stored.line(self._lines, row_index)
        (piece,) = self._check.decoded([line])
        ((op, commit_ts, *values),) = zip(*piece.to_pydict().values(), strict=True)
        return op, commit_ts, values


class TopicTable(TableCheck):
    """`may_repeat`: delivery was at least once."""

    def __init__(
        self,
        subject: Verified,
        result: MessagesVerdict,
        life: Life,
        physical_ids: tuple[int, ...],
        ledger: TableLedger,
        stored: StoredLines,
        lines: TableLines,
        may_repeat: bool,
    ) -> None:
        super().__init__(subject, life, physical_ids, ledger, noun="message")
        self._counts = result
        self._stored, self._lines, self._may_repeat = stored, lines, may_repeat
        self._messages = TableMessages(self, stored, lines)

    @property
    def _written(self) -> TableMessages:
        return self._messages

    def decoded(self, lines: list[bytes]) -> list[pa.Table]:
        where = f"A message of {self._info.full_name}"
        return list(rows_of(lines, where, self._shape, self._selection.columns, self._format))

    async def check(self) -> None:
        try:
            self._read_messages()
        except Break as undecodable:
            self._result.problem(undecodable.message)
            return
        await self._read_history()
        found = oracles.differences(self._ledger, self._life.to_ts)
        if self._may_repeat:
            self._counts.repeated += found.duplicate
            found = replace(found, duplicate=0, first_duplicate=None)
        if found != ChangeDifferences():
            await self._say_differences(found)
        self._check_order()
        await self._check_replay(HIGHEST_POSITION)

    def _read_messages(self) -> None:
        self._subject.progress.stage(f"{self._info.full_name}: its messages")
        for lines in self._stored.lines_of(self._lines):
            for piece in self.decoded(lines):
                self._ledger.add_files(piece, self._messages.rows)
                self._messages.rows += piece.num_rows
            self._subject.progress.advance(len(lines))
        self._result.rows += self._messages.rows

    def _check_order(self) -> None:
        if not self._key:
            return
        count, first = key_disorder(self._ledger, self._stored.begin_of_parts(self._lines))
        self._result.out_of_order += count
        if first is not None:
            self._result.problem(
                f"{self._messages.where(first)}: a change of {self._info.full_name} stands behind a later one of its "
                f"key: {self._show_row(first)}."
            )

    def _belongs(self, after: int | None) -> str:
        return f"it belongs into topic {self._lines.topic}"


def key_disorder(ledger: TableLedger, begins: list[tuple[int, int]]) -> tuple[int, int | None]:
    """O1 of each key within a partition: how many changes stand behind a later one, and the index of the first.

    `begins`: (index, partition) of the first row of each. A change that comes again counts where it stood first.
    """
    keys = ", ".join(ledger.table.key_names)
    ledger.run("CREATE OR REPLACE TEMP TABLE begins(row_index UBIGINT, part INTEGER)")
    for begin in begins:
        ledger.run("INSERT INTO begins VALUES (?, ?)", begin)
    ((count, first),) = ledger.run(
        f"""WITH firsts AS (
            SELECT b.part, {keys}, min(f.row_index) AS row_index,
            commit_ts::HUGEINT * 4 + CASE op WHEN 'D' THEN 0 WHEN 'U' THEN 1 ELSE 2 END AS position
            FROM files f ASOF JOIN begins b ON f.row_index >= b.row_index GROUP BY ALL),
        seen AS (SELECT row_index, position, max(position) OVER (
            PARTITION BY part, {keys} ORDER BY row_index ROWS UNBOUNDED PRECEDING) AS last FROM firsts)
        SELECT count(*), min(row_index) FROM seen WHERE position < last"""
    )
    return count, first
