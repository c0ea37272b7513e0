"""CRC-32 of many texts at a time, as TiCDC picks partitions by (Go's crc32.NewIEEE), and the rules that use it.

TiCDC's hash of a row is the exclusive or of several: of the schema's and table's names, and of each chosen column's
name and value (NULL as `null`). `ts` is the commit ts itself. Where it draws a partition at random, or a rule is none
of these, a table's rows all have one partition, which keeps their order. `key` is no rule of TiCDC's: a message's key
decides as it does in Kafka's Java clients, by MurmurHash2.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NeedsHuman
from changefeed.schema.table_info import TableInfo
from changefeed.schema.values import as_bytes
from changefeed.sink.records import Records
from changefeed.sink.text.canal_types import handle_key
from changefeed.sink.text.go_float import plain_float

_POLYNOMIAL = 0xEDB88320
#: Of MurmurHash2, with the seed that Kafka's clients have.
_FACTOR, _SEED = np.uint32(0x5BD1E995), 0x9747B28C
_POSITIVE = np.uint32(0x7FFFFFFF)


def _table() -> npt.NDArray[np.uint32]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_POLYNOMIAL), values >> 1).astype(np.uint32)
    return values


_TABLE = _table()


def partitions_of(
    records: Records, partitions: int, rule: str, index: str = "", columns: Sequence[str] = ()
) -> npt.NDArray[np.int32]:
    """Return each record's partition, by TiCDC's word for the rule. An update goes where its new row does.

    Raises NeedsHuman for an index or a column that the table hasn't.
    """
    table = records.table
    if rule == "ts":
        return by_ts(records.commit_ts, partitions)
    if rule in ("index-value", "rowid", "columns"):
        names = list(columns) if rule == "columns" else _index_columns(table, index)
        chosen = [(name, _hashed(_values_of(records, name))) for name in names]
        return by_values(table.schema_name, table.name, chosen, len(records.op), partitions)
    return by_table(table.schema_name, table.name, len(records.op), partitions)


def _index_columns(table: TableInfo, index: str) -> list[str]:
    if not index:
        return sorted(handle_key(table))
    found = next((known for known in table.indexes if known.name == index), None)
    if found is None:
        raise NeedsHuman(
            f"{table.full_name} has no index {index}, but its rows are dispatched by it.",
            "In spec.sink.kafka.dispatchers, use an index of the table or another rule.",
        )
    return [name for name, _ in found.columns]


def _values_of(records: Records, name: str) -> pa.Array:
    for column, values in zip(records.shown, records.columns, strict=True):
        if column.name == name:
            return values
    raise NeedsHuman(
        f"{records.table.full_name} has no column {name}, or does not write it; but its rows are dispatched by it.",
        "In spec.sink.kafka.dispatchers, use columns that are written.",
    )


def _hashed(values: pa.Array) -> pa.Array:
    """ENUM and SET by number, floats without an exponent, text as it is."""
    if pa.types.is_struct(values.type):
        values = pc.struct_field(values, "number")
    if pa.types.is_floating(values.type):
        return plain_float(values)
    return values.cast(pa.string()) if pa.types.is_integer(values.type) else as_bytes(values)


def crc32_of(*texts: bytes) -> int:
    return zlib.crc32(b"".join(texts))


def crc32_after(prefix: bytes, texts: pa.Array) -> npt.NDArray[np.uint32]:
    """Return the CRC of `prefix` and each text (binary, no nulls); Python takes a step for each byte of the longest.

    Longest first, so that at each position the texts that have a byte there are the first ones.
    """
    starts, lengths, data = _laid_out(texts)
    order = np.argsort(-lengths, kind="stable")
    starts, sorted_lengths = starts[order], lengths[order]
    state = np.full(len(texts), zlib.crc32(prefix) ^ 0xFFFFFFFF, np.uint32)
    for position in range(int(sorted_lengths[0]) if len(texts) else 0):
        there = int(np.searchsorted(-sorted_lengths, -position, side="left"))  # longer than `position`
        byte = data[starts[:there] + position]
        state[:there] = _TABLE[(state[:there] ^ byte) & 0xFF] ^ (state[:there] >> np.uint32(8))
    result = np.empty_like(state)
    result[order] = state ^ np.uint32(0xFFFFFFFF)
    return result


def by_table(schema: str, table: str, rows: int, partitions: int) -> npt.NDArray[np.int32]:
    return np.full(rows, crc32_of(schema.encode(), table.encode()) % partitions, np.int32)


def by_ts(commit_ts: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    numbers: npt.NDArray[np.uint64] = commit_ts.to_numpy()
    return (numbers % np.uint64(partitions)).astype(np.int32)


def by_values(
    schema: str, table: str, columns: Sequence[tuple[str, pa.Array]], rows: int, partitions: int
) -> npt.NDArray[np.int32]:
    """`columns`: names, and values as text (binary or string), NULL where they are."""
    state = np.full(rows, crc32_of(schema.encode(), table.encode()), np.uint32)
    for name, values in columns:
        state ^= crc32_after(name.encode(), values.cast(pa.binary()).fill_null(b"null"))
    return (state % np.uint32(partitions)).astype(np.int32)


def by_key(schema: str, table: str, keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """`keys`: of messages, pa.binary(). One without a key goes where the table's rows go by table."""
    chosen = (_murmur2(keys.fill_null(b"")) & _POSITIVE) % np.uint32(partitions)
    others = by_table(schema, table, len(keys), partitions)
    return np.where(keys.is_valid().to_numpy(zero_copy_only=False), chosen.astype(np.int32), others)


def _murmur2(texts: pa.Array) -> npt.NDArray[np.uint32]:
    """Return the hash of each text; four bytes of all texts at a step, the longest first, as `crc32_after`."""
    starts, lengths, data = _laid_out(texts)
    blocks = lengths >> 2
    order = np.argsort(-blocks, kind="stable")
    starts, lengths, blocks = starts[order], lengths[order], blocks[order]
    state = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    for block in range(int(blocks[0]) if len(blocks) else 0):
        there = int(np.searchsorted(-blocks, -block, side="left"))  # have more blocks than these
        word = _word(data, starts[:there] + 4 * block, 4) * _FACTOR
        word = (word ^ (word >> np.uint32(24))) * _FACTOR
        state[:there] = (state[:there] * _FACTOR) ^ word
    ends = starts + 4 * blocks
    for rest in (1, 2, 3):
        rows = np.flatnonzero(lengths & 3 == rest)
        state[rows] = (state[rows] ^ _word(data, ends[rows], rest)) * _FACTOR
    state = (state ^ (state >> np.uint32(13))) * _FACTOR
    result = np.empty_like(state)
    result[order] = state ^ (state >> np.uint32(15))
    return result


def _word(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.uint32]:
    """The bytes from each start on, the least significant first."""
    word = np.zeros(len(starts), np.uint32)
    for position in range(size):
        word |= data[starts + position].astype(np.uint32) << np.uint32(8 * position)
    return word


def _laid_out(
    texts: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each text begins, how long it is, and the bytes of all."""
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset :][: len(texts) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return offsets[:-1], np.diff(offsets), data
