"""The event store in memory: run folders are the product's own, what stands in them is a dictionary's."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from changefeed.errors import AlreadyExists
from changefeed.eventstore.files import EVENTS, Fill, SegmentFiles
from changefeed.eventstore.run_folder import RunFolder
from changefeed.objectstore import Location
from changefeed.upstream.scratch import Block

URI = "memory://state"


@dataclass(frozen=True)
class _House(RunFolder):
    files: SegmentFiles | None = field(default=None, compare=False)

    @property
    def _files(self) -> SegmentFiles:
        assert self.files is not None
        return self.files


class MemorySegments:
    """Implements eventstore.files.SegmentFiles."""

    uri = URI
    scratch = Path("/nowhere")
    compression: str | None = None

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lost: set[str] = set()  # with the machine that had them

    def create(self, path: str, fill: Fill) -> int:
        if path in self.objects:
            raise AlreadyExists(f"Segment {path} exists already.")
        sink = io.BytesIO()
        fill(sink)
        self.objects[path] = sink.getvalue()
        return len(self.objects[path])

    @contextlib.contextmanager
    def open(self, path: str, size: int) -> Iterator[pa.NativeFile]:
        if path not in self.objects:
            raise FileNotFoundError(path)
        if len(self.objects[path]) != size:
            raise ValueError(f"it has {len(self.objects[path])} bytes, not {size}")
        yield pa.BufferReader(self.objects[path])

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)

    def run_folders(self) -> list[str]:
        return sorted({path.split("/")[1] for path in self.objects})

    def delete_run_folder(self, name: str) -> bool:
        for path in [path for path in self.objects if path.startswith(f"{EVENTS}/{name}/")]:
            del self.objects[path]
        return True

    def lose(self, folder: str) -> None:
        """Lose all segments of `<run>/<task>/`: the machine is gone."""
        for path in [path for path in self.objects if path.startswith(f"{EVENTS}/{folder}")]:
            del self.objects[path]
            self.lost.add(f"{URI}/{path}")

    def run_folder(self, epoch: int, nonce: str, wait: Callable[[], None]) -> RunFolder:
        return _House(Location(URI), epoch, nonce, files=_DriversSegments(self, wait))


class _DriversSegments(MemorySegments):
    """As a driver sees them, to whom looking at run folders and deleting them takes time."""

    def __init__(self, everybodys: MemorySegments, wait: Callable[[], None]) -> None:
        self.objects, self.lost = everybodys.objects, everybodys.lost
        self._wait = wait

    def run_folders(self) -> list[str]:
        self._wait()
        return super().run_folders()

    def delete_run_folder(self, name: str) -> bool:
        self._wait()
        return super().delete_run_folder(name)


class MemoryFile:
    """Scratch of a puller."""

    def __init__(self) -> None:
        self._content = b""

    def append(self, content: pa.Buffer) -> Block:
        block = Block(len(self._content), content.size, b"")
        self._content += content.to_pybytes()
        return block

    def read(self, block: Block) -> pa.Buffer:
        return pa.py_buffer(self._content[block.offset : block.end])

    def cut(self, size: int) -> None:
        self._content = self._content[:size]
