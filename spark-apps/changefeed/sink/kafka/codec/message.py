"""Messages, and what a codec of a Kafka protocol can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.schema.table_info import TableInfo
from changefeed.sink.records import Records

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True)
class Message:
    """None is Kafka's null."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


@dataclass(frozen=True)
class Messages:
    """A message for each element; keys and values pa.binary(), all of one length, null is Kafka's null."""

    keys: pa.Array
    values: pa.Array
    headers: Sequence[Headers] | None = None

    @classmethod
    def of(cls, keys: pa.Array | None, values: pa.Array) -> Messages:
        """`keys` None: no message has one."""
        given = pa.nulls(len(values), pa.binary()) if keys is None else keys.cast(pa.binary())
        return cls(given, values.cast(pa.binary()))

    def take(self, rows: npt.NDArray[np.int64]) -> Messages:
        chosen = pa.array(rows)
        headers = None if self.headers is None else [self.headers[row] for row in rows.tolist()]
        return Messages(self.keys.take(chosen), self.values.take(chosen), headers)


@dataclass(frozen=True)
class Source:
    """What of a dispatcher's rows stands in no row. `table_id`: physical. `table_version`: the definition's ts."""

    table_id: int
    table_version: int
    topic: str


@dataclass(frozen=True)
class DdlEvent:
    """One statement. `table` and `before`: the definition after it and before it; None for one of a database."""

    action: int
    query: str
    schema_name: str
    table_name: str
    commit_ts: int
    table: TableInfo | None = None
    before: TableInfo | None = None
    table_version: int = 0
    before_version: int = 0


@dataclass(frozen=True)
class LargeRow:
    """A row that does not fit, whose message has handle key columns alone. `path` "": that is all that is sent."""

    path: str = ""


class MessageCodec(Protocol):
    """`build_ms`: what TiCDC takes from the clock; from the plan instead, so that a retry gives the same bytes."""

    @property
    def time_zone(self) -> str:
        """In which rows are to be mounted."""

    @property
    def tells_large(self) -> bool:
        """Whether the protocol has a form for rows that do not fit into a message."""

    def rows(self, records: Records, source: Source, build_ms: int, large: LargeRow | None = None) -> Messages:
        """A message for each record; the records have `old_columns`. `large`: of the one record that there is."""

    def ddl(self, event: DdlEvent, build_ms: int) -> Message | None:
        """None: the protocol does not tell of it."""

    def resolved(self, ts: int, build_ms: int) -> Message | None:
        """None: the protocol does not tell of it."""

    def bootstrap(self, table: TableInfo, table_version: int, build_ms: int) -> Message | None:
        """A table's definition for consumers that begin here. None: the protocol has no such message."""


def joined_objects(parts: Sequence[str | pa.Array]) -> list[str | pa.Array]:
    """Members that each begin with a comma, as an object."""
    if not parts:
        return ["{}"]
    first = parts[0]
    assert isinstance(first, str)
    return ["{" + first[1:], *parts[1:], "}"]
