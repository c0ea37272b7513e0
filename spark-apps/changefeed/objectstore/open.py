"""From a URI to its store: the one place that knows which schemes exist.

A URI may carry credentials by mistake, so a message names its scheme at most, never the whole of a foreign one.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from changefeed.errors import InvalidSpec
from changefeed.objectstore.local import LocalStore

_SCHEME = "file://"
_HERE = "./"


def open_store(uri: str, field: str = "uri") -> LocalStore:
    """The store at `uri`: `file:///absolute/path`, or `file://./path` from the working directory.

    Nothing is touched yet; `probe()` finds out whether it can be written. `field`: the URI's place in the resource.
    Raises InvalidSpec.
    """
    return LocalStore(local_path(uri, field))


def local_path(uri: str, field: str = "uri") -> Path:
    """The absolute path that a `file://` URI names; `%20` and the like are decoded. Raises InvalidSpec."""
    if not uri.startswith(_SCHEME):
        scheme = uri.split("://", 1)[0] if "://" in uri else "none"
        raise InvalidSpec(
            field, f"scheme {scheme[:20]!r} is not supported", "Use file:///absolute/path: only file:// for now."
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
