"""Keys (docs/design/tidb.md, Record keys, Meta keys)."""

from __future__ import annotations

import golden
import pytest
from changefeed.errors import NeedsHuman
from changefeed.upstream.tikv.tidb import keys
from changefeed.upstream.tikv.tidb.memcomparable import decode_bytes, encode_bytes
from hypothesis import given
from hypothesis import strategies as st
from schema_fixtures import binary, record_key

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@golden.each("record_key")
def test_record_keys_of_the_corpus(vector):
    key = bytes.fromhex(vector["input_hex"])
    assert keys.table_id_of(key) == vector["expected"]["table_id"]
    assert keys.decode_int_handles(binary([key])).tolist() == [int(vector["expected"]["handle"])]


@golden.each("span_key_encoded")
def test_spans_of_the_corpus(vector):
    start, end = map(encode_bytes, keys.table_span(vector["args"]["table_id"]))
    assert (start.hex(), end.hex()) == (vector["expected"]["start"], vector["expected"]["end"])


@golden.each("table_prefix")
def test_table_prefixes_of_the_corpus(vector):
    table_id = keys.table_id_of(bytes.fromhex(vector["input_hex"]))
    prefix = None if table_id is None else keys.table_prefix(table_id).hex()
    assert prefix == vector["expected"]["prefix_hex"]


@golden.each("index_key_tail")
def test_an_index_key_is_no_record_key(vector):
    key = keys.table_prefix(vector["args"]["table_id"]) + b"_i" + bytes.fromhex(vector["expected"]["tail_hex"])
    start, end = keys.table_span(vector["args"]["table_id"])
    assert not start <= key < end


def in_ascending_order(vector):
    """The other order has each byte's complement."""
    encoded = bytes.fromhex(vector["input_hex"])
    return bytes(255 - byte for byte in encoded) if vector["args"]["order"] == "desc" else encoded


@golden.each("memcomparable_bytes")
def test_byte_strings_of_the_corpus(vector):
    plain = bytes.fromhex(vector["expected"]["plain_hex"])
    assert decode_bytes(in_ascending_order(vector)) == (plain, b"")
    assert encode_bytes(plain) == in_ascending_order(vector)


@golden.each("memcomparable_bytes_invalid")
def test_what_is_no_byte_string_is_refused(vector):
    with pytest.raises(ValueError, match="not a memcomparable"):
        decode_bytes(in_ascending_order(vector))


@golden.each("memcomparable_encoded_len")
def test_lengths_of_encoded_byte_strings(vector):
    assert len(encode_bytes(b"x" * vector["args"]["plain_len"])) == vector["expected"]["encoded_len"]


@golden.each("memcomparable_first_len")
def test_a_byte_string_ends_where_its_encoding_says(vector):
    """What is cut short or broken is as long as it is."""
    encoded = in_ascending_order(vector)
    try:
        _, rest = decode_bytes(encoded)
    except ValueError:
        rest = b""
    assert len(encoded) - len(rest) == vector["expected"]["len"]


@given(st.lists(INT64, max_size=20), INT64)
def test_int_handles_round_trip(handles, table_id):
    column = binary([record_key(table_id, handle) for handle in handles])
    assert keys.decode_int_handles(column).tolist() == handles
    assert keys.decode_int_handles(column.slice(1)).tolist() == handles[1:]


@pytest.mark.parametrize(
    "bad",
    [
        record_key(2, 1),
        record_key(1, 1)[:-1],
        record_key(1, 1) + b"\0",
        record_key(1, 1).replace(b"_r", b"_i"),
        b"x" + record_key(1, 1)[1:],
        b"",
    ],
    ids=["other-table", "short", "long", "index", "other-prefix", "empty"],
)
@pytest.mark.parametrize("before", [0, 3])
def test_a_key_that_is_no_record_of_the_table_is_named(bad, before):
    column = binary([record_key(1, i) for i in range(before)] + [bad] + [record_key(1, 9)])
    named = record_key(1, 9) if bad == record_key(2, 1) and not before else bad
    with pytest.raises(NeedsHuman, match=f"key {named.hex()} "):
        keys.decode_int_handles(column)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (keys.SCHEMA_VERSION_KEY, "6d536368656d615665ff7273696f6e4b6579ff0000000000000000f70000000000000073"),
        (keys.meta_hash_prefix(keys.DATABASES), "6d4442730000000000fa0000000000000068"),
        (keys.database_key(1), "6d4442730000000000fa000000000000006844423a3100000000fb"),
        (
            keys.table_key(1, 42),
            "6d44423a3100000000fb00000000000000685461626c653a3432ff0000000000000000f7",
        ),
        (keys.DDL_JOB_SPAN[0], "748000fffffffffffe5f72"),
        (encode_bytes(keys.DDL_JOB_SPAN[1]), "748000fffffffffffffe5f730000000000fa"),
    ],
    ids=["version", "databases", "database", "table", "ddl-start", "ddl-end"],
)
def test_meta_keys_of_the_facts(key, expected):
    assert key.hex() == expected


def test_meta_hash_keys_decode():
    assert keys.decode_meta_hash_key(keys.table_key(7, 42)) == (b"DB:7", b"Table:42")
    start, end = keys.hash_span(b"DB:7")
    assert start < keys.table_key(7, 0) < keys.table_key(7, 99) < end
    assert not start <= keys.table_key(70, 1) < end


@pytest.mark.parametrize("key", [b"", b"t", keys.SCHEMA_VERSION_KEY, keys.database_key(1) + b"x"])
def test_other_keys_are_no_meta_hash_keys(key):
    with pytest.raises(ValueError, match="meta"):
        keys.decode_meta_hash_key(key)
