"""What the schema tests share: short ways to write definitions, and a scalar encoder of rows.

The encoder follows docs/design/tidb.md one value at a time, so that it cannot err in the decoder's way.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from changefeed.schema.table_info import TableInfo, parse_table_info


def column(
    id_: int, name: str, tp: int, flag: int = 0, *, decimal: int = 0, charset: str = "utf8mb4", **more: Any
) -> dict[str, Any]:
    """ColumnInfo JSON; `more` are members beside `type`."""
    return {
        "id": id_,
        "name": {"O": name, "L": name.lower()},
        "offset": id_ - 1,
        "type": {"Tp": tp, "Flag": flag, "Flen": 20, "Decimal": decimal, "Charset": charset},
        "state": 5,
    } | more


def table_json(id_: int, name: str, columns: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """TableInfo JSON with a clustered int primary key, if a column has the flag."""
    pk = any(c["type"]["Flag"] & 2 for c in columns)
    return {
        "id": id_,
        "name": {"O": name, "L": name.lower()},
        "cols": list(columns),
        "state": 5,
        "pk_is_handle": pk,
    } | more


def table(columns: Sequence[Mapping[str, Any]], **more: Any) -> TableInfo:
    return parse_table_info(table_json(1, "t", columns, **more), "test")


def record_key(table_id: int, handle: int) -> bytes:
    return b"t" + struct.pack(">Q", table_id + (1 << 63)) + b"_r" + struct.pack(">Q", (handle + (1 << 63)) % (1 << 64))


def binary(items: Sequence[bytes]) -> pa.Array:
    return pa.array(items, pa.binary())


def encode_row(cells: Mapping[int, bytes | None], *, large: bool = False, trailer: bytes = b"") -> bytes:
    """A row in format v2; None is NULL."""
    values = sorted((id_, value) for id_, value in cells.items() if value is not None)
    nulls = sorted(id_ for id_, value in cells.items() if value is None)
    id_format, offset_format = ("<I", "<I") if large else ("<B", "<H")
    out = bytes([128, large | (2 if trailer else 0)]) + struct.pack("<HH", len(values), len(nulls))
    out += b"".join(struct.pack(id_format, id_) for id_ in [*(id_ for id_, _ in values), *nulls])
    end = 0
    for _, value in values:
        end += len(value)
        out += struct.pack(offset_format, end)
    return out + b"".join(value for _, value in values) + trailer


def encode_int(value: int, *, signed: bool = True, width: int = 1) -> bytes:
    """The smallest of `width`, 2, 4, 8 bytes that holds the value."""
    while True:
        try:
            return value.to_bytes(width, "little", signed=signed)
        except OverflowError:
            width *= 2


def encode_decimal(text: str, precision: int, fraction: int) -> bytes:
    """Precision and scale, then MySQL's binary form of a number that fits them."""
    number = Decimal(text)
    digits = f"{number.copy_abs():f}".split(".")
    whole, part = digits[0].lstrip("0"), (digits[1] if len(digits) > 1 else "")
    whole, part = whole.rjust(precision - fraction, "0"), part.ljust(fraction, "0")[:fraction]
    assert len(whole) == precision - fraction, text
    widths = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    head = len(whole) % 9
    groups = [whole[:head], *(whole[i : i + 9] for i in range(head, len(whole), 9))]
    groups += [part[i : i + 9] for i in range(0, len(part), 9)]
    out = bytearray(b"".join(int(group).to_bytes(widths[len(group)], "big") for group in groups if group))
    if number.is_signed():
        out = bytearray(255 - byte for byte in out)
    out[0] ^= 0x80
    return bytes([precision, fraction]) + bytes(out)


def job_json(id_: int, type_: int, *, schema_id: int = 1, table_id: int = 0, **more: Any) -> dict[str, Any]:
    """A finished job's JSON; `table`, `tables` and `database` go into `binlog`."""
    binlog = {
        "TableInfo": more.pop("table", None),
        "MultipleTableInfos": more.pop("tables", None),
        "DBInfo": more.pop("database", None),
    }
    job = {"id": id_, "type": type_, "state": 4, "schema_id": schema_id, "table_id": table_id, "version": 2}
    return job | {"schema_name": "shop", "query": f"query {id_}", "binlog": binlog} | more


def uvarint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def encode_json(value: Any) -> bytes:
    """Type byte and value, as TiDB stores it; integers as i64 or u64."""
    match value:
        case None | bool():
            return bytes([4, {None: 0, True: 1, False: 2}[value]])
        case int():
            return b"\x09" + struct.pack("<q", value) if value < 1 << 63 else b"\x0a" + struct.pack("<Q", value)
        case float():
            return b"\x0b" + struct.pack("<d", value)
        case str():
            return b"\x0c" + uvarint(len(value.encode())) + value.encode()
        case list():
            return b"\x03" + _container([], value)
        case dict():
            pairs = sorted((key.encode(), member) for key, member in value.items())
            return b"\x01" + _container([key for key, _ in pairs], [member for _, member in pairs])
    raise TypeError(value)


def _container(keys: list[bytes], members: list[Any]) -> bytes:
    at = 8 + 6 * len(keys) + 5 * len(members)
    key_entries, entries, data = b"", b"", b"".join(keys)
    for key in keys:
        key_entries += struct.pack("<IH", at, len(key))
        at += len(key)
    for member in members:
        encoded = encode_json(member)
        if encoded[0] == 4:
            entries += encoded[:1] + encoded[1:].ljust(4, b"\0")
            continue
        entries += encoded[:1] + struct.pack("<I", at)
        data += encoded[1:]
        at += len(encoded) - 1
    return struct.pack("<II", len(members), at) + key_entries + entries + data


def varint(value: int) -> bytes:
    return uvarint(value << 1 ^ (-1 if value < 0 else 0)) if value >= 0 else uvarint((-value << 1) - 1)


def compact(value: bytes) -> bytes:
    return b"\x02" + varint(len(value)) + value


def encode_v1(cells: dict[int, bytes]) -> bytes:
    """`cells`: values with their flags."""
    return b"".join(b"\x08" + varint(id_) + cell for id_, cell in cells.items()) or b"\x00"
