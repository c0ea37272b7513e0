"""Converts lines (heads) to typed rows of one table: op, commit_ts (u64), c0..cn, as for data files (sink.lines)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.reading.failures import Break
from changefeed.reading.rows.formats import Format
from changefeed.reading.rows.lines import LineShape, read_lines
from changefeed.schema.table_info import BLOBS, ColumnInfo
from changefeed.verify.kafka.heads import objects

_GO_ESCAPE = re.compile(rb'\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([abtnvfr"\\]))')
#: A cell of type FLOAT or DOUBLE. Within a text its quotes would have backslashes.
_NO_NUMBER = re.compile(rb'("t":[45],(?:"h":true,)?"f":\d+,"v":)"(NaN|-?Infinity)"')
_GO_SHORT = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


def rows_of(
    lines: Sequence[bytes], where: str, shape: LineShape, columns: Sequence[ColumnInfo], how: Format
) -> Iterator[pa.Table]:
    """Raises Break, which names `where`."""
    if how.protocol == "canal-json":
        end = how.terminator.encode()
        for piece in read_lines(end.join([*lines, b""]), where, shape, how):
            yield piece.drop_columns(["table", "schema"])
        return
    try:
        yield _open(lines, shape, columns)
    except (pa.ArrowInvalid, pl.exceptions.ComputeError) as error:
        raise Break(f"{where} can't be decoded: {str(error).strip().rstrip('.')}.") from None


def _open(lines: Sequence[bytes], shape: LineShape, columns: Sequence[ColumnInfo]) -> pa.Table:
    cells = [(name, pa.struct([("v", _in_json(kind))])) for name, kind in zip(shape.names, shape.types, strict=True)]
    image = pa.struct(cells)
    sides = pa.struct([("u", image), ("p", image), ("d", image)])
    schema = pa.schema([("k", pa.struct([("ts", pa.uint64())])), ("v", sides)])
    found = objects(lines, schema) if not any(map(_NO_NUMBER.search, lines)) else _with_words(lines, schema)
    value = _array(found["v"])
    new, old, gone = (value.field(side) for side in ("u", "p", "d"))
    is_delete = gone.is_valid()
    if not pc.all(pc.xor(is_delete, new.is_valid())).as_py():
        raise pa.ArrowInvalid("a row is neither an update nor a delete, or both")
    op = pc.if_else(is_delete, "D", pc.if_else(old.is_valid(), "U", "I"))
    shown = pc.if_else(is_delete, gone, new)
    members = {
        name: _typed(column, shown.field(number).field("v"), kind)
        for number, (name, column, kind) in enumerate(zip(shape.columns, columns, shape.types, strict=True))
    }
    return pa.table({"op": op, "commit_ts": pc.struct_field(found["k"], "ts"), **members})


def _with_words(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """`objects` of lines that have words for numbers. One by one: few rows do."""
    try:
        found = [json.loads(_NO_NUMBER.sub(rb"\1\2", line)) for line in lines]
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from None
    return pa.table([pa.array([each.get(field.name) for each in found], field.type) for field in schema], schema=schema)


def _in_json(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(kind):
        return pa.float64()
    return kind if pa.types.is_integer(kind) else pa.string()


def _typed(column: ColumnInfo, values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return values.cast(kind, safe=False)
    if column.type in BLOBS:
        return pl.Series(pl.from_arrow(values)).str.decode("base64", strict=True).to_arrow().cast(pa.binary())
    return _unquoted(values) if pa.types.is_binary(kind) else values


def _unquoted(values: pa.StringArray) -> pa.BinaryArray:
    """Bytes as Go's strconv.Quote shows them. Only cells with a backslash are looked at one by one."""
    raw = values.cast(pa.binary())
    if not pc.any(pc.match_substring(raw, b"\\")).as_py():
        return raw
    return pa.array([None if cell is None else _GO_ESCAPE.sub(_meant, cell) for cell in raw.to_pylist()], pa.binary())


def _meant(escape: re.Match[bytes]) -> bytes:
    byte, short_code, long_code, letter = escape.groups()
    if byte is not None:
        return bytes.fromhex(byte.decode())
    code = short_code or long_code
    return chr(int(code, 16)).encode() if code is not None else _GO_SHORT.get(letter, letter)


def _array(column: pa.ChunkedArray) -> pa.StructArray:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found
