"""Which tables, which of their changes, and which of their columns: TiCDC's `[filter]` and its column selectors.

See docs/event-filters.md. SQL conditions are texts here: what they may say depends on the tables (`filter/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, model_validator

from changefeed.spec.field.fields import Flag, Ts, many, one_of, text
from changefeed.spec.field.kind import RULES, FieldKind, rule, wrong
from changefeed.spec.field.section import Section
from changefeed.spec.filter.event_types import EVENT_TYPES
from changefeed.spec.filter.go_regex import BadRegex, GoRegex
from changefeed.spec.filter.table_filter import BadRule, ColumnFilter, TableFilter

_RULE = "a table-filter rule such as shop.* or !shop.tmp_*"
_COLUMN = "a column rule such as * or !secret_*"
_REGEX = "a regular expression"


def _one(check: Callable[[str], object], allowed: str) -> AfterValidator:
    """Refuses a text that `check` can't take."""

    def checked(line: str) -> str:
        try:
            check(line)
        except (BadRule, BadRegex) as e:
            raise wrong(f"{allowed}; {e}") from e
        return line

    return AfterValidator(checked)


_LINE = FieldKind(None, {RULES: [rule("self.matches('^[ \\t]*(#|$)') || self.contains('.')", _RULE)]})
Rule = Annotated[
    str, _one(lambda line: TableFilter((line,)), _RULE), text(r"[^\r\n]*", f"{_RULE}, on one line", 512), _LINE
]
ColumnRule = Annotated[
    str, _one(lambda line: ColumnFilter((line,)), _COLUMN), text(r"[^\r\n]+", f"{_COLUMN}, on one line", 256)
]
_Regex = Annotated[str, _one(GoRegex, _REGEX), text(r"[\s\S]+", _REGEX, 1024)]
_Condition = Annotated[str, text(r"[\s\S]*\S[\s\S]*", "a SQL condition", 1024)]
_Name = Annotated[str, text(r"[^\r\n]+", "the name of a column", 64)]

_MATCHER = many(1, 64, "1 to 64 table-filter rules")


class EventFilter(Section):
    """Changes of the tables that `matcher` selects are dropped when one of the others fits."""

    matcher: Annotated[tuple[Rule, ...], _MATCHER]
    """Tables this applies to, in the syntax of `rules`."""
    ignore_event: Annotated[
        tuple[Annotated[str, one_of(*EVENT_TYPES)], ...], many(0, 64, "at most 64 event types")
    ] = ()
    """
    Kinds of changes; `alter table` covers every DDL of that form. An ignored DDL still changes the schema that rows are
    read with.
    """
    ignore_sql: Annotated[tuple[_Regex, ...], many(0, 64, "at most 64 regular expressions")] = ()
    """Regular expressions matched against a DDL's text, ignoring case."""
    ignore_insert_value_expr: _Condition | None = None
    """SQL condition on the inserted row."""
    ignore_update_new_value_expr: _Condition | None = None
    """SQL condition on the new row of an update."""
    ignore_update_old_value_expr: _Condition | None = None
    """SQL condition on the old row of an update."""
    ignore_delete_value_expr: _Condition | None = None
    """SQL condition on the deleted row."""
    ignore_update_only_columns: Annotated[tuple[_Name, ...], many(0, 64, "at most 64 columns")] = ()
    """Drop updates that change only these columns. A change of a key is never dropped."""


class Filter(Section):
    case_sensitive: Flag = False
    """Whether rules and matchers treat `A.b` and `a.b` as different tables."""
    rules: Annotated[tuple[Rule, ...], many(1, 1024, '1 to 1024 rules; ["*.*"] selects every table')] = ("*.*",)
    """TiDB's table filter: `schema.table` with wildcards; `!` excludes; the last matching rule wins."""
    event_filters: Annotated[tuple[EventFilter, ...], many(0, 32, "at most 32 event filters")] = ()
    """Which changes to the selected tables to drop (docs/event-filters.md)."""
    ignore_txn_start_ts: Annotated[tuple[Ts, ...], many(0, 1024, "at most 1024 ts")] = ()
    """Transactions to drop, by start ts."""

    @model_validator(mode="before")
    @classmethod
    def _of_before(cls, given: object) -> object:
        """Logs of before have `events`, always empty: there were no event filters yet."""
        if isinstance(given, dict) and given.get("events") == []:
            return {name: value for name, value in given.items() if name != "events"}
        return given

    def table_filter(self) -> TableFilter:
        return TableFilter(self.rules, self.case_sensitive)


class ColumnSelector(Section):
    """Which columns of the tables that `matcher` selects are written."""

    matcher: Annotated[tuple[Rule, ...], _MATCHER]
    """Tables this applies to, in the syntax of `filter.rules`."""
    columns: Annotated[tuple[ColumnRule, ...], many(1, 64, "1 to 64 column rules")]
    """Column names with wildcards; `!` excludes; the last matching rule wins. A key must remain."""
