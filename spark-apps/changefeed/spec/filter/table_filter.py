"""TiDB's table-filter rules: which tables a changefeed is about (https://docs.pingcap.com/tidb/stable/table-filter).

Rules are `schema.table` patterns with wildcards, quoted names or /regular expressions/; the last rule that matches
decides, and a table that none matches is left out. No rule can ever select a system schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from changefeed.spec.filter.go_regex import BadRegex, GoRegex

SYSTEM_SCHEMAS = frozenset(
    {
        "mysql",
        "information_schema",
        "performance_schema",
        "metrics_schema",
        "inspection_schema",
        "sys",
        "tidb_cdc",
        "lightning_task_info",
        "workload_schema",
    }
)

_NAME_CHARACTER = re.compile(r"[0-9A-Za-z$_\u0080-\U0010ffff]")
_QUOTED = {'"': re.compile(r'"((?:""|[^"])+)"'), "`": re.compile(r"`((?:``|[^`])+)`")}
_REGEX = re.compile(r"/((?:\\.|[^/\\])+)/")
_CLASS = re.compile(r"\[(!?+)((?:\\[^0-9A-Za-z]|[^\\\]])+)\]")
_SPECIAL = re.compile(r"[!-/:;=?@\[-^`{-~]")


class BadRule(ValueError):
    """`rule` is not a table-filter rule; `column` counts from 1."""

    def __init__(self, rule: str, column: int, why: str) -> None:
        super().__init__(rule, column, why)
        self.rule = rule
        self.column = column
        self.why = why

    def __str__(self) -> str:
        return f"column {self.column}: {self.why}"


@dataclass(frozen=True)
class TableRule:
    """One rule. `names_one`: it is a table's name, without a wildcard or an expression."""

    text: str
    schema: GoRegex
    table: GoRegex
    selects: bool
    is_for_all_tables: bool
    names_one: bool

    def is_for(self, schema: str, table: str) -> bool:
        """Tell whether it says something of the table, whichever rule decides."""
        return self.schema.is_in(schema) and self.table.is_in(table)


class TableFilter:
    """Decides by name whether a table is selected.

    Raises BadRule for the first rule that is none.
    """

    def __init__(self, rules: Iterable[str], case_sensitive: bool = False) -> None:
        self.rules = tuple(rules)
        self.case_sensitive = case_sensitive
        parsed = (_parse(rule, case_sensitive) for rule in self.rules)
        self.table_rules = tuple(rule for rule in parsed if rule)
        self._latest_first = self.table_rules[::-1]

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.rules, self.case_sensitive))

    def matches(self, schema: str, table: str) -> bool:
        """Tell whether `schema`.`table` is selected."""
        if schema.lower() in SYSTEM_SCHEMAS:
            return False
        for rule in self._latest_first:
            if rule.is_for(schema, table):
                return rule.selects
        return False

    def matches_schema(self, schema: str) -> bool:
        """Tell whether some table of the schema may be selected."""
        if schema.lower() in SYSTEM_SCHEMAS:
            return False
        for rule in self._latest_first:
            if rule.schema.is_in(schema) and (rule.selects or rule.is_for_all_tables):
                return rule.selects
        return False


class ColumnFilter:
    """Decides by name whether a column is selected: rules as a table's pattern, capital and small letters the same.

    Raises BadRule for the first rule that is none.
    """

    def __init__(self, rules: Iterable[str]) -> None:
        parsed = (_parse_column(rule) for rule in rules)
        self._latest_first = tuple(rule for rule in parsed if rule)[::-1]

    def matches(self, column: str) -> bool:
        return next((selects for name, selects in self._latest_first if name.is_in(column)), False)


def _parse_column(rule: str) -> tuple[GoRegex, bool] | None:
    """None for a blank line or a comment."""
    parser = _begin(rule, case_sensitive=False)
    if parser is None:
        return None
    selects = not parser.take("!")
    name = parser.pattern("column")
    if not parser.at_end:
        raise parser.bad("nothing may follow the column's pattern")
    return name, selects


def _begin(rule: str, case_sensitive: bool) -> _Parser | None:
    """At the first character; None for a blank line or a comment."""
    text = rule.strip(" \t")
    if not text or text.startswith("#"):
        return None
    if text.startswith("@"):
        raise BadRule(rule, rule.index("@") + 1, "rules can't be imported from a file; write them into the list")
    return _Parser(rule, rule.index(text), len(rule.rstrip(" \t")), case_sensitive)


def _parse(rule: str, case_sensitive: bool) -> TableRule | None:
    """None for a blank line or a comment."""
    parser = _begin(rule, case_sensitive)
    if parser is None:
        return None
    selects = not parser.take("!")
    schema = parser.pattern("schema")
    if not parser.take("."):
        raise parser.bad("missing '.' between schema and table")
    start = parser.at
    table = parser.pattern("table")
    if not parser.at_end:
        raise parser.bad("nothing may follow the table's pattern")
    is_for_all_tables = rule[start : parser.at] == "*"
    return TableRule(rule.strip(" \t"), schema, table, selects, is_for_all_tables, parser.is_exact)


class _Parser:
    def __init__(self, rule: str, at: int, end: int, case_sensitive: bool) -> None:
        self.rule = rule
        self.at = at
        self.end = end
        self.fold = "" if case_sensitive else "(?i)"
        self.is_exact = True  # what was read so far fits one text only, capital and small letters aside

    @property
    def at_end(self) -> bool:
        return self.at >= self.end

    def bad(self, why: str) -> BadRule:
        return BadRule(self.rule, self.at + 1, why)

    def take(self, character: str) -> bool:
        found = not self.at_end and self.rule[self.at] == character
        self.at += found
        return found

    def pattern(self, what: str) -> GoRegex:
        """The next pattern; `at` moves behind it."""
        if self.at_end or self.rule[self.at] == ".":
            raise self.bad(f"missing {what} pattern")
        first = self.rule[self.at]
        if first == "/":
            return self._regex()
        if first in _QUOTED:
            return self._quoted(first)
        return self._wildcards()

    def _regex(self) -> GoRegex:
        match = _REGEX.match(self.rule, self.at, self.end)
        if not match:
            raise self.bad("regular expression without its closing '/'")
        self.is_exact = False
        compiled = self._compile(self.fold + match[1])
        self.at = match.end()
        return compiled

    def _quoted(self, quote: str) -> GoRegex:
        match = _QUOTED[quote].match(self.rule, self.at, self.end)
        if not match:
            raise self.bad(f"quoted name without its closing {quote}")
        name = match[1].replace(quote * 2, quote)
        compiled = self._compile(f"(?s){self.fold}^{_literal(name)}$")
        self.at = match.end()
        return compiled

    def _wildcards(self) -> GoRegex:
        start, parts = self.at, []
        while not self.at_end and self.rule[self.at] != ".":
            parts.append(self._wildcard(self.rule[self.at]))
        end, self.at = self.at, start
        compiled = self._compile(f"(?s){self.fold}^{''.join(parts)}$")
        self.at = end
        return compiled

    def _wildcard(self, character: str) -> str:
        self.is_exact &= character not in "*?["
        if character == "[":
            match = _CLASS.match(self.rule, self.at, self.end)
            if not match:
                raise self.bad("'[' starts a set of characters that is empty, not closed, or escapes a letter or digit")
            members = "\\" + match[2] if match[2].startswith("^") else match[2]
            self.at = match.end()
            return "[" + match[1].replace("!", "^") + members + "]"
        if character == "\\":
            return self._escaped()
        if character not in "*?" and not _NAME_CHARACTER.match(character):
            raise self.bad(f"unexpected {character!r}; quote the name with ` or write \\{character}")
        self.at += 1
        return {"*": ".*", "?": "."}.get(character) or _literal(character)

    def _escaped(self) -> str:
        if self.at + 1 >= self.end:
            raise self.bad("nothing follows '\\'")
        escaped = self.rule[self.at + 1]
        if escaped.isascii() and escaped.isalnum():
            raise self.bad(f"'\\{escaped}' is reserved; only punctuation can be escaped")
        self.at += 2
        return _literal(escaped)

    def _compile(self, pattern: str) -> GoRegex:
        try:
            return GoRegex(pattern)
        except BadRegex as error:
            raise self.bad(str(error)) from error


def _literal(text: str) -> str:
    """A pattern that matches `text` only."""
    return _SPECIAL.sub(r"\\\g<0>", text)
