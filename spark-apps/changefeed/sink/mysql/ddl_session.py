"""The session in which a DDL's statement means what it means upstream (schema.sql.session)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

from changefeed.errors import ExecuteByHand
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.sql.session import offset_text, only_offset, sql_mode, zone_text
from changefeed.schema.sql.statements import Statement
from changefeed.sink.mysql.rows.literals import identifier, text_literal
from changefeed.sink.mysql.server import Session

#: What a TIMESTAMP can hold.
_FIRST, _LAST = datetime(1970, 1, 1), datetime(2038, 1, 19)


def setting(session: Session, change: SchemaChange, statement: Statement) -> bytes:
    """What the session is to be set to before it. Raises ExecuteByHand for a zone that the server does not know."""
    zone = zone_text(statement.zone)
    if isinstance(statement.zone, ZoneInfo) and not _is_known(session, zone):
        zone = _offset(session, statement, statement.zone)
    return b"SET SESSION sql_mode=%s, time_zone=%s, collation_connection='utf8mb4_bin'" % (
        text_literal(sql_mode(change)),
        text_literal(zone),
    )


def _is_known(session: Session, zone: str) -> bool:
    """Whether the server's administrator has loaded it."""
    query = b"SELECT CONVERT_TZ('2000-01-01 00:00:00', '+00:00', %s)" % text_literal(zone)
    return session.rows(query)[0][0] is not None


def _offset(session: Session, statement: Statement, zone: ZoneInfo) -> str:
    """Return the zone's offset at the times that the statement has to do with, if it is the same at all of them."""
    times = [*statement.moments, *_times(session, statement)]
    offset = (
        only_offset(zone, max(min(times), _FIRST), min(max(times), _LAST))
        if times
        else only_offset(zone, _FIRST, _FIRST)
    )
    if offset is None:
        raise ExecuteByHand(
            f"{statement.text!r} means what it means upstream in the time zone {zone.key} only, which the downstream "
            "does not know.",
            "Load the time zones there (mysql_tzinfo_to_sql), then start again.",
        )
    return offset_text(offset)


def _times(session: Session, statement: Statement) -> Iterator[datetime]:
    """The first and the last time that it casts."""
    table = b".".join(map(identifier, statement.table or ()))
    for name in statement.casts:
        time = b"CAST(%s AS DATETIME)" % identifier(name)
        query = b"SELECT MIN(%s), MAX(%s) FROM %s WHERE %s >= '1000-01-01'" % (time, time, table, time)
        yield from (datetime.fromisoformat(value.decode()) for value in session.rows(query)[0] if value is not None)
