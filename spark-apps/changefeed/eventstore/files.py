"""Where the bytes of segments stand: files of this machine, or objects of a store. Both are a cache.

Paths are relative to the changefeed's state. A segment is created if-absent and never changed; neither kind may ever
give the bytes of another object for those that were asked for.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from changefeed.errors import AlreadyExists, OutputConflict, Unavailable, by_disk
from changefeed.objectstore.once import create_bytes
from changefeed.objectstore.patience import Patience

if TYPE_CHECKING:
    from changefeed.objectstore.remote.store import BucketStore

EVENTS = "events"
_BEING_WRITTEN = (errno.ENOTEMPTY, errno.ENOENT)
_TAIL = 64 << 10
_READ_AHEAD = 1 << 20

#: Writes a segment into a binary file.
Fill = Callable[[Any], None]


class SegmentFiles(Protocol):
    uri: str  # of the state
    scratch: Path  # of this machine: below it a run spools
    compression: str | None  # of segments: worth it where bytes travel

    def create(self, path: str, fill: Fill) -> int:
        """Size of the new segment. Raises AlreadyExists, Unavailable; nothing is left behind then."""
        ...

    def open(self, path: str, size: int) -> contextlib.AbstractContextManager[pa.NativeFile]:
        """The segment for random access. Raises FileNotFoundError, NotFound, OSError, ValueError, Transient."""
        ...

    def delete(self, path: str) -> None:
        """Delete the segment; no error when it is gone already. Raises Unavailable, Transient."""
        ...

    def run_folders(self) -> list[str]:
        """Names of the folders below `events`, sorted."""
        ...

    def delete_run_folder(self, name: str) -> bool:
        """Delete the folder; False when somebody still writes into it. Raises Unavailable, Transient."""
        ...


class LocalSegments:
    """Files below `root`, never synced: what a power loss takes is pulled again."""

    def __init__(self, root: Path, patience: Patience) -> None:
        self._root = root
        self._patience = patience
        self.uri = root.as_uri()
        self.scratch = root / EVENTS
        self.compression: str | None = None  # a mapped file is read without a copy

    def create(self, path: str, fill: Fill) -> int:
        return self._patience.call(f"The event store in {self.scratch}", lambda: self._create(self._root / path, fill))

    def _create(self, file_path: Path, fill: Fill) -> int:
        try:
            file_path.parent.mkdir(parents=True, exist_ok=True)
            with file_path.open("xb") as file:
                try:
                    fill(file)
                    file.flush()
                    return file.tell()
                except BaseException:
                    file_path.unlink()
                    raise
        except FileExistsError:
            raise _taken(str(file_path)) from None
        except OSError as error:
            why = f"Cannot write segment {file_path}: {error.strerror}."
            raise by_disk(Unavailable(why, "Free space or let this user write there.")) from error

    @contextlib.contextmanager
    def open(self, path: str, size: int) -> Iterator[pa.NativeFile]:
        file = self._root / path
        found = file.stat().st_size
        if found != size:
            raise ValueError(f"it has {found} bytes, not {size}")
        with pa.memory_map(str(file)) as source:
            yield source

    def delete(self, path: str) -> None:
        try:
            (self._root / path).unlink(missing_ok=True)
        except OSError as error:
            raise _undeletable(self._root / path, error) from error

    def run_folders(self) -> list[str]:
        return sorted(folder.name for folder in self.scratch.glob("*"))

    def delete_run_folder(self, name: str) -> bool:
        return _remove(self.scratch / name)


class StoredSegments:
    """Objects of a store, written whole, read by ranges; what is spooled stays in this machine's temporary folder."""

    def __init__(self, store: BucketStore, patience: Patience) -> None:
        self._store = store
        self._patience = patience
        self.uri = store.uri
        self.compression: str | None = "lz4"
        owned = Path(tempfile.gettempdir()) / f"changefeed-{os.getuid()}"
        self.scratch = owned / hashlib.blake2b(store.uri.encode(), digest_size=8).hexdigest()

    def create(self, path: str, fill: Fill) -> int:
        sink = io.BytesIO()
        fill(sink)
        body = sink.getvalue()
        try:
            create_bytes(self._store, path, body, self._patience)
        except OutputConflict:
            raise _taken(f"{path} in {self.uri}") from None
        return len(body)

    @contextlib.contextmanager
    def open(self, path: str, size: int) -> Iterator[pa.NativeFile]:
        with pa.PythonFile(_Ranges(self._store, path, size, self._patience), mode="r") as source:
            yield source

    def delete(self, path: str) -> None:
        self._store.delete(path)

    def run_folders(self) -> list[str]:
        stored = {path.split("/")[1] for path, _ in self._store.list(EVENTS)}
        return sorted(stored | {folder.name for folder in self.scratch.glob("*")})

    def delete_run_folder(self, name: str) -> bool:
        self._store.delete_all([path for path, _ in self._store.list(f"{EVENTS}/{name}")])
        return not (self.scratch / name).exists() or _remove(self.scratch / name)


class _Ranges(io.RawIOBase):
    """An object as a file that asks for ranges: the end, which holds an Arrow file's index, then what is read next."""

    def __init__(self, store: BucketStore, path: str, size: int, patience: Patience) -> None:
        self._store = store
        self._patience = patience
        self._path = path
        self._size = size
        self._at = 0
        self._windows: list[tuple[int, bytes]] = []  # (offset, bytes): the tail and the newest

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        start, self._at = self._at, max(end, self._at)
        return self._bytes(start, end) if end > start else b""

    def _bytes(self, start: int, end: int) -> bytes:
        for offset, window in self._windows:
            if offset <= start and end <= offset + len(window):
                return window[start - offset : end - offset]
        tail = max(self._size - _TAIL, 0)
        first = min(start, tail) if not self._windows else start
        last = self._size if first == tail else min(max(end, start + _READ_AHEAD), self._size)
        window = self._patience.call(self._store.uri, lambda: self._store.read_range(self._path, first, last - first))
        self._windows = [*self._windows[:1], (first, window)]
        return window[start - first : end - first]


def _remove(folder: Path) -> bool:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        if error.errno not in _BEING_WRITTEN:
            raise _undeletable(folder, error) from error
        return False
    return True


def _taken(segment: str) -> AlreadyExists:
    return AlreadyExists(f"Segment {segment} exists already.", "A task attempt's name was used twice.")


def _undeletable(path: Path, error: OSError) -> Unavailable:
    return by_disk(
        Unavailable(f"Cannot delete {path}: {error.strerror}.", "Let this user write there, then start again.")
    )
