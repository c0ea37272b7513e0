"""The write side of a task that executes part of a plan: spooled files to objects."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pyarrow as pa

from changefeed.model.record import FileCommitted
from changefeed.objectstore import Place
from changefeed.objectstore.open import open_store
from changefeed.objectstore.patience import Patience
from changefeed.pipeline.stages import STAGES
from changefeed.sink.storage.publish import publish as publish_file
from changefeed.sink.storage.publish import whole_files

PUT = "put"


def publish(
    descriptors: Iterable[pa.RecordBatch], sink: Place, patience: Patience | None = None
) -> tuple[int, list[FileCommitted], dict[str, float]]:
    """Put the files that `describe` spooled; (plan record, files, seconds of CPU by stage). 0 for a task without work.

    The stages are those of pipeline.stages, and PUT.
    """
    store = open_store(sink.uri, "spec.sink.storage.uri", sink.secret)
    record = 0
    files = []
    cpu: dict[str, float] = dict.fromkeys((*STAGES, PUT), 0.0)
    for pieces in whole_files(descriptors):
        record = pieces[-1]["record"]
        for stage, seconds in zip(STAGES, pieces[-1]["cpu"], strict=True):
            cpu[stage] += seconds
        began = time.process_time()
        files.append(publish_file(store, pieces, patience))
        cpu[PUT] += time.process_time() - began
    return record, files, cpu
