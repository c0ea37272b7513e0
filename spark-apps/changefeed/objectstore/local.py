"""Local files as an object store: what is published is complete and survives power loss.

See docs/design/rules.md, Rule 19.

An object is written to a temporary file outside the published tree, synced, then linked to its name, which fails if the
name exists. It must never expose a partial object, overwrite one except by `swap`, or leave anything else in the tree.
obstore's LocalStore is no substitute: it syncs neither file nor folder, and has no compare-and-swap.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from changefeed.errors import (
    AlreadyExists,
    Conflict,
    NeedsHuman,
    NotFound,
    OutcomeUnknown,
    Transient,
    Unavailable,
    by_disk,
)
from changefeed.objectstore import FileRange, Location, Object
from changefeed.objectstore.probe import PROBE

_T = TypeVar("_T")
_COPY_BYTES = 1 << 20
_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

_NEXT_STEPS = {
    errno.ENOSPC: "The disk is full: free space, then start again.",
    errno.EDQUOT: "The disk quota is used up: raise it or free space, then start again.",
    errno.EACCES: "Permission is denied: let this user write there (the folder and its parent), or choose another.",
    errno.EPERM: "Not permitted: let this user write there, on a file system that has hard links, or choose another.",
    errno.EROFS: "The file system is read-only: mount it for writing, or choose another folder.",
    errno.EXDEV: "The folder is a mount point of its own: choose a folder below it.",
    errno.ENOTDIR: "A part of the path is a file: remove it, or choose another folder.",
    errno.EEXIST: "A part of the path is a file: remove it, or choose another folder.",
    errno.EOPNOTSUPP: "The file system has no hard links: choose another.",
}


class LocalStore:
    """`ObjectStore` of one folder; objects are files below it.

    Temporary files and locks stand in the sibling folder `.<name>.changefeed-tmp`, so both must be on one file system.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.uri = self.root.as_uri()
        self.location = Location(self.uri)
        self._own_folder = self.root.parent / f".{self.root.name}.changefeed-tmp"
        self._durable: set[Path] = set()
        self._lock_fd: int | None = None

    def create(self, path: str, body: bytes | tuple[FileRange, ...]) -> None:
        """Write a new object, durable when this returns: file, name, and every folder above it.

        Raises AlreadyExists, Unavailable, Transient, NotFound (a spool file is short or gone), OutcomeUnknown (the name
        stands, whether it survives power loss is not known).
        """
        target = self._target(path)
        self._make_durable(target.parent)
        with self._temporary(body) as temporary:
            try:
                self._in(target.parent, lambda: os.link(temporary, target))
            except FileExistsError:
                self._sync_published(target)  # its creator may have died before that, and the caller may rely on it
                raise AlreadyExists(f"{path} exists already in {self.uri}.") from None
            except FileNotFoundError as error:
                raise Transient(f"{target} was not created: its folder or temporary file was removed.") from error
            except OSError as error:
                raise _unavailable(error, "create", target) from error
        self._sync_published(target)

    def get(self, path: str) -> Object:
        """Raises NotFound, Unavailable."""
        target = self._target(path)
        try:
            with target.open("rb") as file:
                body, modified = file.read(), os.fstat(file.fileno()).st_mtime
        except _NOT_THERE:
            raise self._not_found(path) from None
        except OSError as error:
            raise _unavailable(error, "read", target) from error
        return Object(body, _etag(body), modified)

    def chunks(self, path: str, size: int = 8 << 20) -> Iterator[bytes]:
        """The object's bytes in pieces of `size`. Raises NotFound, Unavailable when the first one is asked for."""
        target = self._target(path)
        try:
            with target.open("rb") as file:
                while piece := file.read(size):
                    yield piece
        except _NOT_THERE:
            raise self._not_found(path) from None
        except OSError as error:
            raise _unavailable(error, "read", target) from error

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        """Replace the object that has `etag` (None: create it) and give the new etag, a hash of the content.

        Swaps exclude each other by a lock; that no other driver writes is what `hold()` is for (rule 8).
        Raises Conflict, Unavailable, OutcomeUnknown.
        """
        if etag is None:
            self.create(path, body)
            return _etag(body)
        target = self._target(path)
        with self._temporary(body) as temporary:
            with self._swap_lock():
                try:
                    found = self.get(path).etag
                except NotFound:
                    found = None
                if found != etag:
                    raise Conflict(f"{path} in {self.uri} was changed by someone else: etag {found}, expected {etag}.")
                try:
                    os.replace(temporary, target)
                except OSError as error:
                    raise _unavailable(error, "replace", target) from error
            self._sync_published(target)  # the lock is free: others need not wait for the disk
        return _etag(body)

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        """(path, size in bytes) of every object below `prefix`, a folder or "", sorted by path. Raises Unavailable."""
        start = self._target(prefix.rstrip("/")) if prefix.strip("/") else self.root
        found: list[tuple[str, int]] = []
        folders = [start]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(Path(entry.path))
                        elif (size := _size(entry)) is not None:
                            found.append((Path(entry.path).relative_to(self.root).as_posix(), size))
            except _NOT_THERE:
                continue  # deleted meanwhile, or never there: nothing is below it
            except OSError as error:
                raise _unavailable(error, "list", folder) from error
        return sorted(found)

    def delete(self, path: str) -> None:
        """Delete the object, durable when this returns; no error when it was not there. Raises Unavailable."""
        target = self._target(path)
        try:
            target.unlink(missing_ok=True)
            _sync(target.parent)
        except _NOT_THERE:
            return
        except OSError as error:
            raise _unavailable(error, "delete", target) from error

    def hold(self) -> None:
        """Take this store until `release`, or for the process's life, as its only writer.

        Raises Conflict that names the process which has it, Unavailable.
        """
        if self._lock_fd is not None:
            return
        lock = self._own_folder / "lock"
        fd = self._open_lock(lock)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d" % os.getpid(), 0)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise Conflict(
                f"{self.uri} is in use by process {holder}.",
                "The same changefeed is already running: stop that process first, or leave it running.",
            ) from None
        except OSError as error:
            os.close(fd)
            raise _unavailable(error, "lock", lock) from error
        self._lock_fd = fd

    def release(self) -> None:
        """Let others hold it; no error when it is not held."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def clean_leftovers(self) -> None:
        """Remove what processes that died left behind. Only for the holder, after its epoch record (rules 19, 21)."""
        try:
            leftovers = [*self._own_folder.glob("*.tmp"), *self.root.glob(f"{PROBE}-*")]
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(error, "clean", self._own_folder) from error

    def _target(self, path: str) -> Path:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in path:
            raise NeedsHuman(
                f"{path!r} does not name an object in {self.uri}.",
                "If a table's name is part of it, exclude the table by spec.filter.rules.",
            )
        return self.root.joinpath(*parts)

    def _not_found(self, path: str) -> NotFound:
        return NotFound(f"There is no {path} in {self.uri}.")

    @contextlib.contextmanager
    def _temporary(self, body: bytes | tuple[FileRange, ...]) -> Iterator[Path]:
        """A synced file outside the tree that holds `body`; its name is gone afterwards, whatever happens.

        A spool file that is all of the body, on the same file system, is itself that file: its bytes need no copy.
        """
        self._make_durable(self._own_folder)
        if (spooled := self._linkable(body)) is not None:
            yield spooled
            return
        temporary = self._own_folder / f"{os.getpid()}-{secrets.token_hex(8)}.tmp"
        create = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            fd = self._in(self._own_folder, lambda: os.open(temporary, create, 0o666))
        except OSError as error:
            raise _unavailable(error, "write", temporary) from error
        try:
            try:
                for piece in (body,) if isinstance(body, bytes) else _pieces(body):
                    _write_all(fd, piece)
                os.fsync(fd)
            except OSError as error:
                raise _unavailable(error, "write", temporary) from error
            finally:
                os.close(fd)
            yield temporary
        finally:
            with contextlib.suppress(OSError):  # the object's fate is decided; clean_leftovers() takes what stays
                temporary.unlink(missing_ok=True)

    def _linkable(self, body: bytes | tuple[FileRange, ...]) -> Path | None:
        if isinstance(body, bytes) or len({piece.path for piece in body}) != 1:
            return None
        path = body[0].path
        ends = list(accumulate(piece.length for piece in body))
        try:
            found = path.stat()
            if found.st_dev != self._own_folder.parent.stat().st_dev or found.st_size != ends[-1]:
                return None
            if [piece.offset for piece in body] != [0, *ends[:-1]]:
                return None
            with path.open("rb") as file:
                os.fsync(file.fileno())
        except FileNotFoundError as error:
            raise NotFound(f"The spool file {path} is gone: its task must run again.") from error
        except OSError as error:
            raise _unavailable(error, "write", path) from error
        return path

    def _make_durable(self, folder: Path) -> None:
        """Make `folder`; it and every folder above it survive power loss when this returns.

        Others may have made one of them without having synced it yet, so each is synced once by each process. Whether
        it is still there is not asked each time: see `_in`.
        """
        if folder in self._durable:
            return
        beside_root = self.root.parent
        try:
            for step in (*reversed(folder.parents), folder):
                if (beside_root in step.parents or not step.exists()) and step not in self._durable:
                    step.mkdir(exist_ok=True)
                    _sync(step.parent)
                    self._durable.add(step)
        except OSError as error:
            raise _unavailable(error, "make", folder) from error

    def _in(self, folder: Path, make: Callable[[], _T]) -> _T:
        """Return what is made in a durable folder; if that was removed since, in a new one."""
        try:
            return make()
        except FileNotFoundError:
            self._durable.clear()
            self._make_durable(folder)
            return make()

    def _sync_published(self, target: Path) -> None:
        try:
            _sync(target.parent)
        except OSError as error:
            raise by_disk(
                OutcomeUnknown(f"{target} is written, but its folder could not be synced: {error.strerror}.")
            ) from error

    def _open_lock(self, lock: Path) -> int:
        self._make_durable(self._own_folder)
        try:
            return self._in(self._own_folder, lambda: os.open(lock, os.O_RDWR | os.O_CREAT, 0o666))
        except OSError as error:
            raise _unavailable(error, "lock", lock) from error

    @contextlib.contextmanager
    def _swap_lock(self) -> Iterator[None]:
        fd = self._open_lock(self._own_folder / "swap.lock")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _etag(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def _size(entry: os.DirEntry[str]) -> int | None:
    """None: deleted since it was listed."""
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        return None


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _pieces(ranges: tuple[FileRange, ...]) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_COPY_BYTES))
    for piece in ranges:
        try:
            file = piece.path.open("rb", buffering=0)
        except FileNotFoundError as error:
            raise NotFound(f"The spool file {piece.path} is gone: its task must run again.") from error
        with file:
            file.seek(piece.offset)
            left = piece.length
            while left:
                count = file.readinto(buffer[: min(left, _COPY_BYTES)])
                if not count:
                    raise NotFound(f"The spool file {piece.path} ends {left} bytes early: its task must run again.")
                left -= count
                yield buffer[:count]


def _write_all(fd: int, piece: bytes | memoryview) -> None:
    left = memoryview(piece)
    while left:
        left = left[os.write(fd, left) :]


def _unavailable(error: OSError, doing: str, path: Path) -> Unavailable:
    step = _NEXT_STEPS.get(error.errno or 0, "Look at the disk and the path, then start again.")
    return by_disk(Unavailable(f"Cannot {doing} {path}: {error.strerror}.", step))
