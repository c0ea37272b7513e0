"""A sink has one owner (rule 7): the claim object beside `metadata` says which changefeed owns the files."""

from __future__ import annotations

import json
from dataclasses import dataclass

from changefeed.errors import Conflict, NeedsHuman, NotFound, OutputConflict, SinkOwned
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.once import create_bytes
from changefeed.objectstore.patience import Patience
from changefeed.sink.storage.layout import CLAIM, is_published


def check_free(store: ObjectStore, uid: str, state_uri: str) -> None:
    """Find out whether the sink is this changefeed's or nobody's; writes nothing.

    Raises NeedsHuman (SinkOwned) when another changefeed has it, or when it holds files that nobody claimed.
    """
    if not is_mine(store, uid, state_uri):
        _refuse_unclaimed(store)


def is_mine(store: ObjectStore, uid: str, state_uri: str) -> bool:
    """Whether this changefeed has claimed the sink; False: nobody has. Raises NeedsHuman when another one has."""
    try:
        store.get(CLAIM)
    except NotFound:
        return False
    _check_mine(store, uid, state_uri)
    return True


def claim(store: ObjectStore, uid: str, state_uri: str, patience: Patience | None = None, generation: int = 1) -> None:
    """Make the sink this changefeed's own, or find that it is. Before the first other write. Raises as `check_free`.

    `generation`: whose folder it is.
    """
    check_free(store, uid, state_uri)
    take(store, uid, state_uri, patience, generation)


def take(store: ObjectStore, uid: str, state_uri: str, patience: Patience | None = None, generation: int = 1) -> None:
    """`claim` of a sink whatever files it holds."""
    try:
        create_bytes(store, CLAIM, claim_body(uid, state_uri, generation), patience)
    except OutputConflict:
        _check_mine(store, uid, state_uri)


def claim_body(uid: str, state_uri: str, generation: int) -> bytes:
    said: dict[str, object] = {"uid": uid, "stateUri": state_uri}
    return json.dumps(said | ({"generation": generation} if generation > 1 else {})).encode()


@dataclass(frozen=True)
class ClaimObject:
    """What the claim object of a sink says, as it was read."""

    uid: str
    state_uri: str
    etag: str


def read_claim(store: ObjectStore) -> ClaimObject:
    """Whose the sink is. Raises NeedsHuman when it is nobody's."""
    try:
        found = store.get(CLAIM)
    except NotFound:
        raise NeedsHuman(
            f"{store.uri} belongs to no changefeed: it has no {CLAIM}.",
            "Look at spec.sink.storage.uri. An empty sink need not be adopted.",
        ) from None
    said = _parsed(store, found.body)
    return ClaimObject(said["uid"], said["stateUri"], found.etag)


def hand_over(store: ObjectStore, before: ClaimObject, state_uri: str, generation: int) -> None:
    """Make the sink that of the state at `state_uri`, if it still is as in `before`, or is that already.

    Raises Conflict when somebody else has changed it meanwhile.
    """
    now = read_claim(store)
    if (now.uid, now.state_uri) == (before.uid, state_uri):
        return
    if (now.uid, now.state_uri) != (before.uid, before.state_uri):
        raise Conflict(f"{CLAIM} in {store.uri} was changed by someone else.", "Find out who did, then start again.")
    store.swap(CLAIM, claim_body(before.uid, state_uri, generation), now.etag)


def _refuse_unclaimed(store: ObjectStore) -> None:
    foreign = next((path for path, _ in store.list() if is_published(path)), None)
    if foreign is not None:
        raise SinkOwned(
            f"SinkOwned: {store.uri} holds {foreign}, written by TiCDC or by a changefeed whose claim is gone.",
            "Choose an empty folder as spec.sink.storage.uri, or move the old files away. To go on in a folder that "
            "TiCDC wrote: changefeed adopt --ticdc.",
        )


def _check_mine(store: ObjectStore, uid: str, state_uri: str) -> None:
    found = _parsed(store, store.get(CLAIM).body)
    if (found["uid"], found["stateUri"]) != (uid, state_uri):
        raise SinkOwned(
            f"SinkOwned: {store.uri} belongs to changefeed {found['uid']} with its state in {found['stateUri']}.",
            "Choose another folder as spec.sink.storage.uri: two changefeeds can't share one. If that changefeed is "
            "gone, take its place with changefeed adopt.",
        )


def _parsed(store: ObjectStore, body: bytes) -> dict[str, str]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not {"uid", "stateUri"} <= found.keys():
        raise SinkOwned(
            f"SinkOwned: {CLAIM} in {store.uri} is not a claim: {body[:80]!r}.",
            "Find out who wrote it, then choose another folder as spec.sink.storage.uri.",
        )
    return found
