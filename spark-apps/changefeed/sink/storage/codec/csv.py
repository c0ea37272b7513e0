"""TiCDC's CSV, to the letter (docs/sink-files.md, csv), made of whole columns.

A pure function of records and format: where chunks are cut, the machine and the locale never reach a byte (rule 10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema.table_info import ColumnInfo
from changefeed.sink.records import Records
from changefeed.sink.text.go_float import go_float
from changefeed.sink.text.lines import joined, text_of

VERSION = 1

_LETTERS = {OP_DELETE: "D", OP_UPDATE: "U", OP_INSERT: "I"}
_HEADER = ("ticdc-meta$operation", "ticdc-meta$table", "ticdc-meta$schema")


@dataclass(frozen=True)
class CsvFormat:
    """TiCDC's csv options; a `quote` of "" means escapes instead of quotes."""

    delimiter: str = ","
    quote: str = '"'
    null: str = "\\N"
    terminator: str = "\r\n"
    include_commit_ts: bool = False
    binary_encoding_method: str = "base64"  # or "hex"
    output_old_value: bool = False
    output_field_header: bool = False

    @classmethod
    def from_config(cls, storage: Mapping[str, Any]) -> CsvFormat:
        """From `sink.storage` of the effective spec (its JSON, every member there)."""
        csv = storage["csv"]
        return cls(
            delimiter=csv["delimiter"],
            quote=csv["quote"],
            null=csv["null"],
            terminator=storage["terminator"],
            include_commit_ts=csv["includeCommitTs"],
            binary_encoding_method=csv["binaryEncodingMethod"],
            output_old_value=csv["outputOldValue"],
            output_field_header=csv["outputFieldHeader"],
        )


def fingerprint() -> str:
    """What bytes depend on beyond plan and config: this codec and the libraries that format values (rule 10)."""
    return f"csv-{VERSION} pyarrow-{pa.__version__} polars-{pl.__version__}"


def header(names: Sequence[str], fmt: CsvFormat) -> bytes:
    """The first line of a file, or nothing; never quoted."""
    if not fmt.output_field_header:
        return b""
    members = [*_HEADER]
    if fmt.include_commit_ts:
        members.append("ticdc-meta$commit-ts")
    if fmt.output_old_value:
        members.append("ticdc-meta$is-update")
    return (fmt.delimiter.join([*members, *names]) + fmt.terminator).encode()


def encode(records: Records, fmt: CsvFormat) -> pa.Buffer:
    """The lines of `records`, at most 2 GiB of them."""
    if not len(records.op):
        return pa.py_buffer(b"")
    parts: list[str | pa.Array] = [_beginnings(records, fmt)]
    if fmt.include_commit_ts:
        parts += [fmt.delimiter, records.commit_ts.cast(pa.string())]
    if fmt.output_old_value:
        parts += [fmt.delimiter, pa.array(["false", "true"]).take(pa.array(records.is_update.astype(np.uint8)))]
    for column, values in zip(records.shown, records.columns, strict=True):
        parts += [fmt.delimiter, *_cells(column, values, fmt)]
    return text_of(joined([*parts, fmt.terminator]))


def _beginnings(records: Records, fmt: CsvFormat) -> str | pa.Array:
    """Each line's letter of its op, table and schema; one text for all lines if they have the same op."""
    table = records.table
    texts = [
        fmt.delimiter.join(_quoted(member, fmt) for member in (_LETTERS[op], table.name, table.schema_name))
        for op in range(len(_LETTERS))
    ]
    first = int(records.op[0])
    if records.columns and (records.op == first).all():
        return texts[first]
    return pa.array(texts).take(pa.array(records.op))


def _quoted(text: str, fmt: CsvFormat) -> str:
    """A constant, as `_cells` writes a value."""
    for old, new in _replacements(fmt):
        text = text.replace(old, new)
    return fmt.quote + text + fmt.quote


def _cells(column: ColumnInfo, values: pa.Array, fmt: CsvFormat) -> list[str | pa.Array]:
    """A column's values as parts of a line; of ENUM and SET the names, of text its bytes, whatever they are."""
    if pa.types.is_struct(values.type):
        values = values.field("text")
    if pa.types.is_integer(values.type):
        return [_with_null(values.cast(pa.string()), fmt)]
    if pa.types.is_floating(values.type):
        return [_with_null(go_float(values), fmt)]
    text = _escaped(_encoded(values, fmt) if column.is_binary else values, fmt)
    if not fmt.quote:
        return [_with_null(text, fmt)]
    if text.null_count:
        return [_with_null(joined([fmt.quote, text, fmt.quote]), fmt)]
    return [fmt.quote, text, fmt.quote]


def _with_null(text: pa.Array, fmt: CsvFormat) -> pa.Array:
    return pc.fill_null(text, fmt.null) if text.null_count else text


def _encoded(values: pa.Array, fmt: CsvFormat) -> pa.Array:
    encoding: Any = fmt.binary_encoding_method
    series = pl.Series(values=values.cast(pa.binary()), dtype=pl.Binary)
    return series.bin.encode(encoding).to_arrow().cast(pa.string())


def _replacements(fmt: CsvFormat) -> list[tuple[str, str]]:
    """Quotes doubled; without quotes, each character that means something behind a backslash."""
    if fmt.quote:
        return [(fmt.quote, fmt.quote * 2)]
    delimiter = "".join(f"\\{character}" for character in fmt.delimiter)
    return [("\\", "\\\\"), (fmt.delimiter, delimiter), ("\r", "\\r"), ("\n", "\\n")]


def _escaped(text: pa.Array, fmt: CsvFormat) -> pa.Array:
    data = text.buffers()[2]
    # A search of the whole buffer is much cheaper than a replacement that finds nothing.
    raw = data.to_pybytes() if data is not None else b""
    for old, new in _replacements(fmt):
        if old.encode() in raw:
            text = pc.replace_substring(text, old, new)
    return text
