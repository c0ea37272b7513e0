"""Flink SQL's filesystem connector, with its formats csv, json and parquet."""

from __future__ import annotations

import atexit
import base64
import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import integration_flink_reader
from consumers_reading import (
    CSV,
    CSV_FOLDER,
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
)
from integration_java import compiled, jars, java_tool, leaves_in

_FLINK = [
    *("clients", "table-api-java-bridge", "table-runtime", "table-planner-loader", "connector-files"),
    *("csv", "json", "parquet"),
]
_HADOOP = ("hadoop-client-api:3.4.2", "hadoop-client-runtime:3.4.2")
_TYPES = {
    "tinyint": "BIGINT", "smallint": "BIGINT", "mediumint": "BIGINT", "int": "BIGINT", "bigint": "BIGINT",
    "year": "BIGINT", "bigint unsigned": "DECIMAL(20, 0)", "bit": "DECIMAL(20, 0)", "float": "FLOAT",
    "double": "DOUBLE", "decimal": "DECIMAL({0}, {1})", "decimal(65,30)": "STRING", "date": "DATE",
    "datetime": "TIMESTAMP(6)", "timestamp": "TIMESTAMP(6)",
}  # fmt: skip
#: By docs/sink-files.md.
_OF_PARQUET = _TYPES | {
    "tinyint": "INT", "smallint": "INT", "mediumint": "INT", "int": "INT", "year": "INT", "int unsigned": "BIGINT",
    "int unsigned zerofill": "BIGINT", "bit": "BIGINT", "bit(64)": "DECIMAL(20, 0)", "timestamp": "TIMESTAMP_LTZ(6)",
    "binary": "BYTES", "varbinary": "BYTES", "tinyblob": "BYTES", "blob": "BYTES", "mediumblob": "BYTES",
    "longblob": "BYTES",
}  # fmt: skip
_VALUES: dict[str, Callable[[str], Any]] = {
    "Integer": int, "Long": int, "Float": float, "Double": float, "BigDecimal": Decimal,
    "LocalDate": date.fromisoformat, "LocalDateTime": datetime.fromisoformat, "byte[]": base64.b64decode,
    "Instant": lambda text: datetime.fromisoformat(text.replace("Z", "")).replace(tzinfo=UTC),
}  # fmt: skip
_UNQUOTED = {"csv.disable-quote-character": "true", "csv.escape-character": "\\"}
_NULLS = {"csv.null-literal": "\\N"}


def version() -> str:
    return integration_flink_reader.VERSION


@cache
def program() -> subprocess.Popen[str]:
    artifacts = [f"org.apache.flink:flink-{name}:{version()}" for name in _FLINK]
    artifacts += [f"org.apache.hadoop:{name}" for name in _HADOOP]
    libraries = jars(f"flink-sql-{version()}", *artifacts, "org.slf4j:slf4j-nop:1.7.36")
    classes = Path("flink").absolute()
    classes.mkdir()
    source = Path(integration_flink_reader.__file__).parent / "flink" / "FlinkSql.java"
    command = [
        java_tool("java"),
        leaves_in(classes),
        "-Xmx1g",
        "-Duser.timezone=UTC",
        "-cp",
        compiled(source, classes, libraries),
        "FlinkSql",
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return process


def asked(columns: Mapping[str, str], options: Mapping[str, str], selected: str) -> list[list[Any]]:
    """Raises RuntimeError with what Flink says."""
    process = program()
    assert process.stdin is not None
    assert process.stdout is not None
    shown = ", ".join(f"`{name}` {each}" for name, each in columns.items())
    settings = ", ".join(f"'{name}' = '{each}'" for name, each in options.items())
    question = [f"CREATE TEMPORARY TABLE t ({shown}) WITH ({settings})", f"SELECT {selected} FROM t"]
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return [[value_of(cell) for cell in row] for row in answer["rows"]]


def value_of(cell: Any) -> Any:
    return None if cell is None else _VALUES.get(cell[0], lambda value: value)(cell[1])


def source(part: Part, form: str, pattern: str, **options: str) -> dict[str, str]:
    where = {"connector": "filesystem", "path": f"file://{part.folder}", "format": form}
    return where | ({"source.path.regex-pattern": pattern} if pattern else {}) | options


def names_of(part: Part, op: str = "op", commit_ts: str = "commit_ts") -> str:
    return ", ".join(f"`{name}`" for name in (op, commit_ts, *(column.name for column in part.columns)))


def csv(part: Part, typed: bool = True, pattern: str = r".*/CDC[0-9]+\.csv", **options: str) -> Iterable[Row]:
    types = dict.fromkeys(META, "STRING") | {"commit_ts": "BIGINT"}
    types |= {column.name: column.typed(_TYPES, "STRING") if typed else "STRING" for column in part.columns}
    return asked(types, source(part, "csv", pattern, **options), names_of(part))


def csv_folder(part: Part) -> Iterable[Row]:
    return csv(part, pattern="", **_NULLS)


def as_text(part: Part) -> Iterable[Row]:
    return csv(part, typed=False)


def canal_json(part: Part) -> Iterable[Row]:
    types = {"type": "STRING", "data": "ARRAY<MAP<STRING, STRING>>", "_tidb": "ROW<commitTs BIGINT>"}
    found = asked(types, source(part, "json", r".*/CDC[0-9]+\.json"), "type, _tidb.commitTs, data[1]")
    for kind, commit_ts, row in found:
        yield OPS[kind], commit_ts, *(row[column.name] for column in part.columns)


def parquet(part: Part, pattern: str = r".*/CDC[0-9]+\.parquet", **options: str) -> Iterable[Row]:
    types = {"_op": "STRING", "_commit_ts": "BIGINT"}
    types |= {column.name: column.typed(_OF_PARQUET, "STRING") for column in part.columns}
    options = {"parquet.utc-timezone": "true", **options}
    return asked(types, source(part, "parquet", pattern, **options), names_of(part, "_op", "_commit_ts"))


def parquet_folder(part: Part) -> Iterable[Row]:
    return parquet(part, "")


READINGS = [
    Reading(CSV, as_text),
    Reading(CSV, csv, {**_NULLS, "typed": True}),
    Reading(
        UNQUOTED, csv, {**_NULLS, "csv.disable-quote-character": "true", "csv.escape-character": "\\", "typed": True}
    ),
    Reading(ZEROS, csv, {**_NULLS, "typed": True}),
    Reading(CSV_FOLDER, csv_folder),
    Reading(CSV_FOLDER, csv, {**_NULLS, "typed": True}, pattern=r"`'source.path.regex-pattern' = '.*/CDC[0-9]+\.csv'`"),
    Reading(JSON, canal_json),
    Reading(PARQUET, parquet),
    Reading(PARQUET_FOLDER, parquet_folder),
    Reading(PARQUET_FOLDER, parquet, pattern=r"`'source.path.regex-pattern' = '.*/CDC[0-9]+\.parquet'`"),
]
