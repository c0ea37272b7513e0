"""Spark's csv, JSON and Parquet readers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import pyspark
from consumers_reading import (
    CSV,
    CSV_FOLDER,
    CSV_LF,
    JSON,
    META,
    OPS,
    PARQUET,
    PARQUET_FOLDER,
    UNQUOTED,
    ZEROS,
    Part,
    Reading,
    Row,
)  # fmt: skip
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

_TYPES = {
    "tinyint": "BIGINT", "smallint": "BIGINT", "mediumint": "BIGINT", "int": "BIGINT", "bigint": "BIGINT",
    "year": "BIGINT", "bigint unsigned": "DECIMAL(20, 0)", "bit": "DECIMAL(20, 0)", "float": "FLOAT",
    "double": "DOUBLE", "decimal": "DECIMAL({0}, {1})", "decimal(65,30)": "STRING", "date": "DATE",
    "datetime": "TIMESTAMP_NTZ", "timestamp": "TIMESTAMP_NTZ",
}  # fmt: skip
_OPTIONS = {"escape": '"', "multiLine": True, "nullValue": "\\N"}


def version() -> str:
    return str(pyspark.__version__)


@cache
def session() -> SparkSession:
    os.environ["TZ"] = "UTC"
    time.tzset()
    build = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    build = build.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", 2)
    return build.config("spark.driver.memory", "1g").getOrCreate()


def listed(frame: DataFrame, part: Part, op: str, commit_ts: str) -> Iterable[Row]:
    names = [op, commit_ts, *(column.name for column in part.columns)]
    try:
        rows = frame.select(*(f"`{name}`" for name in names)).collect()
    except Py4JJavaError as error:  # its own text begins with numbers of this run
        raise RuntimeError(error.java_exception.getMessage()) from error
    for row in rows:
        yield [bytes(value) if isinstance(value, bytearray) else value for value in row]


def below(part: Part, pattern: str) -> Any:
    return session().read.option("recursiveFileLookup", True).option("pathGlobFilter", pattern)


def csv(part: Part, typed: bool = False, pattern: str = "CDC*.csv", **options: Any) -> Iterable[Row]:
    types = dict.fromkeys(META, "STRING") | {"commit_ts": "BIGINT"}
    types |= {column.name: column.typed(_TYPES, "STRING") if typed else "STRING" for column in part.columns}
    schema = ", ".join(f"`{name}` {each}" for name, each in types.items())
    frame = below(part, pattern).schema(schema).options(**options).csv(str(part.folder))
    return listed(frame, part, "op", "commit_ts")


def csv_folder(part: Part) -> Iterable[Row]:
    return csv(part, typed=True, pattern="*", **_OPTIONS)


def canal_json(part: Part) -> Iterable[Row]:
    of = "type string, data array<map<string, string>>, _tidb struct<commitTs: bigint>"
    frame = below(part, "CDC*.json").schema(of).json(str(part.folder))
    for kind, commit_ts, row in frame.selectExpr("type", "_tidb.commitTs", "data[0]").collect():
        yield OPS[kind], commit_ts, *(row[column.name] for column in part.columns)


def parquet(part: Part, pattern: str = "CDC*.parquet") -> Iterable[Row]:
    return listed(below(part, pattern).parquet(str(part.folder)), part, "_op", "_commit_ts")


def parquet_folder(part: Part) -> Iterable[Row]:
    return parquet(part, "*")


READINGS = [
    Reading(CSV, csv),
    Reading(CSV, csv, {**_OPTIONS, "typed": True}),
    Reading(CSV_LF, csv, {**_OPTIONS, "lineSep": "\n", "typed": True}, '`terminator: "\\n"` in the sink'),
    Reading(UNQUOTED, csv, {"quote": "", "escape": "\\", "nullValue": "\\N", "typed": True}),
    Reading(ZEROS, csv, {**_OPTIONS, "typed": True}),
    Reading(CSV_FOLDER, csv_folder),
    Reading(CSV_FOLDER, csv, {**_OPTIONS, "typed": True}, pattern='`pathGlobFilter="CDC*.csv"`'),
    Reading(JSON, canal_json),
    Reading(PARQUET, parquet),
    Reading(PARQUET_FOLDER, parquet_folder),
    Reading(PARQUET_FOLDER, parquet, pattern='`pathGlobFilter="CDC*.parquet"`'),
]
