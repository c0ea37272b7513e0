"""The oracles over small frames."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from changefeed.verify.oracles import TableRows, check_conserved, check_order, check_set, fingerprint
from changefeed.verify.result import NotVerifiable, Result
from hypothesis import given
from hypothesis import strategies as st

Change = tuple[str, int, str, str | None]
ALL = 100


def frame(changes: list[Change]) -> pl.DataFrame:
    shape = {"op": pl.String, "commit_ts": pl.UInt64, "c0": pl.String, "c1": pl.String}
    return pl.DataFrame(changes, schema=shape, orient="row")


def table(files: list[Change], upstream: list[Change], name: str = "t") -> TableRows:
    placed = frame(files).with_row_index("line", offset=1).with_columns(pl.lit("f").alias("file"))
    return TableRows(
        name, ["id", "v"], ["c0"], placed.with_row_index("place"), frame(upstream).with_row_index("position")
    )


def check(files: list[Change], upstream: list[Change]) -> Result:
    result = Result()
    rows = table(files, upstream)
    check_set(rows, ALL, result)
    check_order(rows, result)
    return result


def counts(result: Result) -> tuple[int, int, int, int]:
    return result.missing, result.duplicate, result.unexpected, result.out_of_order


CHANGES = st.tuples(
    st.sampled_from("DUI"), st.integers(1, ALL), st.sampled_from("12"), st.sampled_from(["", "1", "2", "\\N", None])
)


@given(st.lists(CHANGES, max_size=8), st.lists(CHANGES, max_size=8))
def test_the_hash_is_equal_for_equal_multisets_only(some: list[Change], others: list[Change]) -> None:
    key = repr
    equal = sorted(some, key=key) == sorted(others, key=key)
    assert (fingerprint(frame(some)) == fingerprint(frame(others))) == equal
    assert fingerprint(frame(some)) == fingerprint(frame(some[::-1]))


def test_the_hash_of_many_rows_wraps() -> None:
    many = pl.DataFrame({"c0": [str(n) for n in range(10_000)]})
    assert fingerprint(many) == fingerprint(many.reverse())
    assert fingerprint(many)[1] < 1 << 64


@given(st.lists(CHANGES, max_size=12, unique_by=lambda change: change[:3]), st.data())
def test_every_single_harm_is_counted(changes: list[Change], data: Any) -> None:
    changes = sorted(changes, key=lambda change: change[1])
    assert check(changes, changes) == Result()
    if not changes:
        return
    at = data.draw(st.integers(0, len(changes) - 1))
    dropped = check(changes[:at] + changes[at + 1 :], changes)
    assert counts(dropped) == (1, 0, 0, 0)
    doubled = check(changes[: at + 1] + changes[at:], changes)
    assert counts(doubled) == (0, 1, 0, 0)
    op, ts, pk, _ = changes[at]
    changed = check([*changes[:at], (op, ts, pk, "other"), *changes[at + 1 :]], changes)
    assert counts(changed) == (1, 0, 1, 0)
    if at:
        swapped = [*changes[: at - 1], changes[at], changes[at - 1], *changes[at + 1 :]]
        assert counts(check(swapped, changes)) == (0, 0, 0, 1)


def test_rows_above_the_checkpoint_are_held_to_their_order_only() -> None:
    upstream: list[Change] = [("I", 5, "1", "a")]
    assert check([*upstream, ("U", ALL + 1, "1", "b"), ("U", ALL + 2, "1", "c")], upstream) == Result()
    back = check([*upstream, ("U", ALL + 2, "1", "c"), ("U", ALL + 1, "1", "b")], upstream)
    assert counts(back) == (0, 0, 0, 1)
    assert back.first_problem == "f, row 3: a change of t stands behind a later one: U, commit ts 101, id='1', v='b'."


def test_a_changed_key_is_named_with_what_was_there() -> None:
    result = check([("I", 5, "2", "a")], [("I", 5, "1", "a")])
    assert result.first_problem == ("f, row 1: the upstream has no such change of t: I, commit ts 5, id='2', v='a'.")
    result = check([("I", 6, "1", None)], [("I", 5, "1", None)])
    assert result.first_problem == (
        "f, row 1: the upstream has no such change of t: I, commit ts 6, id='1', v=None; "
        "it has I, commit ts 5, id='1', v=None."
    )


def test_where_a_missing_row_belongs() -> None:
    upstream: list[Change] = [("I", 1, "1", "a"), ("I", 2, "2", "b"), ("I", 3, "3", "c")]
    said = [
        check(files, upstream).first_problem or ""
        for files in (upstream[1:], [upstream[0], upstream[2]], upstream[:2], [])
    ]
    assert [text.rpartition("; ")[2] for text in said] == [
        "it belongs before f, row 1.",
        "it belongs after f, row 1.",
        "it belongs after f, row 2.",
        "no file of the table has a row.",
    ]


def conserved(column: str, *tables: tuple[list[Change], list[Change]]) -> Result:
    """Tables as (rows at startTs, files)."""
    result = Result()
    rows = [table(files, []) for _, files in tables]
    check_conserved(rows, [frame(base).select("c0", "c1") for base, _ in tables], column, ALL, result)
    return result


def test_a_sum_over_tables_deletes_and_reinserted_keys() -> None:
    base: list[Change] = [("I", 0, "1", "10.5"), ("I", 0, "2", None)]
    first: list[Change] = [("U", 1, "1", "0.5"), ("D", 2, "1", "0.5"), ("D", 4, "2", "0.5"), ("I", 4, "2", "1.5")]
    second: list[Change] = [("I", 1, "9", "10"), ("U", 2, "9", "10.5"), ("I", 3, "7", None), ("U", 4, "9", "9")]
    first.insert(2, ("U", 3, "2", "0.5"))
    second[2] = ("U", 3, "9", "10")
    result = conserved("v", (base, first), ([], second))
    assert result.first_problem is None
    assert result.conserved == "10.5"


def test_a_sum_that_changes_is_named() -> None:
    base: list[Change] = [("I", 0, "1", "10")]
    result = conserved("v", (base, [("U", 1, "1", "9.99"), ("U", 2, "1", None), ("U", ALL + 1, "1", "5")]))
    assert not result.ok
    assert result.conserved == "10"
    assert result.first_problem == (
        "The sum of v changes by -0.01 at commit ts 1; 2 transactions in all do not conserve it."
    )


def test_nothing_changed() -> None:
    result = conserved("v", ([("I", 0, "1", "-7")], []), ([], []))
    assert (result.ok, result.conserved) == (True, "-7")


@pytest.mark.parametrize("text", ["x", "", "1e3", "1.0000000000001", "1" * 21, "1.", " 1"])
def test_values_that_cannot_be_added_up(text: str) -> None:
    with pytest.raises(NotVerifiable, match=r"t\.v holds"):
        conserved("v", ([], [("I", 1, "1", text)]))


def test_the_largest_values_are_added_up_exactly() -> None:
    most = "9" * 20 + "." + "9" * 12
    result = conserved("v", ([("I", 0, "1", most), ("I", 0, "2", "-1")], [("U", 1, "2", "-1.000000000001")]))
    assert result.conserved == "9" * 19 + "8." + "9" * 12
    assert result.first_problem is not None
    assert "changes by -0.000000000001 at" in result.first_problem
