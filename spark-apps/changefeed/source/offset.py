"""How far a stream has got: the JSON that Spark writes into its checkpoint, and gives back after a restart. Pure.

It says whose it is, so that a checkpoint is never gone on with in another cluster or for another table, and has the
name of the stream's hold at PD: so whoever goes on from the checkpoint has the hold that keeps its history. And it says
where the stream began, for Spark keeps no first offset: when it runs the first batch again it asks for another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from changefeed.errors import NeedsHuman

VERSION = 1


@dataclass(frozen=True)
class Offset:
    """Every change of the table with a commit ts <= `ts` belongs to this batch or to one before it."""

    ts: int
    from_ts: int
    table_id: int
    cluster_id: int
    stream: str

    def at(self, ts: int) -> Offset:
        return replace(self, ts=ts)

    @property
    def first(self) -> Offset:
        """The one with which its stream began."""
        return self.at(self.from_ts)

    def to_json(self) -> dict[str, Any]:
        """Ids beyond 2^53 are text: not everybody's JSON keeps such numbers."""
        return {
            "v": VERSION,
            "ts": str(self.ts),
            "from": str(self.from_ts),
            "table": self.table_id,
            "cluster": str(self.cluster_id),
            "stream": self.stream,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Offset:
        """Raises NeedsHuman for what is no offset of this source."""
        match stored:
            case {
                "v": 1,
                "ts": str(ts),
                "from": str(from_ts),
                "table": int(table),
                "cluster": str(cluster),
                "stream": str(stream),
            }:
                return cls(int(ts), int(from_ts), table, int(cluster), stream)
        raise NeedsHuman(
            f"The checkpoint's offset {dict(stored)!r} is none that this version of the changefeed source knows.",
            "Use the checkpointLocation of this stream, or a new one.",
        )
