"""Interprets a stream of region events: chunks of messages in; rows by subscription, resolved-ts and failures out.

One object per stream to a store. All events of a region pass through it in order, so a region's resolved-ts never
overtakes its rows: a chunk's rows are passed on first, then what the chunk resolved. It must never deliver an event to
the wrong registration: on the wire a registration is named by `(request_id, region_id)`, and a deregistered name is not
reused before the store has acknowledged it (docs/design/tikv.md, Registration).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from changefeed.errors import ProtocolViolation, Transient
from changefeed.model.rows import RAW_SCHEMA, ROW_OVERHEAD
from changefeed.upstream.scratch import Scratch
from changefeed.upstream.tikv.matching.committed_rows import are_changes, committed_batch
from changefeed.upstream.tikv.matching.decode import INITIALIZED, U64, Decoded, ResolvedEvent, decode
from changefeed.upstream.tikv.matching.matcher import Matched, Matcher
from changefeed.upstream.tikv.matching.rows import NO_COMMITTED_ROWS
from changefeed.upstream.tikv.matching.slots import Flags
from changefeed.wire import cdcpb_pb2

#: A large transaction comes out as several batches, so that a quota can meter them and 32-bit offsets suffice.
MAX_BATCH_BYTES = 32 << 20
_NOTHING = Matched(NO_COMMITTED_ROWS, [], {})


@dataclass(frozen=True)
class Registration:
    reg: int  # given once, ever
    request_id: int
    region_id: int
    sub_id: int
    span_id: int


@dataclass(frozen=True)
class RegionFailed:
    """The registration is over. `error` is the store's, or ours: then the store has to be told.

    Ours is a ProtocolViolation, or Transient for what can't be told apart and is the store's fault no more than ours.
    """

    registration: Registration
    error: cdcpb_pb2.Error | ProtocolViolation | Transient


@dataclass
class ChunkOutcome:
    """What a chunk gave, to be acted on in the order of the fields."""

    data: list[tuple[int, pa.RecordBatch]] = field(default_factory=list)  # (sub_id, RAW_SCHEMA)
    initialized: list[int] = field(default_factory=list)  # reg
    resolved: dict[int, int] = field(default_factory=dict)  # reg -> ts, higher than before
    failed: list[RegionFailed] = field(default_factory=list)
    resolved_events: int = 0  # in the chunk, whether they advanced a region or not
    #: The rest of `data` of large transactions, a part at a time, to be taken before the next chunk. Of a registration
    #: that is closed meanwhile nothing more comes.
    more: Iterator[list[tuple[int, pa.RecordBatch]]] = field(default_factory=lambda: iter(()), compare=False)
    has_more: bool = False


class RegionEvents:
    def __init__(self, scratch: Scratch | None = None) -> None:
        """`scratch`: for what memory has no room for."""
        self._matcher = Matcher(scratch)
        self._registrations: dict[int, Registration] = {}
        # None: deregistered by us, the store's acknowledgement is awaited.
        self._by_name: dict[tuple[int, int], Registration | None] = {}
        self._sub_of = np.zeros(64, np.int64)  # by reg
        self._span_of = np.zeros(64, np.uint64)

    def register(self, sub_id: int, span_id: int, region_id: int, checkpoint_ts: int) -> Registration:
        """Name a new registration; the shell sends its request. Rows with commit_ts <= checkpoint_ts are dropped."""
        request_id = self._free_request(region_id)
        reg = self._matcher.open(checkpoint_ts)
        registration = Registration(reg, request_id, region_id, sub_id, span_id)
        self._registrations[reg] = registration
        self._by_name[request_id, region_id] = registration
        if reg == len(self._sub_of):
            self._sub_of = np.concatenate([self._sub_of, np.zeros_like(self._sub_of)])
            self._span_of = np.concatenate([self._span_of, np.zeros_like(self._span_of)])
        self._sub_of[reg], self._span_of[reg] = sub_id, span_id
        return registration

    def release(self, sub_id: int) -> list[Registration]:
        """Forget a subscription. Gives what is to be deregistered."""
        released = []
        for registration in [r for r in self._registrations.values() if r.sub_id == sub_id]:
            self._close(registration)
            name = registration.request_id, registration.region_id
            if self._by_name.get(name) is registration:  # else the store has ended it already
                self._by_name[name] = None
                released.append(registration)
        return released

    def process(self, messages: list[bytes], streams: int = 1) -> ChunkOutcome:
        """`streams`: so many share what memory there is for uncommitted rows.

        Raises ProtocolViolation when a message can't be read, Unavailable when the scratch fails.
        """
        decoded = decode(messages)
        # Most chunks of an idle span only resolve, and an empty frame costs as much as a small one.
        data, matched = self._matched(decoded, streams) if decoded.rows.num_rows else ([], _NOTHING)
        out = ChunkOutcome(data, list(matched.initialized), has_more=matched.has_more)
        ours: list[tuple[int, ProtocolViolation | Transient]] = [
            *((reg, self._violation(reg, what)) for reg, what in matched.violations.items()),
            *((reg, self._unclear(reg, what)) for reg, what in matched.unclear.items()),
        ]
        for reg, reason in ours:
            registration = self._registrations[reg]
            self._close(registration)
            self._by_name[registration.request_id, registration.region_id] = None
            out.failed.append(RegionFailed(registration, reason))
        for event in decoded.resolved:
            self._resolve(event, out)
        over: list[Registration] = []
        for error in decoded.errors:
            failed = self._by_name.pop((error.request_id, error.region_id), None)
            if failed is not None:
                over.append(failed)
                out.failed.append(RegionFailed(failed, error.error))
        out.more = self._more(matched.more, over)
        if not out.has_more:
            next(out.more, None)
        out.resolved_events = len(decoded.resolved)
        return out

    @property
    def pending_rows(self) -> int:
        """Prewritten, not yet committed, in all regions of the stream."""
        return self._matcher.uncommitted_rows

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        self._matcher.check()

    def _violation(self, reg: int, what: str) -> ProtocolViolation:
        return ProtocolViolation(
            f"{self._named(reg)} {what}.",
            "It is registered again from its resolved-ts. If this happens again, check that store's log.",
        )

    def _unclear(self, reg: int, what: str) -> Transient:
        return Transient(f"{self._named(reg)} {what}.", "It is registered again from its resolved-ts.")

    def _named(self, reg: int) -> str:
        registration = self._registrations[reg]
        return f"Region {registration.region_id} of subscription {registration.sub_id}"

    def _more(
        self, parts: Iterator[pl.DataFrame], over: list[Registration]
    ) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """`over`: the store has ended them in this chunk. What it resolved before that counts, so first all rows go."""
        for rows in parts:
            yield list(self._split(rows))
        for registration in over:
            self._close(registration)

    def _free_request(self, region_id: int) -> int:
        """The same for all regions, of all subscriptions, but where the name is taken: a store batches the resolved-ts
        of one request, and a message costs as much for one region as for a hundred. From 1: 0 is what names none."""
        return next(request_id for request_id in count(1) if (request_id, region_id) not in self._by_name)

    def _close(self, registration: Registration) -> None:
        if self._registrations.pop(registration.reg, None):  # a subscription's release may have come first
            self._matcher.close(registration.reg)

    def _matched(self, decoded: Decoded, streams: int) -> tuple[list[tuple[int, pa.RecordBatch]], Matched]:
        """What comes out at once: the rows that the chunk settles, most of all, and those that are matched."""
        regs, rows, matched = self._regs(decoded), decoded.rows, _NOTHING
        if rows.get_total_buffer_size() > MAX_BATCH_BYTES:
            settled, left, commit_ts = np.zeros(len(regs), bool), regs >= 0, np.empty(0, np.uint64)
        else:
            settled, left, commit_ts = self._matcher.settle(rows, regs)
        if left.any() or self._matcher.waits:
            matched = self._matcher.feed(self._rows(decoded, regs, left), streams)
        settled &= are_changes(rows)
        if over := [*matched.violations, *matched.unclear]:
            settled &= ~np.isin(regs, over)
        data = self._settled(rows, regs, settled, commit_ts) if settled.any() else ()
        return [*data, *self._split(matched.rows)], matched

    def _settled(
        self, rows: pa.RecordBatch, regs: npt.NDArray[np.int64], settled: Flags, commit_ts: U64
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """By subscription, in order; copied only if others are between them."""
        subs = self._sub_of[regs]
        if not settled.all() or (np.diff(subs) < 0).any():
            numbers = np.flatnonzero(settled)
            numbers = numbers[np.argsort(subs[numbers], kind="stable")]
            rows, regs, subs, commit_ts = rows.take(pa.array(numbers)), regs[numbers], subs[numbers], commit_ts[numbers]
        yield from _by_sub(committed_batch(rows, commit_ts, self._span_of[regs]), subs)

    def _regs(self, decoded: Decoded) -> npt.NDArray[np.int64]:
        """The registration of each row; -1: it has none any more."""
        names = zip(decoded.request_id.tolist(), decoded.region_id.tolist(), strict=True)
        owners = [self._by_name.get(name) for name in names]
        regs = np.array([-1 if owner is None else owner.reg for owner in owners], np.int64)
        return np.repeat(regs, decoded.rows_of)

    def _rows(self, decoded: Decoded, regs: npt.NDArray[np.int64], which: Flags) -> pl.DataFrame:
        """Some rows, for the matcher."""
        last = decoded.rows["type"].to_numpy()[np.cumsum(decoded.rows_of) - 1]  # of each Event
        scanned = np.repeat(last == INITIALIZED, decoded.rows_of)
        frame: Any = pl.from_arrow(decoded.rows if which.all() else decoded.rows.filter(pa.array(which)))
        rows: pl.DataFrame = frame.hstack([pl.Series("reg", regs[which]), pl.Series("scanned", scanned[which])])
        return rows

    def _resolve(self, event: ResolvedEvent, out: ChunkOutcome) -> None:
        for region_id in event.regions.tolist():
            registration = self._by_name.get((event.request_id, region_id))
            if registration is not None and self._matcher.advance(registration.reg, event.ts):
                out.resolved[registration.reg] = event.ts

    def _split(self, rows: pl.DataFrame) -> Iterator[tuple[int, pa.RecordBatch]]:
        """By subscription, in order. Converted together: there may be a handful of rows for each of hundreds."""
        if rows.is_empty():
            return
        subs, spans = self._sub_of[rows["reg"].to_numpy()], self._span_of[rows["reg"].to_numpy()]
        if (np.diff(subs) < 0).any():
            order = np.argsort(subs, kind="stable")
            rows, subs, spans = rows[order], subs[order], spans[order]
        for begin, end in _parts(rows):
            yield from _by_sub(_raw_batch(rows.slice(begin, end - begin), spans[begin:end]), subs[begin:end])


def _parts(rows: pl.DataFrame) -> Iterator[tuple[int, int]]:
    """Row numbers [begin, end) of MAX_BATCH_BYTES each, as a quota measures them."""
    if rows.estimated_size() + rows.height * ROW_OVERHEAD <= MAX_BATCH_BYTES:  # more than what is summed up below
        return pairwise((0, rows.height))
    sizes = rows.select(
        pl.col("key").bin.size().cast(pl.Int64)
        + pl.col("value").bin.size()
        + pl.col("old_value").bin.size().fill_null(0)
        + ROW_OVERHEAD
    ).to_series()
    return pairwise(_edges((sizes.cum_sum().to_numpy() - 1) // MAX_BATCH_BYTES))


def _by_sub(batch: pa.RecordBatch, subs: npt.NDArray[np.int64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    for first, after in pairwise(_edges(subs)):
        yield int(subs[first]), batch.slice(first, after - first)


def _edges(values: npt.NDArray[np.int64]) -> list[int]:
    """Where runs of equal values begin, and the end of the last one; nothing but a 0 for no values."""
    return [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)] if len(values) else [0]


def _raw_batch(rows: pl.DataFrame, span_ids: npt.NDArray[np.uint64]) -> pa.RecordBatch:
    # As views first: the cast then copies each value once, where polars' own binary columns are copied twice.
    table = rows.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
    columns = [
        pa.array(span_ids) if name == "span_id" else table.column(name).chunk(0).cast(RAW_SCHEMA.field(name).type)
        for name in RAW_SCHEMA.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)
