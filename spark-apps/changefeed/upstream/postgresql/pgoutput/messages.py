"""What pgoutput's messages but rows say: they are few, and read one by one."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from changefeed.errors import ProtocolViolation
from changefeed.upstream.postgresql.failures import broken_stream

#: What the server counts times from, 2000-01-01, in us since 1970.
EPOCH_US = 946_684_800_000_000
_BEGIN = struct.Struct(">QqI")  # LSN of the commit record, time, xid
_COMMIT = struct.Struct(">BQQq")  # flags, LSN of the record, and behind it, time
_IS_KEY = 1
_IS_TRANSACTIONAL = 1


@dataclass(frozen=True)
class RelationColumn:
    """`is_identity`: it is in what the server sends of old rows by the table's replica identity."""

    name: str
    type_oid: int
    typmod: int
    is_identity: bool


@dataclass(frozen=True)
class Relation:
    """One version of a table as its rows are sent. `replica_identity`: d(efault), n(othing), f(ull), i(ndex)."""

    oid: int
    schema_name: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]

    @property
    def full_name(self) -> str:
        return f"{self.schema_name}.{self.name}"


class Commit(NamedTuple):
    """A transaction is over. `lsn`: of its commit record, `end_lsn`: behind it, `time_us`: since 1970."""

    xid: int
    lsn: int
    end_lsn: int
    time_us: int


@dataclass(frozen=True)
class LogicalMessage:
    """What somebody put into the WAL; `xid`: of the transaction that it belongs to, if any."""

    lsn: int
    prefix: str
    content: bytes
    is_transactional: bool
    xid: int | None


@dataclass(frozen=True)
class Truncate:
    """All rows of tables are gone, those of the same transaction before it included."""

    xid: int
    oids: tuple[int, ...]


@dataclass(frozen=True)
class KeepAlive:
    """The server has sent all up to `end_lsn`. `wants_reply`: else it soon takes us for dead."""

    end_lsn: int
    time_us: int
    wants_reply: bool


class Body:
    """Reads the members of one message one behind the other."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data, self._at, self._end = data, start + 1, end
        self._kind = data[start]

    def number(self, width: int) -> int:
        """An unsigned one."""
        return int.from_bytes(self.bytes(width))

    def signed(self, width: int) -> int:
        return int.from_bytes(self.bytes(width), signed=True)

    def bytes(self, size: int) -> bytes:
        at, self._at = self._at, self._at + size
        if self._at > self._end:
            raise self._broken("is too short")
        return self._data[at : self._at]

    def members(self, layout: struct.Struct) -> tuple[Any, ...]:
        """All that is left."""
        if self._end - self._at != layout.size:
            raise self._broken(f"has {self._end - self._at} bytes where {layout.size} belong")
        return layout.unpack_from(self._data, self._at)

    def text(self) -> str:
        """Up to the zero that ends it."""
        end = self._data.find(0, self._at, self._end)
        if end < 0:
            raise self._broken("has a text without an end")
        found = self._data[self._at : end]
        self._at = end + 1
        try:
            return found.decode()
        except UnicodeDecodeError as error:
            raise self._broken("has a text that is not UTF-8") from error

    def time_us(self) -> int:
        return self.signed(8) + EPOCH_US

    def done(self) -> None:
        """Raises ProtocolViolation if there is more."""
        if self._at != self._end:
            raise self._broken(f"has {self._end - self._at} bytes too many")

    def _broken(self, why: str) -> ProtocolViolation:
        return broken_stream(f"A message {chr(self._kind)!r} of pgoutput {why}.")


def begin_xid(body: Body) -> int:
    """The xid that a Begin has. The position and time that it has, too, are the commit's."""
    _, _, xid = body.members(_BEGIN)
    return int(xid)


def commit(body: Body, xid: int) -> Commit:
    """The rest of a Commit. Its flags are for later versions."""
    _, lsn, end_lsn, time = body.members(_COMMIT)
    return Commit(xid, lsn, end_lsn, time + EPOCH_US)


def relation(body: Body) -> Relation:
    """The rest of a Relation."""
    oid, schema_name, name = body.number(4), body.text(), body.text()
    replica_identity = chr(body.number(1))
    columns = tuple(_column(body) for _ in range(body.number(2)))
    body.done()
    return Relation(oid, schema_name or "pg_catalog", name, replica_identity, columns)


def _column(body: Body) -> RelationColumn:
    flags, name = body.number(1), body.text()
    return RelationColumn(name, body.number(4), body.signed(4), bool(flags & _IS_KEY))


def truncate(body: Body, xid: int) -> Truncate:
    """The rest of a Truncate."""
    count = body.number(4)
    body.bytes(1)  # whether cascaded, and whether sequences begin anew
    oids = tuple(body.number(4) for _ in range(count))
    body.done()
    return Truncate(xid, oids)


def logical_message(body: Body, xid: int | None) -> LogicalMessage:
    """The rest of a Message. `xid`: of the transaction around it."""
    is_transactional = bool(body.number(1) & _IS_TRANSACTIONAL)
    lsn, prefix = body.number(8), body.text()
    content = body.bytes(body.number(4))
    body.done()
    return LogicalMessage(lsn, prefix, content, is_transactional, xid if is_transactional else None)


def keep_alive(body: Body) -> KeepAlive:
    """The rest of a keep-alive."""
    found = KeepAlive(body.number(8), body.time_us(), bool(body.number(1)))
    body.done()
    return found
