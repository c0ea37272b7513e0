"""A sink has one owner (rule 7): the claim object beside `metadata` says which changefeed's files these are."""

from __future__ import annotations

import json

from changefeed.errors import NeedsHuman, NotFound, OutputConflict
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.once import create_bytes
from changefeed.objectstore.patience import Patience
from changefeed.sink.storage.layout import CLAIM, is_published


def check_free(store: ObjectStore, uid: str, state_uri: str) -> None:
    """Find out whether the sink is this changefeed's or nobody's; writes nothing.

    Raises NeedsHuman (SinkOwned) when another changefeed has it, or when it holds files that nobody claimed.
    """
    try:
        store.get(CLAIM)
    except NotFound:
        _refuse_unclaimed(store)
    else:
        _check_mine(store, uid, state_uri)


def claim(store: ObjectStore, uid: str, state_uri: str, patience: Patience | None = None) -> None:
    """Make the sink this changefeed's own, or find that it is. Before the first other write. Raises as `check_free`."""
    check_free(store, uid, state_uri)
    try:
        create_bytes(store, CLAIM, json.dumps({"uid": uid, "stateUri": state_uri}).encode(), patience)
    except OutputConflict:
        _check_mine(store, uid, state_uri)


def _refuse_unclaimed(store: ObjectStore) -> None:
    foreign = next((path for path, _ in store.list() if is_published(path)), None)
    if foreign is not None:
        raise NeedsHuman(
            f"SinkOwned: {store.uri} holds {foreign}, written by TiCDC or by a changefeed whose claim is gone.",
            "Choose an empty folder as spec.sink.storage.uri, or move the old files away.",
        )


def _check_mine(store: ObjectStore, uid: str, state_uri: str) -> None:
    body = store.get(CLAIM).body
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not {"uid", "stateUri"} <= found.keys():
        raise NeedsHuman(
            f"SinkOwned: {CLAIM} in {store.uri} is no claim: {body[:80]!r}.",
            "Find out who wrote it, then choose another folder as spec.sink.storage.uri.",
        )
    if (found["uid"], found["stateUri"]) != (uid, state_uri):
        raise NeedsHuman(
            f"SinkOwned: {store.uri} belongs to changefeed {found['uid']} with its state in {found['stateUri']}.",
            "Choose another folder as spec.sink.storage.uri: two changefeeds can't share one.",
        )
