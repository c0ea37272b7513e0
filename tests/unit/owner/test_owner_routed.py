"""What DDLs are for tables that are written under other names, told in testdata/routed/*.txt.

    routes YAML | columns YAML     `spec.routes`, `spec.columns`, before the first DDL; all of the tables are selected
    tables NAME ...                those with which the run begins; databases come with them
    create NAME [COLUMN] | drop NAME | truncate NAME | rename NAME NAME | swap NAME NAME | index NAME
    add NAME COLUMN[!] | drop-column NAME COLUMN       `!`: NOT NULL
    rename-column NAME COLUMN COLUMN | widen NAME COLUMN TYPE    it gets another type, an id of its own
    create-database NAME | drop-database NAME | view NAME of NAME
    ignore                         an event filter keeps the next DDL from readers
    restart                        another driver begins with the tables as they are

Each DDL prints who is told what; and what is refused, why. A refused DDL ends the run: nothing has come of it.
"""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import datadriven
import pytest
import yaml
from changefeed.errors import NeedsHuman
from changefeed.owner.planning.routed import RoutedDdls
from changefeed.owner.planning.timeline import Timeline
from changefeed.routing.routes import Routes
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import Rename, SchemaChange
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import DatabaseInfo, TableInfo, parse_table_info
from changefeed.sink.contract import Ddl

STORIES = sorted((Path(__file__).parent / "testdata" / "routed").glob("*.txt"))
BIGINT, NOT_NULL, PRI = 8, 1, 2


def column(id_: int, name: str, flag: int = 0) -> dict[str, Any]:
    type_ = {"Tp": BIGINT, "Flag": flag, "Flen": 20, "Decimal": 0, "Charset": "binary", "Collate": "binary"}
    return {"id": id_, "name": {"O": name}, "offset": id_ - 1, "type": type_, "state": 5}


class Story:
    def __init__(self) -> None:
        self.ids, self.ts = count(1), 100
        self.databases: dict[str, int] = {}
        self.raw: dict[str, dict[str, Any]] = {}  # by name, as the upstream defines it
        self.given: dict[str, Any] = {}
        self.routes = self._routes()
        self.ignored = False
        self.begin()

    def run(self, command: str) -> str:
        name, _, rest = command.partition(" ")
        said = getattr(self, "do_" + name.replace("-", "_"))(rest)
        self.routed.check()
        return str(said or "")

    def begin(self) -> None:
        databases = [DatabaseInfo(id_, name, "", "", 5) for name, id_ in self.databases.items()]
        self.schema = SchemaHistory(self.ts, databases, map(self.info, self.raw))
        there = [self.routes.routed(table) for table in self.schema.tables_at(self.ts) if not table.is_view]
        ids = [table.id for table in there]
        self.timeline = Timeline(lambda *name: True, lambda name: True, lambda *ddl: self.ignored, ids)
        self.routed = RoutedDdls(self.routes, there)

    def info(self, name: str) -> TableInfo:
        return parse_table_info(self.raw[name], name.partition(".")[0])

    def do_routes(self, given: str) -> None:
        self.given["routes"] = yaml.safe_load(given)
        self.routes = self._routes()
        self.begin()

    def do_columns(self, given: str) -> None:
        self.given["columns"] = yaml.safe_load(given)
        self.routes = self._routes()
        self.begin()

    def do_tables(self, names: str) -> None:
        for name in names.split():
            self._made(name)
        self.begin()

    def do_ignore(self, _: str) -> None:
        self.ignored = True

    def do_restart(self, _: str) -> None:
        self.begin()

    def do_create(self, given: str) -> str:
        name, _, more = given.partition(" ")
        if (database := name.partition(".")[0]) not in self.databases:
            self.databases[database] = next(self.ids)
            made = DatabaseInfo(self.databases[database], database, "", "", 5)
            self.ts += 1
            self.schema.apply(SchemaChange(id=self.ts, type=Action.CREATE_SCHEMA, database_info=made), self.ts)
        info = self._made(name, *([more] if more else []))
        return self._ddl(Action.CREATE_TABLE, name, info)

    def do_drop(self, name: str) -> str:
        gone = self.raw.pop(name)
        return self._ddl(Action.DROP_TABLE, name, None, table_id=gone["id"])

    def do_truncate(self, name: str) -> str:
        before = self.raw[name]["id"]
        self.raw[name] = {**self.raw[name], "id": next(self.ids)}
        return self._ddl(Action.TRUNCATE_TABLE, name, self.info(name), table_id=before)

    def do_rename(self, names: str) -> str:
        old, new = names.split()
        self.raw[new] = {**self.raw.pop(old), "name": {"O": new.partition(".")[2]}}
        return self._ddl(Action.RENAME_TABLE, new, self.info(new))

    def do_swap(self, names: str) -> str:
        one, other = names.split()
        pairs = ((one, other), (other, one))
        between = f"{one.partition('.')[0]}.between"
        self.raw |= {to: {**self.raw[of], "name": {"O": to.partition(".")[2]}} for of, to in pairs}
        self.raw[between] = {**self.raw[other], "name": {"O": "between"}}
        infos = tuple(map(self.info, (between, one, other)))
        del self.raw[between]
        made = [Rename(i.id, self.databases[i.schema_name], i.schema_name, i.name) for i in infos]
        return self._ddl(Action.RENAME_TABLES, one, None, table_infos=infos, renames=tuple(made))

    def do_add(self, given: str) -> str:
        name, added = given.split()
        flag = NOT_NULL if added.endswith("!") else 0
        cols = self.raw[name]["cols"]
        self.raw[name] = {**self.raw[name], "cols": [*cols, column(len(cols) + 1, added.rstrip("!"), flag)]}
        return self._ddl(Action.ADD_COLUMN, name, self.info(name))

    def do_drop_column(self, given: str) -> str:
        name, gone = given.split()
        kept = [each for each in self.raw[name]["cols"] if each["name"]["O"] != gone]
        self.raw[name] = {**self.raw[name], "cols": kept}
        return self._ddl(Action.DROP_COLUMN, name, self.info(name))

    def do_rename_column(self, given: str) -> str:
        name, old, new = given.split()
        cols = [each | {"name": {"O": new}} if each["name"]["O"] == old else each for each in self.raw[name]["cols"]]
        self.raw[name] = {**self.raw[name], "cols": cols}
        return self._ddl(Action.MODIFY_COLUMN, name, self.info(name))

    def do_widen(self, given: str) -> str:
        name, of, type_ = given.split()
        types = {"int": 3, "varchar": 15}
        new = {"Tp": types[type_], "Flag": 0, "Flen": 10, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
        cols = [
            each | {"id": 90 + each["id"], "type": new} if each["name"]["O"] == of else each
            for each in self.raw[name]["cols"]
        ]
        self.raw[name] = {**self.raw[name], "cols": cols}
        return self._ddl(Action.MODIFY_COLUMN, name, self.info(name))

    def do_index(self, name: str) -> str:
        index = {"id": 1, "idx_name": {"O": "by_id"}, "idx_cols": [{"name": {"O": "id"}, "length": -1}], "state": 5}
        self.raw[name] = {**self.raw[name], "index_info": [index]}
        return self._ddl(Action.ADD_INDEX, name, self.info(name))

    def do_view(self, given: str) -> str:
        name, _, of = given.split()
        database, _, table = of.partition(".")
        self._made(name)
        self.raw[name]["view"] = {"view_select": f"SELECT `id` FROM `{database}`.`{table}`"}
        return self._ddl(Action.CREATE_VIEW, name, self.info(name))

    def do_create_database(self, name: str) -> str:
        self.databases[name] = id_ = next(self.ids)
        return self._ddl(Action.CREATE_SCHEMA, name + ".", None, database_info=DatabaseInfo(id_, name, "", "", 5))

    def do_drop_database(self, name: str) -> str:
        self.raw = {each: raw for each, raw in self.raw.items() if each.partition(".")[0] != name}
        return self._ddl(Action.DROP_SCHEMA, name + ".", None)

    def _routes(self) -> Routes:
        return Routes.of({"spec": {"filter": {"rules": ["*.*"]}, **self.given}})

    def _made(self, name: str, *more: str) -> TableInfo:
        database, _, table = name.partition(".")
        self.databases.setdefault(database, next(self.ids))
        cols = [column(1, "id", NOT_NULL | PRI), *(column(n, each) for n, each in enumerate(more, 2))]
        self.raw[name] = {"id": next(self.ids), "name": {"O": table}, "cols": cols, "pk_is_handle": True, "state": 5}
        return self.info(name)

    def _ddl(self, action: Action, name: str, info: TableInfo | None, **more: Any) -> str:
        self.ts += 1
        given = {"table_info": info, "table_id": info.id if info else 0} | more
        change = SchemaChange(
            id=self.ts, type=action, query=action.name, schema_id=self.databases[name.partition(".")[0]], **given
        )
        self.schema.apply(change, self.ts)
        ddl = self.timeline.follow(change, self.ts, self.schema.touches(change))
        self.ignored = False
        assert ddl is not None, "all is selected"
        before = copy.copy(self.routed)
        try:
            return _told(self.routed.ddl(ddl))
        except NeedsHuman as refused:
            self.routed = before
            return f"refused: {refused.message}\nnext: {refused.next_step}"


def _told(ddl: Ddl) -> str:
    names = sorted({table.full_name for table in ddl.tables.values()})
    lines = [f"written: {', '.join(names) or 'nothing more'}", f"told: {(ddl.is_told and ddl.query) or 'nothing'}"]
    assert ddl.is_told == any(notice.with_statement for notice in ddl.notices) or not ddl.query
    assert all(notice.table is None or notice.database == notice.table.schema_name for notice in ddl.notices)
    return "\n".join(lines)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path, rewrite: bool) -> None:
    datadriven.play(story, datadriven.each(Story().run), rewrite)


def test_without_routes_a_ddl_stays_the_same_object() -> None:
    story = Story()
    ddl = replace(Ddl(1, 1), query="DROP TABLE a")
    assert story.routed.ddl(ddl) is ddl


_WAYS = """[
  {match: ["shop_*.orders"], schema: m, table: orders, merge: true},
  {match: ["crm.*"], schema: w, table: "{table}"},
  {match: ["*.*"], schema: w, table: "{table}_{schema}"}
]"""
_NAMES = [f"{database}.{name}" for database in ("shop_1", "shop_2", "crm") for name in ("orders", "a", "a_shop_1")]


def _done(told: str, tables: set[str]) -> None:
    """A statement is executed by a server that has these tables."""
    verb, _, rest = told.partition(" TABLE ")
    names = re.findall(r"`(\w+)`\.`(\w+)`", rest)
    names = [".".join(each) for each in (names if verb == "RENAME" else names[:1])]
    if verb == "CREATE":
        assert names[0] not in tables, told
        tables.add(names[0])
        return
    for old, new in zip(names[::2], names[1::2] if verb == "RENAME" else names, strict=True):
        assert old in tables, told
        if verb in ("RENAME", "DROP"):
            tables.remove(old)
        if verb == "RENAME":
            assert new not in tables, told
            tables.add(new)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_told_a_server_has_the_tables_that_are_written_and_no_two_in_one(seed: int) -> None:
    """Random DDLs, restarts between them, up to the first that is refused: what it would have done is not told."""
    draw, story = Random(seed), Story()
    story.databases = {"shop_1": 1001, "shop_2": 1002, "crm": 1003}
    story.do_routes(_WAYS)
    server: set[str] = set()
    for _ in range(25):
        there, free = sorted(story.raw), sorted(set(_NAMES) - story.raw.keys())
        ways = ["restart", *(["create"] * 2 if free else []), *(["drop", "truncate", "add", "rename"] if there else [])]
        match draw.choice(ways):
            case "restart":
                command = "restart"
            case "create":
                command = f"create {draw.choice(free)}"
            case "rename" if free:
                command = f"rename {draw.choice(there)} {draw.choice(free)}"
            case "add":
                command = f"add {draw.choice(there)} c{draw.randrange(3)}"
                if command.split()[2] in [each["name"]["O"] for each in story.raw[command.split()[1]]["cols"]]:
                    continue
            case way:
                command = f"{'drop' if way == 'rename' else way} {draw.choice(there)}"
        said = story.run(command)
        if said.startswith("refused"):
            return
        if (told := said.partition("told: ")[2]) not in ("", "nothing"):
            _done(told, server)
        assert server == {".".join(story.routes.name(*name.split("."))) for name in story.raw}, command
