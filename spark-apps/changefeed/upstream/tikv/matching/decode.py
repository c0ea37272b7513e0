"""Decodes ChangeDataEvents into columns: the only module that knows the wire format of row changes.

A message is never unpacked row by row: ptars turns many of them into one nested Arrow batch, and
this module splits the lists by their offsets. It drops nothing that a client has to read: bytes that are not a
ChangeDataEvent raise ProtocolViolation. `admin` and `long_txn` events are never sent, and ignored (docs/design/tikv.md,
Events).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.errors import ProtocolViolation
from changefeed.wire import cdcpb_pb2
from changefeed.wire.thinned import MessageColumns

PREWRITE, COMMIT, ROLLBACK, COMMITTED, INITIALIZED = 1, 2, 3, 4, 5
PUT, DELETE = 1, 2

U64 = npt.NDArray[np.uint64]

_ROW_FIELDS = ("start_ts", "commit_ts", "type", "op_type", "key", "value", "old_value", "txn_source")
_FIELDS = {
    "ChangeDataEvent": ("events", "resolved_ts"),
    "ResolvedTs": ("regions", "ts", "request_id"),
    "Event": ("region_id", "request_id", "entries", "error", "resolved_ts"),
    "Entries": ("entries",),
    "Row": _ROW_FIELDS,
    "Error": (),  # whether there is one
}


@dataclass(frozen=True)
class ResolvedEvent:
    """Every later row of these regions under this request has commit_ts > ts."""

    request_id: int
    ts: int
    regions: U64


@dataclass(frozen=True)
class ErrorEvent:
    """The last event of this region under this request."""

    request_id: int
    region_id: int
    error: cdcpb_pb2.Error


@dataclass(frozen=True)
class Decoded:
    """Some messages of one stream, in columns.

    rows: start_ts, commit_ts, txn_source u64, type, op_type i32, key, value, old_value binary.
    request_id, region_id, rows_of: one element an Event with rows, in their order; rows_of sums to rows.num_rows.
    """

    rows: pa.RecordBatch
    request_id: U64
    region_id: U64
    rows_of: npt.NDArray[np.int64]
    resolved: list[ResolvedEvent]
    errors: list[ErrorEvent]


@cache
def _columns() -> MessageColumns:
    return MessageColumns(cdcpb_pb2.DESCRIPTOR, "ChangeDataEvent", _FIELDS)


def decode(messages: list[bytes]) -> Decoded:
    """Raises ProtocolViolation when a message is no ChangeDataEvent: the stream can't be read on."""
    try:
        batch = _columns().of(messages)
    except ValueError as error:
        size = sum(map(len, messages))
        raise ProtocolViolation(
            f"{len(messages)} messages ({size} bytes) of a change data stream can't be read: {error}.",
            "The stream is reopened. If this happens again, check that the store's version is supported.",
        ) from error
    lists = batch.column("events")
    events = lists.values
    request_id = events.field("request_id").to_numpy()
    region_id = events.field("region_id").to_numpy()
    entries = events.field("entries").field("entries")
    offsets = entries.offsets.to_numpy()
    lengths = np.diff(offsets).astype(np.int64)
    holders = np.flatnonzero(lengths)
    items = entries.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    return Decoded(
        rows=pa.record_batch({name: items.field(name) for name in _ROW_FIELDS}),
        request_id=request_id[holders],
        region_id=region_id[holders],
        rows_of=lengths[holders],
        resolved=_resolved(batch.column("resolved_ts"), events, request_id, region_id),
        errors=_errors(messages, lists, events),
    )


def _resolved(batched: Any, events: Any, request_id: U64, region_id: U64) -> list[ResolvedEvent]:
    """Batched resolved-ts in the order of the wire, then the old style's, one a region."""
    ts, request = batched.field("ts").to_numpy(), batched.field("request_id").to_numpy()
    regions = batched.field("regions")
    ids, offsets = regions.values.to_numpy(), regions.offsets.to_numpy()
    present = np.flatnonzero(batched.is_valid().to_numpy(zero_copy_only=False))
    found = [ResolvedEvent(int(request[i]), int(ts[i]), ids[offsets[i] : offsets[i + 1]]) for i in present]
    single = events.field("resolved_ts")
    if single.null_count < len(single):
        values = single.fill_null(0).to_numpy()
        numbers = np.flatnonzero(single.is_valid().to_numpy(zero_copy_only=False))
        found += [ResolvedEvent(int(request_id[i]), int(values[i]), region_id[i : i + 1]) for i in numbers]
    return found


def _errors(messages: list[bytes], lists: Any, events: Any) -> list[ErrorEvent]:
    """Errors are few: their messages are parsed once more, which keeps every field and unset one as it was."""
    errors = events.field("error")
    if errors.null_count == len(errors):
        return []
    numbers = np.flatnonzero(errors.is_valid().to_numpy(zero_copy_only=False))
    owners = np.unique(np.searchsorted(lists.offsets.to_numpy(), numbers, side="right") - 1)
    return [
        ErrorEvent(event.request_id, event.region_id, event.error)
        for owner in owners
        for event in cdcpb_pb2.ChangeDataEvent.FromString(messages[owner]).events
        if event.WhichOneof("event") == "error"
    ]
