"""The newest segments of a puller, in memory until they are written into files or nobody needs them.

Pure: time is handed in, memory is counted and not touched. A segment stands here, or in the archive, which is files, or
in both while it moves. The owner is the reader: it says where tasks find a segment, and when memory may be used again.
This core must never give out memory that a task may still be told to read.

Why nothing is lost and nobody reads what was overwritten:

1. *The owner is told of a segment in memory.* Its slot is kept until the owner lets go of it: when a commit record has
   released its rows and no task is told to read them, or when it stands in the archive and the last task that was told
   to read it here has written its file.
2. *It is not needed for long: a commit record comes soon.* Then it never becomes a file.
3. *It is needed for longer than `archive_after_s`.* It goes to the archive, so that a puller's end costs little.
4. *There is no room for the next one: overflow.* It goes to the archive itself: if it waited for room, it would keep
   back what was numbered after it, and with that the owner's word. The oldest are archived as well, as many as make
   room for one like it: what comes after it (`next_head`) is in memory again. Readers go on in the archive up to there.
5. *The owner lets go of one that is just being written into the archive.* Its memory is used again at once: what the
   file gets then is nobody's, and it is deleted, as nobody has been told of it.
6. *One is larger than the whole buffer.* It goes into the archive directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

SLOTS = 4096
_ALIGNMENT = 64


@dataclass(frozen=True)
class Slot:
    """A range of memory; `generation` is another one each time that a slot with this index is given out."""

    index: int
    generation: int
    offset: int
    size: int


@dataclass(frozen=True)
class Store:
    """Write the segment into its slot, then call `stored`."""

    seq: int
    slot: Slot


@dataclass(frozen=True)
class Archive:
    """Write the segment into a file: from its slot, then call `archived`; None: it has none, and is nowhere else."""

    seq: int
    slot: Slot | None


@dataclass(frozen=True)
class Clear:
    """The slot is nobody's from now on, and its memory about to be used again."""

    slot: Slot


@dataclass(frozen=True)
class DeleteLateFile:
    """The segment's file has come too late: nobody knows of it."""

    seq: int


Action = Store | Archive | Clear | DeleteLateFile


class _Stage(Enum):
    BEING_STORED = 0
    STORED = 1
    BEING_ARCHIVED = 2
    ARCHIVED = 3


@dataclass
class _BufferedSegment:
    slot: Slot
    at: float
    where: _Stage = _Stage.BEING_STORED


class RealtimeBuffer:
    """Decides which segments stand in memory and which go to files.

    `capacity` in bytes. Segments are known by their numbers; those offered first are the oldest.
    """

    def __init__(self, capacity: int, archive_after_s: float) -> None:
        self._capacity = capacity
        self._archive_after_s = archive_after_s
        self._kept: dict[int, _BufferedSegment] = {}  # oldest first
        self._free_slots = list(range(SLOTS - 1, -1, -1))
        self._generation = 0
        self.used = 0
        self.overflows = 0
        self.next_head = 1  # what comes from this segment on is in memory, if there is room again

    @property
    def only_here(self) -> int:
        """Say how many segments the archive is behind."""
        return sum(kept.where is not _Stage.ARCHIVED for kept in self._kept.values())

    def offer(self, seq: int, size: int, now: float) -> list[Action]:
        """A new segment of `size` bytes."""
        offset = self._room_for(size) if self._free_slots else None
        if offset is None:
            self.overflows += 1
            self.next_head = seq + 1
            return [Archive(seq, None), *self._make_room(size)]
        self._generation += 1
        slot = Slot(self._free_slots.pop(), self._generation, offset, size)
        self._kept[seq] = _BufferedSegment(slot, now)
        self.used += _aligned(size)
        return [Store(seq, slot)]

    def stored(self, seq: int) -> None:
        """Learn that the segment's bytes stand in its slot."""
        self._kept[seq].where = _Stage.STORED

    def archived(self, seq: int) -> list[Action]:
        """Learn that the segment's file is complete: tell the owner, unless it is to be deleted."""
        if seq not in self._kept:
            return [DeleteLateFile(seq)]
        self._kept[seq].where = _Stage.ARCHIVED
        return []

    def freed(self, seq: int) -> list[Action]:
        """The owner lets go of it: no task is told to read it here."""
        if seq not in self._kept:
            return []
        slot = self._kept.pop(seq).slot
        self._free_slots.append(slot.index)
        self.used -= _aligned(slot.size)
        return [Clear(slot)]

    def wanted(self, seqs: list[int]) -> list[Action]:
        """Somebody cannot read these here: they are written into the archive."""
        return [self._archive(seq) for seq in seqs if seq in self._kept and self._kept[seq].where is _Stage.STORED]

    def due(self, now: float) -> list[Action]:
        """What has been here for long goes to the archive."""
        old = []
        for seq, kept in self._kept.items():
            if now < kept.at + self._archive_after_s:
                break
            if kept.where is _Stage.STORED:
                old.append(seq)
        return [self._archive(seq) for seq in old]

    def next_deadline(self) -> float | None:
        """Say when `due` has something, if nothing happens; None: nothing is here alone."""
        return next(
            (kept.at + self._archive_after_s for kept in self._kept.values() if kept.where is _Stage.STORED), None
        )

    def _make_room(self, size: int) -> list[Action]:
        """Archive the oldest, until what is on its way out is as much as `size`."""
        actions: list[Action] = []
        leaving = (_Stage.BEING_ARCHIVED, _Stage.ARCHIVED)
        going = sum(_aligned(kept.slot.size) for kept in self._kept.values() if kept.where in leaving)
        for seq, kept in self._kept.items():
            if going >= _aligned(size):
                break
            if kept.where is _Stage.STORED:
                going += _aligned(kept.slot.size)
                actions.append(self._archive(seq))
        return actions

    def _archive(self, seq: int) -> Action:
        kept = self._kept[seq]
        kept.where = _Stage.BEING_ARCHIVED
        return Archive(seq, kept.slot)

    def _room_for(self, size: int) -> int | None:
        """Return the lowest range that is large enough: what was used before is used again, touching few pages."""
        end = 0
        for slot in sorted((kept.slot for kept in self._kept.values()), key=lambda slot: slot.offset):
            if slot.offset - end >= _aligned(size):
                break
            end = slot.offset + _aligned(slot.size)
        return end if end + size <= self._capacity else None


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
