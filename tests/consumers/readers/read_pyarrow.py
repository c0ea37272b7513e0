"""pyarrow's csv, JSON and Parquet readers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.json
import pyarrow.parquet
from consumers_reading import CSV, CSV_FOLDER, JSON, OPS, PARQUET, PARQUET_FOLDER, ZEROS, Column, Part, Reading, Row

_TYPES = {
    "bigint unsigned": pa.uint64(), "bit": pa.uint64(), "float": pa.float32(), "double": pa.float64(),
    "date": pa.date32(), "datetime": pa.timestamp("us"), "timestamp": pa.timestamp("us"),
}  # fmt: skip
_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
_NULLS = {"null_values": ["\\N"], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
_NOT_EMPTY = "no files of zero bytes"
_LINES = {"newlines_in_values": True}


def version() -> str:
    return str(pa.__version__)


def type_of(column: Column) -> pa.DataType:
    if column.base == "decimal":
        return pa.decimal128(*column.digits) if column.digits[0] <= 38 else pa.string()
    found = _TYPES.get(column.sql) or _TYPES.get(column.base)
    return found or (pa.int64() if column.base in _WHOLE else pa.string())


def listed(table: pa.Table, part: Part, op: str, commit_ts: str) -> Iterable[Row]:
    return zip(*(table[name].to_pylist() for name in (op, commit_ts, *(c.name for c in part.columns))), strict=True)


def csv(part: Part, typed: bool = False, newlines_in_values: bool = False, **options: Any) -> Iterable[Row]:
    return _csv(part.files("**/CDC*.csv", but_empty=typed), part, typed, newlines_in_values, **options)


def csv_folder(part: Part) -> Iterable[Row]:
    return _csv(str(part.folder), part, True, **_LINES, **_NULLS)


def _csv(source: Any, part: Part, typed: bool, newlines_in_values: bool = False, **options: Any) -> Iterable[Row]:
    types = {name: pa.string() for name in ("op", "table", "schema")} | {"commit_ts": pa.int64()}
    types |= {column.name: type_of(column) for column in part.columns}
    form = pyarrow.dataset.CsvFileFormat(
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=newlines_in_values),
        read_options=pyarrow.csv.ReadOptions(column_names=part.fields),
        convert_options=pyarrow.csv.ConvertOptions(column_types=types if typed else None, **options),
    )
    schema = pa.schema(types) if typed else None
    return listed(pyarrow.dataset.dataset(source, schema, form).to_table(), part, "op", "commit_ts")


def canal_json(part: Part, but_empty: bool = False) -> Iterable[Row]:
    for path in part.files("**/CDC*.json", but_empty):
        for line in pyarrow.json.read_json(path).to_pylist():
            row = line["data"][0]
            yield OPS[line["type"]], line["_tidb"]["commitTs"], *(row[column.name] for column in part.columns)


def parquet(part: Part) -> Iterable[Row]:
    found = pyarrow.dataset.dataset(part.files("**/CDC*.parquet")).to_table()
    return listed(found, part, "_op", "_commit_ts")


def parquet_folder(part: Part) -> Iterable[Row]:
    return listed(pyarrow.parquet.read_table(part.folder), part, "_op", "_commit_ts")


READINGS = [
    Reading(CSV, csv),
    Reading(CSV, csv, {**_NULLS, **_LINES}),
    Reading(CSV, csv, {**_NULLS, **_LINES, "typed": True}, _NOT_EMPTY),
    Reading(ZEROS, csv, {**_NULLS, "typed": True}),
    Reading(CSV_FOLDER, csv_folder),
    Reading(CSV_FOLDER, csv, {**_NULLS, **_LINES, "typed": True}, pattern="`Path.glob('**/CDC*.csv')`"),
    Reading(JSON, canal_json),
    Reading(JSON, partial(canal_json, but_empty=True), how=_NOT_EMPTY),
    Reading(PARQUET, parquet),
    Reading(PARQUET_FOLDER, parquet_folder),
    Reading(PARQUET_FOLDER, parquet, pattern="`Path.glob('**/CDC*.parquet')`"),
]
