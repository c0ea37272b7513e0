"""daft's csv, JSON and Parquet readers, and its reader of Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import daft
from consumers_reading import (
    APPEND,
    CSV,
    CSV_FOLDER,
    JSON,
    OPS,
    PARQUET,
    PARQUET_FOLDER,
    UPSERT,
    ZEROS,
    Column,
    Part,
    Reading,
    Row,
)
from daft import DataType
from pyiceberg.table import StaticTable

_TYPES = {
    "bigint unsigned": DataType.uint64(), "bit": DataType.uint64(), "float": DataType.float32(),
    "double": DataType.float64(), "date": DataType.date(), "datetime": DataType.timestamp("us"),
    "timestamp": DataType.timestamp("us"),
}  # fmt: skip
_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")


def version() -> str:
    return str(daft.__version__)


def type_of(column: Column) -> DataType:
    """A DECIMAL is text: daft 0.7.26 reads csv into no other than Decimal(38, 10)."""
    found = _TYPES.get(column.sql) or _TYPES.get(column.base)
    return found or (DataType.int64() if column.base in _WHOLE else DataType.string())


def listed(frame: Any, *names: str) -> Iterable[Row]:
    found = frame.select(*names).to_pydict()
    return zip(*(found[name] for name in names), strict=True)


def csv(part: Part, typed: bool = False, pattern: str = "/**/CDC*.csv", **options: Any) -> Iterable[Row]:
    names = ["column_1", "column_4", *(f"column_{number + 5}" for number in range(len(part.columns)))]
    if typed:
        types = {name: DataType.string() for name in ("op", "table", "schema")} | {"commit_ts": DataType.int64()}
        options |= {"infer_schema": False, "schema": types | {each.name: type_of(each) for each in part.columns}}
        names = ["op", "commit_ts", *(column.name for column in part.columns)]
    return listed(daft.read_csv(f"{part.folder}{pattern}", has_headers=False, **options), *names)


def csv_folder(part: Part) -> Iterable[Row]:
    return csv(part, typed=True, pattern="/**")


def canal_json(part: Part, but_empty: bool = False) -> Iterable[Row]:
    files = part.files("**/CDC*.json", but_empty=True) if but_empty else f"{part.folder}/**/CDC*.json"
    found = daft.read_json(files).select("type", "_tidb", "data").to_pylist() if files else []
    for line in found:
        row = line["data"][0]
        yield OPS[line["type"]], line["_tidb"]["commitTs"], *(row[column.name] for column in part.columns)


def parquet(part: Part, pattern: str = "/**/CDC*.parquet") -> Iterable[Row]:
    frame = daft.read_parquet(f"{part.folder}{pattern}")
    return listed(frame, "_op", "_commit_ts", *(column.name for column in part.columns))


def parquet_folder(part: Part) -> Iterable[Row]:
    return parquet(part, "/**")


def iceberg(part: Part, *meta: str) -> Iterable[Row]:
    table = StaticTable.from_metadata(str(part.folder))
    return listed(daft.read_iceberg(table), *meta, *(column.name for column in part.columns))


def append(part: Part) -> Iterable[Row]:
    return iceberg(part, "_op", "_commit_ts")


READINGS = [
    Reading(CSV, csv),
    Reading(CSV, csv, {"typed": True}),
    Reading(ZEROS, csv, {"typed": True}),
    Reading(CSV_FOLDER, csv_folder),
    Reading(CSV_FOLDER, csv, {"typed": True}, pattern="`**/CDC*.csv`"),
    Reading(JSON, canal_json),
    Reading(JSON, partial(canal_json, but_empty=True), how="no files of zero bytes"),
    Reading(PARQUET, parquet),
    Reading(PARQUET_FOLDER, parquet_folder),
    Reading(PARQUET_FOLDER, parquet, pattern="`**/CDC*.parquet`"),
    Reading(APPEND, append),
    Reading(UPSERT, iceberg),
]
