"""A lake of a changefeed's, and what it has by other makers' readers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyarrow import orc
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import Table


def sink(folder: Path, mode: str) -> dict[str, Any]:
    """A `spec.sink` in the folder."""
    catalog = {"uri": f"sqlite:///{folder}/catalog.db"}
    warehouse = (folder / "warehouse").as_uri()
    return {"iceberg": {"warehouse": warehouse, "catalog": catalog, "mode": mode, "flushInterval": "500ms"}}


def catalog_of(folder: Path) -> SqlCatalog:
    return SqlCatalog("changefeed", uri=f"sqlite:///{folder}/catalog.db")


def local(location: str) -> Path:
    """Return the path of a file that Java has named, or we."""
    return Path(re.sub("^file:/+", "/", location))


def changelog(table: Table) -> list[dict[str, Any]]:
    """As pyiceberg reads it, in the order of commits."""
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["_commit_ts"], row["_op"] != "D"))


def replayed(table: Table, key: str) -> dict[Any, dict[str, Any]]:
    """The rows that a changelog leaves."""
    rows: dict[Any, dict[str, Any]] = {}
    for row in changelog(table):
        if row["_op"] == "D":
            rows.pop(row[key], None)
        else:
            rows[row[key]] = {name: value for name, value in row.items() if not name.startswith("_")}
    return rows


def state(table: Table, key: str) -> dict[Any, dict[str, Any]]:
    """The rows that equality deletes leave, by the specification; each key once."""
    snapshot = table.current_snapshot()
    rows: list[tuple[int, dict[str, Any]]] = []
    gone: dict[Any, int] = {}
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(table.io):
            path = local(entry.data_file.file_path)
            read = orc.ORCFile if entry.data_file.file_format == FileFormat.ORC else pq.ParquetFile
            found = read(path).read().to_pylist()
            sequence = entry.sequence_number or 0
            if entry.data_file.content == DataFileContent.DATA:
                rows += [(sequence, row) for row in found]
            else:
                gone |= {row[key]: max(sequence, gone.get(row[key], 0)) for row in found}
    left = [row for sequence, row in rows if gone.get(row[key], 0) <= sequence]
    assert len({row[key] for row in left}) == len(left), "a key twice"
    return {row[key]: row for row in left}
