"""`spark.readStream.format("changefeed")`: Spark discovers data sources in modules whose names start with `pyspark_`.

Kept thin because every Spark session imports it; `changefeed.source` is imported once a query uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa
    from changefeed.source.loop import EventLoop
    from changefeed.source.options import SourceOptions
    from changefeed.source.read_schema import ReadSchema
    from changefeed.source.stream import TableStream


class ChangefeedSource(DataSource):
    """The data source `changefeed` (docs/spark-source.md)."""

    def __init__(self, options: Any) -> None:
        from changefeed.source.options import SourceOptions

        super().__init__(options)
        self._options = SourceOptions.parse(options)
        self._read: ReadSchema | None = None  # None: the user passed a schema

    @classmethod
    def name(cls) -> str:
        return "changefeed"

    def schema(self) -> StructType:
        """All columns of the table now, or at endingVersion, plus the metadata columns."""
        import asyncio

        from changefeed.source.followed_table import read_schema_now
        from pyspark.sql.pandas.types import from_arrow_schema

        self._read = asyncio.run(read_schema_now(self._options))
        return from_arrow_schema(self._read.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ChangefeedReader(self._options, self._wanted(schema), _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ChangefeedStreamReader(self._options, self._wanted(schema), _columns(schema))

    def _wanted(self, schema: StructType) -> ReadSchema | pa.Schema:
        return self._read or _columns(schema)


#: The name by which Spark discovers the source.
DefaultSource = ChangefeedSource


class ChangefeedReader(DataSourceReader):
    def __init__(self, options: SourceOptions, wanted: ReadSchema | pa.Schema, columns: pa.Schema) -> None:
        self._options = options
        self._wanted = wanted
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        import asyncio

        from changefeed.source.bounded import plan

        return [InputPartition(part) for part in asyncio.run(plan(self._options, self._wanted))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from partition.value.read(self._columns)


class ChangefeedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Opens nothing until Spark asks for an offset: tasks get a pickled copy and only call `read`."""

    def __init__(self, options: SourceOptions, wanted: ReadSchema | pa.Schema, columns: pa.Schema) -> None:
        self._options = options
        self._wanted = wanted
        self._columns = columns
        self._open: tuple[EventLoop, TableStream] | None = None

    def initialOffset(self) -> dict[str, Any]:
        loop, stream = self._opened()
        return loop.run(stream.initial()).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from changefeed.source.offset import Offset

        loop, stream = self._opened()
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return loop.run(stream.latest(Offset.from_json(start), rows, size)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Unlimited: the options bound each batch anyway."""
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        loop, stream = self._opened()
        reached = loop.run(stream.reached())
        return None if reached is None else reached.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        loop, stream = self._opened()
        loop.run(stream.set_target())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from changefeed.source.offset import Offset

        loop, stream = self._opened()
        stored = loop.run(stream.partitions(Offset.from_json(start), Offset.from_json(end)))
        return [InputPartition(each) for each in stored]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from partition.value.read(self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        from changefeed.source.offset import Offset

        loop, stream = self._opened()
        loop.run(stream.commit(Offset.from_json(end)))

    def stop(self) -> None:
        if self._open is not None:
            loop, stream = self._open
            loop.run(stream.close())
            loop.close()
            self._open = None

    def _opened(self) -> tuple[EventLoop, TableStream]:
        from changefeed.source.loop import EventLoop
        from changefeed.source.stream import TableStream

        if self._open is None:
            self._open = EventLoop(), TableStream(self._options, self._wanted)
        return self._open


def _columns(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
