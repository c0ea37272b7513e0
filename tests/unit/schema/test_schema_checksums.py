"""Row checksums: literals, the golden data, every version by round trip, and what is spoilt."""

from __future__ import annotations

import struct
import zlib

import golden
import pyarrow as pa
import pytest
from changefeed.schema.sql_type import SqlType
from changefeed.schema.values import arrow_type
from changefeed.upstream.tikv.row.checksums import column_bytes, wrong_rows
from hypothesis import given
from hypothesis import strategies as st
from schema_fixtures import binary, column, encode_int, encode_row, record_key, table

INT, BIGINT, VARCHAR = 3, 8, 15
BITS = {1: 8, 2: 16, 9: 24, INT: 32, BIGINT: 64}
NOTES = table([column(1, "id", INT), column(2, "note", VARCHAR)])
OTHER = table([column(2, "n", INT), column(3, "s", VARCHAR)])


def wrong(info, *values, handle=1):
    keys = binary([record_key(1, handle)] * len(values))
    return wrong_rows(info, keys, binary(values)).tolist()


@pytest.mark.parametrize(
    ("info", "value"),
    [
        (NOTES, "8002020000000102010004000161626302839167f9"),
        (NOTES, "8002020000000102010004000161626301132de391"),
        (NOTES, "800200000000023baaf072"),
        (OTHER, "8002020000000203010007002a666f6f62617200837cf20a"),
        (OTHER, "8002020000000203010007002a666f6f62617208837cf20a44332211"),
    ],
)
def test_rows_of_the_facts(info, value):
    row = bytes.fromhex(value)
    assert wrong(info, row) == []
    for offset in range(len(row)):
        spoilt = row[:offset] + bytes([row[offset] ^ 0x01]) + row[offset + 1 :]
        if offset in (0, 1) or (info is OTHER and 2 <= offset < 12):
            continue  # no row with a checksum any more, or none that can be decoded
        if value.endswith("44332211") and offset >= len(row) - 4:
            continue  # the second sum is of no matter here
        assert wrong(info, spoilt) == [0], offset


@golden.each("checksum_trailer")
def test_trailers_of_the_corpus(vector):
    args, expected = vector["args"], vector["expected"]
    body = encode_row({1: encode_int(5)}, trailer=b"")
    body = body[:1] + b"\x02" + body[2:]
    head = bytes([expected["header_byte"]])
    assert head[0] == args["version"] | 8 * args["extra"]
    sum_ = zlib.crc32(record_key(1, 1), zlib.crc32(body + head))
    trailer = head + struct.pack("<II", sum_, 7)
    assert len(trailer) == expected["trailer_len"]
    assert wrong(NOTES, body + trailer) == []


@golden.each("checksum_v0_column")
def test_columns_of_the_corpus(vector):
    args = vector["args"]
    is_unsigned = args["tp"] in BITS and int(args["value"]) >> BITS[args["tp"]] - 1 > 0
    flag, decimal = 32 * is_unsigned, args.get("decimal", 0)
    info = table([column(1, "c", args["tp"], flag, decimal=decimal, charset="utf8mb4")]).columns[0]
    kind = arrow_type(info)
    if "value_hex" in args:  # more than 64 bits are as many as there are
        value = min(int(args["value_hex"], 16), (1 << 64) - 1)
    elif pa.types.is_floating(kind):
        number = float(args["value"])
        value = number if abs(number) < 1e300 else 0.0  # as the decoder gives what is no number
    elif info.type in (SqlType.ENUM, SqlType.SET):
        value = {"number": int(args["value"]), "text": ""}
    else:
        value = int(args["value"]) if pa.types.is_integer(kind) else args["value"]
    (found,) = column_bytes(info, pa.array([value], kind)).to_pylist()
    assert found.hex() == vector["expected"]["bytes_hex"]


ROW = st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.none() | st.text(max_size=5))
ROWS = st.lists(ROW, min_size=1, max_size=6)


@given(ROWS, st.data())
def test_every_version_in_one_batch(rows, data):
    values, keys, spoilt = [], [], []
    for handle, (number, note) in enumerate(rows):
        version = data.draw(st.sampled_from([0, 1, 2, None]))
        cells = {1: encode_int(number), 2: None if note is None else note.encode()}
        body, key = encode_row(cells), record_key(1, handle)
        keys.append(key)
        is_spoilt = version is not None and data.draw(st.booleans())
        spoilt += [handle] * is_spoilt
        if version is None:
            values.append(body)
            continue
        body = body[:1] + b"\x02" + body[2:]
        head = bytes([version])
        if version == 0:
            content = struct.pack("<q", number)
            content += b"" if note is None else struct.pack("<I", len(note.encode())) + note.encode()
            sum_ = zlib.crc32(content)
        else:
            sum_ = zlib.crc32(key if version == 1 else key[11:], zlib.crc32(body + head))
        values.append(body + head + struct.pack("<I", sum_ ^ is_spoilt))
    assert wrong_rows(NOTES, binary(keys), binary(values)).tolist() == spoilt


@given(st.binary(max_size=30))
def test_any_bytes_behind_the_flag_are_right_or_wrong(tail):
    wrong(table([]), b"\x80\x02\x00\x00\x00\x00" + tail)


def test_a_vector_under_a_checksum_over_columns_is_wrong_and_its_absence_is_not():
    """Rows older than the column, of a TiDB that had no vectors, have such checksums."""
    info = table([column(1, "id", INT), column(2, "v", 0xE1, charset="binary")])
    rows = []
    for vector in (None, struct.pack("<If", 1, 1.5)):
        body = encode_row({1: encode_int(5)} | ({} if vector is None else {2: vector}))
        content = struct.pack("<q", 5)
        rows.append(body[:1] + b"\x02" + body[2:] + b"\0" + struct.pack("<I", zlib.crc32(content)))
    assert wrong(info, *rows) == [1]
