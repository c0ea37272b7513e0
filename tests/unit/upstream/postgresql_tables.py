"""Tables of PostgreSQL: as the catalog has them, and as pgoutput describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from changefeed.schema.table_info import DatabaseInfo, TableInfo
from changefeed.upstream.postgresql.pgoutput.messages import Relation, RelationColumn
from changefeed.upstream.postgresql.schema.catalog import PublishedTables, definition

INT, BIGINT, TEXT = 23, 20, 25


@dataclass(frozen=True)
class Column:
    number: int
    name: str
    type: int = INT
    typmod: int = -1


ID, A, B = Column(1, "id"), Column(2, "a"), Column(3, "b")


@dataclass(frozen=True)
class Table:
    """`key`: names of its primary key's columns."""

    oid: int
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ("id",)
    schema: str = "shop"
    identity: str = "d"

    def having(self, *columns: Column, **more: Any) -> Table:
        return replace(self, columns=columns, **more)

    @property
    def said(self) -> Relation:
        keyed = {"d": set(self.key), "f": {column.name for column in self.columns}}.get(self.identity, set())
        columns = (RelationColumn(each.name, each.type, each.typmod, each.name in keyed) for each in self.columns)
        return Relation(self.oid, self.schema, self.name, self.identity, tuple(columns))

    def info(self, domains: Mapping[int, tuple[int, int]]) -> TableInfo:
        """The catalog's."""
        bases = [domains.get(each.type, (each.type, each.typmod)) for each in self.columns]
        columns = [
            {"number": each.number, "name": each.name, "generated": "", "missing": None, "type": type_, "typmod": mod}
            for each, (type_, mod) in zip(self.columns, bases, strict=True)
        ]
        primary = {
            "id": self.oid + 1,
            "name": "orders_pkey",
            "is_primary": True,
            "is_identity": False,
            "columns": list(self.key),
        }
        return definition(
            {
                "id": self.oid,
                "schema": self.schema,
                "name": self.name,
                "identity": self.identity,
                "published": None,
                "sends_generated": True,
                "columns": columns,
                "indexes": [primary] if self.key else None,
            }
        )


def catalog(
    *tables: Table, domains: Mapping[int, tuple[int, int]] | None = None, parts: tuple[int, ...] = ()
) -> PublishedTables:
    """What the server has now."""
    names = sorted({"shop", *(table.schema for table in tables)})
    databases = tuple(DatabaseInfo(2_200 + number, name, "", "", 5) for number, name in enumerate(names))
    return PublishedTables(
        databases, tuple(table.info(domains or {}) for table in tables), domains or {}, frozenset(parts)
    )
