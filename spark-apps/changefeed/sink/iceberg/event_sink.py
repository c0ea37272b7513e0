"""The task's side of Iceberg: writes files into the warehouse. Only the driver adds them to a table."""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.objectstore import Location
from changefeed.objectstore.open import open_store
from changefeed.sink.contract import Surroundings
from changefeed.sink.iceberg.files import encode_files
from changefeed.sink.iceberg.layout import WAREHOUSE
from changefeed.sink.storage.event_sink import StorageSink


@dataclass(frozen=True)
class IcebergJob:
    """Implements SinkJob."""

    warehouse: Location

    def open(self, around: Surroundings) -> StorageSink:
        return StorageSink(open_store(self.warehouse.uri, WAREHOUSE, self.warehouse.secret), around, encode_files)
