"""pandas' csv, JSON and Parquet readers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
from consumers_reading import (
    CSV,
    CSV_FOLDER,
    JSON,
    OPS,
    PARQUET,
    PARQUET_FOLDER,
    UNQUOTED,
    ZEROS,
    Column,
    Part,
    Reading,
    Row,
)  # fmt: skip

_TYPES = {"bigint unsigned": "UInt64", "bit": "UInt64", "float": "float32", "double": "float64"}
_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
_NULLS = {"keep_default_na": False, "na_values": ["\\N"]}
_DATES = ("date", "datetime", "timestamp")
_NOT_EMPTY = "no files of zero bytes"


def version() -> str:
    return str(pd.__version__)


def type_of(column: Column) -> str:
    found = _TYPES.get(column.sql) or _TYPES.get(column.base)
    return found or ("Int64" if column.base in _WHOLE else "str")


def listed(frame: pd.DataFrame, part: Part, op: str, commit_ts: str) -> Iterable[Row]:
    columns = [frame[name] for name in (op, commit_ts, *(column.name for column in part.columns))]
    return zip(*(map(known, column) for column in columns), strict=True)


def known(value: Any) -> Any:
    """What pandas takes for missing is NULL."""
    is_missing = value is None or (not isinstance(value, (str, bytes)) and pd.isna(value))
    return None if is_missing else value


def csv(part: Part, typed: bool = False, **options: Any) -> Iterable[Row]:
    for path in part.files("**/CDC*.csv", but_empty=typed):
        yield from _csv(path, part, typed, **options)


def csv_folder(part: Part) -> Iterable[Row]:
    return _csv(str(part.folder), part, True, **_NULLS)


def _csv(path: str, part: Part, typed: bool, **options: Any) -> Iterable[Row]:
    if typed:
        types = {"op": "str", "table": "str", "schema": "str", "commit_ts": "int64"}
        options["dtype"] = types | {column.name: type_of(column) for column in part.columns}
    return listed(pd.read_csv(path, header=None, names=part.fields, **options), part, "op", "commit_ts")


def dates(part: Part, **options: Any) -> Iterable[Row]:
    return csv(part, parse_dates=[column.name for column in part.columns if column.base in _DATES], **options)


def canal_json(part: Part) -> Iterable[Row]:
    for path in part.files("**/CDC*.json"):
        for line in pd.read_json(path, lines=True).to_dict("records"):
            row = line["data"][0]
            yield OPS[line["type"]], line["_tidb"]["commitTs"], *(row[column.name] for column in part.columns)


def parquet(part: Part, **options: Any) -> Iterable[Row]:
    for path in part.files("**/CDC*.parquet"):
        yield from listed(pd.read_parquet(path, **options), part, "_op", "_commit_ts")


def parquet_folder(part: Part) -> Iterable[Row]:
    return listed(pd.read_parquet(part.folder), part, "_op", "_commit_ts")


READINGS = [
    Reading(CSV, csv),
    Reading(CSV, csv, {**_NULLS, "typed": True}, _NOT_EMPTY),
    Reading(UNQUOTED, csv, {**_NULLS, "typed": True, "quoting": 3, "escapechar": "\\"}),
    Reading(ZEROS, dates, _NULLS),
    Reading(CSV_FOLDER, csv_folder),
    Reading(CSV_FOLDER, csv, {**_NULLS, "typed": True}, pattern="`Path.glob('**/CDC*.csv')`"),
    Reading(JSON, canal_json),
    Reading(PARQUET, parquet),
    Reading(PARQUET, parquet, {"dtype_backend": "pyarrow"}),
    Reading(PARQUET_FOLDER, parquet_folder),
    Reading(PARQUET_FOLDER, parquet, {"dtype_backend": "pyarrow"}, pattern="`Path.glob('**/CDC*.parquet')`"),
]
