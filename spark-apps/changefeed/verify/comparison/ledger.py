"""One table's changes and rows side by side in DuckDB, with a memory limit and a folder to spill to.

For each row it stores its key, its index or position, and 64-bit hashes of its image and of its values: the contents
are read again if they have to be shown. So disk use does not depend on row size, and memory not on row count.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.reading.failures import NotVerifiable
from changefeed.reading.rows.lines import LineShape
from changefeed.reading.scratch import open_database

_AMOUNT = "DECIMAL(38,12)"
_IS_AMOUNT = r"^-?[0-9]{1,20}(\.[0-9]{1,12})?$"
_BATCH = 1 << 17
_META = {
    "row_index": pa.uint64(),
    "op": pa.string(),
    "commit_ts": pa.uint64(),
    "start_ts": pa.uint64(),
    "rank": pa.uint8(),
    "key": pa.binary(),
}


@dataclass(frozen=True)
class TableShape:
    """A table for the ledger: `key`: which columns tell a row; `amount`: which one is added up."""

    name: str
    shape: LineShape
    key: list[int]
    amount: int | None = None

    @property
    def key_names(self) -> list[str]:
        return [f"k{number}" for number in self.key]


class TableLedger:
    """The tables that the oracles ask.

    files (row_index u64: where in the files' order; op, commit_ts, k…, h: of the image, v: of the values, amount),
    upstream (commit_ts, start_ts, rank, key, op, k…, h), at_start and at_end (key: raw; k…, v, amount),
    and over all tables: transactions (commit_ts, start_ts), moves (commit_ts, amount). Text is kept as bytes, as not
    all of it is UTF-8.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: a temporary one, for what does not fit into memory."""
        self.db = open_database(folder)
        self.run("CREATE TABLE transactions(commit_ts UBIGINT, start_ts UBIGINT)")
        self.run(f"CREATE TABLE moves(commit_ts UBIGINT, amount {_AMOUNT})")
        self.table = TableShape("", LineShape([], []), [])
        self.is_ascending = True  # the commit ts of all files' rows, in their order
        self._last_ts = 0

    def close(self) -> None:
        self.db.close()

    def run(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The answer to a statement whose answer is small."""
        return self.db.execute(sql, list(parameters)).fetchall()

    def digest(self, sql: str) -> str:
        """Return the digest of a column of u64, in its order."""
        found = hashlib.blake2b()
        for batch in self.db.sql(sql).to_arrow_reader(_BATCH):
            found.update(batch.column(0).to_numpy())
        return found.hexdigest()

    # -- loading

    def begin(self, table: TableShape) -> None:
        """Empty tables for the next one's rows. A thousand tables of one shape are emptied, which is quicker."""
        is_alike = replace(table, name="") == replace(self.table, name="")
        self.table = table
        columns = dict(zip(table.shape.columns, table.shape.types, strict=True))
        nothing = pa.schema([*_META.items(), *columns.items()]).empty_table()
        for name, select in self._selects().items():
            if is_alike:
                self.run(f"TRUNCATE {name}")
            else:
                self._from(nothing, f"CREATE OR REPLACE TABLE {name} AS {select}")
        self.is_ascending, self._last_ts = True, 0

    def add_files(self, rows: pa.Table, first_row_index: int) -> None:
        """The next rows of the files: op, commit_ts, c0..cn. Raises NotVerifiable for an odd amount."""
        self._check_amounts(rows)
        commit_ts = rows["commit_ts"].to_numpy()
        if len(commit_ts):
            self.is_ascending &= bool(self._last_ts <= commit_ts[0] and (commit_ts[:-1] <= commit_ts[1:]).all())
            self._last_ts = int(commit_ts[-1])
        row_indexes = pa.array(np.arange(first_row_index, first_row_index + rows.num_rows, dtype=np.uint64))
        self._from(rows.append_column("row_index", row_indexes), f"INSERT INTO files {self._selects()['files']}")

    def add_transactions(self, versions: pa.Table) -> None:
        """Those of some versions of the upstream (history.SCAN_SCHEMA)."""
        self._from(versions, "INSERT INTO transactions SELECT DISTINCT commit_ts, start_ts FROM given")

    def add_images(self, images: pl.DataFrame) -> None:
        """Some images of the upstream's changes (expected.images)."""
        self._from(images.to_arrow(), f"INSERT INTO upstream {self._selects()['upstream']}")

    def add_rows(self, name: str, keys: pa.Array, values: Mapping[str, pa.Array]) -> None:
        """Rows of the table as they stood: `name` is at_start or at_end. Raises NotVerifiable for an odd amount."""
        rows = pa.table({"key": keys, **values})
        self._check_amounts(rows)
        self._from(rows, f"INSERT INTO {name} {self._selects()[name]}")

    def without_key(self) -> None:
        """The table goes on as one in whose files nothing tells a row."""
        self.table = replace(self.table, key=[])

    def _from(self, rows: pa.Table, sql: str) -> None:
        self.db.register("given", self._with_bytes(rows))
        try:
            self.db.execute(sql)
        finally:
            self.db.unregister("given")

    def _with_bytes(self, rows: pa.Table) -> pa.Table:
        """The columns that are text as their bytes, without a copy."""
        for column in self.table.shape.columns:
            number = rows.schema.get_field_index(column)
            if number >= 0 and rows.schema.types[number] == pa.string():
                rows = rows.set_column(number, column, rows[column].cast(pa.binary()))
        return rows

    def _selects(self) -> dict[str, str]:
        """By table: how its rows are made of the columns that are given."""
        table, columns = self.table, ", ".join(self.table.shape.columns)
        keys = "".join(f", c{number} AS k{number}" for number in table.key)
        image, values = f"hash(op, commit_ts, {columns}) AS h", f"hash({columns}) AS v"
        amount = "" if table.amount is None else f", c{table.amount}::VARCHAR::{_AMOUNT} AS amount"
        state = f"SELECT key{keys}, {values}{amount} FROM given"
        return {
            "files": f"SELECT row_index, op, commit_ts{keys}, {image}, {values}{amount} FROM given",
            "upstream": f"SELECT commit_ts, start_ts, rank, key, op{keys}, {image} FROM given",
            "at_start": state,
            "at_end": state,
        }

    def _check_amounts(self, rows: pa.Table) -> None:
        number = self.table.amount
        if number is None:
            return
        given = rows[f"c{number}"]
        texts = given if pa.types.is_binary(given.type) else given.cast(pa.string())
        odd = given.filter(pc.invert(pc.match_substring_regex(texts, _IS_AMOUNT)))
        if len(odd):
            name = f"{self.table.name}.{self.table.shape.names[number]}"
            raise NotVerifiable(
                f"{name} holds {odd[0].as_py()!r}, which can't be summed exactly.",
                "Choose a numeric column with at most 20 digits before and 12 after the decimal point.",
            )


class RegionsOfLedger:
    """history.VersionSink into the ledger: a region's images count once all of it is read."""

    def __init__(
        self,
        ledger: TableLedger,
        images: Callable[[pa.Table], pl.DataFrame],
        check: Callable[[pa.Table], Awaitable[None]],
        read: Callable[[int], None],
    ) -> None:
        """`images`: of versions (expected.images); `check`: whether they are the upstream's; `read`: told how many
        versions were kept.
        """
        self._ledger = ledger
        self._images = images
        self._check = check
        self._read = read
        self._open = False
        self._count = 0

    async def add(self, versions: pa.Table) -> None:
        adding = asyncio.create_task(asyncio.to_thread(self._add, versions))
        try:
            await self._check(versions)
        finally:
            await adding  # no thread may be in the ledger when these are dropped

    def _add(self, versions: pa.Table) -> None:
        if not self._open:
            self._ledger.run("BEGIN")
            self._open = True
        self._count += versions.num_rows
        self._ledger.add_transactions(versions)
        self._ledger.add_images(self._images(versions))

    async def keep(self) -> None:
        self._end("COMMIT")
        self._read(self._count)
        self._count = 0

    async def drop(self) -> None:
        self._end("ROLLBACK")
        self._count = 0

    def _end(self, how: str) -> None:
        if self._open:
            self._ledger.run(how)
            self._open = False
