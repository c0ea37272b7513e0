"""JSON: every literal of the golden data, a scalar encoder's values, and broken bytes."""

from __future__ import annotations

import json
import struct
from typing import Any

import golden
import pyarrow as pa
import pytest
from changefeed.schema.sql_type import SqlType
from changefeed.upstream.binary_view import BadCell
from changefeed.upstream.tikv.row.cells import Cells, decode_cells
from changefeed.upstream.tikv.row.json_binary import MAX_DEPTH, BadJson, json_text, json_texts
from hypothesis import given
from hypothesis import strategies as st
from schema_fixtures import column, encode_json, table


@golden.each("json_binary")
def test_values_of_the_corpus(vector):
    encoded, expected = bytes.fromhex(vector["input_hex"]), vector["expected"]
    if "error" in expected:
        with pytest.raises(BadJson):
            json_text(encoded)
    elif "unquoted" in expected:
        assert unquoted(json_text(encoded)) == expected["unquoted"]
    else:
        assert json_text(encoded) == expected["text_new" if "text_new" in expected else "text"]


def unquoted(text: str) -> str:
    plain = json.loads(text)
    return plain if isinstance(plain, str) else text


def number(digits: str) -> int | float:
    """What is no integer of 64 bits is a double to TiDB."""
    return int(digits) if -(1 << 63) <= int(digits) < 1 << 64 else float(digits)


TYPES = {dict: "OBJECT", list: "ARRAY", str: "STRING", bool: "BOOLEAN", type(None): "NULL", float: "DOUBLE"}


def type_of(value: Any) -> str:
    if type(value) is int:
        return "INTEGER" if value < 1 << 63 else "UNSIGNED INTEGER"
    return TYPES[type(value)]


@golden.each("json_text_form")
def test_text_forms_of_the_corpus(vector):
    args, expected = vector["args"], vector["expected"]
    literal = args.get("json_text") or args.get("source_text")
    source = args["json"] if literal is None else json.loads(literal, parse_int=number)
    text = json_text(encode_json(source))
    if "text" in expected:
        assert text == expected["text"]
    elif "type" in expected:
        assert json.loads(text, parse_int=number) == source
        assert type_of(json.loads(text, parse_int=number)) == expected["type"]
    else:
        assert unquoted(text) == expected["unquoted"]


@golden.each("mounted_value", which=lambda vector: vector["args"]["column_type"] == "json")
def test_inserted_values_of_the_corpus(vector):
    assert json_text(encode_json(json.loads(vector["args"]["inserted"]))) == vector["expected"]["text"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e15, "1e15"), (999999999999999.0, "999999999999999.0"), (1.0001e21, "1.0001e21"),
        (-1e-15, "-0.000000000000001"),
        (1.5e-16, "1.5e-16"), (0.1, "0.1"), (123456789.125, "123456789.125"), (5e-324, "5e-324"),
        ("a\b\f\n\r\t\x7f\"\\/<>&\u2028é", '"a\\u0008\\u000c\\n\\r\\t\x7f\\"\\\\/<>&\\u2028é"'),
        ({"b": 1, "a": [], "aa": {}}, '{"a": [], "aa": {}, "b": 1}'),
    ],
)  # fmt: skip
def test_values_as_tidb_prints_them(value, text):
    assert json_text(encode_json(value)) == text


SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=6)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS | DOUBLES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(VALUES)
def test_values_come_back(value):
    assert json.loads(json_text(encode_json(value))) == value


@given(st.lists(VALUES | st.none(), max_size=8), st.data())
def test_a_column_of_values(values, data):
    """Values beside each other, some of them absent."""
    there = [data.draw(st.booleans()) for _ in values]
    info = table([column(1, "j", SqlType.JSON, charset="binary")]).columns[0]
    stored = pa.array([encode_json(value) for value in values], pa.binary())
    cells, mask = Cells.of(stored), pa.array(there, pa.bool_()).to_numpy(zero_copy_only=False)
    found = decode_cells(info, cells, mask, "UTC").to_pylist()
    assert found == [json_text(encode_json(v)) if is_there else None for v, is_there in zip(values, there, strict=True)]


def test_a_broken_value_is_named_by_its_row():
    good = encode_json([1])
    with pytest.raises(BadCell, match="ends too early") as caught:
        json_texts(pa.array([good, good, encode_json("abc")[:-1], good]))
    assert caught.value.row == 2


def deep(levels: int) -> bytes:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return encode_json(value)


def test_a_value_may_be_a_hundred_levels_deep_and_no_more():
    assert json_text(deep(MAX_DEPTH)) == "[" * MAX_DEPTH + "]" * MAX_DEPTH
    with pytest.raises(BadJson, match="more than 100 levels"):
        json_text(deep(MAX_DEPTH + 1))


def test_parts_that_lie_one_over_the_other_are_refused():
    """Forty arrays, each with its members in the next one twice, would be 2^40 values."""
    size = 8 + 2 * 5
    bomb = b"".join(struct.pack("<II", 2, (40 - n) * size) + (b"\x03" + struct.pack("<I", size)) * 2 for n in range(40))
    with pytest.raises(BadJson, match="one over the other"):
        json_text(b"\x03" + bomb + struct.pack("<II", 0, 8))


@given(VALUES, st.data())
def test_mutated_bytes_are_a_value_or_a_clear_error(value, data):
    encoded = bytearray(encode_json(value))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    try:
        text = json_text(cut)
    except BadJson:
        return
    assert isinstance(json.loads(text), object)
