"""How long files take, stage by stage, from their resolved-ts until readers may see them. Pure.

Covers only files that this run planned: those left open by an earlier run would include the time between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from changefeed.log.records import FileCommitted, PlanRecord
from changefeed.model.tso import physical_ms
from changefeed.owner.writing.open_entries import EntryKey

PLAN, WRITE, PUBLISH = (
    "changefeed_owner_plan_duration_seconds",
    "changefeed_sink_write_duration_seconds",
    "changefeed_sink_publish_duration_seconds",
)


@dataclass
class _Times:
    """Milliseconds of PD's clock."""

    planned: int
    written: int | None = None


class StageTimes:
    """`now_ms`: PD's clock. Gives (metric, seconds) for what has just been done."""

    def __init__(self) -> None:
        self._open: dict[EntryKey, _Times] = {}

    def planned(self, record: PlanRecord, now_ms: int) -> Iterator[tuple[str, float]]:
        for number, entry in enumerate(record.entries):
            self._open[EntryKey(record.n, number)] = _Times(now_ms)
            yield PLAN, _seconds(physical_ms(entry.to.commit_ts), now_ms)

    def written(self, key: EntryKey, now_ms: int) -> Iterator[tuple[str, float]]:
        times = self._open.get(key)
        if times is not None and times.written is None:
            times.written = now_ms
            yield WRITE, _seconds(times.planned, now_ms)

    def committed(self, files: Iterable[FileCommitted], now_ms: int) -> Iterator[tuple[str, float]]:
        for file in files:
            times = self._open.pop(EntryKey(file.plan, file.entry), None)
            if times is not None and times.written is not None:
                yield PUBLISH, _seconds(times.written, now_ms)


def _seconds(from_ms: int, to_ms: int) -> float:
    return max(0, to_ms - from_ms) / 1000
