"""Objects with a single writing driver that only ever grow: the index files and `metadata` (rule 8)."""

from __future__ import annotations

from collections.abc import Callable

from changefeed.errors import NeedsHuman, NotFound
from changefeed.objectstore import ObjectStore


def grow(store: ObjectStore, path: str, value: int, body: bytes, read: Callable[[bytes], int | None]) -> bool:
    """Replace the object by `body`, which says `value`, if it says less or isn't there; nothing else is ever written.
    Gives whether exactly that stood there already.

    `read` gives what a body says, None if it says nothing. Raises Conflict when somebody else wrote it meanwhile: read
    the log, then try again (rule 8); OutcomeUnknown: try again; NeedsHuman when the object can't be read.
    """
    etag = None
    try:
        found = store.get(path)
    except NotFound:
        pass
    else:
        said = read(found.body)
        if said is None:
            raise NeedsHuman(
                f"{path} in {store.uri} can't be understood: {found.body[:80]!r}.",
                "Something else wrote it: restore it from the files next to it, or delete it.",
            )
        if said >= value:
            return said == value
        etag = found.etag
    store.swap(path, body, etag)
    return False
