"""`Coverage`: what a changefeed says about tables and that has no effect on those that are there.

Pure. Tables come and go by DDLs; what is found is of those that are there now. It decides nothing, as a rule may be
ahead of its tables: it is for people, who would see nothing at all otherwise (docs/event-filters.md, Rules that match
nothing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from changefeed.routing.routes import Routes
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import TableInfo
from changefeed.spec.filter.event_types import ALL_DML, ROW_CHANGES
from changefeed.spec.filter.filters import EventFilter
from changefeed.spec.filter.table_filter import TableFilter, TableRule
from changefeed.spec.model import Changefeed

MOST_SAID = 5  # findings that a message has
_LONGEST_RULE = 80


class Why(StrEnum):
    """Reasons of the condition RulesMatch being False, the gravest first."""

    NOTHING_SELECTED = "NothingSelected"
    TABLE_MISSING = "TableMissing"
    MATCHES_NOTHING = "MatchesNothing"
    HIDDEN = "Hidden"
    ALL_IGNORED = "AllIgnored"


@dataclass(frozen=True)
class Findings:
    """What has no effect at one moment, the gravest first, each in a sentence that names the field.

    `idle`: exclusions by wildcard that have nothing to exclude, which is as it should be.
    """

    findings: tuple[tuple[Why, str], ...] = ()
    idle: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        return self.findings[0][0] if self.findings else "AllMatch"

    @property
    def message(self) -> str:
        """It changes only with what is found."""
        if not self.findings:
            also = f" Nothing is there to be excluded by {', '.join(self.idle[:MOST_SAID])}." if self.idle else ""
            return f"Every rule has tables to apply to.{also}"
        said = " ".join(sentence for _, sentence in self.findings[:MOST_SAID])
        more = f" There are {len(self.findings) - MOST_SAID} more." if len(self.findings) > MOST_SAID else ""
        return f"{said}{more} Fix the spec; a table that comes later is captured by itself."


@dataclass(frozen=True)
class _Seen:
    """One table, and which rules and matchers are for it, by their numbers."""

    name: str
    rules: tuple[int, ...]
    is_selected: bool
    has_rows: bool
    matchers: tuple[int, ...]
    is_ignored: bool  # no change of its rows is written


class Coverage:
    """Follows the tables of an upstream, and tells which rules do without any of them."""

    def __init__(self, changefeed: Changefeed, tables: Iterable[TableInfo]) -> None:
        """`tables`: all that the upstream has, selected or not; views as well."""
        spec = changefeed.spec
        self._where = spec.upstream.where
        self._filter = spec.filter.table_filter()
        self._routes = Routes(spec.filter, spec.routes)
        self._matchers = [
            (path, TableFilter(matcher, spec.filter.case_sensitive)) for path, matcher in spec.matchers.items()
        ]
        self._event_filters = [
            (TableFilter(each.matcher, spec.filter.case_sensitive), _ignored_kinds(each))
            for each in spec.filter.event_filters
        ]
        self._found: Findings | None = None  # until a table is another
        self._tables: dict[int, _Seen] = {}
        self._counted: Counter[tuple[str, int]] = Counter()  # by what, and its number: the tables that it has
        self.put_all(tables)

    def put_all(self, tables: Iterable[TableInfo]) -> None:
        """These are there now, and no others."""
        there = {table.id: table for table in tables}
        for table_id in self._tables.keys() - there.keys():
            self.put(table_id, None)
        for table_id, table in there.items():
            self.put(table_id, table)

    def put(self, table_id: int, table: TableInfo | None) -> None:
        """The table is like this now; None: it is gone."""
        self._found = None
        if (before := self._tables.pop(table_id, None)) is not None:
            self._counted.subtract(_counts(before))
        if table is not None and not table.is_sequence:
            now = self._tables[table_id] = self._see(table)
            self._counted.update(_counts(now))

    def follow(self, change: SchemaChange, schema: SchemaHistory) -> None:
        """`change` is applied to `schema`."""
        touched = schema.touches(change)
        for table_id in {table.id for table in (*touched.before, *touched.after)}:
            self.put(table_id, schema.newest(table_id))

    @property
    def found(self) -> Findings:
        """What has no effect now."""
        if self._found is None:
            self._found = self._find()
        return self._found

    def _find(self) -> Findings:
        of_rules = [
            self._finding(number, rule)
            for number, rule in enumerate(self._filter.table_rules)
            if not self._is_idle(number, rule)
        ]
        findings = [*self._whole(), *(each for each in of_rules if each), *self._of_matchers(), *self._ignored()]
        ranks = list(Why)
        idle = [rule.text for number, rule in enumerate(self._filter.table_rules) if self._is_idle(number, rule)]
        return Findings(tuple(sorted(findings, key=lambda each: ranks.index(each[0]))), tuple(idle))

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        again: Counter[tuple[str, int]] = Counter()
        for table in self._tables.values():
            again.update(_counts(table))
        assert again == +self._counted, "what is counted is not what the tables are"

    def _see(self, table: TableInfo) -> _Seen:
        name = table.qualified
        is_selected, written = self._filter.matches(*name), self._routes.name(*name)
        kinds = frozenset[str]().union(*(kinds for matcher, kinds in self._event_filters if matcher.matches(*name)))
        return _Seen(
            table.full_name,
            tuple(number for number, rule in enumerate(self._filter.table_rules) if rule.is_for(*name)),
            is_selected,
            not table.is_view,
            tuple(
                number
                for number, (path, matcher) in enumerate(self._matchers)
                if is_selected and matcher.matches(*(written if path.startswith("spec.sink.") else name))
            ),
            is_selected and not table.is_view and kinds.issuperset(ROW_CHANGES),
        )

    def _is_idle(self, number: int, rule: TableRule) -> bool:
        return not rule.selects and not rule.names_one and not self._counted["rule", number]

    def _whole(self) -> Iterator[tuple[Why, str]]:
        if not self._counted["selected", 0]:
            yield Why.NOTHING_SELECTED, f"spec.filter.rules select none of the tables of {self._where}."

    def _finding(self, number: int, rule: TableRule) -> tuple[Why, str] | None:
        said = f"spec.filter.rules: {_short(rule.text)}"
        if not self._counted["rule", number]:
            if rule.names_one:
                return Why.TABLE_MISSING, f"{said} names a table that is not in {self._where}."
            return Why.MATCHES_NOTHING, f"{said} matches no table of {self._where}."
        if rule.selects and not self._counted["selects", number]:
            return Why.HIDDEN, f"{said} matches tables, and later rules exclude all of them."
        return None

    def _of_matchers(self) -> Iterator[tuple[Why, str]]:
        for number, (path, _) in enumerate(self._matchers):
            if not self._counted["matcher", number] and self._counted["selected", 0]:
                yield Why.MATCHES_NOTHING, f"{path} matches none of the selected tables."

    def _ignored(self) -> Iterator[tuple[Why, str]]:
        if self._counted["ignored", 0]:
            names = sorted(table.name for table in self._tables.values() if table.is_ignored)
            more = f" and {len(names) - MOST_SAID} more" if len(names) > MOST_SAID else ""
            said = f"spec.filter.eventFilters drop every change of rows of {', '.join(names[:MOST_SAID])}{more}."
            yield Why.ALL_IGNORED, said


def _counts(table: _Seen) -> Iterator[tuple[str, int]]:
    """What a table counts for, once each."""
    for number in table.rules:
        yield "rule", number
        if table.is_selected:
            yield "selects", number
    for number in table.matchers:
        yield "matcher", number
    if table.is_selected and table.has_rows:
        yield "selected", 0
    if table.is_ignored:
        yield "ignored", 0


def _ignored_kinds(event_filter: EventFilter) -> frozenset[str]:
    """The kinds of changes of rows that it drops, whatever their values."""
    named = frozenset(event_filter.ignore_event)
    return frozenset(ROW_CHANGES) if ALL_DML in named else named & frozenset(ROW_CHANGES)


def _short(rule: str) -> str:
    return rule if len(rule) <= _LONGEST_RULE else f"{rule[:_LONGEST_RULE]}..."
