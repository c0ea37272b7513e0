"""What an upstream's tables were at marked moments, and what restore makes of a sink of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet
from changefeed.objectstore.open import open_store
from changefeed.reading.progress import NoProgress
from changefeed.restore.folder import Folder
from changefeed.restore.report import RestoreReport
from changefeed.restore.restore import restore
from changefeed.restore.source import RestoreSource
from changefeed_devcluster.tidb.schema import NewColumn
from verify_story import Story

ITEMS = (NewColumn("id", "bigint"), NewColumn("price", "int"), NewColumn("note", "varchar(24)", nullable=True))
PARTS: dict[str, int | None] = {"p0": 10, "p1": 20, "p2": None}

Rows = dict[Any, dict[str, Any]]  # by the key


@dataclass
class Marks:
    """(ts, tables by name) of moments."""

    story: Story
    all: list[tuple[int, dict[str, Rows]]] = field(default_factory=list)

    def mark(self) -> int:
        ts = self.story.tidb.now()
        selected = {n: t for n, t in self.story.tidb.tables.items() if n.startswith(self.story.db) and t.info.columns}
        found = {name: self.story.tidb.snapshot(table, ts) for name, table in selected.items()}
        self.all.append((ts, {name: dict(rows) for name, rows in found.items()}))
        return ts


def restored(uri: str, ts: int, folder: Path, base: Path | None = None) -> tuple[dict[str, Rows], RestoreReport]:
    """All tables of the sink at `ts`."""
    made = restore(
        RestoreSource(open_store(uri)), ts, lambda *name: True, lambda tables: Folder(folder), NoProgress(), base
    )
    return rows_in(folder), made


def rows_in(folder: Path) -> dict[str, Rows]:
    """What a folder of restore's has, by table and id."""
    found = {}
    for path in sorted(folder.glob("*/*.parquet")):
        rows = pyarrow.parquet.read_table(path).to_pylist()
        found[f"{path.parent.name}.{path.stem}"] = {row["id"]: row for row in rows}
    return found
