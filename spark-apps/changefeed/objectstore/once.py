"""A create that has one outcome however often it is tried: the object stands with these bytes, or with others.

After an unknown outcome only the same bytes are tried again (rule 16); nothing is ever overwritten or cleaned up.
"""

from __future__ import annotations

from functools import partial

from changefeed.errors import AlreadyExists, NotFound, OutputConflict, Transient
from changefeed.objectstore import FileRange, ObjectStore
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.patience import Patience


def create_once(
    store: ObjectStore,
    path: str,
    body: bytes | tuple[FileRange, ...],
    digest: str,
    patience: Patience | None = None,
) -> None:
    """The object has the bytes of `body` when this returns; `digest` is theirs, by `Digest`, as hex.

    A create-if-absent is the read-back too: it makes sure that what stands there is durable. Raises OutputConflict that
    names the path when it has other bytes, Unavailable when `patience` ends.
    """
    (patience or Patience()).call(store.uri, partial(_create_or_compare, store, path, body, digest))


def create_bytes(store: ObjectStore, path: str, body: bytes, patience: Patience | None = None) -> None:
    """`create_once` of an object in memory."""
    create_once(store, path, body, Digest(body).hexdigest(), patience)


def _create_or_compare(store: ObjectStore, path: str, body: bytes | tuple[FileRange, ...], digest: str) -> None:
    try:
        store.create(path, body)
    except AlreadyExists:
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
