"""A standing changefeed (integration_standing) that writes to Iceberg tables, as a changelog or by primary key."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from changefeed.log.state import State
from changefeed.spec.parse import parse
from changefeed.verify.iceberg.report import verify
from integration_iceberg import catalog_of, changelog, sink, state
from integration_standing import Broken, Key, Watch, World, check_changes
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table

Mode = Literal["append", "upsert"]
Changes = dict[Key, list[tuple[int, str]]]


@dataclass
class IcebergWorld(World):
    """Two of a plan's files may be of one table: it has a snapshot of both, or of none."""

    mode: Mode

    inside_a_plan = ("commit a snapshot: done", 1)

    def spec(self) -> dict[str, Any]:
        return {"sink": sink(self.folder, self.mode)}

    def sink(self) -> dict[str, bytes]:
        """Rows and schemas; how many snapshots have brought them is a matter of time."""
        shown = {name: (str(table.schema()), self._rows(table)) for name, table in self._tables().items()}
        return {name: repr(both).encode() for name, both in shown.items()}

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
        rows = sum(len(self._rows(table)) for table in tables.values())
        return f"{files} data files, {len(tables)} tables with {snapshots} snapshots and {rows} rows"

    def watch(self) -> Watch:
        return IcebergWatch(self)

    def check(self) -> None:
        verdict = asyncio.run(verify(parse(json.dumps(self.resource()))))
        if not verdict.ok:
            raise Broken(f"verify: {verdict.first_problem}")
        tables = self._tables()
        if self.mode == "append":
            check_changes(self.met(), self._made(), whole=True)
            return
        for name, rows in self.history.standing.items():
            there = list(self._rows(tables[name]))
            if there != rows:
                raise Broken(f"{name} has {there}, the upstream {rows}")

    def met(self) -> Changes:
        """Return what a reader of the changelog meets of each row, in the order of commits."""
        found: Changes = {}
        for name, table in self._tables().items():
            for row in changelog(table):
                found.setdefault((name, row["id"]), []).append((row["_commit_ts"], row["_op"]))
        return found

    def look(self) -> None:
        """Each table has whole entries, so it is as the upstream's was after some transaction."""
        if self.mode == "append":
            check_changes(self.met(), self._made(), whole=False)
            return
        for name, table in self._tables().items():
            self.at(name, table)

    def at(self, name: str, table: Table) -> int:
        """The number of the upstream's state that an upserted table is in. Raises Broken when it never was in it."""
        there = self._rows(table)
        states = self._states(name)
        if there not in states:
            raise Broken(f"{name} has {there}, which the upstream never had")
        return len(states) - 1 - states[::-1].index(there)

    def _states(self, name: str) -> list[list[dict[str, Any]]]:
        """Return the states of the upstream's table, after each of its transactions; a TRUNCATE has none."""
        history, rows = self.history, dict[int, dict[str, Any]]()
        columns = list(history.standing[name][0])
        states: list[list[dict[str, Any]]] = [[]]
        for table in (each for each in history.tables if each.info.name == name):
            rows.clear()
            made = history.tidb.history(table, history.start_ts, history.target_ts)
            for ts in sorted({change.commit_ts for change in made}):
                for change in (each for each in made if each.commit_ts == ts):
                    rows.pop(change.pk, None)
                    if change.row is not None:
                        rows[change.pk] = {column: change.row.get(column) for column in columns}
                states.append([rows[pk] for pk in sorted(rows)])
        return states

    def _rows(self, table: Table) -> list[dict[str, Any]]:
        if self.mode == "append":
            return changelog(table)
        columns = list(self.history.standing[table.name()[-1]][0])
        rows = state(table, "id")
        return [{column: rows[pk].get(column) for column in columns} for pk in sorted(rows)]

    def _made(self) -> Changes:
        ops = {"insert": "I", "update": "U", "delete": "D"}
        return {key: [(each.commit_ts, ops[each.op]) for each in made] for key, made in self.history.changes.items()}

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


class IcebergWatch(Watch):
    """Remembers what a reader has met, which stays."""

    def __init__(self, world: IcebergWorld) -> None:
        super().__init__(world)
        self._lake = world
        self._met: Changes = {}
        self._at: dict[str, int] = {}

    def look(self) -> None:
        super().look()
        if self._lake.mode == "append":
            met = self._lake.met()
            check_changes(self._met, met, whole=False)
            self._met = met
            return
        at = {name: self._lake.at(name, table) for name, table in self._lake._tables().items()}
        if back := [name for name, was in self._at.items() if at.get(name, -1) < was]:
            raise Broken(f"{back[0]} has gone back")
        self._at = at
