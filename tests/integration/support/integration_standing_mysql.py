"""A standing changefeed (integration_standing) that writes to a MariaDB, where triggers write down each change.

A row that is written twice in effect may look right in the end: the triggers' table shows it. One for a table that a
DDL makes would come too late, so `late` has none. A DDL that is executed twice is refused by the server, but for the
TRUNCATE: rows that came after it would be missing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.log.state import State
from changefeed.spec.parse import parse
from changefeed.verify.mysql.report import verify
from integration_mariadb import MariaDb
from integration_standing import Broken, Key, World, check_changes

_SEEN = ("items", "orders")  # by triggers
_ROW = {"insert": "NEW", "update": "NEW", "delete": "OLD"}


@dataclass
class MysqlWorld(World):
    """Its databases have fixed names, so a server is one world's at a time."""

    database: MariaDb

    inside_a_plan = ("write a batch: done", 3)

    def spec(self) -> dict[str, Any]:
        uri = f"mysql://127.0.0.1:{self.database.port}"
        return {"sink": {"mysql": {"uri": uri, "maxTxnRow": 8, "workerCount": 2}}}

    def clear(self) -> None:
        super().clear()
        for name in ("shop", "seen", "changefeed"):
            self.database.query(f"DROP DATABASE IF EXISTS {name}")
        changes = "(n BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(9), op VARCHAR(9), id BIGINT, balance BIGINT)"
        self.database.query("CREATE DATABASE shop", "CREATE DATABASE seen", f"CREATE TABLE seen.changes {changes}")
        for name in _SEEN:
            self.database.query(f"CREATE TABLE shop.{name} (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)")
            for op, row in _ROW.items():
                self.database.query(
                    f"CREATE TRIGGER shop.{name}_{op} AFTER {op.upper()} ON shop.{name} FOR EACH ROW "
                    f"INSERT INTO seen.changes SET name='{name}', op='{op}', id={row}.id, balance={row}.balance"
                )

    def sink(self) -> dict[str, bytes]:
        """Rows, and definitions."""
        found: dict[str, bytes] = {}
        for name in self._tables("shop"):
            shown = self.database.query(f"SHOW CREATE TABLE shop.{name}")
            found[f"shop.{name}"] = repr(
                (shown, self.database.query(f"SELECT * FROM shop.{name} ORDER BY id"))
            ).encode()
        return found

    def downstream(self) -> Mapping[str, Any]:
        tables = [f"{of}.{name}" for of in ("shop", "seen", "changefeed") for name in self._tables(of)]
        return {name: sorted(self.database.query(f"SELECT * FROM {name}")) for name in tables}

    def written(self, state: State) -> str:
        changes = f"{sum(map(len, self._seen().values()))} changes of items and orders"
        if "ddls" not in self._tables("changefeed"):
            return changes
        ((batches,),) = self.database.query("SELECT count(*) FROM changefeed.nodes")
        ddls = self.database.query("SELECT is_done FROM changefeed.ddls ORDER BY ts")
        done = sum(int(is_done) for (is_done,) in ddls)
        return f"{changes}, {batches.decode()} batches of entries under way, {len(ddls)} DDLs begun, {done} done"

    def look(self) -> None:
        check_changes(self._seen(), self._made(), whole=False)

    def check(self) -> None:
        verdict = asyncio.run(verify(parse(json.dumps(self.resource()))))
        if not verdict.ok:
            raise Broken(f"verify: {verdict.first_problem}")
        check_changes(self._seen(), self._made(), whole=True)
        for name, rows in self.history.standing.items():
            columns = ", ".join(rows[0])
            there = [
                dict(zip(rows[0], (None if cell is None else int(cell) for cell in row), strict=True))
                for row in self.database.query(f"SELECT {columns} FROM shop.{name} ORDER BY id")
            ]
            if there != rows:
                raise Broken(f"shop.{name} has {there}, the upstream {rows}")
        if self.database.query("SELECT * FROM changefeed.nodes"):
            raise Broken("what is remembered of entries under way stands there after the end")
        if self.database.query("SELECT * FROM changefeed.ddls WHERE is_done = 0"):
            raise Broken("a DDL is not done")

    def _made(self) -> dict[Key, list[tuple[str, int]]]:
        return {
            key: [(each.op, (each.row or each.old_row or {})["balance"]) for each in made]
            for key, made in self.history.changes.items()
            if key[0] in _SEEN
        }

    def _seen(self) -> dict[Key, list[tuple[str, int]]]:
        found: dict[Key, list[tuple[str, int]]] = {}
        for name, op, pk, balance in self.database.query("SELECT name, op, id, balance FROM seen.changes ORDER BY n"):
            found.setdefault((name.decode(), int(pk)), []).append((op.decode(), int(balance)))
        return found

    def _tables(self, database: str) -> list[str]:
        rows = self.database.query(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{database}' ORDER BY table_name"
        )
        return [name.decode() for (name,) in rows]
