"""Row format v2, as literals, by round trip against a scalar encoder, and broken on purpose."""

from __future__ import annotations

import pickle
from decimal import ROUND_HALF_UP, Context, Decimal

import golden
import numpy as np
import pyarrow as pa
import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.table_info import parse_table_info
from changefeed.upstream.tikv.row import rowv2
from hypothesis import given
from hypothesis import strategies as st
from schema_fixtures import (
    binary,
    column,
    encode_decimal,
    encode_int,
    encode_row,
    record_key,
    table,
)
from schema_vectors import NOT_DECODABLE, column_of, is_same

PK, INT, BIGINT, UNSIGNED, VARCHAR, DECIMAL = 3, 3, 8, 32, 15, 246


def decode(info, values, handles=None, time_zone="UTC"):
    handles = range(len(values)) if handles is None else handles
    keys = binary([record_key(info.id, handle) for handle in handles])
    arrays = rowv2.decode_rows(info, keys, binary(values), time_zone)
    for array in arrays:
        array.validate(full=True)
    return {c.name: a.to_pylist() for c, a in zip(info.output_columns, arrays, strict=True)}


# -- literals


def row_vector_columns(vector):
    return [c for c in vector["args"]["columns"] if c["tp"] not in NOT_DECODABLE]


@golden.each("row_v2", which=row_vector_columns)
def test_row_vectors_of_the_corpus(vector):
    columns = [*map(column_of, row_vector_columns(vector))]
    for name, (value,) in decode(table(columns), [bytes.fromhex(vector["input_hex"])]).items():
        assert is_same(value, vector["expected"][name]), name


@golden.each("absent_column_value", which=lambda vector: vector["args"]["type"]["Tp"] not in NOT_DECODABLE)
def test_absent_values_of_the_corpus(vector):
    field_type = {"Charset": "utf8mb4"} | vector["args"]["type"]
    info = table([column(1, "c", 3) | {"type": field_type, "origin_default": vector["args"]["origin_default"]}])
    (value,) = decode(info, [encode_row({})])["c"]
    assert is_same(value, vector["expected"])


@golden.each("absent_column_value", which=lambda vector: vector["args"]["type"]["Tp"] in NOT_DECODABLE)
def test_columns_of_types_that_no_table_has_are_refused(vector):
    info = table([column(1, "c", 3) | {"type": vector["args"]["type"]}])
    with pytest.raises(NeedsHuman, match="column c has type"):
        rowv2.check_supported(info)


@golden.each("decimal_roundtrip")
def test_decimals_of_the_corpus(vector):
    args = vector["args"]
    info = table([column(1, "c", DECIMAL, decimal=args["frac"])])
    text = args["text"] if vector["expected"]["status"] == "ok" else vector["expected"]["text"]  # what the writer kept
    value = encode_row({1: encode_decimal(text, args["precision"], args["frac"])})
    assert decode(info, [value])["c"] == [vector["expected"]["text"]]


@pytest.mark.parametrize(
    ("stored", "scale", "text"),
    [
        ("0a028000000000", 2, "0.00"),
        ("0a028000007b2d", 2, "123.45"),
        ("0a027fffff84d2", 2, "-123.45"),
        ("05027ffffe", 2, "-0.01"),
        ("05027ffffe", 1, "0.0"),  # rounded to zero, which has no sign
        ("05027ffffe", 0, "0"),
        ("0e04810dfb38d204d2", 4, "1234567890.1234"),
        ("0e047ef204c72dfb2d", 2, "-1234567890.12"),
        ("080380303902a6", 1, "12345.7"),
        ("080380303902a6", 5, "12345.67800"),
        ("1e0ae33b9ac9ff3b9ac9ff3b9ac9ff09", 0, "100000000000000000000"),
        (
            "411e80bc614e35b7bf87350e34c02f075f79075bcd1500bc614e35b7bf87037a",
            30,
            "12345678901234567890123456789012345.123456789012345678901234567890",
        ),
    ],
)
def test_decimals_of_the_facts_at_the_columns_scale(stored, scale, text):
    info = table([column(1, "c", DECIMAL, decimal=scale)])
    assert decode(info, [encode_row({1: bytes.fromhex(stored)})])["c"] == [text]


# -- round trip


@st.composite
def numbers(draw):
    precision = draw(st.integers(1, 65))
    fraction = draw(st.integers(0, min(30, precision)))
    units = draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    return f"{Decimal(units).scaleb(-fraction, Context(prec=200)):f}", precision, fraction


def rescaled(text, scale):
    number = Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=200))
    return f"{number if number else number.copy_abs():f}"


INT64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-300, 300)
UINT64 = st.integers(0, (1 << 64) - 1) | st.integers(0, 300)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"handle": INT64},
        optional={
            "signed": st.none() | INT64,
            "unsigned": st.none() | UINT64,
            "text": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
            "number": st.none() | numbers(),
            "unknown": st.none() | st.binary(max_size=5),
            "width": st.sampled_from([1, 2, 4, 8]),
            "large": st.booleans(),
            "trailer": st.binary(max_size=9),
        },
    ),
    max_size=25,
)
ROUND_TRIP = table(
    [
        column(1, "handle", BIGINT, PK),
        column(2, "signed", BIGINT),
        column(5, "unsigned", BIGINT, UNSIGNED | 1),
        column(6, "text", VARCHAR, origin_default="old"),
        column(9, "number", DECIMAL, 1, decimal=5),
    ]
)


def encoded(row):
    width = row.get("width", 1)
    encoders = {
        "signed": (2, lambda v: encode_int(v, width=width)),
        "unsigned": (5, lambda v: encode_int(v, signed=False, width=width)),
        "text": (6, str.encode),
        "number": (9, lambda v: encode_decimal(*v)),
        "unknown": (200, bytes),
    }
    cells = {id_: None if row[n] is None else f(row[n]) for n, (id_, f) in encoders.items() if n in row}
    return encode_row(cells, large=row.get("large", False), trailer=row.get("trailer", b""))


@given(ROWS, st.integers(0, 3))
def test_rows_of_mixed_shapes_round_trip(rows, skipped):
    absent = {"signed": None, "unsigned": 0, "text": "old", "number": "0"}
    expected = {name: [row.get(name, default) for row in rows] for name, default in absent.items()}
    expected["number"] = [v if v in (None, "0") else rescaled(v[0], 5) for v in expected["number"]]
    expected["handle"] = [row["handle"] for row in rows]
    values = [encoded(row) for row in rows]
    assert decode(ROUND_TRIP, values, expected["handle"]) == expected
    keys = binary([record_key(1, handle) for handle in expected["handle"]])
    sliced = rowv2.decode_rows(ROUND_TRIP, keys.slice(skipped), binary(values).slice(skipped), "UTC")
    assert [a.to_pylist() for a in sliced] == [expected[c.name][skipped:] for c in ROUND_TRIP.output_columns]


def test_mixed_null_patterns_and_widths_in_one_batch():
    info = table([column(1, "id", INT, PK), column(2, "a", INT), column(3, "b", VARCHAR), column(4, "c", DECIMAL)])
    values, expected = [], {"id": [], "a": [], "b": [], "c": []}
    for number in range(512):
        cells = {
            2: None if number & 1 else number**3 - 1000,
            3: None if number & 2 else "x" * (number % 11),
            4: None if number & 4 else number,
        }
        stored = {
            2: cells[2] if cells[2] is None else encode_int(cells[2], width=1 << number % 4),
            3: cells[3] if cells[3] is None else cells[3].encode(),
            4: cells[4] if cells[4] is None else encode_decimal(str(cells[4]), 3 + number % 20, 0),
            300: b"dropped column",
        }
        if not number & 8:
            del stored[300]
        values.append(encode_row(stored, large=bool(number & 8)))
        expected["id"].append(number)
        expected["a"].append(cells[2])
        expected["b"].append(cells[3])
        expected["c"].append(None if cells[4] is None else str(cells[4]))
    assert decode(info, values) == expected


def test_an_unsigned_handle_is_reinterpreted():
    info = table([column(1, "id", BIGINT, PK | UNSIGNED)])
    assert decode(info, [encode_row({})] * 3, [-1, 5, -(1 << 63)])["id"] == [(1 << 64) - 1, 5, 1 << 63]


def test_a_value_in_the_row_comes_before_the_handle():
    info = table([column(1, "id", INT, PK)])
    assert decode(info, [encode_row({1: b"\x07"}), encode_row({}), encode_row({1: None})], [1, 2, 3])["id"] == [7, 2, 3]


def test_defaults_of_the_time_are_converted_to_the_columns_type():
    info = table(
        [
            column(2, "n", DECIMAL, 1, decimal=2, origin_default="1"),
            column(3, "i", INT, 1, origin_default=7),
            column(4, "later", INT, 1, default="9"),  # for future inserts only
        ]
    )
    assert decode(info, [encode_row({})]) == {"n": ["1.00"], "i": [7], "later": [0]}


def test_values_may_stand_at_the_very_end_of_the_buffer():
    row = encode_row({2: b"\x80"})
    exact = pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.array([0, len(row)], np.int32)), pa.py_buffer(row)]
    )
    info = table([column(2, "a", INT)])
    assert rowv2.decode_rows(info, binary([record_key(1, 1)]), exact, "UTC")[0].to_pylist() == [-128]


def test_no_rows_give_empty_columns_of_the_right_types():
    arrays = rowv2.decode_rows(ROUND_TRIP, binary([]), binary([]), "UTC")
    assert [a.type for a in arrays] == [pa.int64(), pa.int64(), pa.uint64(), pa.string(), pa.string()]


# -- broken rows

GOOD = encode_row({2: b"\x01", 3: b"text"})
BROKEN_TABLE = table([column(1, "id", INT, PK), column(2, "a", INT), column(3, "b", VARCHAR), column(4, "c", DECIMAL)])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "is empty"),
        (b"\x07\x02", "no row format"),
        (GOOD[:5], "inside the header"),
        (GOOD[:9], "inside the header"),
        (GOOD[:-1], "out of bounds"),
        (GOOD[:8] + b"\x05\x00\x01\x00" + GOOD[12:], "out of bounds"),
        (GOOD[:6] + b"\x03\x02" + GOOD[8:], "do not ascend"),
        (GOOD[:6] + b"\x02\x02" + GOOD[8:], "do not ascend"),
        (b"\x80\x00\x01\x00\x01\x00\x02\x02\x01\x00\x01", "NULL as well"),
        (encode_row({2: b"\x01\x02\x03"}), "column a "),
        (encode_row({2: b""}), "column a "),
        (encode_row({2: bytes(9)}), "column a "),
        (encode_row({4: b"\x01"}), "column c "),
        (encode_row({4: b"\x0a\x02\x80"}), "column c "),
        (encode_row({4: b"\x00\x00\x80"}), "column c "),
        (encode_row({4: b"\x02\x03\x80\x00"}), "column c "),
        (encode_row({4: b"\x42\x00" + bytes(30)}), "column c "),
        (encode_row({4: b"\x01\x00\x8a"}), "column c "),
    ],
)
@pytest.mark.parametrize("before", [0, 5])
def test_a_broken_row_is_named_by_table_and_key(value, why, before):
    values = [GOOD] * before + [value] + [GOOD] * 4
    with pytest.raises(NeedsHuman, match=f"test.t, key {record_key(1, before).hex()}: .*{why}") as caught:
        decode(BROKEN_TABLE, values)
    assert caught.value.next_step


def test_rows_of_another_table_are_refused():
    with pytest.raises(ValueError, match="physical table 2"):
        rowv2.decode_rows(BROKEN_TABLE, binary([record_key(2, 1)]), binary([GOOD]), "UTC")
    with pytest.raises(ValueError, match="1 keys but 2 values"):
        rowv2.decode_rows(BROKEN_TABLE, binary([record_key(1, 1)]), binary([GOOD, GOOD]), "UTC")


# -- what is supported


@pytest.mark.parametrize(
    ("columns", "more", "why"),
    [
        ([column(1, "id", INT, PK), column(2, "g", 255)], {}, "column g has type GEOMETRY"),
        ([column(1, "id", INT, PK), column(2, "g", 15, charset="big5")], {}, "column g has charset 'big5'"),
        (
            [column(1, "id", INT, PK), column(2, "d", 12, origin_default="soon")],
            {},
            "column d has the origin default 'soon', which",
        ),
        ([column(1, "id", INT, PK), column(2, "x", 90)], {}, "column x has type TYPE90"),
    ],
)
def test_rule_29_what_is_not_supported_is_refused_by_name(columns, more, why):
    with pytest.raises(NeedsHuman, match=f"test.t .*{why}") as caught:
        rowv2.check_supported(table(columns, **more))
    assert '"!test.t"' in caught.value.next_step


def test_rule_29_unsupported_columns_are_never_decoded_by_guess():
    with pytest.raises(NeedsHuman, match="column g has type GEOMETRY"):
        decode(table([column(1, "id", INT, PK), column(2, "g", 255)]), [encode_row({})])


def test_supported_tables_pass():
    rowv2.check_supported(ROUND_TRIP)
    rowv2.check_supported(parse_table_info(ROUND_TRIP.raw, "x"))
    virtual = column(2, "v", 12, generated_expr_string="now()", generated_stored=False)
    rowv2.check_supported(table([column(1, "id", INT, PK), virtual]))
    assert pickle.loads(pickle.dumps(ROUND_TRIP)) == ROUND_TRIP


NOT_NULL = 1


@pytest.mark.parametrize(
    ("lacking", "row", "is_whole"),
    [
        (column(2, "a", INT), {3: b"x"}, True),  # NULL by default: TiDB leaves it out
        (column(2, "a", INT, NOT_NULL, origin_default="7"), {3: b"x"}, True),  # the row is older than the column
        (column(2, "a", INT, default="7", origin_default="7"), {3: b"x"}, True),
        (column(2, "a", INT, NOT_NULL), {3: b"x"}, False),
        (column(2, "a", INT), {3: b"x", 4: b"y"}, True),
        (column(2, "a", INT, NOT_NULL, origin_default="7"), {3: b"x", 4: b"y"}, False),  # the row is newer
        (column(2, "a", INT, default="7"), {3: b"x", 4: b"y"}, False),
        (column(2, "a", INT, default="7"), {3: b"x", 4: None}, False),
        (column(2, "a", INT, default="7"), {2: None, 3: b"x", 4: b"y"}, True),
        (column(2, "a", 16, default=None, default_bit="AQ=="), {3: b"x", 4: b"y"}, False),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_a_row_that_was_written_under_another_definition_is_no_default(lacking, row, is_whole, large):
    """What shall be written is decoded so; what compares versions of a row is not."""
    info = table([column(1, "id", INT, PK), lacking, column(3, "b", VARCHAR)])
    key, value = binary([record_key(1, 5)]), binary([encode_row(row, large=large)])
    lenient = rowv2.decode_rows(info, key, value, "UTC")
    if is_whole:
        assert rowv2.decode_rows(info, key, value, "UTC", are_whole=True) == lenient
        return
    with pytest.raises(NeedsHuman, match=r"table test\.t, key 7480.*: its value lacks column a \(id 2\)"):
        rowv2.decode_rows(info, key, value, "UTC", are_whole=True)


def test_the_first_of_many_rows_that_lack_a_column_is_named():
    info = table([column(1, "id", INT, PK), column(2, "a", INT, NOT_NULL), column(3, "b", VARCHAR)])
    rows = [{2: b"\1", 3: b"x"}] * 5 + [{3: b"xyz"}] + [{2: b"\1"}] * 3 + [{3: b"x"}]
    keys = binary([record_key(1, number) for number in range(len(rows))])
    with pytest.raises(NeedsHuman, match=record_key(1, 5).hex()):
        rowv2.decode_rows(info, keys, binary([encode_row(row) for row in rows]), "UTC", are_whole=True)
