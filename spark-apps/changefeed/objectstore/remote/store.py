"""A folder of a bucket as an object store: conditional writes are sent once, and failures are told apart.

It must never repeat a conditional write by itself: the response to the second would hide what the first did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError

from changefeed.errors import (
    AlreadyExists,
    ChangefeedError,
    Conflict,
    NeedsHuman,
    NotFound,
    OutcomeUnknown,
    Transient,
)
from changefeed.objectstore import FileRange, Location, Object
from changefeed.objectstore.probe import PROBE
from changefeed.objectstore.remote.azure import AZURE
from changefeed.objectstore.remote.body import whole
from changefeed.objectstore.remote.failures import FAILURES, changed_meanwhile, meaning, name_taken
from changefeed.objectstore.remote.gcs import GCS
from changefeed.objectstore.remote.s3 import S3
from changefeed.objectstore.remote.secret import private_cas
from changefeed.spec.field.location import BucketLocation

_SERVICES = {"s3": S3, "az": AZURE, "gs": GCS}
_READ_RETRIES = 3
_CONNECT_S = 5
SMALL_S = 60
_LARGE_S = 600  # 512 MiB at 1 MB/s
_LARGE = 8 << 20


class BucketStore:
    """`ObjectStore` of `location`; a call lasts at most minutes, reads are tried again for some seconds."""

    def __init__(self, location: BucketLocation, secret: Path | None = None) -> None:
        self._bucket = location
        self.uri = location.uri
        self.location = Location(self.uri, secret)
        self._service = _SERVICES[location.scheme]
        self._attributes = {"Storage-Class": location.storage_class} if location.storage_class else None
        self._reads = self._client(SMALL_S, _READ_RETRIES)
        self._small_writes = self._client(SMALL_S, 0)
        self._large_writes = self._client(_LARGE_S, 0)

    def create(self, path: str, body: bytes | tuple[FileRange, ...]) -> None:
        """One PUT; ranges that follow one another in a file are mapped, not read.

        Raises AlreadyExists also when this very PUT's answer was lost, with that as its cause: the caller compares what
        stands there.
        """
        with whole(body) as content:
            self._create(path, content)

    def _create(self, path: str, content: bytes | memoryview) -> None:
        try:
            self._put(path, content, "create")
        except FAILURES as error:
            if name_taken(error, self._service):
                raise AlreadyExists(f"{path} exists already in {self.uri}.") from None
            failure = self._failure(error, "create", path, writes=True)
            # A server may answer a big body before it is read, and close: then who has the name
            # is known by looking.
            if isinstance(failure, OutcomeUnknown) and self._exists(path):
                raise AlreadyExists(f"{path} exists in {self.uri}; {failure.message}") from failure
            raise failure from None

    def get(self, path: str) -> Object:
        """Raises NotFound, Transient, Refused, NeedsHuman."""
        try:
            found = obstore.get(self._reads, self._key(path))
            body, version = bytes(found.bytes()), str(found.meta[self._service.version])
            return Object(body, version, found.meta["last_modified"].timestamp())
        except FAILURES as error:
            raise self._failure(error, "read", path) from None

    def chunks(self, path: str, size: int = 8 << 20) -> Iterator[bytes]:
        """The object's bytes in pieces of `size`, each a request. Raises as `get`."""
        length = self.size(path)
        for start in range(0, length, size):
            yield self.read_range(path, start, min(size, length - start))

    def size(self, path: str) -> int:
        """Bytes of an object. Raises as `get`."""
        try:
            return int(obstore.head(self._reads, self._key(path))["size"])
        except FAILURES as error:
            raise self._failure(error, "look at", path) from None

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Bytes `[start, start + length)`; `length` > 0. Raises as `get`, Transient when the object is shorter."""
        try:
            found = bytes(obstore.get_range(self._reads, self._key(path), start=start, length=length))
        except FAILURES as error:
            raise self._failure(error, "read", path) from None
        if len(found) != length:
            raise Transient(f"{path} in {self.uri} has {len(found)} bytes from {start} on, not {length}.")
        return found

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        """Replace the object that has `etag` (None: create it) and give the new etag. Raises as `create`, Conflict."""
        try:
            return self._put(path, body, "create" if etag is None else {self._service.version: etag})
        except FAILURES as error:
            if changed_meanwhile(error, self._service):
                raise Conflict(f"{path} in {self.uri} was changed by someone else; it had etag {etag}.") from None
            raise self._failure(error, "replace", path, writes=True) from None

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        """(path, size in bytes) of every object below `prefix`, a folder or "", sorted by path."""
        below = "/".join(part for part in (self._bucket.prefix, prefix.strip("/")) if part)
        start = len(self._bucket.prefix) + 1 if self._bucket.prefix else 0
        try:
            pages = obstore.list(self._reads, prefix=below or None)
            return sorted((found["path"][start:], int(found["size"])) for page in pages for found in page)
        except FAILURES as error:
            raise self._failure(error, "list", prefix or "the folder") from None

    def delete(self, path: str) -> None:
        """The object is gone when this returns; no error when it was not there."""
        try:
            obstore.delete(self._reads, self._key(path))
        except FAILURES as error:
            if not isinstance(failure := self._failure(error, "delete", path), NotFound):
                raise failure from None

    def delete_all(self, paths: Sequence[str]) -> None:
        """`delete` of many objects at once."""
        if not paths:
            return
        try:
            obstore.delete(self._reads, [self._key(path) for path in paths])
        except FileNotFoundError:  # S3 says nothing of one that is gone already; others stop there
            for path in paths:
                self.delete(path)
        except FAILURES as error:
            raise self._failure(error, "delete", f"{paths[0]} and others") from None

    def hold(self) -> None:
        """Nothing: there are no locks here. The log, compare-and-swap and `alive.json` keep drivers apart."""

    def release(self) -> None:
        """Nothing: see `hold`."""

    def clean_leftovers(self) -> None:
        """Remove probes of processes that died. Only after this driver's epoch record (rule 21)."""
        for path, _ in self.list(PROBE):
            self.delete(path)

    def _put(self, path: str, content: bytes | memoryview, mode: Any) -> str:
        """One conditional PUT, never in parts; gives what a later swap goes by."""
        client = self._large_writes if len(content) > _LARGE else self._small_writes
        put = obstore.put(client, self._key(path), content, mode=mode, attributes=self._attributes)
        return str(put[self._service.version])

    def _exists(self, path: str) -> bool:
        """False when that can't be found out either."""
        try:
            self.size(path)
        except (NotFound, Transient):
            return False
        return True

    def _key(self, path: str) -> str:
        parts = path.split("/")
        unfit = self._service.unfit
        if any(part in ("", ".", "..") or not part.isprintable() or unfit.search(part) for part in parts):
            raise NeedsHuman(
                f"{path!r} does not name an object in {self.uri}.",
                "If a table's name is part of it, exclude the table by spec.filter.rules.",
            )
        return f"{self._bucket.prefix}/{path}" if self._bucket.prefix else path

    def _failure(self, error: Exception, doing: str, path: str, writes: bool = False) -> ChangefeedError:
        return meaning(error, doing, path, self.uri, self._service, writes)

    def _client(self, timeout_s: int, retries: int) -> Any:
        """Raises NeedsHuman when its credentials can't be used at all."""
        common = {
            "client_options": {
                "allow_http": self._bucket.endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=_CONNECT_S),
                "timeout": timedelta(seconds=timeout_s),
                "default_headers": dict(self._bucket.headers),
                **private_cas(self.location.secret),
            },
            "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=timeout_s)},
        }
        try:
            return self._service.open(self._bucket, self.location.secret, common)
        except BaseError:  # its text may quote them
            raise NeedsHuman(f"The credentials of {self.uri} can't be used.", self._service.credentials) from None
