"""What is asked of the server about a replication slot beside its stream."""

from __future__ import annotations

import time

from changefeed.errors import SnapshotLostByGC, Transient
from changefeed.upstream.contract import PATIENCE_S
from changefeed.upstream.postgresql.failures import LOST
from changefeed.upstream.postgresql.server import PostgresqlSession

_STATE = "SELECT wal_status, confirmed_flush_lsn IS NOT NULL FROM pg_replication_slots WHERE slot_name = :slot"
_CREATE = "SELECT pg_create_logical_replication_slot(CAST(:slot AS name), 'pgoutput')"
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


def check_there(session: PostgresqlSession, slot: str) -> None:
    """Raises SnapshotLostByGC if the slot's history is gone, Transient if it has not begun."""
    rows = session.rows(_STATE, slot=slot)
    if not rows:
        raise SnapshotLostByGC(f"{session.server}: there is no slot {slot}, and with it its history is gone.", LOST)
    ((status, has_begun),) = rows
    if status == "lost":
        raise SnapshotLostByGC(f"{session.server}: slot {slot} has lost its history: its WAL is removed.", LOST)
    if not has_begun:
        raise Transient(
            f"{session.server}: slot {slot} is being made, for which the server waits until transactions that were "
            "open then have ended.",
            "End those that are old (pg_stat_activity has them by xact_start); it is tried again.",
            retry_after=1.0,
        )


def make(session: PostgresqlSession, slot: str) -> None:
    """Create the slot unless it is there."""
    if not session.rows(_STATE, slot=slot):
        session.rows(_CREATE, slot=slot)
    check_there(session, slot)


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
