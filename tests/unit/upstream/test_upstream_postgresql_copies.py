"""What an initial copy from PostgreSQL is made of: chunks of keys, rows out of COPY's text, and first changes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import ProtocolViolation
from changefeed.model.position import OP_UPDATE
from changefeed.model.rows import RAW_SCHEMA
from changefeed.model.table_copy import MOST_CHUNKS
from changefeed.upstream.postgresql.copies.first_changes import FirstChanges
from changefeed.upstream.postgresql.copies.key_ranges import bounds_of, condition, definition_of, ranges
from changefeed.upstream.postgresql.pgoutput.messages import Relation
from changefeed.upstream.postgresql.reading import copy_out
from changefeed.upstream.postgresql.reading.text_rows import rows_of
from hypothesis import given
from hypothesis import strategies as st

LARGEST = (1 << 63) - 1
INTEGER_OID, TEXT_OID, UUID_OID = 23, 25, 2950
RELATION = Relation(11, "s", "t", "f", ())
NUMBERS = st.one_of(st.integers(-130, 130), st.integers(-LARGEST - 1, LARGEST))
CELLS = st.one_of(st.none(), st.just(b"\\N"), st.lists(st.sampled_from(b"\\Nnt\t\n\r\b\f\vx\xc3")).map(bytes))
ESCAPED = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\r": b"\\r", b"\b": b"\\b", b"\f": b"\\f", b"\v": b"\\v"}


def cell(text: bytes | None) -> bytes:
    return b"n" if text is None else b"t" + len(text).to_bytes(4) + text


def key(number: int) -> bytes:
    return cell(str(number).encode())


def copied(text: bytes | None) -> bytes:
    """As COPY writes it."""
    return b"\\N" if text is None else b"".join(ESCAPED.get(bytes([byte]), bytes([byte])) for byte in text)


@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1)))
def test_lines_become_the_rows_that_pgoutput_would_send(rows: list[list[bytes | None]]) -> None:
    text = b"".join(b"\t".join(map(copied, row)) + b"\n" for row in rows)
    identity = sorted({0, len(rows[0]) - 1})
    keys, values = rows_of(text, len(rows[0]), identity)
    assert keys.to_pylist() == [b"".join(cell(row[column]) for column in identity) for row in rows]
    assert values.to_pylist() == [len(row).to_bytes(2) + b"".join(map(cell, row)) for row in rows]


@pytest.mark.parametrize("text", [b"1\t2\n3\n", b"1\t2", b"1\n2\t", b"1\t2\n3\t4\n5\t6"])
def test_other_lines_are_refused(text: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="copies a table in lines"):
        rows_of(text, 2, [0])


class Said:
    """A session and its socket, to which a server has said these bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        self.server = "postgresql://a/b"
        self.socket = self
        self._pieces = [data[at : at + size] for at in range(0, len(data), size)]

    def settimeout(self, seconds: float) -> None:
        """It never waits."""

    def sendall(self, data: bytes) -> None:
        assert data.startswith(b"Q")

    def recv(self, size: int) -> bytes:
        return self._pieces.pop(0)


@pytest.mark.parametrize("size", [1, 7, 4099, 1 << 20])
def test_lines_come_whole_however_the_server_sends_them(size: int) -> None:
    """The length of a line may be what begins a message: 0x6400 is."""
    lines = [b"a" * (length - 5) + b"\n" for length in (5, 0x64, 0x6400, 9, 0x6401, 10, 0x640A)]
    messages = [b"d" + (len(line) + 4).to_bytes(4) + line for line in lines]
    assert b"d\0" in messages[2][1:5]
    end = b"C" + (8).to_bytes(4) + b"COPY" + b"Z" + (5).to_bytes(4) + b"I"
    session: Any = Said(b"H" + (7).to_bytes(4) + b"\0\0\0" + b"".join(messages) + end, size)
    assert b"".join(copy_out.copied(session, "SELECT")) == b"".join(lines)


@given(st.lists(NUMBERS), NUMBERS, NUMBERS)
def test_a_number_is_in_the_ranges_of_its_chunk_once(numbers: list[int], one: int, another: int) -> None:
    start, end = sorted((one, another), key=key)
    for low, high in ((start, end), (None, end), (start, None), (None, None)):
        found = list(ranges(low, high))
        for number in [*numbers, start, end]:
            is_within = (low is None or key(low) <= key(number)) and (high is None or key(number) < key(high))
            assert sum(first <= number <= last for first, last in found) == is_within


def test_bounds_are_keys_in_their_order_and_end_with_the_definition() -> None:
    assert bounds_of([], 7, b"d") == (b"", b"ud")
    bounds = bounds_of(["100", "9", "-5", "20", "9"], MOST_CHUNKS, b"d")
    assert bounds == (b"", key(9), key(-5), key(20), key(100), b"ud")
    assert definition_of(bounds[-1]) == b"d"
    assert bounds_of(["100", "9", "-5", "20"], 2, b"d") == (b"", key(20), b"ud")


def test_a_chunk_is_read_by_the_index_of_its_key() -> None:
    assert condition("k", TEXT_OID, b"", b"ud") == "true"
    below = "k BETWEEN '9'::bigint AND '9'::bigint OR k BETWEEN '-4'::bigint AND '-1'::bigint"
    assert condition("k", INTEGER_OID, key(9), key(-5)) == below
    assert condition("k", INTEGER_OID, key(9), key(9)) == "false"
    low, high = "0123", "89ab"
    assert condition("k", UUID_OID, b"", cell(high.encode())) == "k < '89ab'::uuid"
    assert condition("k", UUID_OID, cell(low.encode()), cell(high.encode())) == "k >= '0123'::uuid AND k < '89ab'::uuid"
    assert condition("k", UUID_OID, cell(low.encode()), b"ud") == "k >= '0123'::uuid"


def batch(*rows: tuple[int, bytes, bytes | None]) -> pa.RecordBatch:
    """`rows`: ts, key, old value."""
    found = [
        {"span_id": 11, "commit_ts": ts, "start_ts": ts, "op": OP_UPDATE, "key": key, "value": b"", "txn_source": 0}
        | {"old_value": old}
        for ts, key, old in rows
    ]
    return pa.RecordBatch.from_pylist(found, RAW_SCHEMA)


def test_what_was_there_is_what_the_first_change_above_the_ts_says() -> None:
    """Promise: in whatever order changes come, and however often, and however many there are."""
    rng = random.Random(7)
    for rows in (40, 90_000):
        changes = [(ts, b"%d" % rng.randrange(1 + rows // 4), b"before %d" % ts) for ts in range(1, rows)]
        changes = [(ts, key, None if ts % 3 else old) for ts, key, old in changes]
        first: dict[bytes, bytes | None] = {}
        for ts, changed, old in changes:
            if ts > 10:
                first.setdefault(changed, old)
        rng.shuffle(changes)
        found = FirstChanges(10)
        for start in range(0, rows, 1 + rows // 9):
            found.add(batch(*changes[start : start + 1 + rows // 9]), RELATION)
        found.add(batch(*changes[:9]), RELATION)
        for low, high in ((b"", b"3"), (b"3", b"31"), (b"31", b"~")):
            former = found.of(low, high)
            within = {each: old for each, old in first.items() if low <= each < high}
            assert dict(zip(former.keys.to_pylist(), former.values.to_pylist(), strict=True)) == within
            assert former.relations == {RELATION}
            there = {each: old for each, old in within.items() if old is not None}
            assert dict(zip(*(column.to_pylist() for column in former.there()), strict=True)) == there
            keys = pa.array([*list(within)[:5], b"other"], pa.binary())
            assert former.without(keys, keys)[0].to_pylist() == [b"other"]
