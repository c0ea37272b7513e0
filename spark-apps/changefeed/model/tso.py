"""Arithmetic on ts: 64-bit TSO values, `physical_ms << 18 | logical`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

LOGICAL_BITS = 18
MAX_LOGICAL = (1 << LOGICAL_BITS) - 1
MAX_TS = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
