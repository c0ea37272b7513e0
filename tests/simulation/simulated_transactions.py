"""What the simulated upstream consists of: rows, DDLs, regions, transactions, locks, and its shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from changefeed.model.position import Position
from changefeed.model.tso import compose
from changefeed.upstream.tikv.tidb.memcomparable import encode_bytes

_BASE_MS = 1_600_000_000_000
START_TS = compose(_BASE_MS) + 1000


class Row(NamedTuple):
    """A row change as it was committed."""

    commit_ts: int
    start_ts: int
    op: int
    key: bytes
    value: bytes
    old: bytes | None

    @property
    def position(self) -> Position:
        return Position(*self[:4])


@dataclass(frozen=True)
class SimulatedDdl:
    """`alters` tables that are selected, or makes them so (`joins`) or not (`leaves`), as a rename does."""

    ts: int
    job_id: int
    alters: frozenset[int] = frozenset()
    joins: frozenset[int] = frozenset()
    leaves: frozenset[int] = frozenset()

    @property
    def order(self) -> tuple[int, int]:
        return self.ts, self.job_id

    @property
    def tables(self) -> frozenset[int]:
        return self.alters | self.joins | self.leaves


@dataclass(frozen=True)
class Region:
    """Raw keys; b"" is no bound."""

    id: int
    start: bytes
    end: bytes
    version: int
    store: int

    def holds(self, key: bytes) -> bool:
        return self.start <= key and (not self.end or key < self.end)

    # As PD tells it.

    conf_ver = 1

    @property
    def start_key(self) -> bytes:
        return encode_bytes(self.start) if self.start else b""

    @property
    def end_key(self) -> bytes:
        return encode_bytes(self.end) if self.end else b""

    @property
    def leader_store_id(self) -> int:
        return self.store

    leader_peer_id = 1


@dataclass(eq=False)
class Transaction:
    start_ts: int
    writes: dict[bytes, bytes | None]  # None deletes
    primary: bytes
    commit_ts: int = 0  # decided
    over: bool = False
    large: bool = False
    promise: int = 0  # of a large one: it will commit at or above it


@dataclass
class Lock:
    transaction: Transaction
    value: bytes | None


@dataclass(frozen=True)
class Shape:
    """How large an upstream is, and how busy."""

    tables: int
    keys: int  # of each table
    transactions: int
    regions: int
    stores: int
    busy_s: float  # in which they all begin
    one_phase: float  # how likely a transaction is committed at once


class Odds(NamedTuple):
    """How likely what a client may do is."""

    rollback: float
    dead: float  # it dies with its locks
    late: float  # a secondary is committed seconds later
    heartbeat: float
