"""The initial copy of a table: which key range holds which ts (docs/architecture.md, Initial copy). Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

#: The ts that a copy has to itself, below the one at which it reads: those of one millisecond.
COPY_TICKS = 1 << 18
MOST_CHUNKS = COPY_TICKS - 1


@dataclass(frozen=True)
class CopyChunk:
    """The rows of the raw `[start, end)`, which have the commit ts `ts`."""

    ts: int
    start: bytes
    end: bytes


@dataclass(frozen=True)
class TableCopy:
    """The rows of one physical table as of `ts`. `bounds`: raw keys, from the table's first to its end, ascending."""

    from_ts: int
    bounds: tuple[bytes, ...]

    @property
    def ts(self) -> int:
        """The snapshot that is read; changes after it are the table's next ones."""
        return self.from_ts + COPY_TICKS

    @property
    def size(self) -> int:
        """Say how many chunks there are."""
        return len(self.bounds) - 1

    def is_under_way(self, ts: int) -> bool:
        """Tell whether a table that is there up to `ts` has not been copied to its end."""
        return self.from_ts <= ts < self.ts

    def chunks(self, after_ts: int) -> list[CopyChunk]:
        """Return the chunks that a table which is there up to `after_ts` lacks, in order."""
        chunks = [CopyChunk(self.from_ts + k, start, end) for k, (start, end) in enumerate(pairwise(self.bounds), 1)]
        return chunks[max(0, after_ts - self.from_ts) :]

    def done(self, ts: int) -> int:
        """Say how many chunks a table has that is there up to `ts`."""
        return max(0, min(self.size, ts - self.from_ts))

    def ts_of(self, key: bytes) -> int:
        """The commit ts of a row of the table."""
        return self.from_ts + bisect_right(self.bounds, key)


def bounds_of(start: bytes, end: bytes, borders: Iterable[bytes], most: int = MOST_CHUNKS) -> tuple[bytes, ...]:
    """The bounds of chunks of the raw `[start, end)`, cut at `borders` between regions; no more chunks than `most`."""
    inner = sorted({border for border in borders if start < border < end})
    step = -(-(len(inner) + 1) // most)
    return (start, *inner[step - 1 :: step], end)
