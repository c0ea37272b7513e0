"""The task's side of Iceberg: writes files into the warehouse. Only the driver adds them to a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.objectstore import Location
from changefeed.objectstore.open import open_store
from changefeed.sink.contract import Surroundings
from changefeed.sink.file_sink import FileSink
from changefeed.sink.iceberg.files import encode_files
from changefeed.sink.iceberg.layout import WAREHOUSE
from changefeed.sink.records import Mounting


@dataclass(frozen=True)
class IcebergJob:
    """Implements SinkJob."""

    warehouse: Location

    def mounting(self, options: Mapping[str, Any], time_zone: str) -> Mounting:
        return Mounting("UTC", with_old=options["mode"] == "upsert")

    def open(self, around: Surroundings) -> FileSink:
        return FileSink(open_store(self.warehouse.uri, WAREHOUSE, self.warehouse.secret), around, encode_files)
