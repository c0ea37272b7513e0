"""What is asked of the server about a replication slot beside its stream."""

from __future__ import annotations

import time

from changefeed.errors import SnapshotLostByGC, Transient
from changefeed.upstream.contract import PATIENCE_S
from changefeed.upstream.postgresql.failures import LOST
from changefeed.upstream.postgresql.server import PostgresqlSession
from changefeed.upstream.postgresql.slot import kept_log
from changefeed.upstream.postgresql.slot.kept_log import Row

_STATE = "SELECT FROM pg_replication_slots WHERE slot_name = :slot"
_CREATE = "SELECT pg_create_logical_replication_slot(CAST(:slot AS name), 'pgoutput')"
#: From PostgreSQL 17 on: standbys may keep a copy of the slot.
_CREATE_FOR_FAILOVER = "SELECT pg_create_logical_replication_slot(CAST(:slot AS name), 'pgoutput', false, false, true)"
_KEEPS_COPIES = "SELECT current_setting('server_version_num')::int >= 170000"
_CONFIRMED = """
SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = :slot
  AND confirmed_flush_lsn IS NOT NULL"""
_DROP = """
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = :slot AND active_pid IS NULL"""
#: `born`: readers whose connections have a later moment in their name stay.
_END_READER = r"""
SELECT pg_terminate_backend(s.active_pid)
FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
WHERE s.slot_name = :slot AND s.active_pid IS NOT NULL
  AND coalesce(substring(a.application_name FROM '^changefeed ([0-9]{1,18})$')::bigint, 0) <= CAST(:born AS bigint)"""
_NOW_US = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_LATEST = (1 << 63) - 1
#: The server ends a reader a moment after it is told to.
_PAUSE_S = 0.1


def born(session: PostgresqlSession) -> int:
    """A reader's moment, by which the server's connections are told apart: the one that began last has the slot."""
    ((now_us,),) = session.rows(_NOW_US)
    return int(now_us)


def reader_name(born_us: int) -> str:
    """Give a reader's name for the server's list of connections."""
    return f"changefeed {born_us}"


def check_there(session: PostgresqlSession, slot: str) -> Row:
    """Give what the server says of it. Raises SnapshotLostByGC if history is gone, Transient if it has not begun."""
    row = kept_log.read(session, slot)
    if row is None:
        raise SnapshotLostByGC(f"{session.server}: there is no slot {slot}, and with it its history is gone.", LOST)
    if why := kept_log.why_lost(row):
        raise SnapshotLostByGC(f"{session.server}: slot {slot} has lost its history: {why}.", LOST)
    if row["confirmed_flush_lsn"] is None:
        raise Transient(
            f"{session.server}: slot {slot} is being made, for which the server waits until transactions that were "
            "open then have ended.",
            "End those that are old (pg_stat_activity has them by xact_start); it is tried again.",
            retry_after=1.0,
        )
    return row


def make(session: PostgresqlSession, slot: str) -> Row:
    """Create the slot unless it is there."""
    if not session.rows(_STATE, slot=slot):
        ((keeps_copies,),) = session.rows(_KEEPS_COPIES)
        session.rows(_CREATE_FOR_FAILOVER if keeps_copies else _CREATE, slot=slot)
    return check_there(session, slot)


def confirmed(session: PostgresqlSession, slot: str) -> int:
    """Before which position nothing is sent again; 0: the slot has none."""
    return next((int(position) for (position,) in session.rows(_CONFIRMED, slot=slot)), 0)


def end_reader(session: PostgresqlSession, slot: str, born_us: int = _LATEST) -> None:
    """Whoever reads the slot is cut off, unless it began later than that."""
    session.rows(_END_READER, slot=slot, born=born_us)


def drop(session: PostgresqlSession, slot: str) -> None:
    """With whoever reads it. Nothing if it is not there. Raises Transient if somebody reads it all the same."""
    until = time.monotonic() + PATIENCE_S
    while session.rows(_STATE, slot=slot):
        end_reader(session, slot)
        if not session.rows(_DROP, slot=slot):
            if time.monotonic() > until:
                raise Transient(
                    f"{session.server}: slot {slot} can't be dropped: somebody reads it.",
                    "End what reads it; it is tried again.",
                    retry_after=1.0,
                )
            time.sleep(_PAUSE_S)
