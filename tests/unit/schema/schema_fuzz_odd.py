"""Rows for the fuzz that the development cluster writes none of: JSON, VECTOR, text of old charsets with any bytes, row
format v1, and checksums of every version. A row is told by its form beside its bytes.
"""

from __future__ import annotations

import random
import struct
import zlib
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed_devcluster import keys
from changefeed_devcluster.tidb import values as stored
from changefeed_devcluster.tidb.schema import NewColumn, make_table
from schema_fixtures import encode_json, encode_row, encode_v1, uvarint, varint

_SQL = ("blob", "blob", "varchar(24)", "text", "bigint", "decimal(18,4)", "double", "datetime(3)", "time(6)")
_UPSTREAM = make_table(
    200,
    "odd",
    [NewColumn("id", "bigint"), *(NewColumn(f"c{n}", sql, nullable=True) for n, sql in enumerate(_SQL))],
    "id",
)
_PIECES = ("a", "é", "\u2028", '"', "\\", "\0", "李", "🦊")
_BYTES = (b"a", b"\xc3\xa4", b"\xe4\xbd", b"\xff", b"\0", b" ", b"\x80")
#: Forms with a checksum that is right; one of version 0 would be over the columns.
RIGHT = ("checksum 1", "checksum 2")
_LARGEST = (1 << 63) - 1


def odd_table() -> TableInfo:
    definition = _UPSTREAM.to_json()
    json, vector, gbk, latin1 = (column["type"] for column in definition["cols"][1:5])
    json |= {"Tp": 0xF5, "Charset": "binary"}
    vector |= {"Tp": 0xE1, "Charset": "binary"}
    gbk |= {"Charset": "gbk", "Collate": "gbk_chinese_ci"}
    latin1 |= {"Charset": "latin1", "Collate": "latin1_bin"}
    return parse_table_info(definition, "shop")


def odd_row(rng: random.Random) -> tuple[str, bytes, bytes]:
    """Its form, its key and its value."""
    key = keys.record_key(200, rng.choice((0, -1, rng.randint(-(1 << 63), _LARGEST))))
    cells = {column.id: _cell(rng, n) for n, column in enumerate(_UPSTREAM.columns[1:]) if rng.random() < 0.8}
    form = rng.choice(("v1", "v2", "checksum 0", *RIGHT))
    if form == "v1":
        return form, key, encode_v1({id_: b"\0" if cell is None else cell[1] for id_, cell in cells.items()})
    values = {id_: None if cell is None else cell[0] for id_, cell in cells.items()}
    row = encode_row(values, large=rng.random() < 0.2)
    return form, key, row if form == "v2" else _with_checksum(rng, int(form[-1]), key, row)


def _with_checksum(rng: random.Random, version: int, key: bytes, row: bytes) -> bytes:
    extra = 8 * (rng.random() < 0.3)
    body = row[:1] + bytes([row[1] | 2]) + row[2:] + bytes([version | extra])
    skipped = keys.PREFIX if version == 2 else 0
    return body + struct.pack("<I", zlib.crc32(key[skipped:], zlib.crc32(body))) + bytes(4 if extra else 0)


def _cell(rng: random.Random, number: int) -> tuple[bytes, bytes] | None:
    """A value as v2 has it, and with its flag, as v1 has it; None: NULL."""
    if rng.random() < 0.15:
        return None
    match number:
        case 0:
            raw = encode_json(_json(rng, 3))
            return raw, b"\x0a" + raw
        case 1:
            elements = [rng.uniform(-2, 2) for _ in range(rng.randint(0, 4))]
            raw = struct.pack(f"<I{len(elements)}f", len(elements), *elements)
            return raw, b"\x14" + raw
        case 2 | 3:
            raw = b"".join(rng.choices(_BYTES, k=rng.randint(0, 9)))
            return raw, b"\x02" + varint(len(raw)) + raw
        case 4:
            whole = rng.choice((0, -1, _LARGEST, -_LARGEST - 1, rng.randint(-300, 300)))
            flagged = b"\x08" + varint(whole) if rng.random() < 0.5 else b"\x03" + struct.pack(">Q", whole + (1 << 63))
            return stored.compact_int(whole), flagged
        case 5:
            raw = stored.encode_decimal(Decimal(rng.randint(-(10**12), 10**12)).scaleb(-4), 18, 4)
            return raw, b"\x06" + raw
        case 6:
            raw = keys.encode_float(rng.choice((0.0, -1.5, 1e300, float("inf"))))
            return raw, b"\x05" + raw
        case 7:
            packed = stored.packed_time(datetime(1980, 1, 1) + timedelta(seconds=rng.randint(0, 1 << 30)))
            return stored.compact_uint(packed), b"\x09" + uvarint(packed)
        case _:
            nanoseconds = rng.randint(-838, 838) * 3600 * 10**9 + rng.randint(0, 10**9)
            return stored.compact_int(nanoseconds), b"\x07" + struct.pack(">Q", nanoseconds + (1 << 63))


def _json(rng: random.Random, depth: int) -> Any:
    match rng.randrange(8 if depth else 6):
        case 0:
            return rng.choice((None, True, False))
        case 1 | 2:
            return rng.choice((0, -1, _LARGEST, 1 << 63, (1 << 64) - 1, rng.randint(-300, 300)))
        case 3:
            return rng.choice((0.0, 1.5, -1e-20, 1e300))
        case 4 | 5:
            return "".join(rng.choices(_PIECES, k=rng.randint(0, 6)))
        case 6:
            return [_json(rng, depth - 1) for _ in range(rng.randint(0, 3))]
        case _:
            return {"".join(rng.choices(_PIECES, k=2)): _json(rng, depth - 1) for _ in range(rng.randint(0, 3))}
