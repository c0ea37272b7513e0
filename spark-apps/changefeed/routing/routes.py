"""`Routes`: from a table upstream to the one that is written: its name here, its columns by `routing.columns`.

Pure. This is the one place where one becomes the other. Definitions are routed where they leave the schema for the
owner: those with which a run begins (`owner.preparation.prepare`), and those that a DDL brings
(`owner.planning.routed`). The log, the tasks, the sinks and who reads a sink have routed definitions only, and these
say where they come from.

1. *The first route that fits a table decides*, by the name that the upstream has for it.
2. *Only selected tables have another name*: `spec.filter` is asked first, by the upstream's names.
3. *A name may change with a rename upstream*, or stay as it was under a route that says the name outright.
4. *Options of the sink* are for tables as they are written; those of the filter, for tables as the upstream has them.
5. *A definition with other columns has the upstream's within it* (`TableInfo.stored`), by which rows are decoded and
   filtered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from changefeed.routing.columns import Columns
from changefeed.schema.table_info import TableInfo, name_of
from changefeed.spec.filter.filters import Filter
from changefeed.spec.filter.routes import Route
from changefeed.spec.filter.table_filter import TableFilter

Name = tuple[str, str]  # of a database and a table

_PLACES = re.compile(r"\{(schema|table)\}")


@dataclass(frozen=True)
class Routes:
    filter: Filter
    given: tuple[Route, ...] = ()
    columns: Columns = field(default_factory=Columns)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """`config`: the effective resource, of this version or one before."""
        spec = config["spec"]
        given = (Route.model_validate(route) for route in spec.get("routes", ()))
        filter_ = Filter.model_validate(spec["filter"])
        return cls(filter_, tuple(given), Columns.of(spec.get("columns", ()), filter_.case_sensitive))

    def __bool__(self) -> bool:
        return bool(self.given or self.columns.given)

    def selects(self, schema: str, table: str) -> bool:
        """Whether the table, by its name upstream, is one of the changefeed's."""
        return self._rules.matches(schema, table)

    def name(self, schema: str, table: str) -> Name:
        """What a table upstream is written as; its own name, if no route is for it or nobody selects it."""
        if (route := self._route(schema, table)) is None:
            return schema, table
        return _filled(route.database, schema, table, schema), _filled(route.table, schema, table, table)

    def routed(self, table: TableInfo) -> TableInfo:
        """The table as it is written, with the tables that its foreign keys name.

        Raises InvalidSpec for one of which columns can't be written as `spec.columns` asks for.
        """
        if not self or table.source is not None or table.stored is not None:
            return table
        shaped = self.columns.shaped(table) if self._rules.matches(*table.qualified) else table
        raw = self._with_references(shaped) if self.given else shaped.raw
        if (name := self.name(*table.qualified)) == table.qualified:
            return shaped if raw is shaped.raw else replace(shaped, raw=raw)
        return replace(shaped, schema_name=name[0], name=name[1], source=table.qualified, raw=raw)

    def merges(self, table: TableInfo) -> bool:
        """Whether others may be written to the table that it is written to."""
        route = self._route(*table.upstream_name)
        return route is not None and route.merge

    def is_written(self, schema: str, table: str) -> bool:
        """Whether a table of the sink, by its name there, can be one of the changefeed's."""
        if self.name(schema, table) == (schema, table) and self._rules.matches(schema, table):
            return True
        return any(target.is_for(schema, table) for target in self._targets)

    def _route(self, schema: str, table: str) -> Route | None:
        if not self.given or not self._rules.matches(schema, table):
            return None
        return next((route for matcher, route in self._matchers if matcher.matches(schema, table)), None)

    @cached_property
    def _rules(self) -> TableFilter:
        return self.filter.table_filter()

    @cached_property
    def _matchers(self) -> tuple[tuple[TableFilter, Route], ...]:
        return tuple((TableFilter(route.match, self.filter.case_sensitive), route) for route in self.given)

    @cached_property
    def _targets(self) -> tuple[_Destination, ...]:
        return tuple(_Destination.of(route) for route in self.given)

    def _with_references(self, table: TableInfo) -> Mapping[str, Any]:
        """The definition as the upstream stores it, whose foreign keys name tables as they are written."""
        keys = table.raw.get("fk_info")
        if not keys:
            return table.raw
        return {**table.raw, "fk_info": [self._reference(key, table.schema_name) for key in keys]}

    def _reference(self, key: Mapping[str, Any], schema: str) -> dict[str, Any]:
        to = self.name(name_of(key.get("ref_schema")) or schema, name_of(key.get("ref_table")))
        return {**key, "ref_schema": {"O": to[0]}, "ref_table": {"O": to[1]}}


@dataclass(frozen=True)
class _Destination:
    """What a route may lead to, by the names that are not known before there is a table."""

    schema: re.Pattern[str] | None  # None: any
    table: re.Pattern[str] | None

    @classmethod
    def of(cls, route: Route) -> Self:
        return cls(_pattern(route.database), _pattern(route.table))

    def is_for(self, schema: str, table: str) -> bool:
        pairs = ((self.schema, schema), (self.table, table))
        return all(pattern is None or pattern.fullmatch(name) for pattern, name in pairs)


def by_written_name(tables: Iterable[TableInfo]) -> dict[Name, dict[int, TableInfo]]:
    """Routed tables by what they are written to, `folded`, and by their ids."""
    found: dict[Name, dict[int, TableInfo]] = {}
    for table in tables:
        found.setdefault(folded(table.qualified), {})[table.id] = table
    return found


def folded(name: Name) -> Name:
    """Equal for names that are one to a sink."""
    return name[0].lower(), name[1].lower()


def _filled(given: str | None, schema: str, table: str, own: str) -> str:
    if given is None:
        return own
    return _PLACES.sub(lambda place: schema if place[1] == "schema" else table, given)


def _pattern(given: str | None) -> re.Pattern[str] | None:
    if given is None:
        return None
    parts = (".*" if number % 2 else re.escape(part) for number, part in enumerate(_PLACES.split(given)))
    return re.compile("".join(parts), re.DOTALL | re.IGNORECASE)
