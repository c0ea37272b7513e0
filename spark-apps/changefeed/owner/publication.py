"""What only the driver writes into the sink: the index files and `metadata` (rule 8). Every call blocks.

It must never write what the log does not say, nor go on when the log says that another driver has taken over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from changefeed.errors import Conflict, NeedsHuman, OutcomeUnknown, Transient
from changefeed.objectstore import ObjectStore
from changefeed.owner.log import Log
from changefeed.owner.patience import Patience
from changefeed.sink.storage.index import write_index
from changefeed.sink.storage.metadata import write_metadata

_CONFLICTS = 3
_AT_ONCE = 16  # index files


class Publication:
    """Raises Fenced when another driver writes instead, NeedsHuman when a stranger does, Unavailable."""

    def __init__(
        self,
        sink: ObjectStore,
        log: Log,
        sleep: Callable[[float], None] = time.sleep,
        failed: Callable[[str], None] = lambda why: None,
    ) -> None:
        """`failed` is told why a write has to be tried again."""
        self._sink = sink
        self._log = log
        self._sleep = sleep
        self._failed = failed

    def write_indexes(self, indexes: Iterable[tuple[str, int, str]]) -> None:
        """(directory, index, path of its last data file); every file <= it exists."""
        writes = [partial(write_index, self._sink, directory, index, path) for directory, index, path in indexes]
        # Each is a wait for the store, and the checkpoint waits for all of them.
        with ThreadPoolExecutor(_AT_ONCE, "index") as pool:
            for _ in pool.map(self._grow, writes):
                pass

    def write_checkpoint(self, checkpoint_ts: int) -> None:
        """A checkpoint that stands in the log (rule 11)."""
        self._grow(partial(write_metadata, self._sink, checkpoint_ts))

    def _grow(self, write: Callable[[], None]) -> None:
        patience = Patience(self._sleep, self._sink.uri)
        conflicts = 0
        while True:
            try:
                return write()
            except Conflict as error:
                conflicts += 1
                self._log.poll_fence()  # somebody else wrote: the log says who
                if conflicts == _CONFLICTS:
                    raise NeedsHuman(
                        f"SinkOwned: {error.message}",
                        "No driver of this changefeed did: find the program that writes there and stop it, then start "
                        "again.",
                    ) from error
            except (OutcomeUnknown, Transient) as error:
                self._failed(error.message)
                self._log.poll_fence()
                patience.wait(error)
