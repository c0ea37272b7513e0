"""Delta tables of a changefeed's, and what they have by other makers' readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

Rows = list[dict[str, Any]]


def sink(folder: Path, mode: str) -> dict[str, Any]:
    """A `spec.sink` in the folder."""
    return {"delta": {"uri": (folder / "lake").as_uri(), "mode": mode, "flushInterval": "500ms"}}


def by_delta_rs(folder: Path, table: str) -> Rows:
    """By the library that has written the log, and DataFusion. `table`: database/table."""
    found = DeltaTable(str(folder / "lake" / table))
    return pa.table(pa.RecordBatchReader.from_stream(found.scan())).to_pylist()


def by_polars(folder: Path, table: str) -> Rows:
    """By polars' own reader of Parquet; which files there are, the library says."""
    return pl.scan_delta(str(folder / "lake" / table)).collect().to_dicts()


def changelog(rows: Iterable[dict[str, Any]]) -> Rows:
    """In the order of commits."""
    return sorted(rows, key=lambda row: (row["_commit_ts"], row["_op"] != "D"))


def replayed(rows: Iterable[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    """The rows that a changelog leaves."""
    left: dict[Any, dict[str, Any]] = {}
    for row in changelog(rows):
        if row["_op"] == "D":
            left.pop(row[key], None)
        else:
            left[row[key]] = {name: value for name, value in row.items() if not name.startswith("_")}
    return left


def state(rows: Iterable[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    """The rows of a table that mirrors the upstream's, each key once."""
    rows = list(rows)
    assert len({row[key] for row in rows}) == len(rows), "a key twice"
    return {row[key]: row for row in rows}


LEFT: Mapping[str, Callable[[Iterable[dict[str, Any]], str], dict[Any, dict[str, Any]]]] = {
    "append": replayed,
    "upsert": state,
}


def by_log(folder: Path) -> Rows:
    """By the protocol: files that the log adds and does not remove. No checkpoint is looked at."""
    files: dict[str, None] = {}
    names: list[str] = []
    for version in sorted((folder / "_delta_log").glob("*.json")):
        for line in version.read_text().splitlines():
            action = json.loads(line)
            if "remove" in action:
                del files[action["remove"]["path"]]
            elif "add" in action:
                files[action["add"]["path"]] = None
            elif "metaData" in action:
                names = [field["name"] for field in json.loads(action["metaData"]["schemaString"])["fields"]]
    rows = [row for path in files for row in pq.ParquetFile(folder / path).read().to_pylist()]
    return [{name: row.get(name) for name in names} for row in rows]
