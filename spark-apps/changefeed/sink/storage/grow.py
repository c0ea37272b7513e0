"""Objects with a single writing driver that only ever grow: the index files and `metadata` (rule 8)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from changefeed.errors import NeedsHuman, NotFound
from changefeed.objectstore import ObjectStore

KNOWN = 10_000  # objects; some 3 MB


class LastWritten:
    """What this process wrote last, so that it need not read it again: (value, etag) by path.

    It may be wrong: then the swap is a Conflict. An object is forgotten until its swap has succeeded.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def take(self, path: str) -> tuple[int, str] | None:
        """Forgets it, too: how the swap ends is not known yet."""
        return self._known.pop(path, None)

    def keep(self, path: str, value: int, etag: str) -> None:
        self._known[path] = value, etag
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)


def grow(
    store: ObjectStore,
    path: str,
    value: int,
    body: bytes,
    read: Callable[[bytes], int | None],
    last: LastWritten | None = None,
) -> bool:
    """Replace the object by `body`, which says `value`, if it says less or isn't there; nothing else is ever written.
    Gives whether exactly that stood there already.

    `read` gives what a body says, None if it says nothing. Raises Conflict when somebody else wrote it meanwhile: read
    the log, then try again (rule 8); OutcomeUnknown: try again; NeedsHuman when the object can't be read.
    """
    last = last or LastWritten()
    said, etag = last.take(path) or _found(store, path, read)
    if said is None or said < value:
        said, etag = value, store.swap(path, body, etag)
        is_there = False
    else:
        is_there = said == value
    if etag is not None:
        last.keep(path, said, etag)
    return is_there


def _found(store: ObjectStore, path: str, read: Callable[[bytes], int | None]) -> tuple[int | None, str | None]:
    """What it says, and its etag."""
    try:
        found = store.get(path)
    except NotFound:
        return None, None
    said = read(found.body)
    if said is None:
        raise NeedsHuman(
            f"{path} in {store.uri} can't be understood: {found.body[:80]!r}.",
            "Something else wrote it: restore it from the files next to it, or delete it.",
        )
    return said, found.etag
