"""The write side of a task that executes part of a plan: spooled files to objects."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from changefeed.model.record import FileCommitted
from changefeed.objectstore import Place
from changefeed.objectstore.open import open_store
from changefeed.sink.storage.publish import publish as publish_file
from changefeed.sink.storage.publish import whole_files


def publish(descriptors: Iterable[pa.RecordBatch], sink: Place) -> tuple[int, list[FileCommitted]]:
    """Put the files that `describe` spooled; (plan record, files). (0, []) for a task without work."""
    store = open_store(sink.uri, "spec.sink.storage.uri", sink.secret)
    record = 0
    files = []
    for pieces in whole_files(descriptors):
        record = pieces[-1]["record"]
        files.append(publish_file(store, pieces))
    return record, files
