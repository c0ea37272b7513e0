"""Under which names tables are written (docs/routes.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from changefeed.spec.field.fields import Flag, many, text
from changefeed.spec.field.kind import rule, wrong
from changefeed.spec.field.section import Section, ruled
from changefeed.spec.filter.filters import Rule
from changefeed.spec.filter.table_filter import SYSTEM_SCHEMAS

_NAME = r"(?:[^{}/\r\n]|\{schema\}|\{table\})+"
_NAME_ALLOWED = "a name of up to 64 characters without /, in which {schema} and {table} stand for the upstream's"
_ONE = "schema, table or both"
_OURS = "no system schema"
_APART = "routes to different tables: the schema and table that another route names already"


_Name = Annotated[str, text(_NAME, _NAME_ALLOWED, 64)]


class Route(Section):
    """Tables that `match` selects are written under another name. The first route that fits a table decides."""

    model_config = ruled(
        rule("has(self.schema) || has(self.table)", _ONE),
        rule(f"!has(self.schema) || !(self.schema.lowerAscii() in {sorted(SYSTEM_SCHEMAS)})", _OURS),
    )

    match: Annotated[tuple[Rule, ...], many(1, 16, "1 to 16 table-filter rules")]
    """Tables this applies to, by their names upstream, in the syntax of `filter.rules`."""
    database: Annotated[_Name | None, Field(alias="schema")] = None
    """Schema to write them to, such as `shop` or `lake_{schema}`. Unset: their own."""
    table: _Name | None = None
    """Table to write them to, such as `orders` or `{schema}_{table}`. Unset: their own name."""

    merge: Flag = False
    """
    Whether several tables may be written to one, as shards are whose keys differ. For sink.mysql without safeMode.
    """

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Route:
        if self.database is None and self.table is None:
            raise wrong(_ONE)
        if self.database is not None and self.database.lower() in SYSTEM_SCHEMAS:
            raise wrong(_OURS)
        return self

    @property
    def target(self) -> tuple[str, str] | None:
        """The one table that it leads to, whatever it is for; None: that depends."""
        if self.database is None or self.table is None or "{" in self.database + self.table:
            return None
        return self.database, self.table


MERGES = "none that merge tables but for sink.mysql without safeMode: no other sink can alter one shard at a time"


def merges_where_it_can() -> JsonDict:
    """CEL of the spec: merged tables need a sink that knows each shard's rows by their keys."""
    merged = "has(self.routes) && self.routes.exists(route, has(route.merge) && route.merge)"
    can = "has(self.sink.mysql) && (!has(self.sink.mysql.safeMode) || !self.sink.mysql.safeMode)"
    return rule(f"!({merged}) || ({can})", MERGES)


def apart() -> JsonDict:
    """CEL of the spec: no two routes lead to one table."""
    is_one = "!has(a.schema) || !has(a.table) || a.schema.contains('{') || a.table.contains('{')"
    same = "self.routes.filter(b, has(b.schema) && has(b.table) && b.schema == a.schema && b.table == a.table)"
    return rule(f"!has(self.routes) || self.routes.all(a, {is_one} || size({same}) == 1)", _APART)


def check_apart(routes: Sequence[Route]) -> None:
    """Raises for two that lead to one table."""
    targets = [route.target for route in routes if route.target is not None]
    if len(set(targets)) != len(targets):
        raise wrong(_APART)
