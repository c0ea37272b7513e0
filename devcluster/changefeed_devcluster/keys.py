"""Keys as TiDB writes them: record, index and meta keys (docs/design/tidb.md, Record keys, Meta keys).

The development cluster's own, so that it can't be wrong in the same way as the product's decoders. All keys are raw;
EncodeBytes around a whole key is the business of whoever speaks to PD (`codec.py`).
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from .codec import decode_bytes, encode_bytes

SIGN_BIT = 1 << 63
_U64 = struct.Struct(">Q")
_MASK = (1 << 64) - 1

NULL_FLAG = 0
BYTES_FLAG = 1
INT_FLAG = 3
UINT_FLAG = 4
FLOAT_FLAG = 5
DECIMAL_FLAG = 6
DURATION_FLAG = 7

PREFIX = 11  # bytes before the handle in a record key
MIN_COMMON_HANDLE = 9  # so that it never looks like an int handle


def encode_int(value: int) -> bytes:
    """EncodeInt: 8 bytes that sort as the signed value; an unsigned 64-bit value is reinterpreted as signed."""
    return _U64.pack((value & _MASK) ^ SIGN_BIT)


def decode_int(encoded: bytes) -> int:
    """The signed value of 8 bytes of EncodeInt."""
    (value,) = _U64.unpack(encoded)
    return int(value) - SIGN_BIT


def encode_uint(value: int) -> bytes:
    return _U64.pack(value)


def encode_float(value: float) -> bytes:
    """EncodeFloat: IEEE-754 bits, top bit set for positive, all bits inverted for negative values."""
    bits = int.from_bytes(struct.pack(">d", value + 0.0), "big")
    return _U64.pack(bits ^ (_MASK if bits & SIGN_BIT else SIGN_BIT))


def decode_float(encoded: bytes) -> float:
    (bits,) = _U64.unpack(encoded)
    (value,) = struct.unpack(">d", _U64.pack(bits ^ (SIGN_BIT if bits & SIGN_BIT else _MASK)))
    return float(value)


# --- tables ---


def table_prefix(table_id: int) -> bytes:
    return b"t" + encode_int(table_id)


def record_prefix(table_id: int) -> bytes:
    return table_prefix(table_id) + b"_r"


def record_range(table_id: int) -> tuple[bytes, bytes]:
    """[start, end) of all rows of a physical table."""
    return record_prefix(table_id), table_prefix(table_id) + b"_s"


def record_key(table_id: int, handle: int | bytes) -> bytes:
    """Encode the key of a row.

    `handle`: an int, or the encoded datums of a common handle.
    """
    return record_prefix(table_id) + (handle if isinstance(handle, bytes) else encode_int(handle))


def record_keys(table_id: int, handles: npt.NDArray[np.int64]) -> list[bytes]:
    """The keys of many rows at once. `handles`: int64, one a row."""
    keys = record_key_block(table_id, handles)
    found: list[bytes] = keys.view(f"V{keys.shape[1]}").ravel().tolist()
    return found


def record_key_block(table_id: int, handles: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Make keys as `record_keys` does, one row of bytes a key."""
    prefix = record_prefix(table_id)
    keys = np.empty((len(handles), len(prefix) + 8), np.uint8)
    keys[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    ordered = (handles.astype(np.uint64) ^ np.uint64(SIGN_BIT)).astype(">u8")
    keys[:, len(prefix) :] = ordered.view(np.uint8).reshape(-1, 8)
    return keys


def handle_of(key: bytes) -> int:
    """The signed handle of a record key."""
    return decode_int(key[-8:])


def index_key(table_id: int, index_id: int, datums: bytes) -> bytes:
    """Encode the key of an index entry.

    `datums`: the indexed values, flag and key encoding each.
    """
    return table_prefix(table_id) + b"_i" + encode_int(index_id) + datums


# --- meta ---


def _meta_prefix(name: str, kind: str) -> bytes:
    return b"m" + encode_bytes(name.encode()) + _U64.pack(ord(kind))


def meta_string(name: str) -> bytes:
    return _meta_prefix(name, "s")


def meta_hash_prefix(name: str) -> bytes:
    """Return what all fields of a hash begin with."""
    return _meta_prefix(name, "h")


def meta_hash(name: str, field: str | bytes) -> bytes:
    return meta_hash_prefix(name) + encode_bytes(field.encode() if isinstance(field, str) else field)


def meta_field(key: bytes, name: str) -> str:
    """The field of a key of the hash `name`."""
    return decode_bytes(key[len(meta_hash_prefix(name)) :]).decode()


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all those that begin with `prefix`."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
