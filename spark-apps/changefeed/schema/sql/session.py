"""In which session a statement of ours means what it means upstream: its SQL mode, and the time zone of casts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from changefeed.schema.ddl.change import SchemaChange

#: Bits of `Job.sql_mode` that decide which values a statement accepts or makes, and that all servers know. Those that
#: decide how a text is read are not among them: ours is not the text that was typed.
_MODES = {
    6: "NO_UNSIGNED_SUBTRACTION",
    21: "STRICT_TRANS_TABLES",
    22: "STRICT_ALL_TABLES",
    25: "ALLOW_INVALID_DATES",
    26: "ERROR_FOR_DIVISION_BY_ZERO",
}
#: As which no zone is known: TiDB means its own host's by them.
_OF_HOST = ("", "System", "SYSTEM", "Local")


def sql_mode(change: SchemaChange) -> str:
    """Zero dates are let in, since TiDB looks at one column's default where other servers look at all columns'."""
    return ",".join(["NO_AUTO_VALUE_ON_ZERO", *(name for bit, name in _MODES.items() if change.sql_mode >> bit & 1)])


def zone_of(change: SchemaChange, otherwise: str) -> tzinfo:
    """The session's that the DDL was typed in, as far as its change says it. `otherwise`: the changefeed's timeZone."""
    if change.utc_offset:
        return timezone(timedelta(seconds=change.utc_offset))
    for name in (change.time_zone, otherwise):
        if name.upper() == "UTC":
            return UTC
        if name not in _OF_HOST:
            try:
                return ZoneInfo(name)
            except (ZoneInfoNotFoundError, ValueError):
                continue
    return UTC


def zone_text(zone: tzinfo) -> str:
    """For `SET time_zone`."""
    if isinstance(zone, ZoneInfo):
        return zone.key
    return offset_text(zone.utcoffset(None) or timedelta(0))


def offset_text(offset: timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def only_offset(zone: tzinfo, first: datetime, last: datetime) -> timedelta | None:
    """How far clocks in the zone are ahead of UTC in all of that time, give or take a day; None: that changes."""
    offsets: set[timedelta | None] = set()
    moment = (first - timedelta(days=1)).replace(tzinfo=UTC)
    while moment <= last.replace(tzinfo=UTC) + timedelta(days=2):
        offsets.add(moment.astimezone(zone).utcoffset())
        moment += timedelta(days=1)
    return offsets.pop() if len(offsets) == 1 else None
