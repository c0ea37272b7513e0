"""Converts a text file's bytes to typed columns: csv and canal-json as TiCDC writes them (docs/sink-files.md).

Formats are implemented separately here, so that bugs in the encoders show up. Every line must belong to the table:
anything that does not decode is an error that names the file, never a skipped row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from changefeed.reading.failures import Break
from changefeed.reading.rows.formats import Format

BLOCK = 8 << 20
_HEADER = ["ticdc-meta$operation", "ticdc-meta$table", "ticdc-meta$schema", "ticdc-meta$commit-ts"]
_OPS = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}


@dataclass(frozen=True)
class LineShape:
    """A table's columns as they come: names, the Arrow types of their values, and how many digits a time has behind
    its second, for readers of types that don't say.

    In pieces in which some text is not UTF-8 a column of pa.string() is pa.binary().
    """

    names: list[str]
    types: list[pa.DataType]
    fractions: Sequence[int] = ()

    @property
    def columns(self) -> list[str]:
        return [f"c{i}" for i in range(len(self.names))]

    @property
    def old_columns(self) -> list[str]:
        """The columns of what rows were before an update, where that is read."""
        return [f"o{i}" for i in range(len(self.names))]


def read_lines(body: bytes, path: str, shape: LineShape, fmt: Format, old: bool = False) -> Iterator[pa.Table]:
    """The rows of one file in pieces: op, table, schema (text), commit_ts (u64), c0..cn. Raises Break that names it.

    `old`: of canal-json also has_old and o0..on, what rows were before an update. All of it must stand there.
    """
    terminator = fmt.terminator.encode()
    rest = memoryview(body)
    if fmt.protocol == "csv" and fmt.header:
        header = fmt.delimiter.join([*_HEADER, *shape.names]).encode() + terminator
        if not body.startswith(header):
            raise Break(f"{path} does not begin with the header of its table: {body[: len(header)]!r}.")
        rest = rest[len(header) :]
    if not rest:
        return
    if not body.endswith(terminator):
        raise Break(f"{path} is cut off: it ends with {body[-20:]!r}, not with a whole line.")
    try:
        for piece in _csv(rest, shape, fmt) if fmt.protocol == "csv" else _json(rest, shape, old):
            yield _typed(piece, shape, fmt)
    except (pa.ArrowInvalid, pl.exceptions.ComputeError) as error:
        raise Break(f"{path} can't be decoded: {str(error).strip().rstrip('.')}.") from None


def lowest_ts(body: bytes, path: str, fmt: Format) -> int | None:
    """The lowest commit ts of a file's rows, whatever its table; None: it has none. Raises Break that names it."""
    try:
        if fmt.protocol != "csv":
            messages = [json.loads(line) for line in body.splitlines()]  # a line break inside a value is escaped there
            return min((int(message["_tidb"]["commitTs"]) for message in messages), default=None)
        begin = body.index(fmt.terminator.encode()) + len(fmt.terminator) if fmt.header and body else 0
        if begin == len(body):
            return None
        found = pyarrow.csv.read_csv(
            _source(memoryview(body)[begin:]),
            pyarrow.csv.ReadOptions(autogenerate_column_names=True, block_size=len(body) + 1),
            pyarrow.csv.ParseOptions(delimiter=fmt.delimiter, quote_char=fmt.quote, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(include_columns=["f3"], column_types={"f3": pa.uint64()}),
        )
    except (pa.ArrowInvalid, ValueError, KeyError, TypeError) as error:
        raise Break(f"{path} can't be decoded: {str(error).strip().rstrip('.')}.") from None
    lowest: int | None = pc.min(found["f3"]).as_py()
    return lowest


def _csv(body: memoryview, shape: LineShape, fmt: Format) -> Iterator[pa.Table]:
    columns = ["op", "table", "schema", "commit_ts", *shape.columns]
    kinds = {name: pa.string() for name in columns} | {"commit_ts": pa.uint64()}
    kinds |= {name: pa.binary() for name, kind in zip(shape.columns, shape.types, strict=True) if kind == pa.string()}

    def read(source: pa.NativeFile, block: int) -> pa.Table:
        return pyarrow.csv.read_csv(
            source,
            pyarrow.csv.ReadOptions(column_names=columns, block_size=block),
            pyarrow.csv.ParseOptions(
                delimiter=fmt.delimiter, quote_char=fmt.quote, newlines_in_values=True, ignore_empty_lines=False
            ),
            pyarrow.csv.ConvertOptions(
                column_types=kinds, null_values=[fmt.null], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )

    return _in_blocks(read, body)


def _json(body: memoryview, shape: LineShape, old: bool) -> Iterator[pa.Table]:
    row = pa.struct([(name, pa.string()) for name in shape.names])
    schema = pa.schema(
        [
            ("database", pa.string()),
            ("table", pa.string()),
            ("isDdl", pa.bool_()),
            ("type", pa.string()),
            ("data", pa.list_(row)),
            *([("old", pa.list_(row))] if old else []),
            ("_tidb", pa.struct([("commitTs", pa.uint64())])),
        ]
    )
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    def read(source: pa.NativeFile, block: int) -> pa.Table:
        return pyarrow.json.read_json(source, pyarrow.json.ReadOptions(block_size=block), options)

    for piece in _in_blocks(read, body):
        yield _json_rows(piece, shape, old)


def _in_blocks(read: Callable[[pa.NativeFile, int], pa.Table], body: memoryview) -> Iterator[pa.Table]:
    """Pieces of some MiB; the whole in one where a row is longer than that.

    Everything is read before the first piece is given: Arrow's threads never have work left when nobody takes the rest.
    """
    try:
        rows = read(_source(body), BLOCK)
    except pa.ArrowInvalid as error:
        if len(body) < BLOCK or "straddl" not in str(error):
            raise
        rows = read(_source(body), len(body) + 1)
    for batch in rows.to_batches():
        yield pa.Table.from_batches([batch])


def _source(body: memoryview) -> pa.NativeFile:
    """A copy in Arrow's memory: a thread that lets go of Python's while the interpreter ends aborts the process."""
    copy = pa.BufferOutputStream()
    copy.write(body)
    return pa.BufferReader(copy.getvalue())


def _json_rows(messages: pa.Table, shape: LineShape, old: bool) -> pa.Table:
    messages = messages.combine_chunks()
    data = messages["data"].combine_chunks()
    lengths = pc.list_value_length(data)
    if len(messages) and (lengths.null_count or pc.min_max(lengths).as_py() != {"min": 1, "max": 1}):
        raise pa.ArrowInvalid("a message holds not just one row")
    ts = pc.struct_field(messages["_tidb"], "commitTs")
    if ts.null_count:
        raise pa.ArrowInvalid("a message has no _tidb.commitTs")
    if pc.any(pc.fill_null(messages["isDdl"], True)).as_py():
        raise pa.ArrowInvalid("a message is not marked as a row's (isDdl)")
    op = pl.Series(pl.from_arrow(messages["type"])).replace_strict(_OPS, default=None, return_dtype=pl.String)
    if op.null_count():
        raise pa.ArrowInvalid("a message's type is none of INSERT, UPDATE, DELETE")
    row = data.flatten()
    columns = {column: row.field(name) for column, name in zip(shape.columns, shape.names, strict=True)}
    meta = {"op": op.to_arrow().cast(pa.string()), "table": messages["table"], "schema": messages["database"]}
    if old:
        before = pc.list_element(messages["old"].combine_chunks(), 0)
        columns |= {"has_old": before.is_valid()}
        names = zip(shape.old_columns, shape.names, strict=True)
        columns |= {column: pc.struct_field(before, name) for column, name in names}
    return pa.table({**meta, "commit_ts": ts, **columns})


def _typed(rows: pa.Table, shape: LineShape, fmt: Format) -> pa.Table:
    """Texts as values of the columns' types."""
    fields = list(zip(shape.columns, shape.names, shape.types, strict=True))
    if "has_old" in rows.column_names:
        fields += zip(shape.old_columns, shape.names, shape.types, strict=True)
    for column, name, kind in fields:
        number = rows.schema.get_field_index(column)
        try:
            values = _bytes(rows[column], fmt.binary) if pa.types.is_binary(kind) else rows[column].cast(kind)
        except (pa.ArrowInvalid, pl.exceptions.ComputeError) as error:
            if kind == pa.string():
                continue  # it stays the bytes that it is
            raise pa.ArrowInvalid(f"column {name}: {error}") from None
        rows = rows.set_column(number, column, values)
    return rows


def _bytes(text: pa.ChunkedArray, method: str) -> pa.Array:
    if method == "latin-1":
        return _latin_1(text.combine_chunks() if text.num_chunks != 1 else text.chunk(0))
    encoding: Literal["hex", "base64"] = "hex" if method == "hex" else "base64"
    return pl.Series(pl.from_arrow(text)).str.decode(encoding, strict=True).to_arrow().cast(pa.binary())


def _latin_1(text: pa.StringArray) -> pa.Array:
    """Characters up to U+00FF as one byte each: in UTF-8 those from U+0080 on are C2 or C3 and another byte."""
    text = pa.concat_arrays([text])  # offsets from 0
    _, offsets, data = text.buffers()
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[: len(text) + 1]
    raw = raw[: bounds[-1]]
    lead = raw >= 0xC0
    if (raw[lead] > 0xC3).any():
        raise pa.ArrowInvalid("a character above U+00FF in a binary value")
    lifted = raw.copy()
    lifted[1:][raw[:-1] == 0xC3] += 0x40
    kept = np.concatenate([[0], np.cumsum(~lead)]).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(),
        len(text),
        [text.buffers()[0], pa.py_buffer(kept[bounds]), pa.py_buffer(lifted[~lead])],
        text.null_count,
    )


def show_values(shape: LineShape, values: Sequence[object]) -> str:
    """A row for a person."""
    shown = [
        f"{name}={_text_of(value, kind)!r}" for name, value, kind in zip(shape.names, values, shape.types, strict=True)
    ]
    return ", ".join(shown)


def _text_of(value: object, kind: pa.DataType) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace") if kind == pa.string() else value.hex()
    return None if value is None else str(value)


def show(op: str | None, commit_ts: int, shape: LineShape, values: Sequence[object]) -> str:
    """One image for a person."""
    return ", ".join([op or "?", f"commit ts {commit_ts}", show_values(shape, values)])
