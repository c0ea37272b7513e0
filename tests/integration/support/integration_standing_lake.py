"""A standing changefeed (integration_standing) that writes to tables of a lake, as a changelog or by primary key."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from integration_standing import Broken, Key, Watch, World, check_changes

Mode = Literal["append", "upsert"]
Changes = dict[Key, list[tuple[int, str]]]
Rows = list[dict[str, Any]]


@dataclass
class LakeWorld(World):
    """Two of a plan's files may be of one table: it has both at once, or none."""

    mode: Mode

    @abstractmethod
    def tables(self) -> dict[str, Rows]:
        """By name, what each table has: a changelog in the order of commits, or rows in any order."""

    @abstractmethod
    def problem(self) -> str:
        """What `changefeed verify` finds; "": nothing."""

    def watch(self) -> Watch:
        return LakeWatch(self)

    def check(self) -> None:
        if problem := self.problem():
            raise Broken(f"verify: {problem}")
        tables = self.tables()
        if self.mode == "append":
            check_changes(met(tables), self._made(), whole=True)
            return
        for name, rows in self.history.standing.items():
            there = self._shown(name, tables[name])
            if there != rows:
                raise Broken(f"{name} has {there}, the upstream {rows}")

    def look(self) -> None:
        """Each table has whole entries, so it is as the upstream's was after some transaction."""
        if self.mode == "append":
            check_changes(met(self.tables()), self._made(), whole=False)
            return
        self.at()

    def at(self) -> dict[str, int]:
        """The number of the upstream's state that each upserted table is in. Raises Broken when it never was in it."""
        return {name: self._at(name, self._shown(name, rows)) for name, rows in self.tables().items()}

    def _at(self, name: str, there: Rows) -> int:
        states = self._states(name)
        if there not in states:
            raise Broken(f"{name} has {there}, which the upstream never had")
        return len(states) - 1 - states[::-1].index(there)

    def _states(self, name: str) -> list[Rows]:
        """Return the states of the upstream's table, after each of its transactions; a TRUNCATE has none."""
        history, rows = self.history, dict[int, dict[str, Any]]()
        columns = list(history.standing[name][0])
        states: list[Rows] = [[]]
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

    def _shown(self, name: str, there: Rows) -> Rows:
        columns = list(self.history.standing[name][0])
        return [{column: row.get(column) for column in columns} for row in sorted(there, key=lambda row: row["id"])]

    def _made(self) -> Changes:
        ops = {"insert": "I", "update": "U", "delete": "D"}
        return {key: [(each.commit_ts, ops[each.op]) for each in made] for key, made in self.history.changes.items()}


def met(tables: dict[str, Rows]) -> Changes:
    """Return what a reader of the changelogs meets of each row, in the order of commits."""
    found: Changes = {}
    for name, rows in tables.items():
        for row in rows:
            found.setdefault((name, row["id"]), []).append((row["_commit_ts"], row["_op"]))
    return found


class LakeWatch(Watch):
    """Remembers what a reader has met, which stays."""

    def __init__(self, world: LakeWorld) -> None:
        super().__init__(world)
        self._lake = world
        self._met: Changes = {}
        self._at: dict[str, int] = {}

    def look(self) -> None:
        super().look()
        if self._lake.mode == "append":
            now = met(self._lake.tables())
            check_changes(self._met, now, whole=False)
            self._met = now
            return
        at = self._lake.at()
        if back := [name for name, was in self._at.items() if at.get(name, -1) < was]:
            raise Broken(f"{back[0]} has gone back")
        self._at = at
