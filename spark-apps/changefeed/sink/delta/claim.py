"""Tables of Delta Lake: each says in its log whose it is, and how far it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from changefeed.errors import InvalidSpec
from changefeed.log.state import State
from changefeed.objectstore import Location
from changefeed.objectstore.open import canonical, open_store, probe_store
from changefeed.objectstore.patience import Patience
from changefeed.schema.table_info import TableInfo
from changefeed.sink.claim import SinkClaim, Taken, Versions, identity_downstream
from changefeed.sink.delta.driver import DeltaDriver
from changefeed.sink.delta.endpoint import DeltaEndpoint
from changefeed.sink.delta.event_sink import DeltaJob
from changefeed.sink.delta.files import FINGERPRINT
from changefeed.sink.delta.layout import ROOT, DeltaFiles
from changefeed.sink.delta.shape import table_schema
from changefeed.sink.delta.tables import DeltaTables, DeltaWriter
from changefeed.sink.table_format.relied import relied_on
from changefeed.spec.field.location import in_bucket
from changefeed.spec.field.secret import secret_folder
from changefeed.spec.model import Changefeed

_FIRST_EPOCH = 1


def delta_endpoint(changefeed: Changefeed, secrets_dir: Path | None = None) -> DeltaEndpoint:
    """Raises InvalidSpec without the folder of the Secrets that it needs."""
    spec = changefeed.spec.sink.delta
    assert spec is not None, "the sink is delta"
    # Without files, the environment's own credentials are used, as for any store.
    secret = spec.credentials and secrets_dir and in_bucket(spec.uri)
    folder = secret_folder("spec.sink.delta.credentials", spec.credentials, secrets_dir) if secret else None
    return DeltaEndpoint(Location(canonical(spec.uri, ROOT), folder))


class DeltaClaim(SinkClaim):
    """Holds no table: each says whose it is."""

    in_order = False
    may_leave_out = True
    fingerprint = FINGERPRINT

    def __init__(self, changefeed: Changefeed, secrets_dir: Path | None = None) -> None:
        spec = changefeed.spec.sink.delta
        assert spec is not None, "the sink is delta"
        self.uri = spec.uri
        self.file_size = spec.file_size
        self._upsert = spec.mode == "upsert"
        self.outputs = DeltaFiles("", self._upsert)
        self._endpoint = delta_endpoint(changefeed, secrets_dir)
        self._store = open_store(self._endpoint.root.uri, ROOT, self._endpoint.root.secret)
        self._tables: dict[int, tuple[TableInfo, int]] = {}

    def open(self) -> None:
        probe_store(self._store)

    def check_rewind(self, state: State, state_uri: str) -> None:
        raise InvalidSpec(
            "spec.restart",
            "tables can't be written again from an earlier ts: readers may have read later versions",
            "Create a new changefeed with startTs, and a folder of its own.",
        )

    def settle_in(self, taken: Taken, tables: Versions) -> None:
        self.outputs = DeltaFiles(taken.state.origin, self._upsert)
        self._tables = {dispatcher: (table, version) for dispatcher, table, version, _ in tables}
        for table, _ in self._tables.values():
            table_schema(table, upsert=self._upsert)

    def job(self) -> DeltaJob:
        return DeltaJob(self._endpoint.root)

    def driver(self, taken: Taken, poll_fence: Callable[[], object], patience: Patience) -> DeltaDriver:
        epoch = taken.state.epoch.number
        writer = DeltaWriter(identity_downstream(taken.state), epoch, poll_fence)
        tables = DeltaTables(self._endpoint, writer, patience, relied_on(taken.state, self._tables))
        sink = DeltaDriver(tables, self._store, self._upsert, self._tables)
        if epoch == _FIRST_EPOCH:
            sink.create()
        sink.redefine(
            {each: known for each, known in self._tables.items() if taken.state.is_redefined(each, known[0].hash)}
        )
        return sink
