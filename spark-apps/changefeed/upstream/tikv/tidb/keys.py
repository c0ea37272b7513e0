"""TiDB's keys: a table's records, and the meta keys that hold the schema (docs/design/tidb.md, Record keys, Meta keys).

All keys here are raw; PD and the change data service expect them in `tidb.memcomparable` form. Nothing here may treat
a key as a table's record without having checked all of its 19 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.errors import NeedsHuman
from changefeed.upstream.binary_view import BinaryView, Ints
from changefeed.upstream.tikv.tidb.memcomparable import decode_bytes, encode_bytes

#: Row changes of `mysql.tidb_ddl_job` are the DDLs (docs/design/tidb.md, DDL jobs).
DDL_JOB_TABLE_ID = 281474976710654
DDL_JOB_TABLE = ("mysql", "tidb_ddl_job")

_SIGN = 1 << 63
RECORD = b"_r"
_RECORD_END = b"_s"
PREFIX_LENGTH = 11  # 't', table id, "_r"
_RECORD_KEY_LENGTH = 19
_WORD = 8


def _int_bytes(value: int) -> bytes:
    """EncodeInt: sorts as the signed value does."""
    return (value + _SIGN).to_bytes(8, "big")


def table_prefix(table_id: int) -> bytes:
    return b"t" + _int_bytes(table_id)


def table_span(table_id: int) -> tuple[bytes, bytes]:
    """`[start, end)` of the records of one physical table."""
    return table_prefix(table_id) + RECORD, table_prefix(table_id) + _RECORD_END


def table_id_of(key: bytes) -> int | None:
    """The physical table id in a key of a table's record or index; None for any other key."""
    if len(key) < 9 or key[:1] != b"t":
        return None
    return int.from_bytes(key[1:9], "big") - _SIGN


def decode_int_handles(keys: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """The int handles of record keys that all belong to one physical table.

    An unsigned handle is its int64 reinterpretation. Raises NeedsHuman that shows the first key that isn't a record key
    with an int handle of the first key's table.
    """
    view = BinaryView(keys)
    if not len(keys):
        return np.zeros(0, np.int64)
    first = view.data[view.starts[0] : view.ends[0]].tobytes()
    table_id = table_id_of(first)
    if table_id is None:
        raise _not_an_int_handle(first, "the prefix is not 't' and a table id")
    bad = view.ends - view.starts != _RECORD_KEY_LENGTH
    if not bad.any():
        prefix = table_span(table_id)[0]
        for at in (0, PREFIX_LENGTH - _WORD):  # two words that overlap have all bytes of it
            bad |= _words_at(view, at, "<u8") != int.from_bytes(prefix[at : at + _WORD], "little")
    if bad.any():
        row = int(bad.argmax())
        key = view.data[view.starts[row] : view.ends[row]].tobytes()
        raise _not_an_int_handle(key, f"expected {_RECORD_KEY_LENGTH} bytes beginning as table {table_id}'s records do")
    handles: Ints = (_words_at(view, PREFIX_LENGTH, ">u8").astype(np.uint64) ^ np.uint64(_SIGN)).view(np.int64)
    return handles


def moved(keys: pa.BinaryArray, tables: Sequence[int], of: npt.NDArray[np.int64]) -> pa.BinaryArray | None:
    """The record keys as the first table would have them; `of`: to which of the tables each belongs, by its index.

    None when one of them is not a record key of its table.
    """
    view = BinaryView(keys)
    if (view.ends - view.starts < PREFIX_LENGTH).any():
        return None
    prefixes = np.frombuffer(b"".join(table_span(table)[0] for table in tables), np.uint8).reshape(-1, PREFIX_LENGTH)
    positions = view.starts[:, np.newaxis] + np.arange(PREFIX_LENGTH)
    if (view.data[positions] != prefixes[of]).any():
        return None
    data = view.data.copy()
    data[positions] = prefixes[0]
    buffers = [None, keys.buffers()[1], pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(keys.type, len(keys), buffers, null_count=0, offset=keys.offset)


def _words_at(view: BinaryView, at: int, kind: str) -> npt.NDArray[np.uint64]:
    """The word at byte `at` of each key; all are record keys by their length."""
    first = int(view.starts[0]) + at
    return np.ndarray((len(view.starts),), kind, view.data.data, first, (_RECORD_KEY_LENGTH,))


def _not_an_int_handle(key: bytes, why: str) -> NeedsHuman:
    return NeedsHuman(
        f"key {key.hex()} is not a record key with an int handle: {why}.",
        "Exclude the table by a filter rule, or report the key.",
    )


# Meta keys: 'm', the name, a type letter as u64, and for hashes the field.


def meta_string_key(name: bytes) -> bytes:
    return b"m" + encode_bytes(name) + ord("s").to_bytes(8, "big")


def meta_hash_prefix(name: bytes) -> bytes:
    """What all fields of a hash begin with."""
    return b"m" + encode_bytes(name) + ord("h").to_bytes(8, "big")


def meta_hash_key(name: bytes, field: bytes) -> bytes:
    return meta_hash_prefix(name) + encode_bytes(field)


def decode_meta_hash_key(key: bytes) -> tuple[bytes, bytes]:
    """(name, field) of a hash's key. Raises ValueError for any other key."""
    if key[:1] != b"m":
        raise ValueError(f"not a meta key: {key.hex()}")
    name, rest = decode_bytes(key[1:])
    if int.from_bytes(rest[:8], "big") != ord("h"):
        raise ValueError(f"not the key of a meta hash: {key.hex()}")
    field, tail = decode_bytes(rest[8:])
    if tail:
        raise ValueError(f"{len(tail)} bytes behind the field of meta key {key.hex()}")
    return name, field


def database_key(database_id: int) -> bytes:
    """Where a DBInfo is stored."""
    return meta_hash_key(DATABASES, b"DB:%d" % database_id)


def table_key(database_id: int, table_id: int) -> bytes:
    """Where a TableInfo is stored."""
    return meta_hash_key(b"DB:%d" % database_id, b"Table:%d" % table_id)


def hash_span(name: bytes) -> tuple[bytes, bytes]:
    """`[start, end)` of all fields of a meta hash."""
    prefix = meta_hash_prefix(name)
    return prefix, prefix[:-1] + bytes([prefix[-1] + 1])


DATABASES = b"DBs"
SCHEMA_VERSION_KEY = meta_string_key(b"SchemaVersionKey")
DDL_JOB_SPAN = table_span(DDL_JOB_TABLE_ID)
