"""O2: what is published is final (promise 4).

A pure core over listings of a sink, in the order in which they were taken: it finds what no reader of the sink may ever
see. A listing reads the checkpoint first, then the indexes, then the files; so all rows up to its checkpoint are in its
files, and anything new in later listings must be above it.
"""

from __future__ import annotations

from collections.abc import Mapping

from changefeed.reading.layout.files import PublishedFiles


class Finality:
    """What the listings so far have promised."""

    def __init__(self) -> None:
        self._checkpoint_ts = 0
        self._files: dict[str, int] = {}

    def appeared(self, listing: PublishedFiles) -> list[str]:
        """The files that this listing would bring: their rows have to be looked at."""
        return [path for path in listing.files if path not in self._files]

    def see(self, listing: PublishedFiles, lowest: Mapping[str, int | None]) -> list[str]:
        """The promises that this listing breaks, worst first.

        `lowest`: the lowest commit ts in each file that appeared (None: it has no rows); those of the first listing
        are not needed.
        """
        problems = [
            f"{path} appeared with a row of commit ts {ts}, after checkpoint {self._checkpoint_ts} was published."
            for path in self.appeared(listing)
            if (ts := lowest.get(path)) is not None and ts <= self._checkpoint_ts
        ]
        if listing.checkpoint_ts < self._checkpoint_ts:
            problems.append(
                f"`metadata` went back from checkpoint {self._checkpoint_ts} to {listing.checkpoint_ts or 'none'}."
            )
        for path, size in self._files.items():
            now = listing.files.get(path)
            if now is None:
                problems.append(f"{path} was published but no longer is.")
            elif now != size:
                problems.append(f"{path} was published with {size} bytes, and has {now} now.")
        self._checkpoint_ts = max(self._checkpoint_ts, listing.checkpoint_ts)
        self._files.update(listing.files)
        return problems
