"""Texts of PostgreSQL's types, recorded and chosen, as the columns that sinks know."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import pgoutput_reader as slow
import pyarrow as pa
import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import STATE_PUBLIC, TableInfo, parse_table_info
from changefeed.schema.values import arrow_type
from changefeed.upstream.postgresql.pgoutput.tuples import TEXT
from changefeed.upstream.postgresql.values.column_types import nearest_type
from changefeed.upstream.postgresql.values.decoder import PgoutputRows
from hypothesis import given, settings
from hypothesis import strategies as st
from pgoutput_writer import tuple_data
from test_upstream_pgoutput_recorded import recorded

NUMERIC_10_2 = (10 << 16 | 2) + 4
DECODER = PgoutputRows()


def table_of(columns: list[tuple[str, int, int]]) -> TableInfo:
    """A table with columns of such names, type OIDs and typmods."""
    cols = [
        {
            "id": number + 1,
            "name": name,
            "offset": number,
            "type": nearest_type(oid, typmod).to_json(0),
            "state": STATE_PUBLIC,
        }
        for number, (name, oid, typmod) in enumerate(columns)
    ]
    members = {"id": 7, "name": "t", "cols": cols, "state": STATE_PUBLIC, "upstream": "postgresql"}
    return TableInfo.from_json(parse_table_info(members, "public").to_json())


def decode(oid: int, typmod: int, texts: list[Any], time_zone: str = "UTC") -> pa.Array:
    """A column behind another one."""
    table = table_of([("id", 25, -1), ("c", oid, typmod)])
    keys = pa.array([b"t\0\0\0\1k"] * len(texts), pa.binary())
    values = pa.array([tuple_data(["k", text]) for text in texts], pa.binary())
    found = DECODER.rows(table, keys, values, time_zone)
    assert found[0].to_pylist() == ["k"] * len(texts)
    found[1].validate(full=True)
    assert found[1].type == arrow_type(table.columns[1])
    return found[1]


def _padded(width: int, fsp: int) -> Callable[[str], str]:
    def text(value: str) -> str:
        whole, _, fraction = value.partition(".")
        assert len(whole) == width
        return whole + (f".{fraction:0<{fsp}}" if fsp else "")

    return text


def _moment(fsp: int) -> Callable[[str], str]:
    return lambda value: _padded(19, fsp)(value.removesuffix("+00"))


EXPECTED: dict[str, Callable[[str], Any]] = {
    "id": int,
    "b": lambda text: int(text == "t"),
    "i2": int,
    "i4": int,
    "i8": int,
    "o": int,
    "f4": lambda text: struct.unpack("f", struct.pack("f", float(text)))[0],
    "f8": float,
    "by": lambda text: bytes.fromhex(text[2:]),
    "ts": _padded(19, 6),
    "ts0": _padded(19, 0),
    "tz": _moment(6),
    "tz3": _moment(3),
    "ti": _padded(8, 6),
    "ti2": _padded(8, 2),
    "bi": lambda text: int(text, 2),
}
TYPES = {
    "b": SqlType.TINYINT,
    "i8": SqlType.BIGINT,
    "f4": SqlType.FLOAT,
    "n": SqlType.LONGTEXT,
    "n10_2": SqlType.DECIMAL,
    "n5_m2": SqlType.DECIMAL,
    "n3_5": SqlType.DECIMAL,
    "n70": SqlType.LONGTEXT,
    "v": SqlType.VARCHAR,
    "c": SqlType.CHAR,
    "by": SqlType.LONGTEXT,
    "ts": SqlType.DATETIME,
    "tz": SqlType.TIMESTAMP,
    "ti": SqlType.TIME,
    "ttz": SqlType.LONGTEXT,
    "j": SqlType.JSON,
    "jb": SqlType.JSON,
    "m": SqlType.LONGTEXT,
    "bi": SqlType.BIT,
    "vb": SqlType.LONGTEXT,
}


def recorded_rows(name: str) -> tuple[TableInfo, list[bytes], list[slow.Row]]:
    """One recorded table with its rows' bytes and texts."""
    stream, _ = recorded("types")
    steps = [step for found in slow.transactions(stream) for step in found.steps if step.table.name == name]
    table = table_of([(column, oid, typmod) for column, oid, typmod, _ in steps[0].table.columns])
    rows = [step.new for step in steps]
    return table, [tuple_data(row) for row in rows], rows


def test_values_of_all_types_are_what_postgresql_has() -> None:
    table, values, rows = recorded_rows("public.every_type")
    keys = pa.array([b"t\0\0\0\1k"] * len(rows), pa.binary())
    columns = DECODER.rows(table, keys, pa.array(values), "UTC")
    DECODER.check_supported(table)
    for number, (info, found) in enumerate(zip(table.columns, columns, strict=True)):
        found.validate(full=True)
        assert found.type == arrow_type(info), info.name
        read = EXPECTED.get(info.name, str)
        expected = [None if row[number] is None else read(row[number]) for row in rows]
        assert repr(found.to_pylist()) == repr(expected), info.name
    by_name = {column.name: column for column in table.columns}
    assert {name: by_name[name].type for name in TYPES} == TYPES
    shapes = {name: (by_name[name].flen, by_name[name].decimal) for name in ("n10_2", "n5_m2", "n3_5", "v", "c", "bi")}
    assert shapes == {
        "n10_2": (10, 2), "n5_m2": (7, 0), "n3_5": (5, 5), "v": (20, -1), "c": (5, -1), "bi": (5, -1)
    }  # fmt: skip


def test_dates_and_numbers_that_no_sink_can_hold_are_refused_one_by_one() -> None:
    table, values, rows = recorded_rows("public.beyond")
    assert len(rows) == 9
    for value, row in zip(values, rows, strict=True):
        text = next(cell for cell in row[1:] if cell is not None)
        with pytest.raises(NeedsHuman, match=r"table public\.t: the row with the key k can't be decoded") as error:
            DECODER.rows(table, pa.array([b"t\0\0\0\1k"]), pa.array([value]), "UTC")
        assert repr(text) in error.value.message


@given(st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), min_size=1))
def test_integers_are_read_as_they_are(numbers: list[int | None]) -> None:
    assert decode(20, -1, [None if n is None else str(n) for n in numbers]).to_pylist() == numbers


@given(st.lists(st.none() | st.floats(), min_size=1))
def test_floats_are_read_exactly(numbers: list[float | None]) -> None:
    def text(number: float) -> str:
        return repr(number).replace("inf", "Infinity").replace("nan", "NaN")

    found = decode(701, -1, [None if n is None else text(n) for n in numbers]).to_pylist()
    assert list(map(repr, found)) == list(map(repr, numbers))


@given(st.lists(st.none() | st.floats(width=32, allow_nan=False), min_size=1))
def test_short_floats_are_read_exactly(numbers: list[float | None]) -> None:
    def text(number: float) -> str:
        return f"{number:.9g}".replace("inf", "Infinity")

    assert decode(700, -1, [None if n is None else text(n) for n in numbers]).to_pylist() == numbers


@given(st.lists(st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=2, max_value=10**7)))
def test_decimals_keep_their_digits(numbers: list[Any]) -> None:
    texts = [None if n is None else f"{n:f}" for n in numbers]
    assert decode(1700, NUMERIC_10_2, texts).to_pylist() == texts


@given(st.lists(st.none() | st.binary(max_size=20)))
def test_bytes_are_read_out_of_their_digits(values: list[bytes | None]) -> None:
    assert decode(17, -1, [None if v is None else f"\\x{v.hex()}" for v in values]).to_pylist() == values


@settings(deadline=None)
@given(
    st.lists(
        st.none() | st.datetimes(dt.datetime(1, 1, 2), dt.datetime(2099, 12, 30)), min_size=1
    ),  # bundled rules end there
    st.sampled_from(["UTC", "Asia/Shanghai", "America/New_York"]),
    st.integers(0, 6),
)
def test_points_in_time_are_shown_by_the_clocks_of_the_zone(
    moments: list[dt.datetime | None], zone: str, fsp: int
) -> None:
    """Fractions are as long as they must be, at most `fsp`. The bundled rules know no summer time after 2099."""
    texts, expected = [], []
    for moment in moments:
        if moment is None:
            texts.append(None)
            expected.append(None)
            continue
        kept = moment.replace(microsecond=moment.microsecond // 10 ** (6 - fsp) * 10 ** (6 - fsp))
        fraction = f"{kept.microsecond:06}".rstrip("0")
        texts.append(f"{kept.replace(microsecond=0).isoformat(' ')}{'.' if fraction else ''}{fraction}+00")
        shown = kept.replace(tzinfo=dt.UTC).astimezone(ZoneInfo(zone))
        whole = shown.replace(tzinfo=None, microsecond=0).isoformat(" ")
        expected.append(whole + (f".{shown.microsecond:06}"[: fsp + 1] if fsp else ""))
    assert decode(1184, fsp, texts, zone).to_pylist() == expected


def test_a_point_in_time_that_leaves_the_calendar_with_its_zone_is_refused() -> None:
    with pytest.raises(NeedsHuman, match="in Asia/Shanghai is no year from 1 to 9999"):
        decode(1184, -1, ["9999-12-31 23:00:00+00"], "Asia/Shanghai")


@pytest.mark.parametrize(
    ("oid", "typmod", "text"),
    [
        (16, -1, "x"), (16, -1, ""), (20, -1, "1.5"), (20, -1, "9223372036854775808"), (701, -1, "x"), (17, -1, "abc"),
        (17, -1, "\\xabc"), (17, -1, "\\xzz"), (1083, -1, "1:2"), (1083, -1, "12:00:00x"), (1114, -1, "2024-01-01"),
        (1114, -1, "2024-01-01 00:00:00 BC"), (1184, -1, "2024-01-01 00:00:00+01"), (1560, 3, "102"), (1560, 3, ""),
        (1700, NUMERIC_10_2, "NaN"), (1700, NUMERIC_10_2, ""),
    ],
)  # fmt: skip
def test_what_is_no_value_of_its_type_is_refused_by_its_row(oid: int, typmod: int, text: str) -> None:
    good = {16: "t", 20: "1", 701: "1", 17: "\\x", 1083: "12:00:00", 1114: "2024-01-01 00:00:00", 1560: "101"}
    first = good.get(oid, "2024-01-01 00:00:00+00" if oid == 1184 else "1.00")
    with pytest.raises(NeedsHuman, match=r"public\.t: the row with the key k can't be decoded: column c holds"):
        decode(oid, typmod, [first, None, text])


def test_a_value_that_was_not_sent_is_refused_with_what_mends_it() -> None:
    with pytest.raises(NeedsHuman, match="not sent the value of column c") as error:
        decode(25, -1, ["x", b"u"])
    assert "ALTER TABLE public.t REPLICA IDENTITY FULL" in error.value.next_step


@pytest.mark.parametrize(
    "value", [b"", b"\0", tuple_data(["k"]), tuple_data(["k", "x", "y"]), tuple_data(["k", "x"])[:-1]]
)
def test_a_row_of_another_shape_is_refused(value: bytes) -> None:
    table = table_of([("id", 25, -1), ("c", 25, -1)])
    whole = tuple_data(["k", "x"])
    with pytest.raises(NeedsHuman, match=r"public\.t: the row with the key k, NULL can't be decoded"):
        DECODER.rows(table, pa.array([b"t\0\0\0\1kn"] * 2), pa.array([whole, value]), "UTC")


def test_some_columns_can_be_read_alone() -> None:
    table = table_of([("id", 25, -1), ("c", 25, -1)])
    values = pa.array([tuple_data([b"u", "x"])])
    found = DECODER.rows(table, pa.array([b"n"]), values, "UTC", [table.columns[1]])
    assert [column.to_pylist() for column in found] == [["x"]]
    assert DECODER.rows(table, values[:0], values[:0], "UTC")[0].to_pylist() == []


def test_text_that_is_no_utf8_stays_bytes_and_nan_stays() -> None:
    broken = bytes([TEXT]) + struct.pack(">I", 1) + b"\xff"
    table = table_of([("c", 25, -1)])
    found = DECODER.rows(table, pa.array([b"n"]), pa.array([tuple_data([broken])]), "UTC")
    assert found[0].to_pylist() == [b"\xff"]
    assert math.isnan(decode(700, -1, ["NaN"]).to_pylist()[0])


def test_a_default_stands_for_what_is_not_there() -> None:
    column = table_of([("c", 23, -1)]).columns[0]
    assert DECODER.absent_value(column, "UTC").to_pylist() == [None]
