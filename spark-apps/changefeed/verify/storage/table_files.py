"""Reads a table's data files one after another, in a consumer's order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NotFound
from changefeed.objectstore import Object, ObjectStore
from changefeed.reading.failures import Break
from changefeed.reading.rows.contents import lowest_ts, read_rows
from changefeed.reading.rows.formats import Format, Formats
from changefeed.reading.rows.lines import LineShape
from changefeed.verify.result import Result


class TableFiles:
    """Numbers the rows of a table's files: a row's index is how many of the table's rows stand before it."""

    def __init__(self, store: ObjectStore, table: tuple[str, str], shape: LineShape, formats: Formats) -> None:
        """`table`: (schema, name)."""
        self._store = store
        self._table = table
        self._shape = shape
        self._formats = formats
        self._paths: list[str] = []
        self._begins: list[int] = []  # the index of each file's first row
        self._chosen: dict[str, Format] = {}
        self.rows = 0

    def read(self, path: str, found: Object, result: Result) -> Iterator[pa.Table]:
        """The rows of the next file in pieces: op, commit_ts, c0..cn. What is no row of the table is a problem."""
        self._paths.append(path)
        self._begins.append(self.rows)
        fmt = self._chosen[path] = self._choose(path, found.body, result)
        line = 0
        try:
            for piece in read_rows(found.body, path, self._shape, fmt):
                mine = self._mine(piece, path, line, result)
                line += piece.num_rows
                yield mine
                self.rows += mine.num_rows
        except Break as problem:
            result.problem(problem.message)

    def where(self, row_index: int) -> str:
        """For a person."""
        number = bisect_right(self._begins, row_index) - 1
        return f"{self._paths[number]}, row {row_index - self._begins[number] + 1}"

    def row(self, row_index: int) -> tuple[str, int, list[object]]:
        """(op, commit_ts, values) of one row, read again."""
        number = bisect_right(self._begins, row_index) - 1
        path, line = self._paths[number], row_index - self._begins[number]
        for piece in read_rows(self._store.get(path).body, path, self._shape, self._chosen[path]):
            mine = piece.filter(self._is_mine(piece))
            if line < mine.num_rows:
                row = mine.slice(line, 1).to_pydict()
                return row["op"][0], row["commit_ts"][0], [row[name][0] for name in self._shape.columns]
            line -= mine.num_rows
        raise Break(f"{path} was changed while it was read.")

    def _choose(self, path: str, body: bytes, result: Result) -> Format:
        """The format by which it can be read; which one was assumed is noted."""
        candidates = self._formats.of(path)
        if len(candidates) == 1:
            return candidates[0]
        result.note(
            "The format was changed while the changefeed ran, and the log does not tell any more which files were "
            "written under which: each is read with the newest format that it can be read with."
        )
        for fmt in candidates:
            try:
                for _ in read_rows(body, path, self._shape, fmt):
                    pass
            except Break:
                continue
            return fmt
        return candidates[0]

    def _is_mine(self, piece: pa.Table) -> pa.ChunkedArray:
        schema, name = self._table
        mine = pc.and_(pc.equal(piece["table"], name), pc.equal(piece["schema"], schema))
        return pc.fill_null(mine, False)

    def _mine(self, piece: pa.Table, path: str, line: int, result: Result) -> pa.Table:
        mine = self._is_mine(piece)
        foreign = piece.num_rows - (pc.sum(mine).as_py() or 0)
        if foreign:
            number = pc.index(mine, False).as_py()
            row = piece.select(["schema", "table"]).slice(number, 1).to_pydict()
            result.unexpected += foreign
            result.problem(
                f"{path}, row {line + number + 1}: a row of {row['schema'][0]}.{row['table'][0]} is in a file of "
                f"{'.'.join(self._table)}."
            )
            piece = piece.filter(mine)
        return piece.drop_columns(["table", "schema"])


def lowest_commit_ts(store: ObjectStore, path: str, formats: Formats) -> int | None:
    """The lowest commit ts in a file of any table; None: it has no rows, or is gone again. Raises Break."""
    try:
        body = store.get(path).body
    except NotFound:
        return None
    return lowest_ts(body, path, formats.of(path)[0])
