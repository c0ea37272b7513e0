"""The files of one table, or of one of its partitions, read once from a ts on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from changefeed.errors import NotFound
from changefeed.objectstore import ObjectStore
from changefeed.reading.failures import Break
from changefeed.reading.rows.contents import read_rows
from changefeed.reading.rows.formats import Format
from changefeed.reading.rows.lines import LineShape
from changefeed.tail import parquet


class Row(NamedTuple):
    """`values` by column: as they stand in the file, of Parquet as text; None for NULL, bytes for what is not UTF-8."""

    commit_ts: int
    op: str  # I, U, D
    values: dict[str, str | bytes | None]


@dataclass(frozen=True)
class DataFile:
    """A data file, and what its schema file says of it.

    `columns`: that rows have by the schema file of its version. `end_ts`: the table's next version.

    What is above that stands under the next version. TiCDC may have written it here too, before its folder was adopted.
    """

    path: str
    columns: Sequence[str]
    end_ts: int | None = None


class ChangeStream:
    """Remembers how far it was read. `files` are given anew each time: those that are published, in order."""

    def __init__(self, store: ObjectStore, format_of: Callable[[str], Format], after_ts: int) -> None:
        self._store = store
        self._format_of = format_of
        self._after_ts = after_ts
        self._done: str | None = None  # the last file that need not be read again

    def read(self, files: Sequence[DataFile], upto_ts: int) -> Iterator[Row]:
        """Rows in (the last `upto_ts`, `upto_ts`], in order. Take them all."""
        after_ts, self._after_ts = self._after_ts, upto_ts
        for file in files[self._first(files, after_ts) :]:
            last_ts = 0
            for row in self._rows(file):
                last_ts = row.commit_ts
                if file.end_ts is not None and last_ts > file.end_ts:
                    break
                if last_ts > upto_ts:
                    return
                if last_ts > after_ts:
                    yield row
            self._done = file.path

    def _first(self, files: Sequence[DataFile], after_ts: int) -> int:
        """Where to begin: the first time at the file in which the rows above `after_ts` begin, found from the end."""
        if self._done is not None:
            return next((n + 1 for n, file in enumerate(files) if file.path == self._done), 0)
        if not after_ts:
            return 0
        for number in reversed(range(len(files))):
            first = next(self._rows(files[number]), None)
            if first is not None and first.commit_ts <= after_ts:
                return number
        return 0

    def _rows(self, file: DataFile) -> Iterator[Row]:
        fmt = self._format_of(file.path)
        try:
            body = self._store.get(file.path).body
        except NotFound:
            raise Break(f"{file.path} is gone, although its index names it.", "Files may have been deleted.") from None
        if fmt.protocol == "parquet":
            yield from map(Row._make, parquet.read_rows(body, file.path))
            return
        names = _header(body, fmt) or list(file.columns)
        shape = LineShape(names, [pa.string()] * len(names))
        for piece in read_rows(body, file.path, shape, fmt):
            for row in piece.to_pylist():
                values = {name: row[column] for name, column in zip(names, shape.columns, strict=True)}
                yield Row(row["commit_ts"], row["op"], values)


def _header(body: bytes, fmt: Format) -> list[str] | None:
    """The columns that the file itself names: behind the four that each row begins with."""
    if fmt.protocol != "csv" or not fmt.header or not body:
        return None
    return body.partition(fmt.terminator.encode())[0].decode().split(fmt.delimiter)[4:]
