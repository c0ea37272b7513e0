"""What a slot keeps of the server's WAL, and when it would lose it. Pure, but for `read`.

A server with `max_slot_wal_keep_size` removes WAL that a slot still needs, and one with `idle_replication_slot_timeout`
(PostgreSQL 18) gives up a slot that nobody reads: both make its `wal_status` lost, for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from changefeed.model.tso import physical_ms
from changefeed.upstream.contract import KeptLog
from changefeed.upstream.postgresql.server import PostgresqlSession

Row = Mapping[str, Any]

#: Columns that a release lacks are missing: `conflicting` came with 16, `inactive_since` and `invalidation_reason` with
#: 17.
_SLOT = """
SELECT to_jsonb(found) || jsonb_build_object(
    'kept', (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END
      - restart_lsn)::bigint,
    'idle_ms', (extract(epoch FROM clock_timestamp() - (to_jsonb(found) ->> 'inactive_since')::timestamptz) * 1000)
      ::bigint,
    'idle_timeout_ms', (extract(epoch FROM
      coalesce(current_setting('idle_replication_slot_timeout', true), '0')::interval) * 1000)::bigint,
    'now_ms', (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
FROM pg_replication_slots found WHERE slot_name = :slot"""
#: By `invalidation_reason`.
_WHY = {
    "wal_removed": "its WAL is removed, as max_slot_wal_keep_size wants it",
    "rows_removed": "rows of catalogs that it needs are removed",
    "wal_level_insufficient": "the server's wal_level was not logical",
    "idle_timeout": "nobody has read it for longer than idle_replication_slot_timeout",
}
_LEAST_MS = 60_000  # of which a rate is made
_FORESEEN_MS = 366 * 86_400_000


def read(session: PostgresqlSession, slot: str) -> Row | None:
    """What the server says of a slot; None: there is none."""
    return next((row for (row,) in session.rows(_SLOT, slot=slot)), None)


def why_lost(row: Row) -> str:
    """Why its history is gone for good; "" while it is not."""
    if reason := str(row.get("invalidation_reason") or ""):
        return _WHY.get(reason, reason)
    if row["wal_status"] == "lost":
        return "its WAL is removed"
    return _WHY["rows_removed"] if row.get("conflicting") else ""


def kept_log(row: Row, held_ts: int) -> KeptLog:
    """Give what a slot keeps that has not lost anything. `held_ts`: from which on that is needed."""
    kept, left, now_ms, slot = row["kept"] or 0, row["safe_wal_size"], row["now_ms"], row["slot_name"]
    times, warning = [], ""
    if left is not None:
        rate = kept / max(_LEAST_MS, now_ms - physical_ms(held_ts))  # bytes a ms, since then
        times += [now_ms + int(max(0, left) / rate)] if rate > 0 else []
        if row["wal_status"] == "unreserved" or kept > left:
            warning = (
                f"Slot {slot} keeps more than half of the WAL that max_slot_wal_keep_size allows, and loses its "
                "history above that: let the changefeed go on, or raise it on the server."
            )
    if row["idle_timeout_ms"] and row["idle_ms"] is not None and not row["active"]:
        times.append(now_ms - row["idle_ms"] + row["idle_timeout_ms"])
        if row["idle_ms"] > row["idle_timeout_ms"] / 2:
            warning = warning or (
                f"Slot {slot} has been idle for more than half of idle_replication_slot_timeout, after which it loses "
                "its history: let the changefeed go on, or raise it on the server."
            )
    gone_ms = min((time for time in times if time - now_ms < _FORESEEN_MS), default=None)
    return KeptLog(kept, row["wal_status"] or "", None if left is None else max(0, kept + left), gone_ms, warning)
