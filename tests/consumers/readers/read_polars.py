"""polars' csv, JSON and Parquet readers, and its reader of Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl
from consumers_reading import (
    APPEND,
    CSV,
    CSV_FOLDER,
    JSON,
    OPS,
    PARQUET,
    PARQUET_FOLDER,
    UNQUOTED,
    UPSERT,
    ZEROS,
    Column,
    Part,
    Reading,
    Row,
)  # fmt: skip

_TYPES = {
    "bigint unsigned": pl.UInt64, "bit": pl.UInt64, "float": pl.Float32, "double": pl.Float64, "date": pl.Date,
    "datetime": pl.Datetime, "timestamp": pl.Datetime,
}  # fmt: skip
_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
#: A pattern fails where the only file has zero bytes.
_LISTED = "a list of files"
_NULLS = {"null_values": "\\N"}


def version() -> str:
    return pl.__version__


def type_of(column: Column) -> Any:
    if column.base == "decimal":
        return pl.Decimal(*column.digits) if column.digits[0] <= 38 else pl.String
    found = _TYPES.get(column.sql) or _TYPES.get(column.base)
    return found or (pl.Int64 if column.base in _WHOLE else pl.String)


def csv(part: Part, typed: bool = False, pattern: str = "**/CDC*.csv", **options: Any) -> Iterable[Row]:
    types = dict.fromkeys(("op", "table", "schema"), pl.String) | {"commit_ts": pl.Int64}
    types |= {column.name: type_of(column) for column in part.columns}
    options |= {"schema": types} if typed else {"new_columns": part.fields}
    source = part.files(pattern) if typed and pattern else f"{part.folder}/{pattern}"
    found = pl.read_csv(source, has_header=False, **options)
    return found.select("op", "commit_ts", *(column.name for column in part.columns)).iter_rows()


def csv_folder(part: Part) -> Iterable[Row]:
    return csv(part, typed=True, pattern="", **_NULLS)


def canal_json(part: Part, typed: bool = False) -> Iterable[Row]:
    row = pl.Struct({column.name: pl.String for column in part.columns})
    schema = {"type": pl.String, "_tidb": pl.Struct({"commitTs": pl.Int64}), "data": pl.List(row)}
    options: dict[str, Any] = {"schema": schema} if typed else {}
    found = pl.scan_ndjson(part.files("**/CDC*.json") if typed else f"{part.folder}/**/CDC*.json", **options).collect()
    for line in found.iter_rows(named=True):
        row = line["data"][0]
        yield OPS[line["type"]], line["_tidb"]["commitTs"], *(row[column.name] for column in part.columns)


def parquet(part: Part, pattern: str = "**/CDC*.parquet") -> Iterable[Row]:
    found = pl.read_parquet(f"{part.folder}/{pattern}")
    return found.select("_op", "_commit_ts", *(column.name for column in part.columns)).iter_rows()


def parquet_folder(part: Part) -> Iterable[Row]:
    return parquet(part, pattern="")


def append(part: Part) -> Iterable[Row]:
    found = pl.scan_iceberg(str(part.folder)).collect()
    return found.select("_op", "_commit_ts", *(column.name for column in part.columns)).iter_rows()


def upsert(part: Part) -> Iterable[Row]:
    return pl.scan_iceberg(str(part.folder)).select(column.name for column in part.columns).collect().iter_rows()


READINGS = [
    Reading(CSV, csv),
    Reading(CSV, csv, {**_NULLS, "typed": True}, _LISTED),
    Reading(UNQUOTED, csv, {**_NULLS, "typed": True, "quote_char": None}),
    Reading(ZEROS, csv, {**_NULLS, "typed": True}),
    Reading(CSV_FOLDER, csv_folder),
    Reading(CSV_FOLDER, csv, {**_NULLS, "typed": True}, pattern="`**/CDC*.csv`"),
    Reading(JSON, canal_json),
    Reading(JSON, canal_json, {"typed": True}, _LISTED),
    Reading(PARQUET, parquet),
    Reading(PARQUET_FOLDER, parquet_folder),
    Reading(PARQUET_FOLDER, parquet, pattern="`**/CDC*.parquet`"),
    Reading(APPEND, append),
    Reading(UPSERT, upsert),
]
