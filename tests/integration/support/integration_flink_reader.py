"""Flink's formats as a second reader of Kafka messages: `flink/FlinkReader.java` runs them without a cluster."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from integration_java import checked, compiled, jars, java_tool

VERSION = "2.2.0"
READ_S = 60.0
_SOURCE = Path(__file__).parent / "flink" / "FlinkReader.java"

Row = dict[str, Any]


class Change(NamedTuple):
    """`kind`: Flink's +I, -U, +U or -D."""

    kind: str
    row: Row


@dataclass(frozen=True)
class Refused:
    """A message that ends a Flink job."""

    why: str


@dataclass(frozen=True)
class FlinkReader:
    class_path: str

    def read(
        self,
        format_name: str,
        options: Mapping[str, str],
        columns: Sequence[tuple[str, str]],
        values: Sequence[bytes | None],
    ) -> list[list[Change] | Refused]:
        """What Flink makes of each message's value. `options`: the format's; `columns`: names and Flink types."""
        row_type = ", ".join(f"`{name}` {flink}" for name, flink in columns)
        command = [java_tool("java"), "-Xmx256m", "-cp", self.class_path, "FlinkReader"]
        command += [format_name, f"ROW<{row_type}>", *(f"{name}={value}" for name, value in options.items())]
        told = checked(command, f"reading {format_name} with Flink {VERSION}", READ_S, _framed(values))
        answers = [json.loads(line, parse_float=Decimal) for line in told.splitlines()]
        assert len(answers) == len(values)
        return [
            Refused(answer["refused"])
            if "refused" in answer
            else [Change(kind, typed_row(columns, row)) for kind, row in answer["changes"]]
            for answer in answers
        ]


def flink_reader(folder: Path, *more: Path) -> FlinkReader:
    """Compiled into `folder`. `more`: folders of jars with other formats than JSON's."""
    artifacts = [f"org.apache.flink:{name}:{VERSION}" for name in ("flink-json", "flink-table-common")]
    libraries = jars(f"flink-json-{VERSION}", *artifacts, "org.slf4j:slf4j-nop:1.7.36")
    return FlinkReader(compiled(_SOURCE, folder, libraries, *more))


def flink_avro_reader(folder: Path) -> FlinkReader:
    """As `flink_reader`, with avro-confluent: one jar, which brings the registry's client along."""
    format_name = f"flink-sql-avro-confluent-registry:{VERSION}"
    return flink_reader(folder, jars(f"flink-avro-{VERSION}", alone=[f"org.apache.flink:{format_name}"]))


def replayed(changes: Sequence[Change], key: str) -> dict[Any, Row]:
    """The table after them, by a column; each of them has to fit to what was there."""
    state: dict[Any, Row] = {}
    for kind, row in changes:
        there = state.pop(row[key], None)
        takes = kind in ("-U", "-D")
        if there != (row if takes else None):
            pytest.fail(f"Flink reads {kind} of {row}, and there is {there}")
        if not takes:
            state[row[key]] = row
    return state


def _framed(values: Sequence[bytes | None]) -> bytes:
    """As the program reads them."""
    framed = [struct.pack(">i", -1 if value is None else len(value)) + (value or b"") for value in values]
    return struct.pack(">i", len(values)) + b"".join(framed)


#: Of what a type's values are in Python, where that is not what JSON has.
_FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "DECIMAL": Decimal,
    "FLOAT": lambda value: float(np.float32(value)),
    "DOUBLE": float,
    "DATE": date.fromisoformat,
    "TIMESTAMP": datetime.fromisoformat,
    "TIMESTAMP_LTZ": datetime.fromisoformat,
    "BYTES": base64.b64decode,
}


def typed_row(columns: Sequence[tuple[str, str]], said: Row) -> Row:
    """A row of JSON's values, as Python has those of the columns' types."""
    row: Row = {}
    for name, flink in columns:
        value, of_json = said[name], _FROM_JSON.get(flink.partition("(")[0])
        row[name] = value if value is None or of_json is None else of_json(value)
    return row
