"""Which row changes a filter drops."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.filter.rows import RowFilter, fingerprint
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.model.rows import RAW_SCHEMA
from changefeed.spec.filter.filters import Filter
from filter_rows import COLUMNS, stored, table

Row = tuple[int, bytes, bytes | None]


def insert(**new: Any) -> Row:
    return OP_INSERT, stored(**new), None


def update(old: dict[str, Any], new: dict[str, Any]) -> Row:
    return OP_UPDATE, stored(**new), stored(**old)


def delete(**old: Any) -> Row:
    return OP_DELETE, b"", stored(**old)


def kept(
    rule: dict[str, Any], *changes: Row, matcher: str = "shop.*", start_ts: tuple[int, ...] = (), **more: Any
) -> list[int]:
    """The numbers of the rows that are left; a row's start ts is 100 + its number."""
    columns: list[list[Any]] = [
        [7] * len(changes),
        [200 + number for number in range(len(changes))],
        [100 + number for number in range(len(changes))],
        [op for op, _, _ in changes],
        [b"t\x80" + bytes(6) + b"\x07_r\x80" + bytes(6) + bytes([number]) for number in range(len(changes))],
        [new for _, new, _ in changes],
        [old for _, _, old in changes],
        [0] * len(changes),
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, RAW_SCHEMA, strict=True)]
    rows = pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA)
    spec = Filter.model_validate(
        {"eventFilters": [{"matcher": [matcher]} | rule], "ignoreTxnStartTs": [str(ts) for ts in start_ts], **more}
    )
    left = RowFilter.of(spec, table(), "UTC").kept(rows)
    assert left.schema == RAW_SCHEMA
    return [ts - 100 for ts in left.column("start_ts").to_pylist()]


CHANGES = (insert(i=1), update({"i": 1}, {"i": 2}), delete(i=2), insert(i=None))


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ({}, [0, 1, 2, 3]),
        ({"ignoreEvent": ["insert"]}, [1, 2]),
        ({"ignoreEvent": ["update"]}, [0, 2, 3]),
        ({"ignoreEvent": ["delete"]}, [0, 1, 3]),
        ({"ignoreEvent": ["insert", "delete"]}, [1]),
        ({"ignoreEvent": ["all dml"]}, []),
        ({"ignoreEvent": ["all ddl", "drop table"], "ignoreSql": [".*"]}, [0, 1, 2, 3]),
        ({"ignoreInsertValueExpr": "i = 1"}, [1, 2, 3]),
        ({"ignoreInsertValueExpr": "i IS NULL"}, [0, 1, 2]),
        ({"ignoreInsertValueExpr": "TRUE"}, [1, 2]),
        ({"ignoreUpdateOldValueExpr": "i = 1"}, [0, 2, 3]),
        ({"ignoreUpdateOldValueExpr": "i = 2"}, [0, 1, 2, 3]),
        ({"ignoreUpdateNewValueExpr": "i = 2"}, [0, 2, 3]),
        ({"ignoreUpdateNewValueExpr": "i = 1"}, [0, 1, 2, 3]),
        ({"ignoreUpdateNewValueExpr": "i = 9", "ignoreUpdateOldValueExpr": "i = 1"}, [0, 2, 3]),
        ({"ignoreDeleteValueExpr": "i = 2"}, [0, 1, 3]),
        ({"ignoreDeleteValueExpr": "id >= 0"}, [0, 1, 3]),
    ],
)
def test_a_change_is_dropped_when_one_rule_fits(rule: dict[str, Any], left: list[int]) -> None:
    assert kept(rule, *CHANGES) == left


def test_transactions_are_dropped_by_their_start_ts() -> None:
    assert kept({}, *CHANGES, start_ts=(101, 103, 999)) == [0, 2]


@pytest.mark.parametrize(
    ("matcher", "case_sensitive", "left"),
    [("shop.orders", True, []), ("SHOP.Orders", False, []), ("SHOP.Orders", True, [0]), ("shop.other", False, [0])],
)
def test_a_filter_is_for_the_tables_of_its_matcher(matcher: str, case_sensitive: bool, left: list[int]) -> None:
    rule = {"ignoreEvent": ["all dml"]}
    assert kept(rule, insert(i=1), matcher=matcher, caseSensitive=case_sensitive) == left


UPDATES = (
    update({"i": 1, "s": "x"}, {"i": 2, "s": "x"}),
    update({"i": 1, "s": "x"}, {"i": 2, "s": "X"}),
    update({"i": 1, "s": None}, {"i": None, "s": None}),
    update({"i": 1, "s": None}, {"i": 1, "s": "x"}),
    update({"i": 1}, {"i": 1}),
    insert(i=1),
    delete(i=1),
)


@pytest.mark.parametrize(
    ("columns", "left"),
    [
        (["i"], [1, 3, 5, 6]),
        (["I", "i"], [1, 3, 5, 6]),
        (["i", "s"], [5, 6]),
        (["nothing"], [0, 1, 2, 3, 4, 5, 6]),
        (["nothing", "s"], [0, 1, 2, 5, 6]),
    ],
)
def test_updates_of_ignored_columns_only_are_dropped(columns: list[str], left: list[int]) -> None:
    assert kept({"ignoreUpdateOnlyColumns": columns}, *UPDATES) == left


def test_a_column_name_in_other_letters_is_another_one_where_letters_count() -> None:
    rule = {"ignoreUpdateOnlyColumns": ["I"]}
    assert kept(rule, *UPDATES, caseSensitive=True) == [0, 1, 2, 3, 4, 5, 6]


def test_a_change_of_a_key_is_never_ignored() -> None:
    index = {"id": 1, "idx_name": {"O": "i"}, "idx_cols": [{"name": {"O": "i"}}], "is_unique": True, "state": 5}
    spec = Filter.model_validate({"eventFilters": [{"matcher": ["*.*"], "ignoreUpdateOnlyColumns": ["i", "s"]}]})
    assert RowFilter.of(spec, table(index_info=[index]), "UTC").touches_only == (frozenset({"s"}),)


def test_a_condition_that_a_table_does_not_allow_is_refused_with_field_and_table() -> None:
    spec = Filter.model_validate(
        {"eventFilters": [{"matcher": ["a.b"]}, {"matcher": ["shop.*"], "ignoreDeleteValueExpr": "zip = 1"}]}
    )
    with pytest.raises(
        InvalidSpec, match=r"eventFilters\[1\].ignoreDeleteValueExpr: for table shop.orders: there is no"
    ):
        RowFilter.of(spec, table(), "UTC")


BROKEN = (insert(i=1, s="a"), insert(i=2, s=b"\xff"), update({"i": 1, "s": b"\xff"}, {"i": 2, "s": "b"}), delete(s="c"))


@pytest.mark.parametrize(
    ("rule", "row"),
    [
        ({"ignoreInsertValueExpr": "i = 7 OR s = 'a'"}, 1),
        ({"ignoreUpdateOldValueExpr": "LENGTH(s) = 1"}, 2),
    ],
)
def test_a_condition_that_reads_bytes_that_are_no_text_ends_the_run(rule: dict[str, Any], row: int) -> None:
    key = b"t\x80" + bytes(6) + b"\x07_r\x80" + bytes(6) + bytes([row])
    with pytest.raises(NeedsHuman, match=f"table shop.orders, key {key.hex()}: column s .* UTF-8") as caught:
        kept(rule, *BROKEN)
    assert "spec.restart" in caught.value.next_step


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ({"ignoreInsertValueExpr": "i = 2"}, [0, 2, 3]),  # of another column
        ({"ignoreUpdateNewValueExpr": "s = 'b'"}, [0, 1, 3]),  # of the other side
        ({"ignoreDeleteValueExpr": "s = 'c'"}, [0, 1, 2]),  # of other changes
        ({"ignoreEvent": ["insert"], "ignoreInsertValueExpr": "s = 'a'"}, [2, 3]),  # of what is dropped anyway
    ],
)
def test_bytes_that_are_no_text_are_of_no_matter_where_no_condition_reads_them(
    rule: dict[str, Any], left: list[int]
) -> None:
    assert kept(rule, *BROKEN) == left


def test_updates_of_ignored_columns_compare_bytes_that_are_no_text() -> None:
    changes = (
        update({"i": 1, "s": b"\xff"}, {"i": 2, "s": b"\xff"}),
        update({"i": 1, "s": b"\xff"}, {"i": 2, "s": b"\xfe"}),
        update({"i": 1, "s": "x"}, {"i": 2, "s": "x"}),
    )
    assert kept({"ignoreUpdateOnlyColumns": ["i"]}, *changes) == [1]
    # The sides are decoded apart: one may be broken alone.
    assert kept({"ignoreUpdateOnlyColumns": ["i"]}, update({"s": "x"}, {"s": b"\xff"})) == [0]


def test_a_virtual_column_is_refused_by_name() -> None:
    virtual = {**COLUMNS[1], "generated_expr_string": "id + 1"}
    spec = Filter.model_validate({"eventFilters": [{"matcher": ["*.*"], "ignoreInsertValueExpr": "i = 1"}]})
    with pytest.raises(InvalidSpec, match="column i is virtual"):
        RowFilter.of(spec, table(cols=[COLUMNS[0], virtual]), "UTC")


def test_the_parser_is_part_of_what_a_choice_depends_on() -> None:
    rules = {"matcher": ["*.*"], "ignoreEvent": ["delete"]}
    assert fingerprint(Filter.model_validate({"eventFilters": [rules]})) == ""
    with_condition = Filter.model_validate({"eventFilters": [rules | {"ignoreInsertValueExpr": "i = 1"}]})
    assert fingerprint(with_condition).startswith("filter-2 sqlglot-")
