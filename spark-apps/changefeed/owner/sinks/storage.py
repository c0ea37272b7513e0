"""Files in an object store: a claim records the owner (rule 7), and each generation has its own folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from changefeed.errors import Unavailable
from changefeed.log.state import State
from changefeed.objectstore.open import Store, open_store, probe_store
from changefeed.objectstore.patience import Patience
from changefeed.owner import places
from changefeed.owner.sinks.driven import Taken, Versions
from changefeed.sink.contract import DdlSink
from changefeed.sink.storage.claim import check_free, claim
from changefeed.sink.storage.codec.choice import codec_of
from changefeed.sink.storage.ddl_sink import StorageDdlSink
from changefeed.sink.storage.event_sink import StorageJob
from changefeed.sink.storage.expiration import is_expired
from changefeed.sink.storage.layout import Layout
from changefeed.sink.storage.metadata import published
from changefeed.sink.storage.schema_file import write_schema_file
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective


class DrivenStorage:
    """Implements DrivenSink."""

    in_order = False
    may_leave_out = False

    def __init__(self, changefeed: Changefeed, secrets_dir: Path | None = None) -> None:
        place = places.sink_location(changefeed, secrets_dir)
        self._options = effective(changefeed)["spec"]["sink"]["storage"]
        self.store = open_store(place.uri, places.SINK_FIELD, place.secret)
        self.folder = self.store  # of the generation that is written
        self.outputs = Layout.of(self._options)
        self.fingerprint = codec_of(self._options).fingerprint
        self.file_size = changefeed.storage.file_size

    @property
    def uri(self) -> str:
        return self.folder.uri

    def open(self) -> None:
        self.store.hold()
        probe_store(self.store)

    def check_free(self, state: State, identity: str, state_uri: str) -> None:
        check_free(self.store, state.uid or identity, state_uri)

    def check_rewind(self, state: State, state_uri: str) -> None:
        folder = folder_of(self.store, state.generation + 1)
        probe_store(folder)
        check_free(folder, state.uid, state_uri)

    def check_newest(self, taken: Taken) -> None:
        check_newest(taken.state, taken.state_uri, folder_of(self.store, taken.state.generation))

    def settle_in(self, taken: Taken, tables: Versions) -> None:
        state = taken.state
        self.folder = folder_of(self.store, state.generation)
        self.folder.clean_leftovers()
        claim(self.folder, state.uid, taken.state_uri, generation=state.generation)
        for dispatcher, table, version, is_new in tables:
            if is_new:
                table_id = dispatcher if self.outputs.by_id else None
                write_schema_file(self.folder, table, version, table_id=table_id)

    def job(self) -> StorageJob:
        return StorageJob(self.folder.place)

    def ddl_sink(self, taken: Taken, poll_fence: Callable[[], object], patience: Patience) -> DdlSink:
        return StorageDdlSink(self.folder, poll_fence, patience, by_id=self.outputs.by_id)

    def expired(self, before: str) -> Iterator[Callable[[], None]]:
        return (partial(self.folder.delete, path) for path, _ in self.folder.list() if is_expired(path, before))

    def release(self) -> None:
        self.store.release()


def folder_of(sink: Store, generation: int) -> Store:
    """The lock of the sink, which is held, is that of all its generations."""
    if generation == 1:
        return sink
    place = places.generation_location(sink.place, generation)
    return open_store(place.uri, places.SINK_FIELD, place.secret)


def check_newest(state: State, state_uri: str, sink: Store) -> None:
    """What is published is in the log (rule 11). So where more is published this is not all of the log: a listing of
    the store is stale and hides the newest snapshot, or somebody put an older log there. Only of a claimed log: of
    another driver that still ran, more could be published since it was read.
    """
    if (ts := published(sink)) > state.checkpoint_ts:
        raise Unavailable(
            f"The log at {state_uri} says that everything up to {state.checkpoint_ts} is written, but {sink.uri} says "
            f"{ts}.",
            "The state's store may be serving a stale listing: start again later. If its files were deleted or "
            "restored, create a new changefeed with another sink.",
        )
