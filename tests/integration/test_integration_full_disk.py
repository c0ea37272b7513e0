"""A changefeed on a disk that has no room for a while says so, waits, and heals by itself."""

from __future__ import annotations

import errno
from collections import Counter
from io import FileIO
from pathlib import Path

import pytest
from changefeed.eventstore.segment import SortedSegment
from changefeed.objectstore import local as local_module
from changefeed.sink import spool as spool_module
from changefeed.sink.spool import Spool
from changefeed_devcluster.server import DevCluster
from integration_failing_store import Feed, running_feed


class Disk:
    """A disk on which what is named by `full` finds no room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = ""
        self.refused: Counter[str] = Counter()
        write_object, write_segment, open_spool = local_module._write_all, SortedSegment.write, Spool._open
        monkeypatch.setattr(local_module, "_write_all", lambda *given: self.room("an object") or write_object(*given))
        monkeypatch.setattr(SortedSegment, "write", lambda *given: self.room("a segment") or write_segment(*given))
        monkeypatch.setattr(spool_module, "IN_MEMORY_BYTES", 0)
        monkeypatch.setattr(Spool, "_open", lambda spool: _Spooled(open_spool(spool), self))

    def room(self, what: str) -> None:
        if what == self.full:
            self.refused[what] += 1
            raise OSError(errno.ENOSPC, "No space left on device")


class _Spooled:
    def __init__(self, file: FileIO, disk: Disk) -> None:
        self._file = file
        self._disk = disk
        self._room = 7  # bytes, while the disk is full for them
        self.close = file.close

    def write(self, piece: memoryview) -> int:
        if self._disk.full != "a spool file":
            return self._file.write(piece)
        if self._room == 0:
            self._disk.room("a spool file")
        written = self._file.write(piece[: self._room])
        self._room -= written
        return written


async def test_a_full_disk_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    with DevCluster(stores=2, min_ts_interval=0.2) as cluster:
        feed = Feed(cluster, tmp_path, lambda path: (tmp_path / path[1:]).as_uri())
        async with running_feed(feed) as run:
            for what in ("an object", "a segment", "a spool file"):
                disk.full = what
                await feed.troubled(run, "No space left on device")
                await run.until(lambda what=what: disk.refused[what] >= 2, "it is tried again")
                disk.full = ""
                await feed.caught_up(run)
        assert run.execution.puller_attempts == [(0, 0)], "no puller died of it"
        await feed.holds()
