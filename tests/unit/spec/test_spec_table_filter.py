"""TableFilter against the rules of TiDB's table-filter documentation."""

from __future__ import annotations

import pickle

import pytest
from changefeed.spec.filter.table_filter import SYSTEM_SCHEMAS, BadRule, ColumnFilter, TableFilter

BOTH = (True, True)
NEITHER = (False, False)
FOLDED = (False, True)  # selected only when case is folded
EXACT = (True, False)

# rules, then "schema / table" -> (selected with case, selected without)
CASES = [
    ([], {"a / b": NEITHER}),
    (["*.*"], {"a / b": BOTH, "mysql / user": NEITHER}),
    (["shop.*"], {"shop / t": BOTH, "shop1 / t": NEITHER, "xshop / t": NEITHER, "SHOP / t": FOLDED}),
    (["shop.orders"], {"shop / orders": BOTH, "shop / orders2": NEITHER, "shop / ORDERS": FOLDED}),
    # Exclusion: the last rule that matches decides; without *.* there is nothing to exclude from.
    (["*.*", "!shop.*"], {"shop / a": NEITHER, "crm / a": BOTH, "SHOP / a": EXACT}),
    (["!*.secret"], {"a / secret": NEITHER, "a / open": NEITHER}),
    (
        ["hr.*", "!*.dep*", "*.departments"],
        {
            "other / table": NEITHER,
            "hr / people": BOTH,
            "hr / dept_emp": NEITHER,
            "hr / departments": BOTH,
            "else / departments": BOTH,
        },
    ),
    # Wildcards.
    (["a?c.t*"], {"abc / t": BOTH, "a中c / tx": BOTH, "ac / t": NEITHER, "abbc / t": NEITHER, "abc / xt": NEITHER}),
    (["db[0-9].t[0-9][0-9]"], {"db1 / t22": BOTH, "db1 / t2": NEITHER, "dba / t22": NEITHER}),
    (["db[!0-9].t"], {"dba / t": BOTH, "db1 / t": NEITHER, "db / t": NEITHER}),
    (["db[^0].t"], {"db^ / t": BOTH, "db0 / t": BOTH, "dba / t": NEITHER}),
    ([r"x[\]].t[ ]"], {"x] / t ": BOTH, "x / t": NEITHER}),
    (["x[[&&~~]y.t"], {"x& / t": NEITHER, "x&y / t": BOTH, "x[y / t": BOTH, "x~y / t": BOTH, "xay / t": NEITHER}),
    # Plain names: letters, digits, $, _ and everything beyond ASCII.
    (["p_1$.2", "中文.表"], {"p_1$ / 2": BOTH, "p_1 / 2": NEITHER, "中文 / 表": BOTH}),
    # Escapes and quotes.
    ([r"a\.b.c\*"], {"a.b / c*": BOTH, "a.b / cc": NEITHER, "axb / c*": NEITHER}),
    ([r"a\\.t"], {"a\\ / t": BOTH, "a / t": NEITHER}),
    (['"a.b"."t ""x"""', "`c``d`.`*`"], {'a.b / t "x"': BOTH, "c`d / *": BOTH, "c`d / t": NEITHER}),
    (['"<a>".t'], {"<a> / t": BOTH, "a / t": NEITHER}),
    # Regular expressions match anywhere, in Go's dialect.
    (["/b/.*"], {"db01 / t": BOTH, "dd01 / t": NEITHER, "DB01 / t": FOLDED}),
    ([r"/^db\d{2,}$/./^t\d$/"], {"db10 / t1": BOTH, "db1 / t1": NEITHER, "db10 / t١": NEITHER, "db10\n / t1": NEITHER}),
    ([r"/a\/b/.*"], {"a/b / t": BOTH, "ab / t": NEITHER}),
    ([r"/^[\w]+$/.*"], {"az_09 / t": BOTH, "é / t": NEITHER}),
    ([r"/^[^[&~]$/.*"], {"x / t": BOTH, "[ / t": NEITHER, "& / t": NEITHER}),
    ([r"/^[]a]$/.*"], {"] / t": BOTH, "a / t": BOTH, "b / t": NEITHER}),
    ([r"/^[[:upper:]]+\<\>$/.*"], {"AB<> / t": BOTH, "ab<> / t": FOLDED, "AB / t": NEITHER}),
    ([r"/^\Q(\C)\E+[+--]$/.*"], {r"(\C)), / t": BOTH, r"(\C)- / t": BOTH, "(é). / t": NEITHER}),
    ([r"/^(?P<letters>\pL{2})\z/.*"], {"éß / t": BOTH, "é1 / t": NEITHER}),
    (["*.*", r"!/^FOO/.*", "!*./FoO$/"], {"FOO1 / a": NEITHER, "foo2 / b": EXACT, "B / cFoO": NEITHER}),
    # Blank lines, comments, blanks around a rule.
    (["# comment", " \t", "  x.y\t"], {"x / y": BOTH, "y / y": NEITHER}),
]


@pytest.mark.parametrize(("rules", "tables"), CASES, ids=[" ".join(rules) or "none" for rules, _ in CASES])
def test_rules_select_what_tidb_selects(rules: list[str], tables: dict[str, tuple[bool, bool]]) -> None:
    exact, folded = TableFilter(rules, case_sensitive=True), TableFilter(rules)
    found = {}
    for name in tables:
        schema, table = name.split(" / ")
        found[name] = (exact.matches(schema, table), folded.matches(schema, table))
    assert found == tables


BAD = {
    "/^t((?!_copy).)*$/.*": "column 1: invalid pattern: invalid perl operator: (?!",
    r"/(a)\1/.*": r"column 1: invalid pattern: invalid escape sequence: \1",
    r"/\C/.*": r"column 1: invalid pattern: invalid escape sequence: \C",
    "a.b.c": "column 4: nothing may follow the table's pattern",
    "a%b.c": r"column 2: unexpected '%'; quote the name with ` or write \%",
    "db.tbl#no comment": r"column 7: unexpected '#'; quote the name with ` or write \#",
    r"a\tb.c": r"column 2: '\t' is reserved; only punctuation can be escaped",
    "[].*": "column 1: '[' starts a set of characters that is empty, not closed, or escapes a letter or digit",
    "[!].*": "column 1: '[' starts a set of characters that is empty, not closed, or escapes a letter or digit",
    "a.[x": "column 3: '[' starts a set of characters that is empty, not closed, or escapes a letter or digit",
    r"[\d].*": "column 1: '[' starts a set of characters that is empty, not closed, or escapes a letter or digit",
    "[z-a].*": "column 1: invalid pattern: invalid character class range: z-a",
    "[a--z].*": "column 1: invalid pattern: invalid character class range: a--",
    "db": "column 3: missing '.' between schema and table",
    "!": "column 2: missing schema pattern",
    "db.": "column 4: missing table pattern",
    ".t": "column 1: missing schema pattern",
    "`db`*.*": "column 5: missing '.' between schema and table",
    "/db.*": "column 1: regular expression without its closing '/'",
    "  `db.*": "column 3: quoted name without its closing `",
    '"db.*': 'column 1: quoted name without its closing "',
    "db\\": r"column 3: nothing follows '\'",
    "@rules.txt": "column 1: rules can't be imported from a file; write them into the list",
}


@pytest.mark.parametrize("rule", BAD)
def test_a_bad_rule_is_named_with_its_position(rule: str) -> None:
    with pytest.raises(BadRule) as caught:
        TableFilter(["*.*", rule])
    assert (caught.value.rule, str(caught.value)) == (rule, BAD[rule])


@pytest.mark.parametrize("schema", [*sorted(SYSTEM_SCHEMAS), "INSPECTION_SCHEMA", "MySQL"])
def test_system_schemas_are_never_selected(schema: str) -> None:
    for case_sensitive in (True, False):
        assert not TableFilter(["*.*", f"{schema}.*"], case_sensitive).matches(schema, "t")


def test_a_filter_travels_in_a_pickle() -> None:
    copy = pickle.loads(pickle.dumps(TableFilter(["Shop.*"], case_sensitive=True)))
    assert copy.matches("Shop", "t")
    assert not copy.matches("shop", "t")


@pytest.mark.parametrize(
    ("rules", "schema", "expected"),
    [
        (["shop.*"], "SHOP", True),
        (["shop.orders"], "shop", True),
        (["*.*", "!shop.*"], "shop", False),
        (["*.*", "!shop.tmp_*"], "shop", True),
        (["!shop.*", "shop.a"], "shop", True),
        (["shop.*"], "bank", False),
        (["*.*"], "MySQL", False),
    ],
)
def test_a_schema_matches_when_one_of_its_tables_may(rules: list[str], schema: str, expected: bool) -> None:
    assert TableFilter(rules).matches_schema(schema) is expected


@pytest.mark.parametrize(
    ("rules", "column", "expected"),
    [
        (["*"], "a", True),
        (["*", "!a?"], "AB", False),
        (["!a?", "*"], "ab", True),
        (["a"], "b", False),
        (["# a", " ", "/^[ab]$/"], "B", True),
        (["`a.b`"], "a.b", True),
        ([], "a", False),
    ],
)
def test_a_column_is_selected_by_the_last_rule_that_fits(rules: list[str], column: str, expected: bool) -> None:
    assert ColumnFilter(rules).matches(column) is expected


@pytest.mark.parametrize(
    ("rule", "said"),
    [("a.b", "column 2: nothing may follow"), ("!", "missing column pattern"), ("@x", "column 1: rules")],
)
def test_a_bad_column_rule_is_named_with_its_position(rule: str, said: str) -> None:
    with pytest.raises(BadRule, match=said):
        ColumnFilter([rule])
