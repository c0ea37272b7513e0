"""The streaming sink: the write side of the task that spooled the files puts them and reports what it has put."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from changefeed.model.record import FileCommitted
from changefeed.objectstore import Place
from changefeed.objectstore.patience import Patience
from changefeed.spark.at_work import at_work
from changefeed.spark.owner_client import OwnerClient, reporting
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import OwnerAddress

NAME = "changefeed-sink"


@dataclass
class FilesWritten(WriterCommitMessage):
    """What one task has put, keyed by plan record: Spark's batch ids mean nothing (rule 20)."""

    record: int
    nonce: str
    files: tuple[FileCommitted, ...]
    cpu: dict[str, float]  # seconds by stage


class FileWriter(DataSourceStreamArrowWriter):
    """`write` runs in the task, `commit` in a worker on the driver, each on a fresh or unpickled object."""

    def __init__(self, owner: OwnerAddress, sink: Place) -> None:
        self._owner = owner
        self._sink = sink

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from changefeed.spark.write_task import publish

        with reporting(self._owner), at_work(self._owner) as share:
            patience = Patience(math.inf, failed=share.waits)
            record, files, cpu = publish(share.taking(iterator), self._sink, patience)
        return FilesWritten(record, self._owner.nonce, tuple(files), cpu)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with OwnerClient(self._owner) as client:
            for message in messages:
                if isinstance(message, FilesWritten) and message.files:
                    client.commit(_done(message))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: whatever was put is what its plan says, and stays (rule 16)."""


def _done(message: FilesWritten) -> pb.Done:
    return pb.Done(
        record=message.record,
        nonce=message.nonce,
        files=[
            pb.FileDone(
                entry=file.entry,
                rows=file.rows,
                bytes=file.bytes,
                hash=file.hash,
                raw_rows=file.raw_rows,
                filtered_rows=file.filtered_rows,
            )
            for file in message.files
        ],
        metrics=[
            pb.MetricDelta(name="changefeed_pipeline_cpu_seconds_total", label=stage, value=seconds)
            for stage, seconds in message.cpu.items()
        ],
    )


def sink_for(owner: OwnerAddress, sink: Place) -> type[DataSource]:
    """A sink class that carries `owner` in its closure; see source_for."""

    class ChangefeedSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
            return FileWriter(owner, sink)

    return ChangefeedSink
