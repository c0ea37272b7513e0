"""Rows as pgoutput sends them, in text, as an upstream's decoder.

A row has a cell for each column of its table, in their order. Keys are cells, too: nothing of the table is in them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.errors import NeedsHuman, ProtocolViolation
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.values import arrow_type
from changefeed.upstream.binary_view import BadCell, BinaryView
from changefeed.upstream.contract import Decoder
from changefeed.upstream.postgresql.pgoutput.tuples import CELL_HEAD, COUNT, TEXT, UNCHANGED, Tuples, locate
from changefeed.upstream.postgresql.values.texts import DECODABLE, TextCells, decode_texts


class PgoutputRows(Decoder):
    """See upstream/contract.py."""

    pads_char = True

    def check_supported(self, table: TableInfo) -> None:
        for column in table.output_columns:
            if column.type not in DECODABLE:
                raise NeedsHuman(
                    f"table {table.full_name} can't be replicated: its column {column.name} has the type "
                    f"{column.type.name}, which no type of PostgreSQL is read as.",
                    "Report it with the table's definition.",
                )

    def rows(
        self,
        table: TableInfo,
        keys: pa.BinaryArray,
        values: pa.BinaryArray,
        time_zone: str,
        columns: Sequence[ColumnInfo] | None = None,
        *,
        are_whole: bool = False,
    ) -> list[pa.Array]:
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys but {len(values)} values")
        tuples, view = _located(table, keys, values)
        position = {column.id: number for number, column in enumerate(table.output_columns)}
        wanted = table.output_columns if columns is None else columns
        return [_column(table, column, position[column.id], tuples, view, keys, time_zone) for column in wanted]

    def absent_value(self, column: ColumnInfo, time_zone: str) -> pa.Array:
        if column.origin_default is None:
            return pa.nulls(1, arrow_type(column))
        view = BinaryView(pa.array([f" {column.origin_default}".encode()]))  # no text begins a row
        try:
            return decode_texts(column, TextCells(view, view.starts + 1, view.ends, np.ones(1, np.bool_)), time_zone)
        except BadCell as error:
            raise ValueError(f"has a default that {error.why}") from error

    def moved(self, keys: pa.BinaryArray, tables: Sequence[int], of: npt.NDArray[np.int64]) -> pa.BinaryArray:
        return keys


def _located(table: TableInfo, keys: pa.BinaryArray, values: pa.BinaryArray) -> tuple[Tuples, BinaryView]:
    """Where the cells are. Raises NeedsHuman for a row that the table does not define."""
    view, width = BinaryView(values), len(table.output_columns)
    has_count = view.ends - view.starts >= COUNT
    if not has_count.all():
        raise _broken(table, keys, int(has_count.argmin()), "its value is empty")
    counts = view.read(view.starts, COUNT).astype(np.uint16).byteswap() if len(values) else np.zeros(0, np.uint16)
    if (other := counts != width).any():
        row = int(other.argmax())
        raise _broken(table, keys, row, f"it has {counts[row]} columns, but the table has {width}")
    try:
        tuples = locate(view, view.starts, view.ends, width)
    except ProtocolViolation as error:
        raise _broken(table, keys, 0, f"of it or one behind it: {error.message}") from error
    if (longer := tuples.behind != view.ends).any():
        raise _broken(table, keys, int(longer.argmax()), "it has more bytes than cells")
    return tuples, view


def _column(
    table: TableInfo,
    column: ColumnInfo,
    number: int,
    tuples: Tuples,
    view: BinaryView,
    keys: pa.BinaryArray,
    time_zone: str,
) -> pa.Array:
    kinds = tuples.kinds[number]
    if (unknown := kinds == UNCHANGED).any():
        row = int(unknown.argmax())
        raise NeedsHuman(
            f"table {table.full_name}: PostgreSQL has not sent the value of column {column.name} with a change of the "
            f"row with the key {_spelled(keys[row])}: it did not change, or is not in the replica identity.",
            f"Say ALTER TABLE {table.full_name} REPLICA IDENTITY FULL; then rows changed from then on have it. Start "
            "the changefeed anew behind that.",
        )
    present = kinds == TEXT
    starts = tuples.starts[number] + CELL_HEAD * present
    try:
        return decode_texts(column, TextCells(view, starts, tuples.ends[number], present), time_zone)
    except BadCell as error:
        raise _broken(table, keys, error.row, f"column {column.name} {error.why}") from error


def _broken(table: TableInfo, keys: pa.BinaryArray, row: int, why: str) -> NeedsHuman:
    return NeedsHuman(
        f"table {table.full_name}: the row with the key {_spelled(keys[row])} can't be decoded: {why}.",
        f'Exclude the table by a filter rule, e.g. "!{table.full_name}", then start the changefeed again.',
    )


def _spelled(key: pa.BinaryScalar) -> str:
    """The key's values, for people."""
    data, at, values = key.as_py(), 0, []
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + CELL_HEAD]) + CELL_HEAD if data[at] == TEXT else 1
        values.append(data[at + CELL_HEAD : at + size].decode(errors="replace") if size > 1 else "NULL")
        at += size
    return ", ".join(values)
