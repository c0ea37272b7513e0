"""What only the driver writes into the sink: the index files and `metadata` (rule 8). Every call blocks.

It must never write what the log does not say, nor go on when the log says that another driver has taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from changefeed.errors import Conflict, NeedsHuman
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.patience import Patience
from changefeed.owner.transaction_log.log import Log
from changefeed.sink.storage.index import write_index
from changefeed.sink.storage.metadata import write_metadata
from changefeed.sink.storage.schema_file import SchemaFile
from changefeed.sink.storage.schema_file import write as write_schema

_CONFLICTS = 3
_AT_ONCE = 16  # index files


class Publication:
    """Raises Fenced when another driver writes instead, NeedsHuman when a stranger does, Unavailable."""

    def __init__(self, sink: ObjectStore, log: Log, patience: Patience | None = None) -> None:
        self._sink = sink
        self._log = log
        self._patience = patience or Patience()

    def write_indexes(self, indexes: Iterable[tuple[str, int, str]]) -> None:
        """(directory, index, path of its last data file); every file <= it exists."""
        writes = [partial(write_index, self._sink, directory, index, path) for directory, index, path in indexes]
        # Each is a wait for the store, and the checkpoint waits for all of them.
        with ThreadPoolExecutor(_AT_ONCE, "index") as pool:
            for _ in pool.map(self._grow, writes):
                pass

    def write_schema_files(self, files: Iterable[SchemaFile]) -> None:
        """What a DDL at T has made of the tables, before anything above T is written of them (rules 9, 26)."""
        for file in files:
            self._grow(partial(self._write_schema_file, file))

    def _write_schema_file(self, file: SchemaFile) -> None:
        write_schema(self._sink, file)

    def write_checkpoint(self, checkpoint_ts: int) -> None:
        """A checkpoint that stands in the log (rule 11)."""
        self._grow(partial(write_metadata, self._sink, checkpoint_ts))

    def _grow(self, write: Callable[[], None]) -> None:
        """However long it has waited: before each further attempt the log is asked whether this is still the driver."""
        self._patience.call(self._sink.uri, partial(self._write, write), again=self._log.poll_fence)

    def _write(self, write: Callable[[], None]) -> None:
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
