"""The oracle for tables of rows: by what their upstream can give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from changefeed.reading.progress import ReadingProgress
from changefeed.spec.model import Changefeed
from changefeed.upstream import choice
from changefeed.verify.result import RowsVerdict
from changefeed.verify.tables.as_they_stand import looked_at
from changefeed.verify.tables.at_rest import Start, at_rest
from changefeed.verify.tables.oracle import TablesOracle


async def compared(
    changefeed: Changefeed,
    secrets_dir: Path | None,
    progress: ReadingProgress,
    compare: Callable[[TablesOracle], Awaitable[None]],
    *,
    start: Start = "unused",
    is_zoned: bool = False,
    flush_s: float = 0.0,
) -> RowsVerdict:
    """What `compare` finds in the sink. `is_zoned`: TIMESTAMP is compared in spec.timeZone, not in UTC.

    `flush_s`: how long the sink may keep rows back. Raises NotVerifiable: an upstream with history needs the changefeed
    at rest, and one without needs it to run.
    """
    if not choice.access_of(changefeed, secrets_dir).has_history:
        return await looked_at(changefeed, secrets_dir, progress, compare, is_zoned=is_zoned, flush_s=flush_s)
    async with at_rest(changefeed, secrets_dir, progress, start) as feed:
        if is_zoned:
            feed.time_zone = feed.state.epoch.config["spec"]["timeZone"]
        await compare(feed)
        return feed.result
