"""Rows of a MySQL-compatible server against the upstream's: values in one form, and what of the rows differs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed.reading.scratch import open_database
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.values import CHOICE
from changefeed.verify.mysql.values import expression, of_downstream
from changefeed.verify.result import RowsVerdict, TableRows
from changefeed.verify.tables.comparison import RowComparison
from changefeed.verify.tables.values import of_decoded

NAMES = ("id", "kind", "v")


def column(tp: int, **kind: Any) -> ti.ColumnInfo:
    kind = {"Tp": tp, "Flag": 0, "Flen": 20, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"} | kind
    info = {"id": 1, "name": "t", "state": ti.STATE_PUBLIC}
    cols = [{"id": 1, "name": "a`b", "offset": 0, "type": kind, "state": ti.STATE_PUBLIC}]
    return ti.parse_table_info(info | {"cols": cols}, "shop").columns[0]


def choice(number: int, text: str) -> pa.Array:
    return pa.array([{"number": number, "text": text}], CHOICE)


@pytest.mark.parametrize(
    ("tp", "upstream", "text", "others"),
    [
        (SqlType.BIGINT, pa.array([-(1 << 63)]), b"-9223372036854775808", [b"-9223372036854775807"]),
        (SqlType.BIT, pa.array([(1 << 64) - 1], pa.uint64()), b"18446744073709551615", [b"0"]),
        (SqlType.FLOAT, pa.array([0.1], pa.float32()), b"0.10000000149011612", [b"0.1", b"0.10000001639127731"]),
        (SqlType.FLOAT, pa.array([0.0], pa.float32()), b"-0", [b"1e-45"]),
        (SqlType.DOUBLE, pa.array([1e20]), b"1e20", [b"1.0000000000000002e20"]),
        (SqlType.DOUBLE, pa.array([-0.0]), b"0", [b"5e-324"]),
        (SqlType.DECIMAL, pa.array(["1.50"]), b"1.50", [b"1.51"]),
        (SqlType.VARCHAR, pa.array(["ä "]), "ä ".encode(), ["ä".encode(), "Ä ".encode()]),
        (SqlType.VARCHAR, pa.array([b"\xff"]), b"\xff", [b"\xfe"]),
        (SqlType.DATETIME, pa.array(["2024-01-01 00:00:00.000001"]), b"2024-01-01 00:00:00.000001", [b"2024-01-01"]),
        (SqlType.JSON, pa.array(['{"a": 1, "b": [true, null]}']), b'{"b":[true,null],"a":1.0}', [b'{"a": 1}', b"{"]),
        (SqlType.JSON, pa.array(["9007199254740993"]), b"9007199254740993", [b"9007199254740992"]),
        (SqlType.ENUM, choice(2, "b"), b"b", [b"a"]),
        (SqlType.SET, choice(3, "a,b"), b"a,b", [b"a"]),
    ],
)
def test_equal_values_have_one_form_and_others_another(
    tp: int, upstream: pa.Array, text: bytes, others: list[bytes]
) -> None:
    kind = column(tp)
    (wanted,) = of_decoded(kind, upstream).to_pylist()
    assert of_downstream(kind, [text, None]).to_pylist() == [wanted, None]
    assert wanted not in of_downstream(kind, [*others, b"", None] if tp == SqlType.VARCHAR else others).to_pylist()
    assert of_decoded(kind, pa.nulls(1, upstream.type)).to_pylist() == [None]


def test_what_a_server_would_show_otherwise_is_asked_for_as_a_number() -> None:
    assert expression(column(SqlType.INT, Flag=ti.FLAG_UNSIGNED), pads_char=False) == b"CAST(`a``b` AS UNSIGNED)"
    assert expression(column(SqlType.YEAR), pads_char=False) == b"CAST(`a``b` AS SIGNED)"
    assert expression(column(SqlType.BIT), pads_char=False) == b"CAST(`a``b` AS UNSIGNED)"
    assert expression(column(SqlType.FLOAT), pads_char=False) == b"`a``b`+0e0"
    assert expression(column(SqlType.VARCHAR), pads_char=True) == b"`a``b`"
    assert expression(column(SqlType.CHAR, Flen=5), pads_char=False) == b"`a``b`"
    assert expression(column(SqlType.CHAR, Flen=5), pads_char=True) == b"RPAD(`a``b`, 5, ' ')"


Row = tuple[str, str | None, str | None]
ROWS: list[Row] = [("1", "a", "x"), ("2", "a", ""), ("3", "b", None), ("4", None, "x")]


def compared(folder: Path, upstream: Sequence[Row], downstream: Sequence[Row], key: Sequence[int] = (0,)) -> TableRows:
    """Added in pieces of two rows."""
    db = open_database(folder)
    rows = RowComparison(db, "shop.t", NAMES, key)
    for side, given in (("upstream", upstream), ("downstream", downstream)):
        for first in range(0, len(given), 2):
            columns = zip(*given[first : first + 2], strict=True)
            rows.add(side, [pa.array(each, pa.string()).cast(pa.binary()) for each in columns])  # type: ignore[arg-type]
    found = rows.found()
    db.close()
    return found


def test_equal_rows_in_any_order_do_not_differ(tmp_path: Path) -> None:
    found = compared(tmp_path, ROWS, ROWS[::-1])
    assert found == TableRows("shop.t", rows=4)
    assert not found.differs
    assert compared(tmp_path, [], []) == TableRows("shop.t", rows=0)


@pytest.mark.parametrize(
    ("downstream", "counts", "examples"),
    [
        (ROWS[:1] + ROWS[2:], (1, 0, 0), ("missing: id=2",)),
        ([*ROWS, ("5", "a", None)], (0, 1, 0), ("surplus: id=5",)),
        ([*ROWS, ROWS[0]], (0, 1, 0), ("surplus: id=1",)),
        ([*ROWS[:3], ("4", None, "y")], (0, 0, 1), ("different: id=4",)),
        ([*ROWS[:3], ("4", None, None)], (0, 0, 1), ("different: id=4",)),
        ([*ROWS[:2], ("3", "b", ""), ROWS[3]], (0, 0, 1), ("different: id=3",)),
        ([*ROWS[:2], ("3", None, "b"), ROWS[3]], (0, 0, 1), ("different: id=3",)),
        (
            [("7", "a", "x"), *ROWS[1:3], ("4", "x", "x")],
            (1, 1, 1),
            ("missing: id=1", "surplus: id=7", "different: id=4"),
        ),
        ([], (4, 0, 0), ("missing: id=1", "missing: id=2", "missing: id=3")),
    ],
)
def test_every_harmed_row_is_counted_and_named(
    tmp_path: Path, downstream: list[Row], counts: tuple[int, int, int], examples: tuple[str, ...]
) -> None:
    found = compared(tmp_path, ROWS, downstream)
    assert (found.missing, found.surplus, found.different) == counts
    assert found.examples == examples
    verdict = RowsVerdict()
    verdict.add(found)
    assert not verdict.ok
    assert (verdict.missing, verdict.surplus, verdict.different) == counts
    assert str(verdict.first_problem).startswith("shop.t: ")
    assert examples[0] in str(verdict.first_problem)


def test_a_key_of_several_columns(tmp_path: Path) -> None:
    found = compared(tmp_path, [("1", "a", "x"), ("1", "b", "x")], [("1", "a", "x"), ("1", "b", "y")], key=(0, 1))
    assert found.examples == ("different: id=1, kind=b",)
