"""A stream's position: the JSON that Spark stores in its checkpoint and passes back after a restart. Pure.

It identifies the cluster and table, so that a checkpoint is never resumed against another, and names the stream's
service safepoint, so that whoever resumes from the checkpoint takes over the one that keeps its history. It also
records where the stream began: Spark does not store the initial offset, and asks for a new one when it reruns the first
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from changefeed.errors import NeedsHuman

VERSION = 1


@dataclass(frozen=True)
class Offset:
    """Every change of the table with a commit ts <= `ts` is in this batch or an earlier one."""

    ts: int
    from_ts: int
    table_id: int
    cluster_id: int
    stream: str

    def at(self, ts: int) -> Offset:
        return replace(self, ts=ts)

    @property
    def first(self) -> Offset:
        """The offset at which the stream began."""
        return self.at(self.from_ts)

    def to_json(self) -> dict[str, Any]:
        """Ids that can exceed 2^53 are strings: not every JSON parser keeps such integers exact."""
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
        """Raises NeedsHuman if it is not an offset of this source."""
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
            f"This version of the changefeed source does not recognise the checkpoint's offset {dict(stored)!r}.",
            "Set checkpointLocation to this stream's own checkpoint, or to a new one.",
        )
