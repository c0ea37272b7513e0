"""ClickHouse's formats and table functions, in this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import chdb
from consumers_reading import (
    APPEND,
    CSV,
    CSV_FOLDER,
    JSON,
    META,
    OPS,
    PARQUET,
    PARQUET_FOLDER,
    UPSERT,
    ZEROS,
    Part,
    Reading,
    Row,
)  # fmt: skip

_TYPES = {
    "tinyint": "Int64", "smallint": "Int64", "mediumint": "Int64", "int": "Int64", "bigint": "Int64", "year": "Int64",
    "bigint unsigned": "UInt64", "bit": "UInt64", "float": "Float32", "double": "Float64",
    "decimal": "Decimal({0}, {1})", "date": "Date32", "datetime": "DateTime64(6, 'UTC')",
    "timestamp": "DateTime64(6, 'UTC')",
}  # fmt: skip
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


def version() -> str:
    (number,) = chdb.query("SELECT version()", "TabSeparated").bytes().decode().split()
    return number


def rows(query: str) -> list[list[Any]]:
    """Text as bytes."""
    found = chdb.query(f"{query} SETTINGS output_format_arrow_string_as_string = 0", "ArrowTable")
    return [list(row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)]


def read(part: Part, source: str, names: Iterable[str], is_csv: bool = False) -> Iterable[Row]:
    columns = dict(zip(names, (None, None, *part.columns), strict=False))
    shown = ", ".join(f"`{name}`" for name in columns)
    for row in rows(f"SELECT {shown} FROM {source}"):
        yield [
            value
            if not isinstance(value, bytes) or (column and column.base in _BYTES and not is_csv)
            else value.decode()
            for value, column in zip(row, columns.values(), strict=True)
        ]


def text_of(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def structure(types: dict[str, str]) -> str:
    escaped = ", ".join(f"`{name}` {each}" for name, each in types.items())
    return "'{}'".format(escaped.replace("'", "''"))


def csv(part: Part, typed: bool = False, pattern: str = "/**/CDC*.csv", **options: Any) -> Iterable[Row]:
    names = [f"c{number + 1}" for number in (0, 3, *range(4, 4 + len(part.columns)))]
    types = ""
    if typed:
        named = dict.fromkeys(META, "String") | {"commit_ts": "UInt64"}
        named |= {column.name: f"Nullable({column.typed(_TYPES, 'String')})" for column in part.columns}
        types = f", {structure(named)}"
        names = ["op", "commit_ts", *(column.name for column in part.columns)]
    return read(part, f"file('{part.folder}{pattern}', 'CSV'{types})", names, is_csv=True)


def csv_folder(part: Part) -> Iterable[Row]:
    return csv(part, typed=True, pattern="/**")


def canal_json(part: Part, typed: bool = False) -> Iterable[Row]:
    of = "type String, data Array(Map(String, Nullable(String))), _tidb Tuple(commitTs UInt64)"
    types = f", '{of}'" if typed else ""
    cells = ", ".join(
        f"data[1]['{column.name}']" if typed else f"tupleElement(data[1], '{column.name}')" for column in part.columns
    )
    source = f"file('{part.folder}/**/CDC*.json', 'JSONEachRow'{types})"
    for kind, commit_ts, *row in rows(f"SELECT type, tupleElement(_tidb, 'commitTs'), {cells} FROM {source}"):
        yield OPS[kind.decode()], commit_ts, *map(text_of, row)


def names_of(part: Part) -> list[str]:
    return ["_op", "_commit_ts", *(column.name for column in part.columns)]


def parquet(part: Part, pattern: str = "/**/CDC*.parquet") -> Iterable[Row]:
    return read(part, f"file('{part.folder}{pattern}', 'Parquet')", names_of(part))


def parquet_folder(part: Part) -> Iterable[Row]:
    return parquet(part, "/**")


def append(part: Part) -> Iterable[Row]:
    return read(part, f"icebergLocal('{part.folder.parents[1]}')", names_of(part))


def upsert(part: Part) -> Iterable[Row]:
    """`_op` and `_commit_ts` stand for nothing here."""
    columns = ", ".join(f"`{column.name}`" for column in part.columns)
    source = f"(SELECT 0 AS _op, 0 AS _commit_ts, {columns} FROM icebergLocal('{part.folder.parents[1]}'))"
    return [row[2:] for row in read(part, source, names_of(part))]


READINGS = [
    Reading(CSV, csv),
    Reading(CSV, csv, {"typed": True}),
    Reading(ZEROS, csv, {"typed": True}),
    Reading(CSV_FOLDER, csv_folder),
    Reading(CSV_FOLDER, csv, {"typed": True}, pattern="`**/CDC*.csv`"),
    Reading(JSON, canal_json),
    Reading(JSON, canal_json, {"typed": True}),
    Reading(PARQUET, parquet),
    Reading(PARQUET_FOLDER, parquet_folder),
    Reading(PARQUET_FOLDER, parquet, pattern="`**/CDC*.parquet`"),
    Reading(APPEND, append),
    Reading(UPSERT, upsert),
]
