"""The task's side of Delta Lake: writes files below the root folder. Only the driver adds them to a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.objectstore import Location
from changefeed.objectstore.open import open_store
from changefeed.sink.contract import Surroundings
from changefeed.sink.delta.files import encode_files
from changefeed.sink.delta.layout import ROOT
from changefeed.sink.file_sink import FileSink
from changefeed.sink.records import Mounting


@dataclass(frozen=True)
class DeltaJob:
    """Implements SinkJob."""

    root: Location

    def mounting(self, options: Mapping[str, Any], time_zone: str) -> Mounting:
        return Mounting("UTC", with_old=options["mode"] == "upsert")

    def open(self, around: Surroundings) -> FileSink:
        return FileSink(open_store(self.root.uri, ROOT, self.root.secret), around, encode_files)
