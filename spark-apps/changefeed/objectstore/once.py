"""A create with a single outcome however often it is retried: the object exists with these bytes, or with others.

After an unknown outcome, only the same bytes are tried again (rule 16); nothing is ever overwritten or cleaned up.
"""

from __future__ import annotations

from collections.abc import Callable

from changefeed.errors import AlreadyExists, NotFound, OutcomeUnknown, OutputConflict, Transient
from changefeed.objectstore import FileRange, ObjectStore
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.patience import Patience


def create_once(
    store: ObjectStore,
    path: str,
    body: bytes | tuple[FileRange, ...],
    digest: str,
    patience: Patience | None = None,
    again: Callable[[], object] = lambda: None,
) -> None:
    """The object has the bytes of `body` when this returns; `digest` is theirs, by `Digest`, as hex.

    A create-if-absent is the read-back too: it makes sure that what stands there is durable. Raises OutputConflict that
    names the path when it has other bytes, Unavailable when `patience` ends. `again`: before each further attempt.
    """
    patience = patience or Patience()
    unsure = False

    def attempt() -> bool:
        """Tell whether it stands there by an attempt whose outcome was unknown."""
        nonlocal unsure
        try:
            store.create(path, body)
        except OutcomeUnknown:
            unsure = True
            raise
        except AlreadyExists as taken:
            unsure = unsure or isinstance(taken.__cause__, OutcomeUnknown)
            _compare(store, path, digest)
            return unsure
        return False

    if patience.call(store.uri, attempt, again):
        patience.found_late()


def create_bytes(
    store: ObjectStore,
    path: str,
    body: bytes,
    patience: Patience | None = None,
    again: Callable[[], object] = lambda: None,
) -> None:
    """`create_once` of an object in memory."""
    create_once(store, path, body, Digest(body).hexdigest(), patience, again)


def _compare(store: ObjectStore, path: str, digest: str) -> None:
    found = _digest_of(store, path)
    if found != digest:
        raise OutputConflict(
            f"{path} in {store.uri} exists with other bytes (hash {found}) than its plan gives ({digest}).",
            "Find out who wrote it: another changefeed, another version or a person. Move it away, or start a new "
            "changefeed with another sink.",
        ) from None


def _digest_of(store: ObjectStore, path: str) -> str:
    found = Digest()
    try:
        for piece in store.chunks(path):
            found.update(piece)
    except NotFound as error:
        raise Transient(f"{path} in {store.uri} existed a moment ago and is gone.") from error
    return found.hexdigest()
