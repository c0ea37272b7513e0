"""Row format v1: literals, any rows beside rows of v2, and broken on purpose."""

from __future__ import annotations

import struct
from typing import Any

import golden
import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.tikv.row.handles import decode_common_handles
from changefeed.upstream.tikv.row.rowv2 import decode_rows
from hypothesis import given
from hypothesis import strategies as st
from schema_fixtures import (
    binary,
    column,
    compact,
    encode_decimal,
    encode_int,
    encode_row,
    encode_v1,
    record_key,
    table,
    uvarint,
    varint,
)
from schema_vectors import NOT_DECODABLE, column_of, is_same

INT, BIGINT, DOUBLE, VARCHAR, BLOB, DATETIME, DATE, DURATION, DECIMAL, JSON = 3, 8, 5, 15, 252, 12, 10, 11, 246, 245
UNSIGNED = 32
NOTHING = 2  # SMALLINT, for NULL


def decode(info: TableInfo, values: list[bytes]) -> dict[str, list[Any]]:
    arrays = decode_rows(info, binary([record_key(info.id, n) for n in range(len(values))]), binary(values), "UTC")
    for array in arrays:
        array.validate(full=True)
    return {c.name: a.to_pylist() for c, a in zip(info.output_columns, arrays, strict=True)}


def one(tp: int, value: bytes, flag: int = 0, decimal: int = 0, charset: str = "utf8mb4") -> Any:
    info = table([column(1, "c", tp, flag, decimal=decimal, charset=charset)])
    return decode(info, [encode_v1({1: value})])["c"][0]


def test_the_row_of_the_facts():
    info = table(
        [
            column(1, "i", INT), column(2, "s", VARCHAR), column(3, "n", INT), column(4, "d", DOUBLE),
            column(5, "p", DECIMAL, decimal=1), column(6, "t", DATETIME),
        ]
    )  # fmt: skip
    value = bytes.fromhex(
        "080208c80108040206616263080600080805bff8000000000000080a060401800a05080c09808080b8b8c6b9cf19"
    )
    assert {name: got for name, (got,) in decode(info, [value]).items()} == {
        "i": 100, "s": "abc", "n": None, "d": 1.5, "p": "10.5", "t": "2018-01-19 03:14:07",
    }  # fmt: skip


@golden.each("row_v1")
def test_rows_of_the_corpus(vector):
    columns = [definition for definition in vector["args"]["columns"] if definition["tp"] not in NOT_DECODABLE]
    info = table([*map(column_of, columns), column(1000, "absent", INT)])
    found = decode(info, [bytes.fromhex(vector["input_hex"])])
    assert found.pop("absent") == [None]
    for name, (value,) in found.items():
        assert is_same(value, vector["expected"][name]), name


@golden.each("datum_list", which=lambda vector: isinstance(vector["expected"], list) and vector["expected"])
def test_values_of_the_corpus(vector):
    """Each is taken for a column's; where one ends is what the length of the row says."""
    data = bytes.fromhex(vector["input_hex"])
    for number, expected in enumerate(vector["expected"]):
        tp, read = golden.known(DATUMS, expected["type"])
        size = next(n for n in range(1, len(data) + 1) if reads(tp, data[:n]))
        cell, data = data[:size], data[size:]
        literal = expected["hex" if "hex" in expected else "value"] if tp != NOTHING else None
        assert read(one(tp, cell, UNSIGNED * (expected["type"] == "uint"), charset="binary")) == read(literal), number
        if "as_datetime" in expected:
            assert one(DATETIME, cell) == expected["as_datetime"]
        if "as_date" in expected:
            assert one(DATE, cell) == expected["as_date"]
    assert not data


def as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else bytes.fromhex(value)


#: The column that a value is taken for, and how it and the literal are compared.
DATUMS = {
    "null": (NOTHING, lambda value: value),
    "int": (BIGINT, int),
    "uint": (BIGINT, int),
    "float": (DOUBLE, float),
    "bytes": (BLOB, as_bytes),
    "duration": (DURATION, str),
    "json": (JSON, str),
}


def reads(tp: int, cell: bytes) -> bool:
    try:
        one(tp, cell, charset="binary")
    except NeedsHuman:
        return False
    return True


@golden.each("datum_invalid")
def test_broken_values_of_the_corpus(vector):
    with pytest.raises(NeedsHuman, match=r"its value (ends inside a value|has an integer of more than 64 bits)"):
        one(BIGINT, bytes.fromhex(vector["input_hex"]))


@golden.each("compact_bytes_first_len")
def test_byte_strings_of_the_corpus(vector):
    length = vector["expected"]["len"]
    encoded = bytes.fromhex(vector["input_hex"])[:length]
    assert one(BLOB, b"\x02" + encoded, charset="binary") == encoded[1:]
    if length > 1:
        with pytest.raises(NeedsHuman, match="ends inside a value"):
            one(BLOB, b"\x02" + encoded[:-1], charset="binary")


@golden.each("comparable_float")
def test_floats_of_the_corpus(vector):
    expected = vector["expected"]
    got = one(DOUBLE, b"\x05" + bytes.fromhex(vector["input_hex"]))
    assert abs(got - float(expected["approx"])) <= float(expected["tolerance"])


def key_datum(datum: dict[str, str]) -> bytes:
    """As keys have it."""

    def signed(value: int) -> bytes:
        return struct.pack(">Q", value + (1 << 63))

    def clock(text: str) -> int:
        hours, minutes, seconds = map(int, text.split(":"))
        return (hours * 60 + minutes) * 60 + seconds

    match datum["type"]:
        case "null":
            return b"\x00"
        case "int":
            return b"\x03" + signed(int(datum["value"]))
        case "uint":
            return b"\x04" + struct.pack(">Q", int(datum["value"]))
        case "duration":
            return b"\x07" + signed(clock(datum["text"]) * 10**9)
        case "float":
            (bits,) = struct.unpack(">Q", struct.pack(">d", float(datum["value"])))
            return b"\x05" + struct.pack(">Q", bits ^ (1 << 63) if bits < 1 << 63 else bits ^ ((1 << 64) - 1))
        case "datetime":
            day, time = datum["text"].split()
            year, month, date = map(int, day.split("-"))
            packed = ((year * 13 + month) << 5 | date) << 17 | clock(time)
            return b"\x04" + struct.pack(">Q", packed << 24)
        case "bytes":
            raw = bytes.fromhex(datum["hex"])
            groups = [raw[n : n + 8] for n in range(0, len(raw) + 1, 8)]
            return b"\x01" + b"".join(group.ljust(8, b"\0") + bytes([0xF7 + len(group)]) for group in groups)
    raise golden.UnknownShape(f"datum {dict(datum)}")


KEY_TYPES = {"int": BIGINT, "uint": BIGINT, "duration": DURATION, "float": DOUBLE, "datetime": DATETIME, "bytes": BLOB}


@golden.each("datum_key_order")
def test_keys_of_the_corpus_are_in_order_and_can_be_read(vector):
    left, right = ([*map(key_datum, vector["args"][side])] for side in ("left", "right"))
    one_, other = b"".join(left), b"".join(right)
    assert (one_ > other) - (one_ < other) == vector["expected"]["cmp"]
    for side in ("left", "right"):
        datums = vector["args"][side]
        if any(datum["type"] == "null" for datum in datums):
            continue  # no part of a primary key is NULL
        columns = [column(n + 1, f"c{n}", KEY_TYPES[datum["type"]]) for n, datum in enumerate(datums)]
        key = record_key(1, 0)[:-8] + b"".join(map(key_datum, datums))
        found = decode_common_handles(binary([key]), table(columns).columns)
        for datum, values in zip(datums, found, strict=True):
            if datum["type"] in ("int", "uint"):
                assert values[0].as_py() == (int(datum["value"]) % (1 << 64)).to_bytes(8, "little")
            elif datum["type"] == "bytes":
                assert values[0].as_py() == bytes.fromhex(datum["hex"])


# -- beside rows of v2

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.none()
ROW = st.tuples(NUMBERS, st.none() | st.integers(0, (1 << 64) - 1), st.none() | st.text(max_size=9), st.booleans())
BOTH = table([column(1, "i", BIGINT), column(2, "u", BIGINT, UNSIGNED), column(300, "s", VARCHAR) | {"offset": 2}])


def v1_of(row: Any) -> bytes:
    i, u, s, _ = row
    cells = {
        1: b"\x00" if i is None else b"\x08" + varint(i),
        2: b"\x00" if u is None else b"\x09" + uvarint(u),
        300: b"\x00" if s is None else compact(s.encode()),
        77: b"\x06" + encode_decimal("1.5", 3, 1),  # of a column that is gone
    }
    return encode_v1(cells)


def v2_of(row: Any) -> bytes:
    i, u, s, _ = row
    return encode_row(
        {
            1: None if i is None else encode_int(i),
            2: None if u is None else encode_int(u, signed=False),
            300: None if s is None else s.encode(),
        },
        large=True,
    )


@given(st.lists(ROW, max_size=12))
def test_rows_of_both_formats_in_one_batch(rows):
    got = decode(BOTH, [v1_of(row) if row[3] else v2_of(row) for row in rows])
    assert got == {"i": [r[0] for r in rows], "u": [r[1] for r in rows], "s": [r[2] for r in rows]}


def test_values_of_json_have_their_own_length():
    value = b"\x0a" + bytes.fromhex("01010000001c0000001300000003000c160000006b65790576616c7565")
    info = table([column(1, "j", JSON, charset="binary"), column(2, "i", INT)])
    got = decode(info, [encode_v1({1: value, 2: b"\x08\x02"}), encode_v1({1: b"\x0a\x0c\x01a", 2: b"\x08\x04"})])
    assert got == {"j": ['{"key": "value"}', '"a"'], "i": [1, 2]}


# -- broken on purpose


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"\x08", "ends inside a value"),
        (b"\x08\x02", "ends inside a value"),
        (b"\x08\x02\x08", "ends inside a value"),
        (b"\x08\xd8\x04\x02\x06ab", "ends inside a value"),
        (b"\x08\xd8\x04\x02\x01", "impossible length"),
        (b"\x08\x02\x03" + bytes(7), "ends inside a value"),
        (b"\x08\x02\x63", "flag 99"),
        (b"\x08\x02\x08\x02\x09\x02\x00", "no column id"),
        (encode_v1({1: compact(b"x")}), "a value of another type"),
        (encode_v1({1: b"\x05" + bytes(8)}), "a value of another type"),
        (encode_v1({300: b"\x08\x02"}), "a value of another type"),
        (b"\x00\x00", "no column id"),
    ],
)
def test_a_broken_row_is_named_by_its_key(value, why):
    good = encode_v1({1: b"\x08\x02"})
    with pytest.raises(NeedsHuman, match=f"test.t, key {record_key(1, 1).hex()}: its value .*{why}"):
        decode(BOTH, [good, value, good])


@given(st.lists(ROW, min_size=1, max_size=3), st.data())
def test_mutated_rows_are_read_or_refused(rows, data):
    value = bytearray(v1_of(rows[0]))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(BOTH, [bytes(value), *map(v2_of, rows)])
    except NeedsHuman as error:
        assert "test.t" in error.message  # noqa: PT017 - it need not be raised
