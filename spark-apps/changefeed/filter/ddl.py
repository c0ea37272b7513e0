"""Which DDLs are not handed on, by kind and by text, as TiCDC decides it (docs/event-filters.md).

A DDL that is ignored still changes the definitions that later rows are decoded with: it is only not written.
"""

from __future__ import annotations

from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.ddl.ddls import DDLS
from changefeed.spec.filter.event_types import ALL_DDL, ALTER_TABLE
from changefeed.spec.filter.event_types import DDLS as DDLS_BY_NAME
from changefeed.spec.filter.filters import EventFilter, Filter
from changefeed.spec.filter.go_regex import GoRegex
from changefeed.spec.filter.table_filter import TableFilter

_ADD_FULLTEXT_INDEX, _CREATE_HYBRID_INDEX = 230, 231  # of newer TiDBs
_EVENT_TYPES: dict[int, str] = {
    **{type_: ddl.event_type for type_, ddl in DDLS.items()},
    _ADD_FULLTEXT_INDEX: "add fulltext index",
    _CREATE_HYBRID_INDEX: "create hybrid index",
}
_ALIASES = {"create schema": "create database", "drop schema": "drop database"}
#: Beside these, whatever changes a table in place is ALTER TABLE; foreign keys and the newer indexes are not to TiCDC.
_NOT_ALTER_TABLE = frozenset(
    {
        "create database",
        "drop database",
        "modify schema charset and collate",
        "create table",
        "drop table",
        "truncate table",
        "recover table",
        "create view",
        "drop view",
        "add foreign key",
        "drop foreign key",
        "add fulltext index",
        "create hybrid index",
    }
)


def ignores_ddl(spec: Filter, change: SchemaChange, schema: str, table: str) -> bool:
    """Whether a DDL change is not handed on. `table` "" is a DDL of the schema; of several tables, ask for each.

    One of a type that TiCDC has no name for is never ignored by it or by its text.
    """
    if change.start_ts in spec.ignore_txn_start_ts:
        return True
    event_type = _EVENT_TYPES.get(change.type)
    if not event_type:
        return False
    return any(
        _is_about(rule, spec.case_sensitive, schema, table) and _ignores(rule, event_type, change.query)
        for rule in spec.event_filters
    )


def leaves_ddls_out(spec: Filter) -> bool:
    """Whether some DDL, of whatever table, may not be handed on."""
    kinds = {*DDLS_BY_NAME, ALL_DDL, ALTER_TABLE}
    rules = spec.event_filters
    return bool(spec.ignore_txn_start_ts) or any(rule.ignore_sql or kinds & {*rule.ignore_event} for rule in rules)


def _is_about(rule: EventFilter, case_sensitive: bool, schema: str, table: str) -> bool:
    matcher = TableFilter(rule.matcher, case_sensitive)
    return matcher.matches(schema, table) if table else matcher.matches_schema(schema)


def _ignores(rule: EventFilter, event_type: str, query: str) -> bool:
    named = {_ALIASES.get(name, name) for name in rule.ignore_event}
    if named & {event_type, ALL_DDL} or (ALTER_TABLE in named and event_type not in _NOT_ALTER_TABLE):
        return True
    return any(GoRegex("(?i)" + pattern).is_in(query) for pattern in rule.ignore_sql)
