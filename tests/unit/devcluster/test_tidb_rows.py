"""Row format v2 against literals of TiKV's and TiSpark's test-suites (docs/design/tidb.md, Row format v2)."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from changefeed_devcluster import keys
from changefeed_devcluster.tidb import rows
from changefeed_devcluster.tidb import values as stored
from changefeed_devcluster.tidb.field_types import field_type
from changefeed_devcluster.tidb.schema import NewColumn, TidbTable, make_table, with_column
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"), (1, "01"), (-1, "ff"), (127, "7f"), (128, "8000"), (-128, "80"), (-129, "7fff"), (32767, "ff7f"),
        (32768, "00800000"), (2147483647, "ffffff7f"), (2147483648, "0000008000000000"),
        (-2147483649, "ffffff7fffffffff"), ((1 << 63) - 1, "ffffffffffffff7f"), (-(1 << 63), "0000000000000080"),
    ],
)  # fmt: skip
def test_compact_int(value: int, encoded: str) -> None:
    assert stored.compact_int(value).hex() == encoded


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (255, "ff"), (256, "0001"), (65535, "ffff"), (65536, "00000100"), (4294967295, "ffffffff"),
        (4294967296, "0000000001000000"), ((1 << 64) - 1, "ffffffffffffffff"),
    ],
)  # fmt: skip
def test_compact_uint(value: int, encoded: str) -> None:
    assert stored.compact_uint(value).hex() == encoded


@pytest.mark.parametrize(
    ("text", "precision", "frac", "encoded"),
    [
        ("0", 10, 2, "0a028000000000"),
        ("123.45", 10, 2, "0a028000007b2d"),
        ("-123.45", 10, 2, "0a027fffff84d2"),
        ("1", 1, 0, "010081"),
        ("12345.678", 8, 3, "080380303902a6"),
        ("0.1", 3, 1, "03018001"),
        ("-0.01", 5, 2, "05027ffffe"),
        ("1234567890.1234", 14, 4, "0e04810dfb38d204d2"),
        ("-1234567890.1234", 14, 4, "0e047ef204c72dfb2d"),
        ("99999999999999999999.9999999999", 30, 10, "1e0ae33b9ac9ff3b9ac9ff3b9ac9ff09"),
        (
            "12345678901234567890123456789012345.123456789012345678901234567890", 65, 30,
            "411e80bc614e35b7bf87350e34c02f075f79075bcd1500bc614e35b7bf87037a",
        ),
    ],
)  # fmt: skip
def test_decimal(text: str, precision: int, frac: int, encoded: str) -> None:
    assert stored.encode_decimal(Decimal(text), precision, frac).hex() == encoded
    assert stored.decode_decimal(bytes.fromhex(encoded)) == Decimal(text)


@given(
    st.integers(1, 65).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, min(p, 30)), st.integers(0, 10**p - 1)))
)
def test_every_decimal_is_read_back(case: tuple[int, int, int]) -> None:
    precision, frac, digits = case
    for sign in (0, 1):
        value = Decimal((sign, tuple(map(int, str(digits))), -frac))
        assert stored.decode_decimal(stored.encode_decimal(value, precision, frac)) == value


def test_a_decimal_is_rounded_half_up_and_never_cut_off() -> None:
    assert stored.decode_decimal(stored.encode_decimal(Decimal("0.125"), 5, 2)) == Decimal("0.13")
    with pytest.raises(ValueError, match="does not fit"):
        stored.encode_decimal(Decimal("999.995"), 5, 2)


@pytest.mark.parametrize(
    ("sql", "value", "encoded"),
    [
        ("double", 11.99, "c027fae147ae147b"),
        ("float", -11.989999771118164, "3fd8051ebfffffff"),
        ("datetime", datetime(2020, 5, 20, 20, 53, 5), "00000000454d69a619"),
        ("timestamp", datetime(2020, 5, 20, 20, 53, 5), "00000000454d69a619"),
        ("datetime(6)", datetime(2023, 1, 2, 3, 4, 5, 678), "a60200053104af19"),
        ("datetime(6)", datetime(9999, 12, 31, 23, 59, 59, 999999), "3f420ffb7efff37e"),
        ("date", date(2020, 5, 20), "00000000000068a619"),
        ("date", date(1000, 1, 1), "00000000000042b20c"),
        ("varchar(99)", "中文", "e4b8ade69687"),
        ("char(5)", "ab  ", "6162"),
        ("binary(4)", b"ab", "61620000"),
        ("longblob", b"\x00\xff", "00ff"),
        ("year", 2023, "e707"),
        ("bit(10)", 0x123, "2301"),
        ("bit(64)", (1 << 64) - 1, "ffffffffffffffff"),
        ("enum('a','b','c')", "c", "03"),
        ("enum('a','b','c')", "", "00"),
        ("set('a','b','c')", "a,c", "05"),
        ("time", timedelta(seconds=1), "00ca9a3b"),
        ("time", timedelta(seconds=-1), "003665c4"),
        ("time(3)", timedelta(hours=1, minutes=2, seconds=3.456), "00b045ef62030000"),
        ("time", timedelta(hours=-838, minutes=-59, seconds=-59), "006a868ef644f5ff"),
        ("datetime", "0000-00-00 00:00:00", "00"),
        ("datetime(6)", "2023-01-02 03:04:05.000678", "a60200053104af19"),
        ("date", "2024-02-29", "000000000000bab219"),
    ],
)
def test_value(sql: str, value: Any, encoded: str) -> None:
    # The literals of dates come with the offset byte that precedes the value.
    want = encoded[2:] if encoded.startswith("00") and len(encoded) == 18 else encoded
    assert stored.encode_value(field_type(sql), value).hex() == want


def _table(*columns: NewColumn, first_id: int = 1) -> TidbTable:
    return make_table(first_id, "t", columns, None)


@pytest.mark.parametrize(
    ("values", "encoded"),
    [
        ({}, "800000000000"),
        ({1: b"\1", 2: b"abc", 3: None}, "8000020001000102030100040001616263"),
        ({1: b"\xff" * 8, 2: b"\xff"}, "800002000000010208000900ffffffffffffffffff"),
        ({1: None, 2: b"\2"}, "8000010001000201010002"),
        ({300: b""}, "8001010000002c01000000000000"),
        ({1: b"\1", 300: b"x", 301: None}, "800102000100010000002c0100002d01000001000000020000000178"),
        (
            {1: b"\xe8\x03", 3: b"\3", 8: b"\xff\x7f", 12: b"\2", 335: None},
            "8001040001000100000003000000080000000c0000004f01000002000000030000000500000006000000e80303ff7f02",
        ),
    ],
)
def test_layout(values: dict[int, bytes | None], encoded: str) -> None:
    assert rows.assemble(values).hex() == encoded


@pytest.mark.parametrize("size", [65535, 65536])
def test_a_row_of_more_than_64_kib_is_large(size: int) -> None:
    info = _table(NewColumn("text", "longtext"))
    value = rows.encode_row(info, {"text": "x" * size})
    assert value[1] == (size > 65535)
    assert rows.decode_row(info, value) == {"text": "x" * size}


def test_a_row_of_every_type_is_read_back() -> None:
    info = _table(
        NewColumn("a", "tinyint"), NewColumn("b", "smallint unsigned"), NewColumn("c", "mediumint"),
        NewColumn("d", "int unsigned"), NewColumn("e", "bigint unsigned"), NewColumn("f", "decimal(38,10)"),
        NewColumn("g", "date"), NewColumn("h", "datetime(6)"), NewColumn("i", "timestamp"),
        NewColumn("j", "double"), NewColumn("k", "float"), NewColumn("l", "char(10)"),
        NewColumn("m", "varchar(10)"), NewColumn("n", "varbinary(10)"), NewColumn("o", "text"),
        NewColumn("p", "blob"), NewColumn("q", "int", nullable=True),
    )  # fmt: skip
    row = {
        "a": -128, "b": 65535, "c": -8388608, "d": 4294967295, "e": (1 << 64) - 1,
        "f": Decimal("-9999999999999999999999999999.9999999999"), "g": date(2024, 2, 29),
        "h": datetime(2024, 2, 29, 23, 59, 59, 999999), "i": datetime(1970, 1, 1, 0, 0, 1), "j": -1.5e300, "k": 0.5,
        "l": "Zoë", "m": " pad ", "n": b"\0\1", "o": "a\nb", "p": b"", "q": None,
    }  # fmt: skip
    assert rows.decode_row(info, rows.encode_row(info, row)) == row


def test_the_handle_is_not_in_the_value() -> None:
    info = make_table(1, "t", [NewColumn("id", "bigint"), NewColumn("v", "int")], "id")
    assert rows.encode_row(info, {"v": 1}).hex() == "80000100000002010001"


def test_a_row_from_before_add_column_has_the_default() -> None:
    old = _table(NewColumn("a", "int"))
    value = rows.encode_row(old, {"a": 1})
    new = with_column(
        with_column(old, NewColumn("b", "bigint", default=7)), NewColumn("c", "varchar(9)", nullable=True)
    )
    assert rows.decode_row(new, value) == {"a": 1, "b": 7, "c": None}


@pytest.mark.parametrize(
    ("row", "why"),
    [({"a": None}, "can't be NULL"), ({}, "can't be NULL"), ({"a": 1, "x": 2}, "has no column x")],
)
def test_a_row_that_the_table_forbids(row: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        rows.encode_row(_table(NewColumn("a", "int")), row)


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-40000, 40000)), min_size=1, max_size=20))
def test_many_rows_are_those_of_single_ones(numbers: list[tuple[int, int]]) -> None:
    info = _table(NewColumn("a", "bigint"), NewColumn("s", "char(4)"), NewColumn("b", "int"))
    texts = [f"{n:04d}" for n in range(len(numbers))]
    columns: list[tuple[int, Any]] = [
        (1, np.array([a for a, _ in numbers], np.int64)),
        (2, np.array([list(text.encode()) for text in texts], np.uint8)),
        (3, np.array([b for _, b in numbers], np.int64)),
    ]
    single = [rows.encode_row(info, {"a": a, "s": text, "b": b}) for (a, b), text in zip(numbers, texts, strict=True)]
    assert rows.encode_rows(columns) == single


@pytest.mark.parametrize(
    ("types", "row", "tail"),
    [
        (["varchar(9)"], ["abc"], "016162630000000000fa"),
        (["bigint", "varchar(9)"], [7, "a"], "038000000000000007016100000000000000f8"),
        (["decimal(1,0)"], [Decimal(1)], "06010081" + "0000000000"),
        (["datetime"], [datetime(2024, 2, 29)], "0419b2ba0000000000"),
        (["double"], [1.0], "05bff0000000000000"),
        (["time"], [timedelta(seconds=1)], "07800000003b9aca00"),
        (["bigint unsigned", "enum('a','b')"], [1 << 63, "b"], "048000000000000000" + "040000000000000002"),
        (["year", "bit(9)"], [2024, 256], "0380000000000007e8" + "040000000000000100"),
        (["varchar(9)"], ["a  "], "016100000000000000f8"),
        (["varbinary(9)"], [b"a  "], "016120200000000000fa"),
    ],
)
def test_common_handles(types: list[str], row: list[Any], tail: str) -> None:
    columns = [NewColumn(f"k{n}", sql) for n, sql in enumerate(types)]
    info = make_table(1, "t", [*columns, NewColumn("v", "int")], [column.name for column in columns])
    values = {f"k{n}": value for n, value in enumerate(row)} | {"v": 3}
    key, value = keys.record_key(1, rows.handle_of(info, values)), rows.encode_row(info, values)
    assert key.hex() == "7480000000000000015f72" + tail
    assert rows.row_of(info, key, value) == values


def test_a_clustered_varchar_stands_in_the_row_too_because_its_sort_key_is_shorter() -> None:
    info = make_table(1, "t", [NewColumn("a", "varchar(9)"), NewColumn("b", "varbinary(9)")], ("a", "b"))
    value = rows.encode_row(info, {"a": "x ", "b": b"y "})
    assert value == rows.assemble({1: b"x "})


@pytest.mark.parametrize(
    ("sql", "zero"),
    [("date", "0000-00-00"), ("time", timedelta(0)), ("year", 0), ("enum('x','y')", "x"), ("set('x')", "")],
)
def test_what_a_row_older_than_a_column_has(sql: str, zero: Any) -> None:
    info = with_column(_table(NewColumn("a", "int")), NewColumn("b", sql))
    assert rows.decode_row(info, rows.assemble({1: b"\1"})) == {"a": 1, "b": zero}
