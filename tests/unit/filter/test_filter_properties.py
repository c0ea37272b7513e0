"""Conditions over whole columns give what a reading of SQL row by row gives, with its three truth values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from filter_rows import holds
from hypothesis import given, settings
from hypothesis import strategies as st

Row = Mapping[str, Any]
Meaning = Callable[[Row], Any]  # None is NULL


@dataclass(frozen=True)
class Sql:
    """SQL and what it means for one row."""

    text: str
    of: Meaning


WORDS = ["", "a", "A", "b ", "5", " 7x", "-1.5", "é", "e"]
NUMBERS = {
    "i": st.sampled_from([None, 0, 1, -1, 5, 7, (1 << 63) - 1, -(1 << 63)]),
    "u": st.sampled_from([None, 0, 1, 5, (1 << 63) + 1, (1 << 64) - 1]),
    "d": st.sampled_from([None, "0.00", "1.50", "-1.50", "5.00", "99999999.99"]),
    "f": st.sampled_from([None, 0.0, 0.5, -1.5, 5.0, 1e18]),
}
ROWS = st.fixed_dictionaries(NUMBERS | dict.fromkeys("sg", st.sampled_from([None, *WORDS])))


def exact(value: Any) -> Fraction | float | None:
    """A number as SQL compares it: a text by the number that it begins with."""
    if isinstance(value, str):
        found = re.match(r"\s*[+-]?(\d+\.?\d*|\.\d+)", value)
        return Fraction(found[0].strip()) if found else Fraction(0)
    return None if value is None else Fraction(value)


def number(name: str) -> Sql:
    decimal = name == "d"
    return Sql(name, lambda row: Decimal(row[name]) if decimal and row[name] is not None else row[name])


def constant(text: str, value: Any) -> Sql:
    return Sql(text, lambda row: value)


NUMERIC = [*map(number, NUMBERS), Sql("s", lambda row: row["s"])]
CONSTANTS = [
    *(constant(str(n), n) for n in (0, 1, -1, 5, 1 << 63)),
    *(constant(n, Decimal(n)) for n in ("1.5", "-1.5", "0.25")),
    *(constant(f"'{text}'", text) for text in ("5", "1.5x")),
    constant("NULL", None),
]
TEXTS = {
    "s": lambda text: text.rstrip(" "),
    "g": lambda text: text.rstrip(" ").upper().replace("É", "E"),
}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def in_doubles(*sides: Any) -> bool:
    """A double, or the text of a column beside a number, takes all into doubles."""
    return any(isinstance(side, float) for side in sides)


def compare(operator: str, left: Any, right: Any, doubles: bool) -> bool | None:
    if operator == "<=>" and None in (left, right):
        return left is right
    if None in (left, right):
        return None
    one, other = exact(left), exact(right)
    if doubles or in_doubles(left, right):
        one, other = float(one or 0), float(other or 0)
    return OPERATORS["=" if operator == "<=>" else operator](one, other)


@st.composite
def of_numbers(draw: st.DrawFn) -> Sql:
    operator = draw(st.sampled_from([*OPERATORS, "<=>"]))
    sides = [draw(st.sampled_from(NUMERIC[:-1])), draw(st.sampled_from([*NUMERIC, *CONSTANTS]))]
    left, right = sides if draw(st.booleans()) else sides[::-1]
    doubles = "s" in (left.text, right.text) or "f" in (left.text, right.text)
    return Sql(
        f"{left.text} {operator} {right.text}", lambda row: compare(operator, left.of(row), right.of(row), doubles)
    )


@st.composite
def of_texts(draw: st.DrawFn) -> Sql:
    name, word = draw(st.sampled_from(sorted(TEXTS))), draw(st.sampled_from(WORDS))
    operator, fold = draw(st.sampled_from(sorted(OPERATORS))), TEXTS[name]
    encoded = lambda text: fold(text).encode()  # noqa: E731

    def meaning(row: Row) -> bool | None:
        return None if row[name] is None else OPERATORS[operator](encoded(row[name]), encoded(word))

    return Sql(f"{name} {operator} '{word}'", meaning)


@st.composite
def of_lists(draw: st.DrawFn) -> Sql:
    members: list[int | None] = draw(st.lists(st.sampled_from([0, 1, 5, None]), min_size=1, max_size=3))
    negated = draw(st.booleans())

    def meaning(row: Row) -> bool | None:
        found = [compare("=", row["i"], member, False) for member in members]
        answer = True if True in found else None if None in found else False
        return not answer if negated and answer is not None else answer

    listed = ", ".join("NULL" if member is None else str(member) for member in members)
    return Sql(f"i {'NOT ' if negated else ''}IN ({listed})", meaning)


@st.composite
def of_nulls(draw: st.DrawFn) -> Sql:
    name = draw(st.sampled_from([*NUMBERS, *TEXTS]))
    negated = draw(st.booleans())
    return Sql(f"{name} IS {'NOT ' if negated else ''}NULL", lambda row: (row[name] is None) != negated)


def both(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else None if None in (one, other) else True


def negation(one: bool | None) -> bool | None:
    return None if one is None else not one


def connected(inner: st.SearchStrategy[Sql]) -> st.SearchStrategy[Sql]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: Sql(f"({p[0].text}) AND ({p[1].text})", lambda row: both(p[0].of(row), p[1].of(row)))),
        pairs.map(
            lambda p: Sql(
                f"({p[0].text}) OR ({p[1].text})",
                lambda row: negation(both(negation(p[0].of(row)), negation(p[1].of(row)))),
            )
        ),
        pairs.map(
            lambda p: Sql(
                f"({p[0].text}) XOR ({p[1].text})",
                lambda row: None if None in (p[0].of(row), p[1].of(row)) else p[0].of(row) != p[1].of(row),
            )
        ),
        inner.map(lambda one: Sql(f"NOT ({one.text})", lambda row: negation(one.of(row)))),
        inner.map(lambda one: Sql(f"({one.text}) IS NOT TRUE", lambda row: one.of(row) is not True)),
        inner.map(lambda one: Sql(f"({one.text}) IS NULL", lambda row: one.of(row) is None)),
    )


LEAVES = st.one_of(of_numbers(), of_texts(), of_lists(), of_nulls())


def check(sql: Sql, rows: list[Row]) -> None:
    columns = {name: [row[name] for row in rows] for name in (*NUMBERS, *TEXTS)}
    assert holds(sql.text, **columns) == [sql.of(row) is True for row in rows], sql.text


@settings(max_examples=500, deadline=None)
@given(of_numbers(), st.lists(ROWS, min_size=4, max_size=8))
def test_numbers_meet_numbers_and_texts_as_in_sql(sql: Sql, rows: list[Row]) -> None:
    check(sql, rows)


@settings(max_examples=250, deadline=None)
@given(st.recursive(LEAVES, connected, max_leaves=4), st.lists(ROWS, min_size=4, max_size=8))
def test_whole_columns_mean_what_each_row_means(sql: Sql, rows: list[Row]) -> None:
    check(sql, rows)
