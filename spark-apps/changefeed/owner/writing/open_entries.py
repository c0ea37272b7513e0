"""Planned files without a commit record yet: which may be written now, and which may be committed.

Pure. Files of one dispatcher are committed in order (rule 8: an index file vouches for all before it); files of
different dispatchers don't wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from changefeed.log.records import FileCommitted, PlanEntry
from changefeed.log.state import State


class EntryKey(NamedTuple):
    """Which file: the number of its plan's record, and its number there (rule 20)."""

    plan: int
    entry: int


class OpenEntries:
    """Follows the log's open plans, and which of their files stand in the sink."""

    def __init__(self, state: State) -> None:
        self._entries: dict[int, dict[EntryKey, PlanEntry]] = {}  # by dispatcher, in order
        self._dispatchers: dict[EntryKey, int] = {}  # in the order of plans and entries
        self._done: dict[EntryKey, FileCommitted] = {}
        self.unwritten_bytes = 0  # raw, of those that are not known to stand in the sink
        for plan, entry in state.open_entries():
            self._add(plan, entry)

    def __len__(self) -> int:
        return len(self._dispatchers)

    @property
    def dispatchers(self) -> Set[int]:
        """Those that have open files."""
        return self._entries.keys()

    @property
    def can_commit(self) -> bool:
        """Whether `committable` has any: a file that is done, with none before it that isn't."""
        return any(key == next(iter(self._entries[self._dispatchers[key]])) for key in self._done)

    def is_unwritten(self, key: EntryKey) -> bool:
        """Whether it is open, and not known to stand in the sink."""
        return key in self._dispatchers and key not in self._done

    @property
    def all_done(self) -> bool:
        return len(self._done) == len(self._dispatchers)

    def planned(self, plan: int, entries: Iterable[PlanEntry]) -> None:
        """A plan is in the log."""
        for entry in entries:
            self._add(plan, entry)

    def entry(self, key: EntryKey) -> PlanEntry:
        return self._entries[self._dispatchers[key]][key]

    def of(self, dispatcher: int) -> Iterable[tuple[EntryKey, PlanEntry]]:
        """The open files of a dispatcher, in order."""
        return self._entries.get(dispatcher, {}).items()

    def unwritten(self) -> Iterator[tuple[EntryKey, PlanEntry]]:
        """Those that are not known to stand in the sink, in the order of plans and entries."""
        return ((key, self.entry(key)) for key in self._dispatchers if key not in self._done)

    def done(self, file: FileCommitted) -> bool:
        """A file stands in the sink. False when that is known, or in the log, already."""
        key = EntryKey(file.plan, file.entry)
        if key not in self._dispatchers or key in self._done:
            return False
        self._done[key] = file
        self.unwritten_bytes -= size_of(self.entry(key))
        return True

    def committable(self) -> list[tuple[FileCommitted, PlanEntry]]:
        """What the next commit record may name: of each dispatcher the files that are done, up to the first that isn't.

        In the order of plans and entries.
        """
        found: dict[EntryKey, PlanEntry] = {}
        for dispatcher in {self._dispatchers[key] for key in self._done}:
            for key, entry in self._entries[dispatcher].items():
                if key not in self._done:
                    break
                found[key] = entry
        return [(self._done[key], found[key]) for key in sorted(found)]

    def committed(self, files: Iterable[FileCommitted]) -> None:
        """A commit record names them."""
        for file in files:
            key = EntryKey(file.plan, file.entry)
            dispatcher = self._dispatchers.pop(key)
            del self._done[key]
            del self._entries[dispatcher][key]
            if not self._entries[dispatcher]:
                del self._entries[dispatcher]

    def _add(self, plan: int, entry: PlanEntry) -> None:
        key = EntryKey(plan, entry.entry)
        self._dispatchers[key] = entry.dispatcher
        self._entries.setdefault(entry.dispatcher, {})[key] = entry
        self.unwritten_bytes += size_of(entry)


def size_of(entry: PlanEntry) -> int:
    """Raw bytes, about: an estimate may be none at all."""
    return max(entry.estimate, 1)
