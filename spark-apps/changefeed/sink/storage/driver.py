"""What only the driver writes to an object store: index files, schema files and `metadata` (rule 8).

It must never write anything that is not in the log, nor continue once the log says that another driver has taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

from changefeed.errors import Conflict, NeedsHuman, OutcomeUnknown
from changefeed.log.records import CommitRecord, PlanEntry
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Ddl, SinkDriver
from changefeed.sink.storage.grow import LastWritten, grow
from changefeed.sink.storage.layout import index_file, index_of
from changefeed.sink.storage.metadata import write_metadata
from changefeed.sink.storage.schema_file import files_of
from changefeed.sink.storage.schema_file import write as write_schema

_CONFLICTS = 3
_AT_ONCE = 16  # index files


class StorageDriver(SinkDriver):
    """Publishes files by indexes, and the checkpoint in `metadata`.

    Raises Fenced when another driver writes instead, NeedsHuman when a stranger does, Unavailable.
    `poll_fence`: asks the log who drives. `by_id`: folders are named by ids.
    """

    def __init__(
        self,
        sink: ObjectStore,
        poll_fence: Callable[[], object],
        patience: Patience | None = None,
        *,
        by_id: bool = False,
    ) -> None:
        self._sink = sink
        self._poll_fence = poll_fence
        self._patience = patience or Patience()
        self._by_id = by_id
        self._pool = ThreadPoolExecutor(_AT_ONCE, "index")
        self._last = LastWritten()

    def close(self) -> None:
        """Nothing is written any more."""
        self._pool.shutdown()

    def publish(self, entries: Sequence[PlanEntry], record: CommitRecord) -> None:
        """Index files: every file up to these exists."""
        # Each is a wait for the store, and the checkpoint waits for all of them: also when one of them fails.
        begun = [self._pool.submit(self._grow, write) for write in self._index_files(entries)]
        wait(begun)
        for each in begun:
            each.result()

    def execute(self, ddl: Ddl) -> None:
        """Schema files: what a DDL at T has made of the tables, before anything above T is written of them (rules 9,
        26).
        """
        for file in files_of(ddl, self._by_id):
            write_schema(self._sink, file, self._patience, self._poll_fence)

    def write_checkpoint(self, ts: int) -> None:
        self._grow(partial(write_metadata, self._sink, ts, self._last))

    def _index_files(self, entries: Sequence[PlanEntry]) -> list[Callable[[], bool]]:
        return [partial(write_index, self._sink, *end, self._last) for end in ends(entries)]

    def _grow(self, write: Callable[[], bool]) -> None:
        """However long it has waited: before each further attempt the log is asked whether this is still the driver."""
        unsure = False

        def attempt() -> bool:
            """Whether it stands there by an attempt whose outcome was unknown."""
            nonlocal unsure
            try:
                return self._write(write) and unsure
            except OutcomeUnknown:
                unsure = True
                raise

        if self._patience.call(self._sink.uri, attempt, again=self._poll_fence):
            self._patience.found_late()

    def _write(self, write: Callable[[], bool]) -> bool:
        conflicts = 0
        while True:
            try:
                return write()
            except Conflict as error:
                conflicts += 1
                self._poll_fence()  # somebody else wrote: the log says who
                if conflicts == _CONFLICTS:
                    raise NeedsHuman(
                        f"SinkOwned: {error.message}",
                        "No driver of this changefeed did: find the program that writes there and stop it, then start "
                        "again.",
                    ) from error


def ends(entries: Iterable[PlanEntry]) -> list[tuple[str, int, str]]:
    """(directory, index, path) of the last entry in each directory: what its index file says (docs/sink-files.md)."""
    last = {entry.output["directory"]: entry.output for entry in entries}
    return [(directory, output["index"], output["path"]) for directory, output in last.items()]


def write_index(store: ObjectStore, directory: str, index: int, path: str, last: LastWritten | None = None) -> bool:
    """Say that data file `path` of `directory`, which has `index`, and all before it exist. See `grow` for errors."""
    name = path.rpartition("/")[2]
    if index_of(name) != index or path != f"{directory}/{name}":
        raise ValueError(f"{path!r} is not data file {index} of {directory!r}")
    return grow(store, index_file(directory), index, f"{name}\n".encode(), _read, last)


def _read(body: bytes) -> int | None:
    return index_of(body.decode(errors="replace").rstrip("\n"))
