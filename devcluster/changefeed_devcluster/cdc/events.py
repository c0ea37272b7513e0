"""The bytes of cdcpb.Event, put together by hand: each row is encoded once, however many subscribers get it.

Only what cdc.py sends row by row is built here; everything rare is a protobuf message. Field numbers are those of
wire/cdcpb.proto, and the tests parse the result with the generated classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..store.mvcc import ScannedVersion
from ..store.txn import ChangeKind, Lock, Op, RowChange, StoreChange

EVENT_LIMIT = 32 << 10
"""Bytes of keys, values and old values in an Event; with what is around them it is larger on the wire."""
MESSAGE_LIMIT = 6 << 20

PREWRITE, COMMIT, ROLLBACK, COMMITTED = 1, 2, 3, 4
_LOG_TYPE = {
    ChangeKind.PREWRITE: PREWRITE,
    ChangeKind.COMMIT: COMMIT,
    ChangeKind.ROLLBACK: ROLLBACK,
    ChangeKind.ONE_PC: COMMITTED,
}
_OP_TYPE = {Op.PUT: 1, Op.DELETE: 2}


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


INITIALIZED_ROW = b"\x0a\x02\x18\x05"
EMPTY_ROW = b"\x0a\x00"
"""Elements of Entries: the end of a scan, and what comes of a committed key that was only locked."""

_LENGTHS = tuple(varint(number) for number in range(1 << 12))


def _length(data: bytes) -> bytes:
    size = len(data)
    return _LENGTHS[size] if size < len(_LENGTHS) else varint(size)


def _row_head(log_type: int, op: Op, start_ts: int, commit_ts: int) -> bytes:
    """start_ts 1, commit_ts 2, type 3, op_type 4; what is 0 is left out."""
    head = b"\x08" + varint(start_ts)
    if commit_ts:
        head += b"\x10" + varint(commit_ts)
    head += b"\x18" + varint(log_type)
    if log_type != ROLLBACK:
        head += b"\x20" + varint(_OP_TYPE[op])
    return head


class Encoded(NamedTuple):
    """An element of Entries.entries. `size`: bytes of key, value and old value."""

    body: bytes
    size: int


def _row(head: bytes, tail: bytes, key: bytes, value: bytes, old_value: bytes | None) -> Encoded:
    """Key 5, value 6, old_value 7 between head and tail."""
    parts = [head, b"\x2a", _length(key), key]
    if value:
        parts += (b"\x32", _length(value), value)
    if old_value:
        parts += (b"\x3a", _length(old_value), old_value)
    parts.append(tail)
    row = b"".join(parts)
    return Encoded(b"\x0a" + _length(row) + row, len(key) + len(value) + len(old_value or b""))


def _row_tail(txn_source: int) -> bytes:
    """txn_source 9."""
    return b"\x48" + varint(txn_source) if txn_source else b""


def change_rows(change: StoreChange, rows: Iterable[RowChange]) -> list[Encoded]:
    """The rows of a live change."""
    log_type = _LOG_TYPE[change.kind]
    heads = {op: _row_head(log_type, op, change.start_ts, change.commit_ts) for op in (Op.PUT, Op.DELETE)}
    heads[Op.LOCK] = heads[Op.PUT]
    tail = _row_tail(change.txn_source)
    return [
        Encoded(EMPTY_ROW, 0) if change.is_empty(row) else _row(heads[row.op], tail, row.key, row.value, row.old_value)
        for row in rows
    ]


def scan_rows(found: Iterable[Lock | ScannedVersion]) -> list[Encoded]:
    """Return what an incremental scan met: locks as PREWRITE, versions as COMMITTED."""
    rows = []
    known: tuple[object, ...] = ()
    head = tail = b""
    for item in found:
        if isinstance(item, Lock):
            lock_head = _row_head(PREWRITE, item.op, item.start_ts, 0)
            lock_tail = _row_tail(item.txn_source)
            rows.append(_row(lock_head, lock_tail, item.key, item.value, item.old_value))
            continue
        key, (commit_ts, start_ts, op, value, txn_source, _), old_value = item
        if known != (commit_ts, start_ts, op, txn_source):
            known = (commit_ts, start_ts, op, txn_source)
            head, tail = _row_head(COMMITTED, op, start_ts, commit_ts), _row_tail(txn_source)
        rows.append(_row(head, tail, key, value, old_value))
    return rows


def group_rows(rows: Sequence[Encoded]) -> list[bytes]:
    """Entries bodies below EVENT_LIMIT; a larger row stands alone."""
    groups = []
    group: list[bytes] = []
    size = 0
    for row in rows:
        if group and size + row.size >= EVENT_LIMIT:
            groups.append(b"".join(group))
            group, size = [], 0
        group.append(row.body)
        size += row.size
    if group:
        groups.append(b"".join(group))
    return groups


def entries_event(region_tag: bytes, request_tag: bytes, entries: bytes) -> bytes:
    """An element of ChangeDataEvent.events around an Entries body; the tags are those of `event_tags`."""
    event = b"".join((region_tag, b"\x1a", _length(entries), entries, request_tag))
    return b"\x0a" + _length(event) + event


def event_tags(region_id: int, request_id: int) -> tuple[bytes, bytes]:
    """Event.region_id 1 and Event.request_id 7."""
    return b"\x08" + varint(region_id), b"\x38" + varint(request_id) if request_id else b""


def framed_event(event: bytes) -> bytes:
    """An element of ChangeDataEvent.events around a serialized Event."""
    return b"\x0a" + _length(event) + event
