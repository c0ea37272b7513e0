"""Puts a puller's segments where tasks find them: in shared memory while there is room, otherwise in files.

An asyncio shell around RealtimeBuffer, which decides; threads do the work. It must never report a segment before it can
be read, nor reuse memory that the owner has not released.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress

import pyarrow as pa

from changefeed.clock import Clock, until_set
from changefeed.errors import Transient, Unavailable
from changefeed.eventstore.arena import SharedArena, can_share_memory
from changefeed.eventstore.buffer import SpanRows
from changefeed.eventstore.files import Fill
from changefeed.eventstore.flight import ArenaServer
from changefeed.eventstore.realtime_buffer import Action, Archive, Clear, DeleteLateFile, RealtimeBuffer, Slot, Store
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.segment import SortedSegment, sort_segment, write_segment
from changefeed.wire import owner_pb2

Serve = Callable[[SharedArena], ArenaServer]

_SMALL = 1 << 20  # raw bytes
ARCHIVE_AFTER_S = 5.0  # what a commit record has not released by then is more likely to stay for long


class SegmentWriter:
    """Writes a puller's segments, as RealtimeBuffer decides.

    `capacity`: bytes of shared memory; 0: files alone. `ending`: no store is waited for any more.

    `serve`: to other machines; None: they can't read what is in memory. `archived` is told the number and the URI of
    what was only in memory, once it is in a file.
    """

    def __init__(
        self,
        run_folder: RunFolder,
        task: str,
        host: str,
        capacity: int,
        clock: Clock,
        ending: threading.Event,
        archived: Callable[[int, str], None],
        serve: Serve | None = None,
    ) -> None:
        self._run_folder = run_folder
        self._task = task
        self._host = host
        self._clock = clock
        self._ending = ending
        self._archived = archived
        self._arena = SharedArena(capacity) if capacity and can_share_memory() else None
        self._server = serve(self._arena) if serve is not None and self._arena is not None else None
        self.buffer = RealtimeBuffer(capacity, ARCHIVE_AFTER_S)
        self._changed = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None

    def begin(self, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        """What it does beside its calls is done in `tasks`; the task that it gives is to be cancelled at the end."""
        self._tasks = tasks
        return tasks.create_task(self._archive_old())

    def end(self) -> None:
        """Nobody reads what is in memory any more."""
        if self._server is not None:
            self._server.close()
        if self._arena is not None:
            self._arena.close()

    async def write(self, seq: int, spans: Sequence[SpanRows]) -> owner_pb2.SegmentMeta:
        """Return what the segment holds, once it can be read. Raises AlreadyExists, Unavailable."""
        if self._arena is None:
            meta = await asyncio.to_thread(write_segment, self._run_folder, self._task, seq, spans)
        else:
            meta = await self._store(self._arena, seq, spans)
        meta.host = self._host
        return meta

    async def _store(self, arena: SharedArena, seq: int, spans: Sequence[SpanRows]) -> owner_pb2.SegmentMeta:
        segment, size, fill = await asyncio.to_thread(_sort, self._run_folder, self._task, seq, spans)
        store, *more = self.buffer.offer(seq, size, self._clock.monotonic())
        self._act(more)
        if not isinstance(store, Store):
            uri, _ = await asyncio.to_thread(self._run_folder.create_segment, self._task, seq, fill)
            return segment.meta(uri, size)
        await asyncio.to_thread(_write_slot, arena, store.slot, fill)
        self.buffer.stored(seq)
        self._changed.set()
        meta = segment.meta(self._run_folder.segment_uri(self._task, seq), size)
        meta.slot.CopyFrom(owner_pb2.Slot(**arena.address(store.slot).model_dump(exclude={"size"})))
        if self._server is not None:
            meta.slot.address = self._server.address
        return meta

    def free(self, seqs: Sequence[int]) -> None:
        """The owner lets go of the memory of these."""
        for seq in seqs:
            self._act(self.buffer.freed(seq))

    def archive(self, seqs: Sequence[int]) -> None:
        """These can't be read in memory."""
        self._act(self.buffer.wanted(list(seqs)))

    async def _archive_old(self) -> None:
        while True:
            self._changed.clear()
            self._act(self.buffer.due(self._clock.monotonic()))
            deadline = self.buffer.next_deadline()
            seconds = None if deadline is None else deadline - self._clock.monotonic()
            await until_set(self._changed, self._clock, seconds)

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Archive(seq, Slot() as slot):
                    self._start(self._archive(seq, slot))
                case Clear(slot):
                    if self._arena is not None:
                        self._arena.clear(slot)
                case DeleteLateFile(seq):
                    self._start(self._delete(seq))
        if actions:
            self._changed.set()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        assert self._tasks is not None
        self._tasks.create_task(work)

    async def _archive(self, seq: int, slot: Slot) -> None:
        assert self._arena is not None
        content = self._arena.content(slot)
        try:
            uri, _ = await asyncio.to_thread(
                self._run_folder.create_segment, self._task, seq, lambda file: file.write(content)
            )
        except Unavailable:
            if self._ending.is_set():
                return  # nobody waits for it any more
            raise
        unwanted = self.buffer.archived(seq)
        self._act(unwanted)
        if not unwanted:
            self._archived(seq, uri)

    async def _delete(self, seq: int) -> None:
        """What can't be deleted goes with the run's folder."""
        with suppress(Unavailable, Transient):
            await asyncio.to_thread(self._run_folder.delete_segment, self._run_folder.segment_uri(self._task, seq))


def _sort(run_folder: RunFolder, task: str, seq: int, spans: Sequence[SpanRows]) -> tuple[SortedSegment, int, Fill]:
    """(the segment, its size, what writes it)."""
    segment = sort_segment(run_folder, task, seq, spans)
    if segment.compression is None and segment.bytes > _SMALL:
        return segment, segment.size(), segment.write
    written = pa.BufferOutputStream()  # a copy costs less than to compress twice, or to go twice through many spans
    segment.write(written)
    content = written.getvalue()
    return segment, content.size, lambda file: file.write(content)


def _write_slot(arena: SharedArena, slot: Slot, fill: Fill) -> None:
    with arena.writer(slot) as file:
        fill(file)
