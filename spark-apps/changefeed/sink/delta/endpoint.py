"""Where a Delta Lake sink is, as delta-rs wants it, and what its failures mean."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from changefeed.errors import E, OutcomeUnknown, Refused, Transient
from changefeed.objectstore import Location
from changefeed.objectstore.open import bucket_location, local_path
from changefeed.objectstore.remote.secret import s3_credentials
from changefeed.sink.delta.layout import ROOT
from changefeed.spec.field.location import in_bucket

_REGION = "us-east-1"
_KEYS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "token": "aws_session_token",
}
_NOT_LET_IN = re.compile(r"\b(?:401|403)\b|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|Forbidden")
_TIMEOUT = "60s"
_SHOWN = 300  # characters of what is said of a local disk
#: What delta-rs raises when it does not know what to do with a table.
UNABLE = (DeltaProtocolError, SchemaMismatchError, NotImplementedError, ValueError)
_UNSUPPORTED = re.compile(r"not supported|[Uu]nsupported")
_BROKEN = re.compile(r"validation check|[Ii]nvariant|[Cc]onstraint")  # of the table's, with the row that breaks it


@dataclass(frozen=True)
class DeltaEndpoint:
    """Holds no secret itself: `root.secret` is a folder of a Secret's files."""

    root: Location

    def uri(self, folder: str) -> str:
        """Return the location of a table, by its folder below the root."""
        uri = self.root.uri
        if not in_bucket(uri):
            return str(local_path(uri, ROOT) / folder)
        found = bucket_location(uri, ROOT)
        return "/".join(part for part in (f"s3://{found.bucket}", found.prefix, folder) if part)

    def options(self) -> dict[str, str]:
        """Return what delta-rs is told of the store, with the Secret's current keys. Raises NeedsHuman."""
        if not in_bucket(self.root.uri):
            return {}
        found = bucket_location(self.root.uri, ROOT)
        # A commit is a PUT that fails if the name is taken: no lock table.
        options = {"aws_region": found.region or _REGION, "aws_conditional_put": "etag", "timeout": _TIMEOUT}
        if found.endpoint:
            options |= {"aws_endpoint": found.endpoint}
            options |= {"aws_allow_http": "true"} if found.endpoint.startswith("http:") else {}
        options["aws_virtual_hosted_style_request"] = "false" if found.path_style else "true"
        if self.root.secret is not None:
            keys = s3_credentials(self.root.secret)()
            options |= {name: str(keys[key]) for key, name in _KEYS.items() if keys[key]}
        return options

    def open(self, folder: str) -> DeltaTable | None:
        """The table as it is now, if it is there. Raises Refused, OutcomeUnknown."""
        uri, options = self.uri(folder), self.options()
        with told(self.root.uri):
            return DeltaTable(uri, storage_options=options) if DeltaTable.is_deltatable(uri, options) else None

    def files(self, folder: str) -> PyFileSystem:
        """Return a table's folder as a file system, to read from."""
        return PyFileSystem(DeltaStorageHandler(self.uri(folder), self.options()))

    def sync(self, folder: str, versions: Iterable[int]) -> None:
        """On a disk, what these versions of a table have added survives the loss of power: the library leaves that to
        the system. A bucket has done so already.
        """
        if in_bucket(self.root.uri):
            return
        table = Path(self.uri(folder))
        for version in versions:
            log = table / "_delta_log" / f"{version:020}.json"
            with suppress(FileNotFoundError):  # others have compacted the table, or its log
                for line in log.read_text().splitlines():
                    if (added := json.loads(line).get("add")) is not None:
                        _sync(table / unquote(added["path"]))
                _sync(log)
        for each in (table / "_delta_log", table, table.parent, table.parent.parent):
            _sync(each)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def told(where: str) -> Iterator[None]:
    """Failures of the library as ours. What it says may quote a bucket's answer, or a row: only the kind goes on.

    Raises Transient (nothing has happened), OutcomeUnknown, Refused.
    """
    try:
        yield
    except CommitFailedError:
        raise _answered(Transient(f"A table of {where} was changed by someone else."), True) from None
    except UNABLE:
        raise
    except (DeltaError, OSError) as error:
        said = str(error)
        if _BROKEN.search(said):
            raise NotImplementedError("a row breaks one of its constraints") from None
        if _UNSUPPORTED.search(said):
            raise NotImplementedError(said) from None
        if _NOT_LET_IN.search(said):
            raise Refused(
                f"{where} does not let us in.", "Look at spec.sink.delta.credentials and its rights."
            ) from None
        shown = f": {said[:_SHOWN]}" if isinstance(error, OSError) and not in_bucket(where) else ""
        raise _answered(OutcomeUnknown(f"{where} has failed: {type(error).__name__}{shown}."), None) from None


def _answered(failure: E, has_answered: bool | None) -> E:
    failure.answered = has_answered
    return failure
