"""Records of Avro as verify reads them: written by fastavro, which shares no code with it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest
from changefeed.reading.failures import Break
from changefeed.verify.kafka.avro_rows import RegisteredSchema
from changefeed.verify.kafka.last_messages import LastMessages
from changefeed.verify.kafka.stored import LinePosition

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 3}
SCHEMA = {
    "type": "record",
    "name": "a_row",
    "fields": [
        {"name": "id", "type": {"type": "long", "connect.parameters": {"tidb_type": "BIGINT"}}},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "first", "type": ["int", "null"], "default": 5},
        {"name": "amount", "type": ["null", DECIMAL]},
        {"name": "ratio", "type": "double"},
    ],
}
ROWS = [
    {"id": 1, "text": "é 'quoted'", "first": 7, "amount": Decimal("-0.001"), "ratio": 0.1},
    {"id": -(1 << 63), "text": None, "first": None, "amount": None, "ratio": -1e300},
    {"id": 3, "text": "", "first": -1, "amount": Decimal("123456789012345678901234567890.120"), "ratio": 0.0},
]


def record(row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), row)
    return out.getvalue()


def test_records_are_read_as_they_were_written() -> None:
    found = RegisteredSchema(json.dumps(SCHEMA)).read(pa.array([record(row) for row in ROWS], pa.binary()))
    assert {name: column.to_pylist() for name, column in found.items()} == {
        "id": [1, -(1 << 63), 3],
        "text": ["é 'quoted'".encode(), None, b""],
        "first": [7, None, -1],
        "amount": [b"-0.001", None, b"123456789012345678901234567890.120"],
        "ratio": [0.1, -1e300, 0.0],
    }


def test_bytes_that_are_not_utf_8_are_read_as_they_are() -> None:
    raw = record(ROWS[0] | {"text": "ab"}).replace(b"ab", b"\xff\xfe")
    assert RegisteredSchema(json.dumps(SCHEMA)).read(pa.array([raw]))["text"].to_pylist() == [b"\xff\xfe"]


def test_a_record_that_is_cut_off_is_told() -> None:
    with pytest.raises(Break):
        RegisteredSchema(json.dumps(SCHEMA)).read(pa.array([record(ROWS[0])[:-4]]))


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def messages(problems: list[str]) -> Iterator[LastMessages]:
    with duckdb.connect(":memory:") as db:
        yield LastMessages(db, "orders", problems.append)


def framed(schema: int, body: bytes) -> bytes:
    return b"\0" + schema.to_bytes(4, "big") + body


def test_the_last_message_of_a_key_counts(messages: LastMessages, problems: list[str]) -> None:
    a, b, c = (framed(1, each) for each in (b"a", b"b", b"c"))
    told = [(a, framed(2, b"1")), (b, framed(2, b"2")), (c, framed(2, b"3")), (a, None), (b, framed(3, b"4"))]
    messages.add([LinePosition(0, at) for at in range(len(told))], told)
    messages.add([LinePosition(1, 0)], [(framed(9, b"d"), framed(2, b"5"))])
    messages.settle()
    assert [(schema, sorted(rows.to_pylist())) for schema, rows in messages.rows()] == [(2, [b"3", b"5"]), (3, [b"4"])]
    assert [(schema, keys.to_pylist()) for schema, keys in messages.gone()] == [(1, [b"a"])]
    assert problems == []


def test_what_has_no_order_or_no_key_is_seen(messages: LastMessages, problems: list[str]) -> None:
    key, value = framed(1, b"a"), framed(2, b"1")
    messages.add(
        [LinePosition(0, 0), LinePosition(1, 0), LinePosition(1, 1)], [(key, value), (key, None), (b"{}", value)]
    )
    assert messages.in_several_partitions() == 1
    assert not messages.have_no_key()
    assert problems == [
        "Topic orders, partition 1, offset 1: its key or its value is not Avro behind a schema's number."
    ]
    messages.add([LinePosition(1, 2)], [(None, value)])
    assert messages.have_no_key()
