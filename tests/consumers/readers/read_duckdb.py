"""DuckDB's csv, JSON and Parquet readers, and its extension for Iceberg where that is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
from consumers_reading import (
    APPEND,
    CSV,
    CSV_FOLDER,
    JSON,
    META,
    OPS,
    PARQUET,
    PARQUET_FOLDER,
    UNQUOTED,
    UPSERT,
    ZEROS,
    Part,
    Reading,
    Row,
)  # fmt: skip

_TYPES = {
    "tinyint": "BIGINT", "smallint": "BIGINT", "mediumint": "BIGINT", "int": "BIGINT", "bigint": "BIGINT",
    "year": "BIGINT", "bigint unsigned": "UBIGINT", "bit": "UBIGINT", "float": "FLOAT", "double": "DOUBLE",
    "decimal": "DECIMAL({0}, {1})", "decimal(65,30)": "VARCHAR", "date": "DATE", "datetime": "TIMESTAMP",
    "timestamp": "TIMESTAMP",
}  # fmt: skip
#: The recipe's in docs/reading-files.md.
_RECIPE = {"nullstr": "\\N", "allow_quoted_nulls": False, "quote": '"', "escape": '"', "strict_mode": False}
_NOT_GUESSED = {"auto_detect": False, "delim": ","}


def version() -> str:
    return duckdb.__version__


def rows(part: Part, source: str, op: str = "op", commit_ts: str = "commit_ts", meta: bool = True) -> Iterable[Row]:
    names = [*([op, commit_ts] if meta else []), *(column.name for column in part.columns)]
    with duckdb.connect() as connection:
        if source.startswith("iceberg"):
            for extension in ("avro", "iceberg"):
                connection.load_extension(packaged(extension))
        shown = ", ".join(f'"{name}"' for name in names)
        found = connection.execute(f"SELECT {shown} FROM {source}").to_arrow_table()
    return zip(*(column.to_pylist() for column in found.columns), strict=True)


def packaged(extension: str) -> str:
    """The file in the package duckdb-extension-NAME."""
    (folder,) = importlib.util.find_spec(f"duckdb_extension_{extension}").submodule_search_locations
    (file,) = Path(folder).rglob(f"{extension}.duckdb_extension")
    return str(file)


def literal(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(name)}: {literal(each)}' for name, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return str(value).lower() if isinstance(value, bool) else "'{}'".format(str(value).replace("'", "''"))


def csv(part: Part, typed: bool = False, pattern: str = "/**/CDC*.csv", **options: Any) -> Iterable[Row]:
    types = dict.fromkeys(META, "VARCHAR") | {"commit_ts": "UBIGINT"}
    types |= {column.name: column.typed(_TYPES, "VARCHAR") for column in part.columns}
    options |= {"columns": types} if typed else {"names": part.fields}
    shown = "".join(f", {name} = {literal(value)}" for name, value in options.items())
    return rows(part, f"read_csv('{part.folder}{pattern}', header = false{shown})")


def csv_folder(part: Part) -> Iterable[Row]:
    return csv(part, typed=True, pattern="/**", **_RECIPE)


def canal_json(part: Part, typed: bool = False) -> Iterable[Row]:
    with duckdb.connect() as connection:
        source = f"read_json('{part.folder}/**/CDC*.json'{', columns = ' + literal(types_of(part)) if typed else ''})"
        found = connection.execute(f"SELECT type, _tidb.commitTs, data[1] FROM {source}").fetchall()
    for kind, commit_ts, row in found:
        yield OPS[kind], commit_ts, *(row[column.name] for column in part.columns)


def types_of(part: Part) -> dict[str, str]:
    """Return the types of canal-json."""
    row = ", ".join(f'"{column.name}" VARCHAR' for column in part.columns)
    return {"type": "VARCHAR", "_tidb": "STRUCT(commitTs UBIGINT)", "data": f"STRUCT({row})[]"}


def parquet(part: Part, pattern: str = "/**/CDC*.parquet") -> Iterable[Row]:
    return rows(part, f"read_parquet('{part.folder}{pattern}')", "_op", "_commit_ts")


def parquet_folder(part: Part) -> Iterable[Row]:
    return parquet(part, "/**")


def iceberg(part: Part, meta: bool) -> Iterable[Row]:
    return rows(part, f"iceberg_scan('{part.folder}')", "_op", "_commit_ts", meta)


def append(part: Part) -> Iterable[Row]:
    return iceberg(part, True)


def upsert(part: Part) -> Iterable[Row]:
    return iceberg(part, False)


READINGS = [
    Reading(CSV, csv),
    Reading(CSV, csv, _RECIPE),
    Reading(CSV, csv, {**_RECIPE, **_NOT_GUESSED, "typed": True}),
    Reading(UNQUOTED, csv, {"nullstr": "\\N", "quote": "", "escape": "\\", "typed": True}),
    Reading(ZEROS, csv, {**_RECIPE, **_NOT_GUESSED, "typed": True}),
    Reading(CSV_FOLDER, csv_folder),
    Reading(CSV_FOLDER, csv, {**_RECIPE, **_NOT_GUESSED, "typed": True}, pattern="`**/CDC*.csv`"),
    Reading(JSON, canal_json),
    Reading(JSON, canal_json, {"typed": True}),
    Reading(PARQUET, parquet),
    Reading(PARQUET_FOLDER, parquet_folder),
    Reading(PARQUET_FOLDER, parquet, pattern="`**/CDC*.parquet`"),
]
if importlib.util.find_spec("duckdb_extension_iceberg"):
    READINGS += [Reading(APPEND, append), Reading(UPSERT, upsert)]
