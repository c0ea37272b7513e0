"""Iceberg's side of a task: files in the warehouse. That they are a table's, only the driver says."""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.objectstore import Place
from changefeed.objectstore.open import open_store
from changefeed.sink.contract import Surroundings
from changefeed.sink.iceberg.files import encode_files
from changefeed.sink.iceberg.layout import WAREHOUSE
from changefeed.sink.storage.event_sink import StorageSink


@dataclass(frozen=True)
class IcebergJob:
    """Implements SinkJob."""

    warehouse: Place

    def open(self, around: Surroundings) -> StorageSink:
        return StorageSink(open_store(self.warehouse.uri, WAREHOUSE, self.warehouse.secret), around, encode_files)
