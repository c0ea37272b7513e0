"""Every type from the development cluster's encoders through the decoder to text that is made in another way.

The encoders share no code with the decoder (tests/unit/devcluster checks them against literals). Reads
corpus/vectors.jsonl (mounted_value).
"""

from __future__ import annotations

import re
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import golden
import pyarrow as pa
import pytest
from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.schema.time_zones import check_time_zone
from changefeed.schema.values import arrow_type
from changefeed.upstream.tikv.row.rowv2 import check_supported, decode_rows
from changefeed_devcluster import keys
from changefeed_devcluster.tidb import rows
from changefeed_devcluster.tidb import values as stored
from changefeed_devcluster.tidb.schema import NewColumn, make_table, with_column
from changefeed_devcluster.tidb.schema import TidbTable as Upstream
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_fixtures import binary, column, encode_row, record_key, table

ZONE = "America/New_York"  # has two clock changes a year
NAMES = ("a", "b c", "ç", "x" * 20, "e")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
DATETIMES = st.datetimes() | st.sampled_from(["0000-00-00 00:00:00", "2024-00-00 01:02:03", "0000-01-00 23:59:59.5"])
TIMESTAMPS = st.datetimes(datetime(1970, 1, 1, 0, 0, 1), datetime(2038, 1, 19)) | st.just("0000-00-00 00:00:00")
DURATIONS = st.timedeltas(timedelta(hours=-838, minutes=-59), timedelta(hours=838, minutes=59))


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(1 - 10**precision, 10**precision - 1).map(lambda units: Decimal(f"{units}e-{scale}"))


#: SQL type: its values, as the development cluster takes them.
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": signed(8),
    "smallint unsigned zerofill": unsigned(16),
    "mediumint": signed(24),
    "int unsigned": unsigned(32),
    "bigint": signed(64),
    "bigint unsigned": unsigned(64),
    "year": st.just(0) | st.integers(1901, 2155),
    "bit(1)": unsigned(1),
    "bit(64)": unsigned(64),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": FLOATS,
    "decimal(10,0)": decimals(10, 0),
    "decimal(65,30)": decimals(65, 30),
    "decimal(5,5)": decimals(5, 5),
    "char(20)": TEXT.map(lambda text: text.rstrip(" ")),
    "varchar(40)": TEXT,
    "mediumtext": TEXT,
    "binary(8)": st.binary(min_size=8, max_size=8),
    "varbinary(40)": st.binary(max_size=40),
    "blob": st.binary(max_size=40),
    "date": st.dates() | st.sampled_from(["0000-00-00", "2024-02-00"]),
    "datetime": DATETIMES,
    "datetime(3)": DATETIMES,
    "timestamp(6)": TIMESTAMPS,
    "time": DURATIONS,
    "time(4)": DURATIONS,
    "enum('a','b c','ç','" + "x" * 20 + "','e')": st.sampled_from(["", *NAMES]),
    "set('a','b c','ç','" + "x" * 20 + "','e')": st.sets(st.integers(0, 4)).map(
        lambda chosen: ",".join(NAMES[place] for place in sorted(chosen))
    ),
}
COLUMNS = [NewColumn(f"c{number}", sql, nullable=True) for number, sql in enumerate(TYPES)]
FSP = {"datetime": 0, "datetime(3)": 3, "timestamp(6)": 6, "time": 0, "time(4)": 4}


def fraction(micros: int, fsp: int) -> str:
    return f".{micros:06}"[: 1 + fsp] if fsp else ""


def expected(sql: str, value: Any, zone: str = ZONE) -> Any:
    """What the decoder is to give for a value, by way of Python's own formatting."""
    if value is None or sql.endswith("text"):
        return value
    if sql.startswith("decimal"):
        scale = int(sql[:-1].partition(",")[2])
        return f"{value:.{scale}f}" if value else f"{0:.{scale}f}"
    if sql.startswith("timestamp") and isinstance(value, datetime):
        value = value.replace(tzinfo=ZoneInfo("UTC")).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    if isinstance(value, datetime):
        return f"{value:%m-%d %H:%M:%S}".join([f"{value.year:04}-", fraction(value.microsecond, FSP[sql])])
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str) and sql in FSP:
        whole, _, micros = value.partition(".")
        return whole + fraction(int(micros.ljust(6, "0") or 0), FSP[sql])
    if isinstance(value, timedelta):
        size, minus = abs(value), "-" if value < timedelta() else ""
        minutes, second = divmod(size.days * 86400 + size.seconds, 60)
        return f"{minus}{minutes // 60:02}:{minutes % 60:02}:{second:02}{fraction(size.microseconds, FSP[sql])}"
    return value


def shown(array: pa.Array) -> list[Any]:
    array.validate(full=True)
    if pa.types.is_struct(array.type):
        assert [cell is None for cell in array.field("number").to_pylist()] == array.is_null().to_pylist()
        return array.field("text").to_pylist()
    return array.to_pylist()


def decode(upstream: Upstream, found: list[tuple[bytes, bytes]], zone: str = ZONE) -> dict[str, list[Any]]:
    info = parse_table_info(upstream.to_json(), "test")
    check_supported(info)
    record_keys, values = binary([key for key, _ in found]), binary([value for _, value in found])
    arrays = decode_rows(info, record_keys, values, zone)
    assert [array.type for array in arrays] == [arrow_type(column) for column in info.output_columns]
    return {column.name: shown(array) for column, array in zip(info.output_columns, arrays, strict=True)}


def encode(upstream: Upstream, row: dict[str, Any]) -> tuple[bytes, bytes]:
    return keys.record_key(upstream.id, rows.handle_of(upstream, row)), rows.encode_row(
        upstream, {name: value for name, value in row.items() if name != "_tidb_rowid"}
    )


@settings(deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({c.name: st.none() | values for c, values in zip(COLUMNS, TYPES.values(), strict=True)}),
        max_size=8,
    )
)
def test_every_type_is_decoded_to_the_text_of_its_value(given_rows):
    upstream = make_table(5, "t", COLUMNS, None)  # a table with _tidb_rowid
    got = decode(upstream, [encode(upstream, {"_tidb_rowid": n, **row}) for n, row in enumerate(given_rows)])
    for c in COLUMNS:
        assert got[c.name] == [expected(c.type, row[c.name]) for row in given_rows], c.type


KEY_TYPES = [sql for sql in TYPES if not sql.endswith(("text", "blob"))]


@settings(deadline=None)
@given(st.data())
def test_a_clustered_primary_key_of_any_types_is_read_out_of_the_key(data):
    chosen = data.draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=4))
    columns = [NewColumn(f"k{n}", sql) for n, sql in enumerate(chosen)] + [NewColumn("v", "int", nullable=True)]
    upstream = make_table(5, "t", columns, [column.name for column in columns[:-1]])
    if upstream.pk is not None:
        return  # one integer: an int handle
    row = st.fixed_dictionaries({column.name: TYPES[column.type] for column in columns[:-1]})
    given_rows = [{**row, "v": n} for n, row in enumerate(data.draw(st.lists(row, min_size=1, max_size=6)))]
    got = decode(upstream, [encode(upstream, row) for row in given_rows])
    for c in columns:
        assert got[c.name] == [expected(c.type, row[c.name]) for row in given_rows], c.type


def test_a_key_column_in_the_value_goes_before_the_sort_key():
    upstream = make_table(5, "t", [NewColumn("k", "varchar(20)")], "k")
    key, value = encode(upstream, {"k": "Case  "})
    sorted_key = keys.record_key(5, rows.handle_of(upstream, {"k": "case"}))
    assert decode(upstream, [(sorted_key, value), (key, value)]) == {"k": ["Case  ", "Case  "]}
    assert decode(upstream, [(key, rows.assemble({})), (key, value)]) == {"k": ["Case", "Case  "]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda key: key[:11] + b"\x03" + key[12:], "column k0 has another type in the key"),
        (lambda key: key[:-1], "the key ends inside a value|has no end"),
        (lambda key: key[:19], "too short"),
        (lambda key: key + b"\0", "bytes behind its last column"),
        (lambda key: b"x" + key[1:], "physical table None"),
        (lambda key: key[:10] + b"i" + key[11:], "not a record key"),
        (lambda key: key[:20] + b"\xf6" + key[21:], "impossible marker"),
        (lambda key: key[:19] + b"\x01" + key[20:], "padded with other bytes than zeros"),
    ],
)
def test_a_broken_common_handle_is_named(change, why):
    upstream = make_table(5, "t", [NewColumn("k0", "varbinary(9)"), NewColumn("k1", "double")], ("k0", "k1"))
    key, value = encode(upstream, {"k0": b"abc", "k1": 1.5})
    with pytest.raises((NeedsHuman, ValueError), match=why):
        decode(upstream, [(change(key), value)])


def test_a_prefix_in_the_key_is_never_taken_for_the_whole_value():
    upstream = make_table(5, "t", [NewColumn("k", "varbinary(20)")], "k")
    stored = upstream.to_json()
    stored["index_info"][0]["idx_cols"][0]["length"] = 3
    key, _ = encode(upstream, {"k": b"abc"})
    values = binary([rows.assemble({1: b"abcdef"}), rows.assemble({})])
    (found,) = decode_rows(parse_table_info(stored, "test"), binary([key, key]), values, "UTC")
    assert found.to_pylist() == [b"abcdef", b""]


def test_a_year_is_signed_and_bits_are_unsigned():
    upstream = make_table(
        5, "t", [NewColumn("y", "year"), NewColumn("b", "bit(8)"), NewColumn("i", "int unsigned")], None
    )
    info = parse_table_info(upstream.to_json(), "test")
    assert [arrow_type(column) for column in info.output_columns] == [pa.int64(), pa.uint64(), pa.uint64()]


# -- rows older than a column


@pytest.mark.parametrize(
    ("sql", "default", "text"),
    [
        ("bigint unsigned", "18446744073709551615", (1 << 64) - 1),
        ("year", "2021", 2021),
        ("double", "1.5", 1.5),
        ("float", "0.1", struct.unpack("f", struct.pack("f", 0.1))[0]),
        ("decimal(8,3)", "1.5", "1.500"),
        ("varchar(9)", "é", "é"),
        ("varbinary(9)", "ab", b"ab"),
        ("binary(4)", "ab", b"ab\0\0"),
        ("date", "2024-02-29", "2024-02-29"),
        ("datetime(3)", "2024-02-29 01:02:03.5", "2024-02-29 01:02:03.500"),
        ("timestamp", "2024-07-01 12:00:00", "2024-07-01 08:00:00"),
        ("timestamp(2)", "0000-00-00 00:00:00", "0000-00-00 00:00:00.00"),
        ("time(1)", "-01:02:03.45", "-01:02:03.4"),
        ("time", "100:00:00", "100:00:00"),
        ("enum('x','y')", "y", "y"),
        ("set('x','y','z')", "x,z", "x,z"),
        ("int", None, None),
        ("blob", None, None),
        ("bit(12)", "2571", 2571),
        ("enum('x','y')", None, None),
        ("set('x','y')", None, None),
    ],
)
def test_rows_older_than_a_column_have_the_default_of_the_time(sql, default, text):
    upstream = make_table(5, "t", [NewColumn("id", "int")], "id")
    old = encode(upstream, {"id": 1})
    upstream = with_column(upstream, NewColumn("c", sql, nullable=True, default=default))
    assert decode(upstream, [old]) == {"id": [1], "c": [text]}
    if default is not None:
        absent_and_null = [old, (old[0], rows.assemble({2: None})), old]
        assert decode(upstream, absent_and_null)["c"] == [text, None, text]


@pytest.mark.parametrize(
    ("sql", "zero"),
    [
        ("int", 0), ("year", 0), ("bit(4)", 0), ("float", 0.0), ("decimal(5,2)", "0.00"), ("char(3)", ""),
        ("blob", b""), ("date", "0000-00-00"), ("datetime(3)", "0000-00-00 00:00:00.000"),
        ("timestamp", "0000-00-00 00:00:00"), ("time(2)", "00:00:00.00"), ("enum('x','y')", "x"), ("set('x','y')", ""),
    ],
)  # fmt: skip
def test_without_a_default_they_have_the_types_zero(sql, zero):
    upstream = make_table(5, "t", [NewColumn("id", "int")], "id")
    old = encode(upstream, {"id": 1})
    assert decode(with_column(upstream, NewColumn("c", sql)), [old])["c"] == [zero]


def test_the_default_of_a_bit_column_is_bytes():
    upstream = make_table(5, "t", [NewColumn("id", "int"), NewColumn("c", "bit(16)", nullable=True)], "id").to_json()
    upstream["cols"][1]["origin_default_bit"] = "ASM="
    info = parse_table_info(upstream, "test")
    key, value = keys.record_key(5, 1), rows.assemble({})
    assert decode_rows(info, binary([key]), binary([value]), "UTC")[1].to_pylist() == [0x123]
    assert TableInfo.from_json(info.to_json()) == info


# -- the golden data's own values


@golden.each("enum_text", "set_text")
def test_names_of_choices_of_the_corpus(vector):
    args = vector["args"]
    column_ = column(1, "c", 247 if vector["kind"] == "enum_text" else 248)
    column_["type"]["Elems"] = args["elems"]
    row = encode_row({1: int(args["value"]).to_bytes(8, "little")})
    (got,) = decode_rows(table([column_]), binary([record_key(1, 1)]), binary([row]), "UTC")
    assert got.to_pylist()[0]["text"] == vector["expected"]["text"]


def is_inserted(vector):
    args = vector["args"]
    return "inserted" in args and args["column_type"] != "json"


@golden.each("mounted_value", which=is_inserted)
def test_inserted_values_of_the_corpus(vector):
    sql, text = str(vector["args"]["column_type"]), str(vector["args"]["inserted"])
    value: Any = text
    if text.startswith(("x'", "0x")):
        value = bytes.fromhex(text[2:].strip("'"))
    elif text.startswith("b'"):
        value = int(text[2:-1], 2)
    elif sql.partition(" ")[0] in ("float", "double"):
        value = float(text)
    elif re.match("time($|[^s])", sql):
        hours, minutes, seconds = text.split(":")
        value = timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))
    elif sql.startswith(("bit", "year", "bool")) or "int" in sql:
        value = int({"true": "1", "false": "0"}.get(text.lower(), text))
    upstream = defined(sql.replace(" CHARACTER SET gbk", "").replace("boolean", "bool").replace("bool", "tinyint(1)"))
    (got,) = decode(upstream, [encode(upstream, {"_tidb_rowid": 1, "c": value})], "UTC")["c"]
    kind, want = next(iter(vector["expected"].items()))
    if kind == "float32":
        assert struct.pack("f", got) == struct.pack("f", float(want))
    elif kind.startswith("float"):
        assert got == float(want)
    elif kind == "uint" and isinstance(got, dict):
        assert str(got["number"]) == want
    else:
        assert (got.hex() if kind == "bytes_hex" else str(got)) == want


def defined(sql: str) -> Upstream:
    try:
        return make_table(5, "t", [NewColumn("c", sql)], None)
    except (KeyError, TypeError, ValueError) as error:
        raise golden.UnknownShape(f"type {sql}: {error}") from None


@golden.each("mounted_value", which=lambda vector: "inserted" not in vector["args"])
def test_values_in_rows_of_the_corpus(vector):
    args, (want,) = vector["args"], vector["expected"].values()
    upstream = defined({"bit": "bit(8)"}.get(args["column_type"], args["column_type"]))
    if "value" in args:
        key, value = encode(upstream, {"_tidb_rowid": 1, "c": float(args["value"])})
    else:
        cell = bytes.fromhex(args["bytes_hex"]) if "bytes_hex" in args else stored.compact_int(int(args["nanoseconds"]))
        key, value = keys.record_key(5, 1), rows.assemble({1: cell})
    (got,) = decode(upstream, [(key, value)])["c"]
    assert (float(got) == float(want)) if "value" in args else (str(got) == want)


def test_not_a_number_and_infinity_are_written_as_zero():
    upstream = make_table(5, "t", [NewColumn("f", "float"), NewColumn("d", "double")], None)
    found = [
        encode(upstream, {"_tidb_rowid": 1, "f": value, "d": value})
        for value in (float("nan"), float("inf"), float("-inf"), 1.5)
    ]
    assert decode(upstream, found) == {"f": [0.0, 0.0, 0.0, 1.5], "d": [0.0, 0.0, 0.0, 1.5]}


# -- broken on purpose


@pytest.mark.parametrize(
    ("sql", "value", "why"),
    [
        ("datetime", (12 << 41 | 1).to_bytes(8, "little"), None),
        ("datetime", stored.compact_uint(31 << 36), "is no date or time"),
        ("date", b"\xff" * 8, "is no date or time"),
        ("timestamp", stored.compact_uint(stored.packed_time("2024-00-00 00:00:00")), "month or a day of 0"),
        ("time", stored.compact_int(839 * 3600 * 10**9), "is no time"),
        ("time", stored.compact_int(-(1 << 63)), "is no time"),
        ("double", b"\x01", "wants 8 bytes"),
        ("enum('a')", b"\x02", "holds 2, which stands for none"),
        ("set('a','b')", b"\x04", "holds 4, which stands for none"),
        ("bit(4)", b"\x01\x02\x03", "impossible width"),
    ],
)
def test_what_no_value_of_the_type_looks_like_is_refused_by_row(sql, value, why):
    upstream = make_table(5, "t", [NewColumn("c", sql, nullable=True)], None)
    found = [(keys.record_key(5, n), rows.assemble({1: cell})) for n, cell in enumerate([None, None, value])]
    if why is None:
        assert decode(upstream, found)["c"][2].startswith("0000-")
        return
    with pytest.raises(NeedsHuman, match=f"test.t, key {keys.record_key(5, 2).hex()}: column c .*{why}"):
        decode(upstream, found)


@pytest.mark.parametrize("name", ["UTC", "Asia/Shanghai", "America/New_York"])
def test_a_known_time_zone_passes(name):
    check_time_zone(name)


@pytest.mark.parametrize("name", ["Mars/Olympus", "utc+8"])
def test_an_unknown_time_zone_is_refused(name):
    with pytest.raises(InvalidSpec, match="timeZone"):
        check_time_zone(name)
