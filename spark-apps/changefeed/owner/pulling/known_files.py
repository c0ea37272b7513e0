"""The segments that exist, where to read them, and which are still needed.

Pure. No memory is released and no file deleted while a task may be reading a segment in it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from changefeed.eventstore.slices import SlotAddress
from changefeed.owner.pulling.segments import Segment
from changefeed.wire import owner_pb2 as pb


class Memory(NamedTuple):
    """A segment's address in the memory of a puller, where tasks read it until it is archived."""

    puller: int
    seq: int
    address: SlotAddress

    @classmethod
    def from_proto(cls, puller: int, meta: pb.SegmentMeta) -> Memory | None:
        if not meta.HasField("slot"):
            return None
        slot = meta.slot
        address = SlotAddress(
            pid=slot.pid,
            file=slot.file,
            token=slot.token,
            index=slot.index,
            generation=slot.generation,
            offset=slot.offset,
            size=meta.bytes,
            host=slot.host,
            address=slot.address,
        )
        return cls(puller, meta.seq, address)


@dataclass
class Reader:
    """Where the segments of one puller are read: in its buffer, or in the archive.

    It begins in the archive. An overflow of the buffer sends it there, until all that has gone there is written and
    released: up to the next head of the buffer. What is archived because it is old changes nothing.
    """

    puller: int
    in_archive: int = 0  # segments that are needed, and read there
    has_buffer: bool = False
    in_buffer: bool = False

    def offered(self, in_memory: bool) -> None:
        """A segment has come; without memory where there is a buffer: that has no room."""
        self.has_buffer |= in_memory
        self.in_buffer = self.in_buffer and in_memory

    def look(self) -> bool:
        """Whether it comes back to the buffer."""
        before = self.in_buffer
        self.in_buffer |= self.has_buffer and not self.in_archive
        return self.in_buffer and not before


@dataclass
class _File:
    size: int
    uses: int  # by how many spans
    memory: Memory | None  # None: the owner has let go of it, or it never had any
    is_archived: bool
    reader: Reader
    is_unreadable: bool = False  # in memory, by a task

    @property
    def is_readable(self) -> bool:
        return self.is_archived or (self.memory is not None and not self.is_unreadable)


class KnownFiles:
    """The segments of this run that exist, as far as the owner was told, in memory or as files.

    One is needed while a span uses it. It is read in memory until it is archived, then in its file.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}  # by URI
        self._unneeded: dict[str, None] = {}
        self._in_memory: dict[int, dict[str, None]] = {}  # by puller: those whose memory is not free
        self._to_free: dict[str, None] = {}  # of those: that nobody is to read there any more
        self.readers: dict[int, Reader] = {}  # by puller
        self._switches: list[tuple[int, bool]] = []
        self._told_early: set[str] = set()  # that they are archived, before what is in them
        self.bytes = 0  # of all that exist

    def add(self, uri: str, puller: int, size: int, uses: int, memory: Memory | None = None) -> None:
        """A segment that was not known before; with no use it is unneeded at once. No memory: it has a file."""
        reader = self.readers.setdefault(puller, Reader(puller))
        self._files[uri] = _File(size, uses, memory, memory is None, reader)
        self.bytes += size
        was_in_buffer = reader.in_buffer
        reader.in_archive += memory is None and uses > 0
        reader.offered(memory is not None)
        if reader.in_buffer != was_in_buffer or reader.look():
            self._switches.append((puller, reader.in_buffer))
        if memory is not None:
            self._in_memory.setdefault(memory.puller, {})[uri] = None
        if not uses:
            self._is_unneeded(uri)
        if uri in self._told_early:
            self._told_early.remove(uri)
            self.archived(uri, was_told=True)

    def archived(self, uri: str, was_told: bool) -> None:
        """It has a file as well. `was_told`: of the segment itself; if it is forgotten by now, its file is deleted."""
        file = self._files.get(uri)
        if file is None and not was_told:
            self._told_early.add(uri)
            return
        if file is None:
            file = self._files[uri] = _File(0, 0, None, is_archived=True, reader=Reader(-1))
            self._unneeded[uri] = None
        file.reader.in_archive += file.uses > 0 and not file.is_archived
        file.is_archived = True
        if file.memory is not None:
            self._to_free[uri] = None

    def address(self, uri: str) -> SlotAddress | None:
        """Where in memory a task is to read it; None: in its file."""
        file = self._files[uri]
        return None if file.is_archived or file.memory is None else file.memory.address

    def is_readable(self, uri: str) -> bool:
        return self._files[uri].is_readable

    def unreadable(self, uri: str) -> Memory | None:
        """A task can't read it in memory; what is to be archived therefore."""
        file = self._files.get(uri)
        if file is None or file.is_archived or file.memory is None:
            return None
        file.is_unreadable = True
        return file.memory

    def drop(self, segment: Segment) -> None:
        """A span does not need it any more."""
        file = self._files.get(segment.uri)
        if file is None:
            return  # lost with its memory
        file.uses -= 1
        if not file.uses:
            file.reader.in_archive -= file.is_archived
            if file.reader.look():
                self._switches.append((file.reader.puller, True))
            self._is_unneeded(segment.uri)

    def _is_unneeded(self, uri: str) -> None:
        self._unneeded[uri] = None
        if self._files[uri].memory is not None:
            self._to_free[uri] = None

    def take_unneeded(self, in_use: Collection[str] = ()) -> list[str]:
        """URIs of files to be deleted now, each once; those in use, or in memory as well, stay for a later call."""
        taken = [uri for uri in self._unneeded if self._files[uri].memory is None and uri not in in_use]
        for uri in taken:
            del self._unneeded[uri]
        return taken

    def take_free(self, in_use: Collection[str] = ()) -> dict[int, list[int]]:
        """Whose memory to let go of: by puller, numbers of segments. Those that a task reads there stay."""
        free: dict[int, list[int]] = {}
        for uri in [uri for uri in self._to_free if uri not in in_use]:
            memory = self._files[uri].memory
            assert memory is not None
            free.setdefault(memory.puller, []).append(memory.seq)
            self._let_go(uri, memory)
        return free

    def take_switches(self) -> list[tuple[int, bool]]:
        """Readers that have changed since this was asked: of which puller, whether to the buffer."""
        switches, self._switches = self._switches, []
        return switches

    def memory_lost(self, puller: int) -> set[str]:
        """A puller has gone with its memory: what was there alone exists no more."""
        lost = set()
        self.readers.pop(puller, None)
        for uri in list(self._in_memory.get(puller, ())):
            memory = self._files[uri].memory
            assert memory is not None
            if not self._files[uri].is_archived:
                lost.add(uri)
            self._let_go(uri, memory)
        return lost

    def _let_go(self, uri: str, memory: Memory) -> None:
        self._files[uri].memory = None
        self._to_free.pop(uri, None)
        del self._in_memory[memory.puller][uri]
        if not self._files[uri].is_archived:
            self._unneeded.pop(uri, None)
            self.deleted(uri)

    def uses(self) -> dict[str, int]:
        """By how many spans each is used; of those that are."""
        return {uri: file.uses for uri, file in self._files.items() if file.uses}

    def sizes(self, puller: int) -> list[int]:
        """Bytes of each file of a puller's that exists, as they came."""
        return [file.size for file in self._files.values() if file.reader.puller == puller]

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        files = self._files
        assert self.bytes == sum(file.size for file in files.values()), "bytes are not those of what exists"
        assert all(file.is_archived or file.memory for file in files.values()), "one that exists is nowhere"
        assert not any(files[uri].uses for uri in self._unneeded), "one that is used may be deleted"
        in_memory = {uri: file.memory.puller for uri, file in files.items() if file.memory}
        noted = {uri: puller for puller, uris in self._in_memory.items() for uri in uris}
        assert noted == in_memory, "what is in memory is noted otherwise"
        to_free = {uri for uri in in_memory if files[uri].is_archived or uri in self._unneeded}
        assert self._to_free.keys() == to_free, "memory that is needed may be freed, or some that is not is kept"
        assert not self._told_early & files.keys(), "one that is known is waited for"
        for puller, reader in self.readers.items():
            needed = sum(file.reader is reader and file.is_archived and file.uses > 0 for file in files.values())
            assert reader.in_archive == needed, f"puller {puller} has {needed} segments to be read in the archive"

    def deleted(self, uri: str) -> None:
        """A file that was taken is gone: one that can't be deleted goes on counting for the quota."""
        self.bytes -= self._files.pop(uri).size
