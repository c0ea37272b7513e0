"""Apache Iceberg tables: each says in its properties whose it is, and how far it is written."""

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
from changefeed.sink.iceberg.driver import IcebergDriver
from changefeed.sink.iceberg.endpoint import CATALOG, IcebergEndpoint
from changefeed.sink.iceberg.event_sink import IcebergJob
from changefeed.sink.iceberg.files import FINGERPRINT
from changefeed.sink.iceberg.layout import WAREHOUSE, FileNames
from changefeed.sink.iceberg.shape import table_schema
from changefeed.sink.iceberg.tables import LakeTables, TableWriter
from changefeed.sink.table_format.relied import relied_on
from changefeed.spec.field.location import in_bucket
from changefeed.spec.field.secret import secret_folder
from changefeed.spec.model import Changefeed

_FIRST_EPOCH = 1


def iceberg_endpoint(changefeed: Changefeed, secrets_dir: Path | None = None) -> IcebergEndpoint:
    """Raises InvalidSpec without the folder of the Secrets that it needs."""
    spec = changefeed.spec.sink.iceberg
    assert spec is not None, "the sink is iceberg"
    # Without files, the environment's own credentials are used, as for any store.
    secret = spec.credentials and secrets_dir and in_bucket(spec.warehouse)
    folder = secret_folder(f"{WAREHOUSE}.credentials", spec.credentials, secrets_dir) if secret else None
    catalog = spec.catalog
    return IcebergEndpoint(
        Location(canonical(spec.warehouse, WAREHOUSE), folder),
        catalog.uri,
        catalog.name,
        secret_folder(f"{CATALOG}.credentials", catalog.credentials, secrets_dir),
        spec.namespace_prefix,
        secret_folder(f"{CATALOG}.tls", catalog.tls, secrets_dir),
    )


class IcebergClaim(SinkClaim):
    """Holds no table: each says whose it is."""

    in_order = False
    may_leave_out = True
    fingerprint = FINGERPRINT

    def __init__(self, changefeed: Changefeed, secrets_dir: Path | None = None) -> None:
        spec = changefeed.spec.sink.iceberg
        assert spec is not None, "the sink is iceberg"
        self.uri = spec.warehouse
        self.file_size = spec.file_size
        self.outputs = FileNames("")
        self._upsert = spec.mode == "upsert"
        self._endpoint = iceberg_endpoint(changefeed, secrets_dir)
        self._tables: dict[int, tuple[TableInfo, int]] = {}

    def open(self) -> None:
        endpoint = self._endpoint
        probe_store(open_store(endpoint.warehouse.uri, WAREHOUSE, endpoint.warehouse.secret))
        Patience().call(endpoint.catalog_uri, lambda: endpoint.open().close())

    def check_rewind(self, state: State, state_uri: str) -> None:
        raise InvalidSpec(
            "spec.restart",
            "tables can't be written again from an earlier ts: readers may have read later snapshots",
            "Create a new changefeed with startTs, and a namespacePrefix of its own.",
        )

    def settle_in(self, taken: Taken, tables: Versions) -> None:
        self.outputs = FileNames(taken.state.origin)
        self._tables = {dispatcher: (table, version) for dispatcher, table, version, _ in tables}
        for table, _ in self._tables.values():
            table_schema(table, upsert=self._upsert)

    def job(self) -> IcebergJob:
        return IcebergJob(self._endpoint.warehouse)

    def driver(self, taken: Taken, poll_fence: Callable[[], object], patience: Patience) -> IcebergDriver:
        endpoint, epoch = self._endpoint, taken.state.epoch.number
        catalog = patience.call(endpoint.catalog_uri, endpoint.open)
        writer = TableWriter(identity_downstream(taken.state), epoch, poll_fence)
        tables = LakeTables(catalog, endpoint.catalog_uri, writer, patience, relied_on(taken.state, self._tables))
        sink = IcebergDriver(endpoint, tables, self._upsert, self._tables)
        if epoch == _FIRST_EPOCH:
            sink.create()
        sink.redefine(
            {each: known for each, known in self._tables.items() if taken.state.is_redefined(each, known[0].hash)}
        )
        return sink
