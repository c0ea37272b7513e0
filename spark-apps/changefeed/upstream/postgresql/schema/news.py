"""What a reader of the stream tells of a change of schema, as the content of a `SchemaNews`. Pure.

JSON: a relation as pgoutput describes it, or the OIDs of the tables that a TRUNCATE has emptied.
"""

from __future__ import annotations

import json
from typing import Any

from changefeed.errors import ProtocolViolation
from changefeed.upstream.postgresql.pgoutput.messages import Relation, RelationColumn, Truncate

#: How far apart the ts of two commits are, at least. All changes of schema of a commit at T are told at T - 1; each has
#: a ts of its own above T - TICKS.
TICKS = 1_024


def content_of(event: Relation | Truncate) -> bytes:
    """The same event is the same bytes."""
    if isinstance(event, Truncate):
        return _dump({"truncate": list(event.oids)})
    return _dump(
        {
            "oid": event.oid,
            "schema": event.schema_name,
            "name": event.name,
            "identity": event.replica_identity,
            "columns": [
                {"name": each.name, "type": each.type_oid, "typmod": each.typmod, "is_key": each.is_identity}
                for each in event.columns
            ],
        }
    )


def read_content(content: bytes) -> Relation | tuple[int, ...]:
    """The inverse; of a TRUNCATE its OIDs. Raises ProtocolViolation for what `content_of` does not make."""
    try:
        stored = json.loads(content)
        if "truncate" in stored:
            return tuple(map(int, stored["truncate"]))
        columns = (
            RelationColumn(each["name"], each["type"], each["typmod"], each["is_key"]) for each in stored["columns"]
        )
        return Relation(stored["oid"], stored["schema"], stored["name"], stored["identity"], tuple(columns))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolViolation(
            f"A puller tells of a change of schema that can't be read ({type(error).__name__}: {error}).",
            "Run the driver and the pullers in the same version.",
        ) from error


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
