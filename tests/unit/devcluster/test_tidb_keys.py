"""Keys against literals of TiKV's, TiDB's, TiCDC's and TiSpark's test-suites (docs/design/tidb.md, Record keys)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from changefeed_devcluster import keys
from changefeed_devcluster.codec import encode_bytes


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "8000000000000000"),
        (1, "8000000000000001"),
        (-1, "7fffffffffffffff"),
        (-(1 << 63), "0000000000000000"),
        ((1 << 63) - 1, "ffffffffffffffff"),
    ],
)
def test_encode_int(value: int, encoded: str) -> None:
    assert keys.encode_int(value).hex() == encoded
    assert keys.decode_int(bytes.fromhex(encoded)) == value


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0.0, "8000000000000000"),
        (1.0, "bff0000000000000"),
        (-1.0, "400fffffffffffff"),
        (3.14, "c0091eb851eb851f"),
        (1.8, "bffccccccccccccd"),
        (-1.8, "4003333333333332"),
    ],
)
def test_encode_float(value: float, encoded: str) -> None:
    assert keys.encode_float(value).hex() == encoded
    assert keys.decode_float(bytes.fromhex(encoded)) == value


def test_a_negative_zero_is_stored_as_zero() -> None:
    assert math.copysign(1, keys.decode_float(keys.encode_float(-0.0))) == 1


@pytest.mark.parametrize(
    ("table_id", "handle", "encoded"),
    [
        (1, 1, "7480000000000000015f728000000000000001"),
        (104, 1, "7480000000000000685f728000000000000001"),
        (53, 2, "7480000000000000355f728000000000000002"),
        (104, -1, "7480000000000000685f727fffffffffffffff"),
        (281474976710654, 112, "748000fffffffffffe5f728000000000000070"),
        (1, (1 << 64) - 1, "7480000000000000015f727fffffffffffffff"),  # an unsigned handle, read as signed
    ],
)
def test_record_key(table_id: int, handle: int, encoded: str) -> None:
    assert keys.record_key(table_id, handle).hex() == encoded


def test_many_record_keys_are_those_of_single_ones() -> None:
    handles = [0, 1, -1, 255, 256, -(1 << 63), (1 << 63) - 1, 10**12]
    assert keys.record_keys(77, np.array(handles, np.int64)) == [keys.record_key(77, handle) for handle in handles]


def test_the_span_of_a_table() -> None:
    start, end = keys.record_range(8616)
    assert encode_bytes(start).hex() == "7480000000000021ffa85f720000000000fa"
    assert encode_bytes(end).hex() == "7480000000000021ffa85f730000000000fa"


def test_index_key() -> None:
    assert keys.index_key(42, 666, b"").hex() == "74800000000000002a5f69800000000000029a"


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        (
            keys.meta_string("SchemaVersionKey"),
            "6d536368656d615665ff7273696f6e4b6579ff0000000000000000f70000000000000073",
        ),
        (keys.meta_string("Diff:53"), "6d446966663a353300fe0000000000000073"),
        (keys.meta_hash_prefix("DBs"), "6d4442730000000000fa0000000000000068"),
        (keys.meta_hash("DBs", "DB:1"), "6d4442730000000000fa000000000000006844423a3100000000fb"),
        (
            keys.meta_hash("DB:1", "Table:42"),
            "6d44423a3100000000fb00000000000000685461626c653a3432ff0000000000000000f7",
        ),
        (
            keys.meta_hash("DDLJobHistory", keys.encode_uint(5)),
            "6d44444c4a6f624869ff73746f7279000000fc00000000000000680000000000000005ff0000000000000000f7",
        ),
    ],
)
def test_meta_keys(key: bytes, encoded: str) -> None:
    assert key.hex() == encoded


def test_a_field_is_found_again_in_its_key() -> None:
    assert keys.meta_field(keys.meta_hash("DB:1", "Table:42"), "DB:1") == "Table:42"
