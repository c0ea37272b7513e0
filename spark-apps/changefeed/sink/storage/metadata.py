"""`metadata`: everything up to its checkpoint is in the files (docs/sink-files.md)."""

from __future__ import annotations

import json

from changefeed.errors import NotFound
from changefeed.objectstore import ObjectStore
from changefeed.sink.storage.grow import LastWritten, grow
from changefeed.sink.storage.layout import METADATA

_MEMBER = "checkpoint-ts"


def write_metadata(store: ObjectStore, checkpoint_ts: int, last: LastWritten | None = None) -> bool:
    """Publish a checkpoint that stands in the log; an older one than is published changes nothing. See `grow`."""
    return grow(store, METADATA, checkpoint_ts, metadata_body(checkpoint_ts), _read, last)


def published(store: ObjectStore) -> int:
    """The checkpoint that it says; 0 when there is none that can be read."""
    try:
        return _read(store.get(METADATA).body) or 0
    except NotFound:
        return 0


def metadata_body(checkpoint_ts: int) -> bytes:
    return json.dumps({_MEMBER: checkpoint_ts}, separators=(",", ":")).encode()


def _read(body: bytes) -> int | None:
    try:
        match json.loads(body):
            case {"checkpoint-ts": int(ts)} if not isinstance(ts, bool):
                return ts
    except ValueError:
        return None
    return None
