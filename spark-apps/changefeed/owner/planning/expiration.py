"""When files of a storage sink expire. Depends only on the checkpoint, so that every driver agrees. Pure.

A directory is dated by its plan, and no row is committed after its plan. So all files with a date before the
checkpoint's contain only rows below the checkpoint, and all have been written.
"""

from __future__ import annotations

from datetime import UTC, datetime

from changefeed.log.state import State
from changefeed.model.tso import physical_ms

DAY_MS = 24 * 60 * 60 * 1000


def expires_before(state: State, days: int) -> str | None:
    """The day from which on files are kept, if more of them have expired than the log knows; else None.

    `days`: how long files are kept, 0: for ever.
    """
    if not days or state.finished:
        return None
    before = _day(physical_ms(state.checkpoint_ts) - days * DAY_MS)
    # Nothing was planned before the changefeed's start: what has not begun need not be given up.
    known = max(_day(physical_ms(state.from_ts)), state.expired_before)
    return before if before > known else None


def _day(ms: int) -> str:
    """As directories are named that expire (spec.sink.storage.dateSeparator: day)."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")
