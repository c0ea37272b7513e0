"""Arithmetic on ts: 64-bit TSO values, `physical_ms << 18 | logical`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from changefeed.errors import InvalidSpec

LOGICAL_BITS = 18
MAX_LOGICAL = (1 << LOGICAL_BITS) - 1
MAX_TS = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZONED = "ISO 8601 with a time zone, such as 2026-01-31T12:00:00Z"


def compose(physical_ms: int, logical: int = 0) -> int:
    """The ts of a millisecond since the epoch and a counter inside it."""
    return physical_ms << LOGICAL_BITS | logical


def physical_ms(ts: int) -> int:
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    return ts & MAX_LOGICAL


def to_datetime(ts: int) -> datetime:
    """The ts's moment in UTC, to the millisecond."""
    return _EPOCH + timedelta(milliseconds=physical_ms(ts))


def from_datetime(moment: datetime) -> int:
    """The first ts of a moment; `moment` must carry a time zone."""
    return compose((moment - _EPOCH) // timedelta(milliseconds=1))


def ts_of(text: str, field: str) -> int:
    """A ts in digits, or the first one of a time. `field` names it in errors. Raises InvalidSpec."""
    if text.isascii() and text.isdecimal():
        if int(text) > MAX_TS:
            raise InvalidSpec(field, f"{text!r} is not a ts; allowed: a number below 2^64, or {_ZONED}")
        return int(text)
    return ts_of_time(text, field)


def ts_of_time(text: str, field: str) -> int:
    """The first ts of a time. Raises InvalidSpec."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSpec(field, f"{text!r} is not a time; allowed: {_ZONED}") from None
    if moment.tzinfo is None:
        raise InvalidSpec(field, f"{text!r} has no time zone; allowed: {_ZONED}")
    found = from_datetime(moment)
    if not 0 <= found <= MAX_TS:
        raise InvalidSpec(field, f"{text!r} has no ts; allowed: from 1970 on")
    return found
