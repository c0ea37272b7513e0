"""TiCDC's CSV, to the letter (docs/sink-files.md, csv), made of whole columns.

A pure function of records and format: where chunks are cut, the machine and the locale never reach a byte (rule 10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema.table_info import ColumnInfo
from changefeed.sink.records import Records
from changefeed.sink.text.go_float import go_float
from changefeed.sink.text.lines import joined, text_of

VERSION = 1

_NAMES = {OP_DELETE: "D", OP_UPDATE: "U", OP_INSERT: "I"}
_LETTERS = pa.array([_NAMES[op] for op in range(len(_NAMES))])
_Field = tuple[pa.Array, bool]  # cells, and whether they are text, which has quotes
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

    @property
    def is_arrows(self) -> bool:
        """Whether Arrow's own writer has it."""
        return self.quote == '"' and len(self.delimiter.encode()) == 1 and '"' not in self.null

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
    rows = len(records.op)
    if not rows:
        return pa.py_buffer(b"")
    fields: list[_Field] = [
        (_LETTERS.take(pa.array(records.op)), True),
        (pa.repeat(records.table.name, rows), True),
        (pa.repeat(records.table.schema_name, rows), True),
    ]
    if fmt.include_commit_ts:
        fields.append((records.commit_ts, False))
    if fmt.output_old_value:
        fields.append((pa.array(records.is_update), False))
    fields += [_field(column, values, fmt) for column, values in zip(records.shown, records.columns, strict=True)]
    if fmt.is_arrows and all(is_text == pa.types.is_string(values.type) for values, is_text in fields):
        return _written([values for values, _ in fields], fmt)
    parts = [part for values, is_text in fields for part in (fmt.delimiter, *_cells(values, is_text, fmt))]
    return text_of(joined([*parts[1:], fmt.terminator]))


def _written(fields: list[pa.Array], fmt: CsvFormat) -> pa.Buffer:
    """By Arrow's writer, which touches each cell once."""
    lines = pa.BufferOutputStream()
    options = arrow_csv.WriteOptions(
        include_header=False, delimiter=fmt.delimiter, eol=fmt.terminator, null_string=fmt.null
    )
    batch = pa.RecordBatch.from_arrays(fields, names=[""] * len(fields))
    arrow_csv.write_csv(batch, lines, options)
    return lines.getvalue()


def _field(column: ColumnInfo, values: pa.Array, fmt: CsvFormat) -> _Field:
    """A column's values; of ENUM and SET the names, of text its bytes, whatever they are."""
    if pa.types.is_struct(values.type):
        return values.field("text"), True
    if pa.types.is_floating(values.type):
        return go_float(values), False
    if pa.types.is_integer(values.type):
        return values, False
    return _encoded(values, fmt) if column.is_binary else values, True


def _cells(values: pa.Array, is_text: bool, fmt: CsvFormat) -> list[str | pa.Array]:
    """Return a field as parts of lines."""
    if not is_text:
        return [_with_null(values.cast(pa.string()), fmt)]
    text = _escaped(values, fmt)
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
    raw = text_of(text).to_pybytes()  # a search of all is much cheaper than a replacement that finds nothing
    for old, new in _replacements(fmt):
        if old.encode() in raw:
            text = pc.replace_substring(text, old, new)
    return text
