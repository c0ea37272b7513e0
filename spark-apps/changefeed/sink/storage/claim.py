"""Files in an object store: a claim records the owner (rule 7), and each generation has its own folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from changefeed.errors import Unavailable
from changefeed.log.state import State
from changefeed.objectstore.open import Store, open_store, probe_store
from changefeed.objectstore.patience import Patience
from changefeed.sink.claim import SinkClaim, Taken, Versions
from changefeed.sink.contract import SinkDriver
from changefeed.sink.storage.claim_object import check_free, claim
from changefeed.sink.storage.codec.choice import file_codec
from changefeed.sink.storage.driver import StorageDriver
from changefeed.sink.storage.event_sink import StorageJob
from changefeed.sink.storage.expiration import is_expired
from changefeed.sink.storage.layout import Layout
from changefeed.sink.storage.location import SINK_FIELD, generation_folder, sink_location
from changefeed.sink.storage.metadata import published
from changefeed.sink.storage.schema_file import write_schema_file
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective


class StorageClaim(SinkClaim):
    """Holds the sink by an object beside `metadata`."""

    in_order = False
    outputs: Layout

    def __init__(self, changefeed: Changefeed, secrets_dir: Path | None = None) -> None:
        location = sink_location(changefeed, secrets_dir)
        self._options = effective(changefeed)["spec"]["sink"]["storage"]
        self.store = open_store(location.uri, SINK_FIELD, location.secret)
        self.folder = self.store  # of the generation that is written
        self.uri = self.folder.uri
        self.outputs = Layout.of(self._options)
        self.fingerprint = file_codec(self._options).fingerprint
        self.file_size = changefeed.storage.file_size

    def open(self) -> None:
        self.store.hold()
        probe_store(self.store)

    def check_free(self, state: State, identity: str, state_uri: str) -> None:
        check_free(self.store, state.uid or identity, state_uri)

    def check_rewind(self, state: State, state_uri: str) -> None:
        folder = generation_folder(self.store, state.generation + 1)
        probe_store(folder)
        check_free(folder, state.uid, state_uri)

    def check_newest(self, taken: Taken) -> None:
        check_newest(taken.state, taken.state_uri, generation_folder(self.store, taken.state.generation))

    def settle_in(self, taken: Taken, tables: Versions) -> None:
        state = taken.state
        self.folder = generation_folder(self.store, state.generation)
        self.uri = self.folder.uri
        self.folder.clean_leftovers()
        claim(self.folder, state.uid, taken.state_uri, generation=state.generation)
        for dispatcher, table, version, is_new in tables:
            if is_new:
                table_id = dispatcher if self.outputs.by_id else None
                write_schema_file(self.folder, table, version, table_id=table_id)

    def job(self) -> StorageJob:
        return StorageJob(self.folder.location)

    def driver(self, taken: Taken, poll_fence: Callable[[], object], patience: Patience) -> SinkDriver:
        return StorageDriver(self.folder, poll_fence, patience, by_id=self.outputs.by_id)

    def expired(self, before: str) -> Iterator[Callable[[], None]]:
        return (partial(self.folder.delete, path) for path, _ in self.folder.list() if is_expired(path, before))

    def release(self) -> None:
        self.store.release()


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
