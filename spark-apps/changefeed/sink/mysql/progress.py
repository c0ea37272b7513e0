"""What the downstream itself remembers, so that each row counts once and there is one writer at a time (rule 25).

Table `progress` has a row for each dispatcher of a changefeed: its writer, and the last finished entry. Table `nodes`
records, for the entry in progress, what each transaction has written. A transaction of rows adds to `nodes` only while
the dispatcher's row names its writer, with that row locked, and commits both or neither. A claim updates the row, which
waits for transactions in progress; those of the former writer add nothing from then on.

This module has the statements and the rules; `sink` runs them. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from changefeed.errors import Fenced
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.mysql.rows.changes import Rows
from changefeed.sink.mysql.rows.literals import bytes_literal, identifier

NOTHING_DONE = EntryId(-1, -1)


@dataclass(frozen=True)
class Recorded:
    """A row of `progress`: everything up to entry `done` is committed downstream."""

    epoch: int
    nonce: str
    writer: int
    done: EntryId = NOTHING_DONE
    ts: int = 0


def check(claim: Claim, known: Recorded) -> None:
    """Whether a claim counts. Raises Fenced if the row is another's, who came later, or another driver's."""
    if claim.gives_way_to(known.epoch, known.nonce, known.writer):
        raise fenced(claim, f"Epoch {known.epoch}, writer {known.writer}")


def check_ours(claim: Claim, known: Recorded) -> None:
    """Raises Fenced if another has claimed the dispatcher since."""
    if (known.epoch, known.nonce, known.writer) != (claim.epoch, claim.nonce, claim.writer):
        raise fenced(claim, f"Epoch {known.epoch}, writer {known.writer}")


def fenced(claim: Claim, other: str) -> Fenced:
    return Fenced(
        f"{other} has claimed dispatcher {claim.dispatcher} of changefeed {claim.changefeed} downstream; "
        f"this is epoch {claim.epoch}, writer {claim.writer}.",
        "Nothing needs to be done: the other one continues.",
    )


def encode_nodes(nodes: Rows) -> tuple[int, bytes]:
    """The first of `nodes`, and all of them as a compressed bitmap that begins with it."""
    first = int(nodes.min())
    bits = np.zeros(int(nodes.max()) - first + 1, np.bool_)
    bits[nodes - first] = True
    return first, zlib.compress(np.packbits(bits).tobytes(), 1)


def decode_nodes(first: int, stored: bytes) -> Rows:
    """In order."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(zlib.decompress(stored), np.uint8))) + first


class ProgressTables:
    """The statements, for tables in `database`; `share` is the clause that locks a row which others may lock so too."""

    def __init__(self, database: str, share: bytes) -> None:
        self._database = identifier(database)
        self._progress = self._database + b".`progress`"
        self._nodes = self._database + b".`nodes`"
        self._share = b" " + share

    def create(self) -> list[bytes]:
        who = b"`changefeed` VARBINARY(255) NOT NULL, `dispatcher` VARBINARY(255) NOT NULL, "
        entry = b"`plan` BIGINT NOT NULL, `entry` BIGINT NOT NULL, "
        return [
            b"CREATE DATABASE IF NOT EXISTS " + self._database,
            b"CREATE TABLE IF NOT EXISTS " + self._progress + b" (" + who + b"`epoch` BIGINT NOT NULL, "
            b"`nonce` VARBINARY(255) NOT NULL, `writer` BIGINT NOT NULL, "
            + entry
            + b"`ts` BIGINT UNSIGNED NOT NULL, PRIMARY KEY (`changefeed`, `dispatcher`))",
            b"CREATE TABLE IF NOT EXISTS " + self._nodes + b" (" + who + entry + b"`first` BIGINT NOT NULL, "
            b"`members` MEDIUMBLOB NOT NULL, PRIMARY KEY (`changefeed`, `dispatcher`, `plan`, `entry`, `first`))",
        ]

    def read(self, claim: Claim) -> bytes:
        """Locks the dispatcher's row; gives it as `recorded` reads it."""
        columns = b"`epoch`, `nonce`, `writer`, `plan`, `entry`, `ts`"
        return b"SELECT " + columns + b" FROM " + self._progress + b" WHERE " + _who(claim) + b" FOR UPDATE"

    def add(self, claim: Claim) -> bytes:
        """A row for a dispatcher that has none."""
        nobody = b"`epoch`=-1, `nonce`='', `writer`=-1, `plan`=%d, `entry`=%d, `ts`=0" % NOTHING_DONE
        return b"INSERT IGNORE INTO " + self._progress + b" SET " + _who(claim, b", ") + b", " + nobody

    def claim(self, claim: Claim) -> bytes:
        nonce = bytes_literal(claim.nonce.encode())
        holder = b"`epoch`=%d, `nonce`=%s, `writer`=%d" % (claim.epoch, nonce, claim.writer)
        return b"UPDATE " + self._progress + b" SET " + holder + b" WHERE " + _who(claim)

    def add_nodes(self, claim: Claim, at: EntryId, first: int, members: bytes) -> bytes:
        """Adds one row if the dispatcher is still ours, none if not."""
        return (
            b"INSERT INTO " + self._nodes + b" SELECT `changefeed`, `dispatcher`, %d, %d, %d, " % (*at, first)
            + bytes_literal(members) + b" FROM " + self._progress + b" WHERE " + _who(claim)
            + b" AND `epoch`=%d AND `writer`=%d AND `nonce`=" % (claim.epoch, claim.writer)
            + bytes_literal(claim.nonce.encode()) + self._share
        )  # fmt: skip

    def has_nodes(self, claim: Claim, at: EntryId, first: int) -> bytes:
        """Gives a row if that transaction is committed; waits for one that is under way."""
        where = _who(claim) + b" AND `plan`=%d AND `entry`=%d AND `first`=%d" % (*at, first)
        return b"SELECT 1 FROM " + self._nodes + b" WHERE " + where + b" FOR UPDATE"

    def nodes(self, claim: Claim, at: EntryId) -> bytes:
        where = _who(claim) + b" AND `plan`=%d AND `entry`=%d" % at
        return b"SELECT `first`, `members` FROM " + self._nodes + b" WHERE " + where

    def finish(self, claim: Claim, at: EntryId, ts: int) -> list[bytes]:
        """The entry is done, and what its transactions have written need not be remembered."""
        done = b" SET `plan`=%d, `entry`=%d, `ts`=%d WHERE " % (*at, ts)
        return [
            b"UPDATE " + self._progress + done + _who(claim),
            b"DELETE FROM " + self._nodes + b" WHERE " + _who(claim),
        ]


def recorded(claim: Claim, rows: Sequence[tuple[bytes, ...]]) -> Recorded:
    """Return the record in what `ProgressTables.read` gives. Raises Fenced when that is no row."""
    if not rows:
        raise fenced(claim, "Someone who deleted its row")
    epoch, nonce, writer, plan, entry, ts = rows[0]
    return Recorded(int(epoch), nonce.decode(), int(writer), EntryId(int(plan), int(entry)), int(ts))


def _who(claim: Claim, between: bytes = b" AND ") -> bytes:
    changefeed, dispatcher = (bytes_literal(name.encode()) for name in (claim.changefeed, str(claim.dispatcher)))
    return b"`changefeed`=" + changefeed + between + b"`dispatcher`=" + dispatcher
