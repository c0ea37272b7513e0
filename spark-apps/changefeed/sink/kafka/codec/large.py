"""Messages that are larger than the broker takes: refused, told by their keys alone, or kept in an object store.

A claim check is a JSON object of the message's key and value in base64, under a name made of their bytes: a retry
writes the same object.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NeedsHuman
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.once import create_bytes
from changefeed.objectstore.patience import Patience
from changefeed.sink.kafka.codec.message import LargeRow, MessageCodec, Messages, Source
from changefeed.sink.records import Records, narrowed, taken
from changefeed.sink.text.canal_types import handle_key

#: What a message has beside its key and value at most, as TiCDC counts it; and the open protocol's frame.
OVERHEAD = 36 + 24

#: Keeps a message that is too large: where it stands.
Keep = Callable[[bytes | None, bytes | None], str]


@dataclass(frozen=True)
class Limit:
    """`way`: largeMessages.option, for a message of more than `max_bytes`. `keep`: of claim-check."""

    max_bytes: int
    way: str = "none"
    keep: Keep | None = None


def encoded(codec: MessageCodec, records: Records, source: Source, build_ms: int, limit: Limit) -> Messages:
    """A message for each record, none of them larger than the limit. Raises NeedsHuman, and what `keep` does."""
    found = codec.rows(records, source, build_ms)
    sizes = pc.add(*(pc.fill_null(pc.binary_length(side), 0) for side in (found.keys, found.values))).to_numpy()
    too_large = np.flatnonzero(sizes.astype(np.int64) + OVERHEAD > limit.max_bytes)
    if not len(too_large):
        return found
    is_told = codec.tells_large and bool(handle_key(records.table))
    if limit.way == "none" or not is_told:
        raise _refused(records, int(sizes[too_large[0]]), limit, is_told=is_told)
    keys, values = found.keys.to_pylist(), found.values.to_pylist()
    for index in too_large.tolist():  # they are few
        path = limit.keep(keys[index], values[index]) if limit.way == "claim-check" and limit.keep else ""
        one = narrowed(taken(records, np.array([index])), handle_key(records.table))
        (keys[index],), (values[index],) = _listed(codec.rows(one, source, build_ms, LargeRow(path)))
        size = len(keys[index] or b"") + len(values[index] or b"")
        if size + OVERHEAD > limit.max_bytes:
            raise _refused(records, size, limit, is_told=False)
    return Messages(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


def _listed(messages: Messages) -> tuple[list[bytes | None], list[bytes | None]]:
    return messages.keys.to_pylist(), messages.values.to_pylist()


def _refused(records: Records, size: int, limit: Limit, *, is_told: bool) -> NeedsHuman:
    """`is_told`: whether the protocol can tell of such a row in another way."""
    raised = "Raise maxMessageBytes, and max.message.bytes of the topic"
    return NeedsHuman(
        f"A row of {records.table.full_name} makes a message of {size} bytes; {limit.max_bytes} are allowed.",
        f"{raised}, or choose handle-key-only or claim-check for large messages." if is_told else f"{raised}.",
    )


def keeper(store: ObjectStore, patience: Patience | None = None) -> Keep:
    """Keeps messages in a store, whose uri and the object's name are what consumers are told."""

    def keep(key: bytes | None, value: bytes | None) -> str:
        sides = {"key": key, "value": value}
        said = {name: None if side is None else base64.b64encode(side).decode() for name, side in sides.items()}
        body = json.dumps(said, separators=(",", ":")).encode()
        name = f"{Digest(body).hexdigest()}.json"
        create_bytes(store, name, body, patience)
        return f"{store.uri.rstrip('/')}/{name}"

    return keep
