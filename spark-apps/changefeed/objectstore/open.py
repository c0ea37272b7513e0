"""Opens the store of a URI: the only module that knows which schemes exist.

A URI may contain credentials by mistake, so messages name at most its scheme, never a whole URI of an unknown kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from changefeed.errors import InvalidSpec
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.probe import PROBE, probe
from changefeed.spec.field.location import BucketLocation, in_bucket, parse_bucket

if TYPE_CHECKING:
    from changefeed.objectstore.remote.store import BucketStore

#: What `open_store` opens: an ObjectStore that can be held and cleaned as well.
Store: TypeAlias = "LocalStore | BucketStore"

_SCHEME = "file://"
_HERE = "./"
_LOCAL_ROUNDS = 1  # the kernel's link is atomic or isn't there
REMOTE_ROUNDS = 8


def open_store(uri: str, field: str = "uri", secret: Path | None = None) -> Store:
    """The store at `uri`: `file:///absolute/path`, `file://./path` from the working directory, or a folder in a bucket:
    `s3://bucket/folder`, `az://container/folder`, `gs://bucket/folder`.

    Nothing is touched yet; `probe_store()` finds out whether it can be used. `field`: the URI's path in the resource.
    `secret`: its credentials' files' folder (objectstore.Location). Raises InvalidSpec, NeedsHuman (no such files).
    """
    if not in_bucket(uri):
        return LocalStore(local_path(uri, field))
    from changefeed.objectstore.remote.store import BucketStore  # it costs memory and a runtime with threads

    return BucketStore(bucket_location(uri, field), secret)


def probe_store(store: Store) -> None:
    """Find out whether the store keeps its promises; see `probe.probe`. Local swaps are kept apart by `hold()`."""
    if isinstance(store, LocalStore):
        probe(store, f"{PROBE}-", _LOCAL_ROUNDS, swaps=False)  # a folder would stay
    else:
        probe(store, f"{PROBE}/", REMOTE_ROUNDS, swaps=True)


def canonical(uri: str, field: str = "uri") -> str:
    """Return the one spelling of a location, absolute. Raises InvalidSpec."""
    return bucket_location(uri, field).uri if in_bucket(uri) else local_path(uri, field).as_uri()


def below(uri: str, *names: str, field: str = "uri") -> str:
    """The canonical URI of a folder below `uri`. Raises InvalidSpec."""
    if in_bucket(uri):
        return bucket_location(uri, field).below(*names).uri
    return local_path(uri, field).joinpath(*names).as_uri()


def beside(uri: str, suffix: str, field: str = "uri") -> str:
    """The canonical URI of a folder next to `uri`, named like it with `suffix` behind. Raises InvalidSpec."""
    if not in_bucket(uri):
        path = local_path(uri, field)
        return path.with_name(path.name + suffix).as_uri()
    try:
        return bucket_location(uri, field).beside(suffix).uri
    except ValueError:
        raise InvalidSpec(
            field, "is a whole bucket, which has no folder beside it", "A rewind needs a sink in a folder."
        ) from None


def bucket_location(uri: str, field: str = "uri") -> BucketLocation:
    """Raises InvalidSpec."""
    try:
        return parse_bucket(uri)
    except ValueError as error:
        raise InvalidSpec(field, "is not a location in a bucket", f"Allowed: {error}.") from None


def local_path(uri: str, field: str = "uri") -> Path:
    """The absolute path that a `file://` URI names; `%20` and the like are decoded. Raises InvalidSpec."""
    if not uri.startswith(_SCHEME):
        scheme = uri.split("://", 1)[0] if "://" in uri else "none"
        raise InvalidSpec(
            field,
            f"scheme {scheme[:20]!r} is not supported",
            "Use file:///absolute/path, s3://bucket/folder, az://container/folder?account-name=name or gs://bucket/folder.",
        )
    name = unquote(uri.removeprefix(_SCHEME))
    if not name.startswith(("/", _HERE)) or "\0" in name:
        raise InvalidSpec(
            field, "is not a path of this machine", "Use file:///absolute/path or file://./relative/path."
        )
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise InvalidSpec(field, f"{name!r} does not name a folder", "Give a folder below /, without '..'.")
    return (Path.cwd() if name.startswith(_HERE) else Path("/")).joinpath(*parts)
