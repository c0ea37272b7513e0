"""A standing changefeed that writes to Iceberg tables."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.log.state import State
from changefeed.spec.parse import parse
from changefeed.verify.iceberg.report import verify
from integration_iceberg import catalog_of, changelog, sink, state
from integration_standing_lake import LakeWorld, Rows
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table


@dataclass
class IcebergWorld(LakeWorld):
    inside_a_plan = ("commit a snapshot: done", 1)

    def spec(self) -> dict[str, Any]:
        return {"sink": sink(self.folder, self.mode)}

    def sink(self) -> dict[str, bytes]:
        """Rows and schemas; how many snapshots have brought them is a matter of time."""
        rows = self.tables()
        return {name: repr((str(table.schema()), rows[name])).encode() for name, table in self._tables().items()}

    def downstream(self) -> Mapping[str, Any]:
        """What the catalog says of each table: which file has its metadata."""
        if not (self.folder / "catalog.db").exists():
            return {}
        with sqlite3.connect(self.folder / "catalog.db") as db:
            return dict(db.execute("SELECT table_name, metadata_location FROM iceberg_tables"))

    def written(self, state: State) -> str:
        files = len(list((self.folder / "warehouse").rglob("data/**/*.parquet")))
        tables = self._tables()
        snapshots = sum(len(table.metadata.snapshots) for table in tables.values())
        rows = sum(len(each) for each in self.tables().values())
        return f"{files} data files, {len(tables)} tables with {snapshots} snapshots and {rows} rows"

    def tables(self) -> dict[str, Rows]:
        if self.mode == "append":
            return {name: changelog(table) for name, table in self._tables().items()}
        found = {name: state(table, "id") for name, table in self._tables().items()}
        return {name: self._shown(name, list(rows.values())) for name, rows in found.items()}

    def problem(self) -> str:
        verdict = asyncio.run(verify(parse(json.dumps(self.resource()))))
        return "" if verdict.ok else str(verdict.first_problem)

    def _tables(self) -> dict[str, Table]:
        if not (self.folder / "catalog.db").exists():
            return {}
        catalog = catalog_of(self.folder)
        try:
            return {name[-1]: catalog.load_table(name) for name in sorted(catalog.list_tables("shop"))}
        except NoSuchNamespaceError:
            return {}
        finally:
            catalog.close()
