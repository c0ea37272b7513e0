"""Runs a puller in this process and tracks where its rows are stored: the owner's role, for a single table.

The puller is the same task that a changefeed runs. As in the owner, `Spans` decides which of its reports count. For one
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection

import numpy as np
import numpy.typing as npt

from changefeed.errors import Unavailable
from changefeed.eventstore.reader import read_slice
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.slices import SegmentSlice
from changefeed.model.position import Position
from changefeed.owner.pulling.quota import Quota, segment_bytes
from changefeed.owner.pulling.segments import Segment
from changefeed.owner.pulling.spans import Orders, Spans
from changefeed.owner.pulling.stored_rows import StoredRows
from changefeed.puller.task import Limits, PullerTask
from changefeed.upstream.contract import Upstream
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import error_of

_LOG = logging.getLogger(__name__)
#: Bytes of segments beyond which pulling pauses while there is something to read.
QUOTA = 4 << 30
#: Raw bytes in memory waiting to be written.
_IN_MEMORY = 256 << 20
_PULLER = 0
_TROUBLE_S = 60.0


class Pulling:
    """Calls `changed` after each report. Add and remove spans before it runs or while it does."""

    def __init__(self, upstream: Upstream, run_folder: RunFolder, changed: Callable[[], None]) -> None:
        limits = Limits(quota_bytes=_IN_MEMORY, roll_bytes=segment_bytes(QUOTA, 1))
        self._run_folder = run_folder
        self._changed = changed
        self._spans = Spans(1, socket.gethostname())
        self._stored = StoredRows(self._spans)
        self._quota = Quota(QUOTA)
        self._puller = PullerTask(_PULLER, "source", upstream.feed, run_folder, limits)
        self._commands: asyncio.Queue[pb.Command] = asyncio.Queue()
        self._troubled_since: float | None = None
        self._trouble = ""
        self._stopped = ""  # why a store sends no change data

    async def run(self) -> None:
        """Run until `end`, or forever. Raises what the puller raises."""
        self._order(self._spans.puller_joined(time.monotonic(), _PULLER))
        await self._puller.run(self)

    def end(self) -> None:
        self._commands.put_nowait(pb.Command(end=pb.End()))

    def add(self, span_id: int, start_key: bytes, end_key: bytes, start_ts: int) -> None:
        """Pull `[start_key, end_key)` after start_ts."""
        self._order(self._spans.add_span(span_id, start_key, end_key, start_ts))

    def remove(self, span_id: int) -> None:
        """The span is no longer needed."""
        self._order(self._spans.remove_span(span_id))

    def resolved_ts(self) -> int:
        """Every change up to this ts is in segments."""
        lowest = self._spans.lowest_ts()
        assert lowest is not None, "a table has at least one span"
        return lowest

    def segments(self, span_ids: Collection[int]) -> list[Segment]:
        return [segment for span_id in span_ids for segment in self._spans.segments(span_id)]

    def slices(self, span_id: int, after_ts: int, upto_ts: int) -> tuple[SegmentSlice, ...]:
        """Where the span's rows in `(after_ts, upto_ts]` are stored."""
        return self._stored.slices(span_id, Position.end_of(after_ts), Position.end_of(upto_ts), self._run_folder.run)

    def commit_ts(self, segment: Segment) -> npt.NDArray[np.uint64]:
        """The commit ts of the segment's rows. Blocks. Raises Transient."""
        found: npt.NDArray[np.uint64] = read_slice(
            self._run_folder, self._stored.slice_of(segment, self._run_folder.run)
        )["commit_ts"].to_numpy()
        return found

    def let_write(self, idle: bool) -> None:
        """Let the puller keep writing if there is room, or if what it writes may be awaited (`idle`)."""
        if self._quota.lets_write(self._spans.files.bytes, idle):
            for _, command in self._spans.heard():
                self._commands.put_nowait(command)

    async def release(self, upto_ts: int) -> None:
        """Delete segments no longer needed once changes up to this ts are done with. Raises Unavailable, Transient."""
        self._spans.on_checkpoint(upto_ts)
        for uri in self._spans.files.take_unneeded():
            await asyncio.to_thread(self._run_folder.delete_segment, uri)
            self._spans.files.deleted(uri)

    def check(self) -> None:
        """Raises Unavailable if writing segments has been failing for too long."""
        if self._troubled_since is not None and time.monotonic() - self._troubled_since > _TROUBLE_S:
            raise Unavailable(self._trouble, "Fix that, or set the option eventStore to another location.")

    # The puller's stream to its owner (puller.task.OwnerStream).

    async def write(self, report: pb.Report) -> None:
        self._note_trouble(report.trouble)
        if report.stopped.message != self._stopped:
            self._stopped = report.stopped.message
            _LOG.warning("%s", self._stopped or "The stores send change data again.")
        self._spans.on_report(_PULLER, report)
        for failure in report.failures:
            raise error_of(failure)
        self._changed()

    async def __aiter__(self) -> AsyncIterator[pb.Command]:
        while True:
            yield await self._commands.get()

    def _order(self, orders: Orders) -> None:
        for _, command in orders.commands:
            self._commands.put_nowait(command)

    def _note_trouble(self, trouble: str) -> None:
        self._trouble = trouble
        if not trouble:
            self._troubled_since = None
        elif self._troubled_since is None:
            self._troubled_since = time.monotonic()
