"""What the rules of a changefeed have no effect on, told in testdata/*.txt.

spec FIELD: YAML ...           a changefeed of these fields of `spec.filter`, and of the tables that are there
on FIELD: YAML ...             the same, with this sink
postgresql                     the upstream is a publication
table NAME ... | view NAME     they are there now
drop NAME ...                  they are gone
found                          the condition's reason, and what it says
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datadriven
import pytest
import yaml
from changefeed.filter.coverage import MOST_SAID, Coverage
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import DatabaseInfo, TableInfo, parse_table_info
from changefeed.spec.parse import parse

STORIES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))
TIKV = {"pdAddresses": ["http://127.0.0.1:2379"]}
POSTGRESQL = {"postgresql": {"host": "db", "database": "shop", "credentials": {"secretRef": {"name": "reader"}}}}
FILES = {"storage": {"uri": "s3://lake/orders", "protocol": "canal-json"}}


def table(id_: int, name: str, **more: Any) -> TableInfo:
    schema, _, called = name.partition(".")
    return parse_table_info({"id": id_, "name": {"O": called}, "state": 5, **more}, schema)


def coverage(filter_: dict[str, Any], sink: dict[str, Any], upstream: dict[str, Any], *tables: TableInfo) -> Coverage:
    spec = {"upstream": upstream, "filter": filter_, "sink": sink}
    metadata = {"name": "orders", "namespace": "shop"}
    resource = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": metadata, "spec": spec}
    return Coverage(parse(yaml.safe_dump(resource)), tables)


class Told:
    def __init__(self) -> None:
        self.filter: dict[str, Any] = {}
        self.sink: dict[str, Any] = FILES
        self.upstream: dict[str, Any] = TIKV
        self.tables: dict[str, TableInfo] = {}
        self.ids = iter(range(1, 1000))
        self.coverage = coverage(self.filter, self.sink, self.upstream)

    def run(self, command: str) -> str:
        name, _, rest = command.partition(" ")
        said = str(getattr(self, f"do_{name}")(rest) or "")
        self.coverage.check()
        return said

    def do_spec(self, fields: str) -> None:
        self.filter = yaml.safe_load(f"{{{fields}}}")
        self._again()

    def do_on(self, fields: str) -> None:
        self.sink = yaml.safe_load(f"{{{fields}}}")
        self._again()

    def do_postgresql(self, _: str) -> None:
        self.upstream = POSTGRESQL
        self._again()

    def do_table(self, names: str) -> None:
        for name in names.split():
            self._put(name, table(next(self.ids), name))

    def do_view(self, name: str) -> None:
        self._put(name, table(next(self.ids), name, view={}))

    def do_drop(self, names: str) -> None:
        for name in names.split():
            self.coverage.put(self.tables.pop(name).id, None)

    def do_found(self, _: str) -> str:
        found = self.coverage.found
        return f"{found.reason}: {found.message}"

    def _put(self, name: str, made: TableInfo) -> None:
        self.tables[name] = made
        self.coverage.put(made.id, made)

    def _again(self) -> None:
        self.coverage = coverage(self.filter, self.sink, self.upstream, *self.tables.values())


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path, rewrite: bool) -> None:
    datadriven.play(story, datadriven.each(Told().run), rewrite)


def test_tables_that_come_and_go_by_ddls_are_followed() -> None:
    schema = SchemaHistory(1, [DatabaseInfo(1, "shop", "", "", 5)], [table(1, "shop.a")])
    there = coverage({"rules": ["shop.a", "shop.b"]}, FILES, TIKV, *schema.tables_at(1))
    assert there.found.reason == "TableMissing"
    for change, reason in (
        (SchemaChange(id=2, type=Action.CREATE_TABLE, schema_id=1, table_id=2, table_info=table(2, ".b")), "AllMatch"),
        (SchemaChange(id=3, type=Action.DROP_TABLE, schema_id=1, table_id=1), "TableMissing"),
        (SchemaChange(id=4, type=Action.DROP_SCHEMA, schema_id=1), "NothingSelected"),
    ):
        schema.apply(change, change.id)
        there.follow(change, schema)
        there.check()
        assert there.found.reason == reason, change


def test_what_is_looked_at_anew_is_as_what_was_followed() -> None:
    there = coverage({"rules": ["shop.a", "shop.b"]}, FILES, POSTGRESQL, table(1, "shop.a"), table(2, "shop.c"))
    there.put_all([table(3, "shop.b"), table(2, "shop.a")])
    there.check()
    assert there.found.reason == "AllMatch"


def test_a_message_has_a_bound() -> None:
    rules = [f"shop.{'t' * 200}{number}" for number in range(MOST_SAID + 3)]
    found = coverage({"rules": rules}, FILES, TIKV, table(1, "shop.a")).found
    assert len(found.findings) == len(rules) + 1
    assert "There are 4 more." in found.message
    assert len(found.message) < 1024
