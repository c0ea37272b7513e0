"""Object stores behind one small synchronous interface that distinguishes the failures exactly-once depends on.

Reads and writes are whole objects; nothing is ever overwritten except by compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class FileRange:
    """Bytes `[offset, offset + length)` of a local file: a piece of the spool."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True)
class Object:
    body: bytes
    etag: str
    modified: float | None = None  # when it was written, seconds since 1970 by the store's clock; None: it does not say


@dataclass(frozen=True)
class Location:
    """Where a store is and whose credentials open it; holds no secret itself, so it may travel to tasks.

    `secret`: a folder with a file for each key of a Secret (docs/design/layouts.md, Secrets); None: the environment's
    own credentials.
    """

    uri: str
    secret: Path | None = None


class ObjectStore(Protocol):
    """Paths are relative to `uri`, with `/` between parts; thread-safe.

    Any call may raise Transient (nothing happened, try again) or Unavailable.
    """

    uri: str

    def create(self, path: str, body: bytes | tuple[FileRange, ...]) -> None:
        """Write a new object, durable when this returns.

        Raises AlreadyExists when the name is taken (the object is untouched), OutcomeUnknown when it may be written.
        """
        ...

    def get(self, path: str) -> Object:
        """Raises NotFound."""
        ...

    def chunks(self, path: str, size: int = 8 << 20) -> Iterator[bytes]:
        """The object's bytes in pieces. Raises NotFound."""
        ...

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        """Replace the object that has `etag` (None: create it) and give the new etag.

        Raises Conflict when it has another etag by now.
        """
        ...

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        """(path, size) of every object below `prefix`, a folder or "", sorted by path."""
        ...

    def delete(self, path: str) -> None:
        """The object is gone when this returns; no error when it was not there."""
        ...
