"""A folder of an S3 bucket as an object store: conditional writes that are sent once, and failures told apart.

It must never repeat a conditional write by itself (the answer to the second one would hide what the first one did), and
never let an answer's body, which may quote keys and signatures, into a message.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store as ObstoreS3

from changefeed.errors import (
    AlreadyExists,
    ChangefeedError,
    Conflict,
    NeedsHuman,
    NotFound,
    OutcomeUnknown,
    Refused,
    Transient,
)
from changefeed.objectstore import FileRange, Object, Place
from changefeed.objectstore.probe import PROBE
from changefeed.objectstore.secret import s3_credentials
from changefeed.spec.field.location import S3Location

_READ_RETRIES = 3
_CONNECT_S = 5
_SMALL_S = 60
_LARGE_S = 600  # 512 MiB at 1 MB/s
_LARGE = 8 << 20
_DEFAULT_REGION = "us-east-1"
# Raised by obstore: its own, FileNotFoundError for what is not there, ValueError for a name it doesn't take.
_FAILURES = (BaseError, OSError)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_METADATA_SERVICE = re.compile(r"169\.254\.169\.254|fd00:ec2::254|security-credentials")
_KINDS = {"Connect": "no connection", "Timeout": "no answer in time", "Interrupted": "the connection broke"}

_CREDENTIALS = {
    "AccessDenied": "Allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there to the user of its "
    "credentials, or name others.",
    "": "Look at the files of the Secret that credentials.secretRef names, below --secrets-dir; without them at "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
}
_BAD_CREDENTIALS = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "XAdminUserNotFound",  # versitygw's InvalidAccessKeyId
    }
)
_OTHER_REGION = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"})
_TRY_AGAIN = frozenset({408, 409, 416, 425, 429})  # 416: the object is shorter than was said
#: Said with 400 of a body that did not arrive whole; nothing was written.
_CUT_SHORT = frozenset(
    {"BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
)


class S3Store:
    """`ObjectStore` of `location`; a call lasts at most minutes, reads are tried again for some seconds."""

    def __init__(self, location: S3Location, secret: Path | None = None) -> None:
        self.location = location
        self.uri = location.uri
        self.place = Place(self.uri, secret)
        self._reads = _client(location, secret, _SMALL_S, _READ_RETRIES)
        self._small_writes = _client(location, secret, _SMALL_S, 0)
        self._large_writes = _client(location, secret, _LARGE_S, 0)

    def create(self, path: str, body: bytes | tuple[FileRange, ...]) -> None:
        """One PUT; ranges that follow one another in a file are mapped, not read.

        Raises AlreadyExists also when this very PUT's answer was lost: the caller compares what stands there.
        """
        with _whole(body) as content:
            self._create(path, content)

    def _create(self, path: str, content: bytes | memoryview) -> None:
        try:
            obstore.put(self._writes(content), self._key(path), content, mode="create")
        except _FAILURES as error:
            if isinstance(error, AlreadyExistsError) and _status(error) == 412:
                raise AlreadyExists(f"{path} exists already in {self.uri}.") from None
            failure = self._failure(error, "create", path, writes=True)
            # A server may answer a big body before it is read and close (facts, test-servers): then who has the name
            # is known by looking.
            if isinstance(failure, OutcomeUnknown) and self._exists(path):
                raise AlreadyExists(f"{path} exists in {self.uri}; {failure.message}") from None
            raise failure from None

    def get(self, path: str) -> Object:
        """Raises NotFound, Transient, Refused, NeedsHuman."""
        try:
            found = obstore.get(self._reads, self._key(path))
            return Object(bytes(found.bytes()), found.meta["e_tag"], found.meta["last_modified"].timestamp())
        except _FAILURES as error:
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
        except _FAILURES as error:
            raise self._failure(error, "look at", path) from None

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Bytes `[start, start + length)`; `length` > 0. Raises as `get`, Transient when the object is shorter."""
        try:
            found = bytes(obstore.get_range(self._reads, self._key(path), start=start, length=length))
        except _FAILURES as error:
            raise self._failure(error, "read", path) from None
        if len(found) != length:
            raise Transient(f"{path} in {self.uri} has {len(found)} bytes from {start} on, not {length}.")
        return found

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        """Replace the object that has `etag` (None: create it) and give the new etag. Raises as `create`, Conflict."""
        mode = "create" if etag is None else {"e_tag": etag}
        try:
            return str(obstore.put(self._writes(body), self._key(path), body, mode=mode)["e_tag"])
        except (AlreadyExistsError, PreconditionError) as error:
            if _status(error) == 412 or _found(_CODE, str(error)) == "NoSuchKey":
                raise Conflict(f"{path} in {self.uri} was changed by somebody else; it had etag {etag}.") from None
            raise self._failure(error, "replace", path, writes=True) from None
        except _FAILURES as error:
            raise self._failure(error, "replace", path, writes=True) from None

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        """(path, size in bytes) of every object below `prefix`, a folder or "", sorted by path."""
        below = "/".join(part for part in (self.location.prefix, prefix.strip("/")) if part)
        start = len(self.location.prefix) + 1 if self.location.prefix else 0
        try:
            pages = obstore.list(self._reads, prefix=below or None)
            return sorted((found["path"][start:], int(found["size"])) for page in pages for found in page)
        except _FAILURES as error:
            raise self._failure(error, "list", prefix or "the folder") from None

    def delete(self, path: str) -> None:
        """Gone when this returns; no error when it was not there."""
        try:
            obstore.delete(self._reads, self._key(path))
        except _FAILURES as error:
            if not isinstance(failure := self._failure(error, "delete", path), NotFound):
                raise failure from None

    def delete_all(self, paths: Sequence[str]) -> None:
        """`delete` of many objects at once."""
        if not paths:
            return
        try:
            obstore.delete(self._reads, [self._key(path) for path in paths])
        except _FAILURES as error:
            raise self._failure(error, "delete", f"{paths[0]} and others") from None

    def hold(self) -> None:
        """Nothing: there are no locks here. The log, compare-and-swap and `alive.json` keep drivers apart."""

    def release(self) -> None:
        """Nothing: see `hold`."""

    def clean_leftovers(self) -> None:
        """Remove probes of processes that died. Only after this driver's epoch record (rule 21)."""
        for path, _ in self.list(PROBE):
            self.delete(path)

    def _writes(self, content: bytes | memoryview) -> Any:
        return self._large_writes if len(content) > _LARGE else self._small_writes

    def _exists(self, path: str) -> bool:
        """False when that can't be found out either."""
        try:
            self.size(path)
        except (NotFound, Transient):
            return False
        return True

    def _key(self, path: str) -> str:
        parts = path.split("/")
        if any(part in ("", ".", "..") or not part.isprintable() for part in parts):
            raise NeedsHuman(
                f"{path!r} does not name an object in {self.uri}.",
                "If a table's name is part of it, exclude the table by spec.filter.rules.",
            )
        return f"{self.location.prefix}/{path}" if self.location.prefix else path

    def _failure(self, error: Exception, doing: str, path: str, writes: bool = False) -> ChangefeedError:
        """What obstore's error means for the caller; of its text only status, code and kind are kept."""
        text = str(error)
        status, code = _status(error), _found(_CODE, text)
        what = f"Cannot {doing} {path} in {self.uri}: "
        if code == "NoSuchBucket":
            return Refused(
                f"{what}there is no bucket {self.location.bucket}.", "Create it, or correct the bucket in the URI."
            )
        if _METADATA_SERVICE.search(text):
            return Refused(f"{what}there are no credentials.", _CREDENTIALS[""])
        if code in _BAD_CREDENTIALS or status in (401, 403):
            step = _CREDENTIALS.get(code, _CREDENTIALS[""])
            return Refused(f"{what}the store refuses the credentials ({_said(status, code)}).", step)
        if code in _OTHER_REGION or status == 301:
            return NeedsHuman(
                f"{what}the bucket is in another region ({_said(status, code)}).", "Add ?region=... to the URI."
            )
        if isinstance(error, FileNotFoundError) and not writes:
            return NotFound(f"There is no {path} in {self.uri}.")
        kind = _found(_KIND, text)
        why = _said(status, code) if status else _KINDS.get(kind, "the request failed")
        if (400 <= status < 500 and status not in _TRY_AGAIN and code not in _CUT_SHORT) or status == 501:
            return NeedsHuman(
                f"{what}{why}.", "The store does not take that request: use one with S3's conditional writes."
            )
        if writes and kind != "Connect":
            return OutcomeUnknown(f"Nobody knows whether {path} in {self.uri} was written: {why}.")
        return Transient(f"{what}{why}.", "Look at the store and the network to it.")


def _client(location: S3Location, secret: Path | None, timeout_s: int, retries: int) -> Any:
    options: dict[str, Any] = {}
    if location.endpoint:
        scheme, _, host = location.endpoint.partition("://")
        address = location.endpoint if location.path_style else f"{scheme}://{location.bucket}.{host}"
        options = {"endpoint": address, "region": _DEFAULT_REGION}
    if location.region:
        options["region"] = location.region
    if secret is not None:
        options["credential_provider"] = s3_credentials(secret)
    return ObstoreS3(
        location.bucket,
        virtual_hosted_style_request=not location.path_style,
        client_options={
            "allow_http": location.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "timeout": timedelta(seconds=timeout_s),
        },
        retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=timeout_s)},
        **options,
    )


def _status(error: Exception) -> int:
    return int(_found(_STATUS, str(error)) or 0)


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _said(status: int, code: str) -> str:
    return f"it says {status} {code}".strip()


@contextlib.contextmanager
def _whole(body: bytes | tuple[FileRange, ...]) -> Iterator[bytes | memoryview]:
    """The body as one buffer."""
    if isinstance(body, bytes):
        yield body
        return
    ranges = _joined(body)
    if len(ranges) != 1:
        yield b"".join(_read(piece) for piece in ranges)
        return
    (piece,) = ranges
    yield _mapped(piece)  # unmapped when the client has let go of it, which may be after an error


def _joined(ranges: tuple[FileRange, ...]) -> list[FileRange]:
    """Ranges that follow one another in a file are one; empty ones are none."""
    joined: list[FileRange] = []
    for piece in ranges:
        if joined and joined[-1].path == piece.path and joined[-1].offset + joined[-1].length == piece.offset:
            joined[-1] = FileRange(piece.path, joined[-1].offset, joined[-1].length + piece.length)
        elif piece.length:
            joined.append(piece)
    return joined


def _mapped(piece: FileRange) -> memoryview:
    try:
        with piece.path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise NotFound(f"The spool file {piece.path} can't be read: {error}; its task must run again.") from None
    if len(content) < piece.offset + piece.length:
        raise NotFound(f"The spool file {piece.path} is short: its task must run again.")
    return memoryview(content)[piece.offset : piece.offset + piece.length]


def _read(piece: FileRange) -> bytes:
    return bytes(_mapped(piece))
