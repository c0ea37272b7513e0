"""Memory that a puller fills and tasks of its machine read without a copy: mapped once, used again and again.

It is a file without a name, which others open by the number that it has in the puller's process; so it ends with that
process, however it ends. What is in a slot is vouched for by its generation: a reader looks before it reads, and again
before anything of what it has read gets out (rule 3).
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.eventstore.realtime_buffer import SLOTS, Slot
from changefeed.eventstore.slices import SlotAddress

_TOKEN_BYTES = 16
_TABLE_AT = 64
_DATA_AT = _TABLE_AT + SLOTS * 8
_MAPS = 64  # that a process keeps open


class SlotGone(Exception):
    """The slot holds something else by now, or its process has ended."""


def can_share_memory() -> bool:
    """Tell whether this system has what `SharedArena` needs (Linux has)."""
    return hasattr(os, "memfd_create") and os.path.exists(f"/proc/{os.getpid()}/fd")


class SharedArena:
    """The puller's side. Pages are taken as they are first written, up to `capacity` bytes."""

    def __init__(self, capacity: int) -> None:
        self._file = os.memfd_create("changefeed-buffer")
        os.ftruncate(self._file, _DATA_AT + capacity)
        self._map = mmap.mmap(self._file, _DATA_AT + capacity)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._map[:_TOKEN_BYTES] = self._token
        self._memory = pa.py_buffer(self._map)
        self._table = _table(self._memory)

    def address(self, slot: Slot) -> SlotAddress:
        token, host = self._token.hex(), socket.gethostname()
        return SlotAddress(pid=os.getpid(), file=self._file, token=token, host=host, **asdict(slot))

    def writer(self, slot: Slot) -> pa.NativeFile:
        """A file of exactly the slot's size; the slot is valid from now on."""
        self._table[slot.index] = slot.generation
        first = _DATA_AT + slot.offset
        # A slice of a buffer can't be written to; one of a view can.
        return pa.FixedSizeBufferWriter(pa.py_buffer(memoryview(self._map)[first : first + slot.size]))

    def content(self, slot: Slot) -> pa.Buffer:
        """Return what was written, without a copy."""
        return self._memory.slice(_DATA_AT + slot.offset, slot.size)

    def opened(self, address: SlotAddress) -> MappedArena:
        """Return what `mapped` is to others. Raises SlotGone when the slot is in another arena."""
        if address.token != self._token.hex():
            raise SlotGone(f"process {os.getpid()} has other memory than process {address.pid} had")
        return MappedArena(self._memory)

    def clear(self, slot: Slot) -> None:
        """It is nobody's: whoever still reads it learns of that."""
        self._table[slot.index] = 0

    def close(self) -> None:
        """The memory lives on for as long as somebody has it mapped."""
        os.close(self._file)


@dataclass(frozen=True)
class MappedArena:
    """A reader's side of another process's arena."""

    memory: pa.Buffer

    def read(self, address: SlotAddress) -> pa.Buffer:
        """The segment's bytes, without a copy: `check` before anything of them is used for good. Raises SlotGone."""
        self.check(address)
        return self.memory.slice(_DATA_AT + address.offset, address.size)

    def check(self, address: SlotAddress) -> None:
        """Raises SlotGone."""
        if int(_table(self.memory)[address.index]) != address.generation:
            raise SlotGone(f"slot {address.index} of process {address.pid} holds another segment")


def mapped(address: SlotAddress) -> MappedArena:
    """Map the arena that the slot is in. Raises SlotGone."""
    return _mapped(address.pid, address.file, address.token)


@lru_cache(_MAPS)
def _mapped(pid: int, file: int, token: str) -> MappedArena:
    try:
        with open(f"/proc/{pid}/fd/{file}", "rb") as arena:
            memory = pa.py_buffer(mmap.mmap(arena.fileno(), 0, prot=mmap.PROT_READ))
    except (OSError, ValueError) as error:
        raise SlotGone(f"the memory of process {pid} can't be opened: {error}") from error
    if memory.size < _DATA_AT or memory[:_TOKEN_BYTES].to_pybytes().hex() != token:
        raise SlotGone(f"process {pid} has another file where its memory was")
    return MappedArena(memory)


def _table(memory: pa.Buffer) -> npt.NDArray[np.uint64]:
    """The generation of what is in each slot; 0: nothing."""
    return np.frombuffer(memory, np.uint64, SLOTS, _TABLE_AT)
