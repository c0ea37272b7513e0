"""`changefeed verify` for topics of avro: what a consumer that keeps each key's last message has, against the upstream.

Their messages carry no commit ts, and no message tells of a DDL. So rows are compared as they stand when the changefeed
is at rest, and tables whose DDLs leave rows in the topic that no consumer can tell from others are not compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa

from changefeed.model.tso import MAX_TS
from changefeed.objectstore.patience import Patience
from changefeed.reading.failures import Break
from changefeed.reading.progress import ReadingProgress
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.kafka.claim import kafka_endpoint, registry_endpoint
from changefeed.sink.kafka.client import Cluster
from changefeed.sink.kafka.codec.avro.schema import EXTENSION, field_names
from changefeed.sink.kafka.options import rules_of
from changefeed.sink.kafka.registry import SchemaRegistry
from changefeed.sink.kafka.topics import Rules, partitions_of
from changefeed.sink.text.canal_types import primary_key
from changefeed.spec.model import Changefeed
from changefeed.verify.kafka.avro_rows import RegisteredSchema, shown
from changefeed.verify.kafka.last_messages import LastMessages
from changefeed.verify.kafka.topics import read_topics
from changefeed.verify.result import RowsVerdict
from changefeed.verify.tables.compared import compared
from changefeed.verify.tables.oracle import TablesOracle
from changefeed.verify.tables.replayed import ReplayedComparison


async def verify(changefeed: Changefeed, secrets_dir: Path | None, progress: ReadingProgress) -> RowsVerdict:
    """Raises NotVerifiable when there is no answer, also while the changefeed runs."""
    spec = changefeed.spec.sink.kafka
    assert spec is not None, "the sink is kafka"
    endpoint, registry = kafka_endpoint(changefeed, secrets_dir), registry_endpoint(spec, secrets_dir)
    assert registry is not None, "avro has one"
    rules = rules_of(spec.model_dump(mode="json", by_alias=True), endpoint.topic, changefeed.spec.filter.case_sensitive)
    topics = _AvroTopics(endpoint.cluster(), rules, SchemaRegistry(registry, Patience()))

    async def compare(feed: TablesOracle) -> None:
        for info in await feed.tables():
            if not primary_key(info):
                feed.result.note(f"{info.full_name} has no primary key, which is what keys are: it was not compared.")
            elif feed.has_all_changes(info) and await feed.has_one_life(info):
                await _AvroTable(info, feed, topics).compare()

    return await compared(changefeed, secrets_dir, progress, compare, start="needed", is_zoned=True)


class _Renamed(Exception):
    """A record has a field that is no column, and lacks one that is."""


class _AvroTopics:
    """What is read of Kafka and its registry, in threads."""

    def __init__(self, cluster: Cluster, rules: Rules, registry: SchemaRegistry) -> None:
        self._cluster, self._rules = cluster, rules
        self.schema = cache(lambda number: RegisteredSchema(registry.schema_of(number)))

    def read(
        self, info: TableInfo, db: duckdb.DuckDBPyConnection, result: RowsVerdict, progress: ReadingProgress
    ) -> LastMessages:
        topic = self._rules.topic(info.schema_name, info.name)
        messages = LastMessages(db, topic, result.problem)
        parts = [(topic, number) for number in range(partitions_of(self._cluster, topic))]
        read_topics(self._cluster, parts, messages.add, progress.advance)
        return messages


class _AvroTable:
    def __init__(self, info: TableInfo, feed: TablesOracle, topics: _AvroTopics) -> None:
        self._info, self._feed, self._topics = info, feed, topics
        self._columns = info.output_columns
        self._names = field_names(info)

    async def compare(self) -> None:
        info, feed = self._info, self._feed
        feed.progress.stage(f"{info.full_name}: its messages")
        messages = await asyncio.to_thread(self._topics.read, info, feed.db, feed.result, feed.progress)
        if problem := self._problem(messages):
            feed.result.note(f"{info.full_name}: {problem}. It was not compared.")
            return
        key = [at for at, column in enumerate(self._columns) if column.name in primary_key(info)]
        rows = ReplayedComparison(feed.db, info.full_name, [column.name for column in self._columns], key)
        await feed.add_upstream(info, rows)
        await feed.add_at_start(info, rows)
        messages.settle()
        try:
            await asyncio.to_thread(self._add_messages, rows, messages, [self._columns[at] for at in key])
        except _Renamed:
            feed.result.note(
                f"{info.full_name} has messages from before a column was renamed, which do not have the new name: it "
                "was not compared."
            )
            return
        except Break as undecodable:
            feed.result.problem(f"A message of {info.full_name} can't be decoded: {undecodable.message}.")
            return
        rows.settle(0, is_changelog=False, knows_start=True)
        feed.judge(info, rows)

    def _problem(self, messages: LastMessages) -> str:
        if messages.have_no_key():
            return "it has messages without a key"
        if count := messages.in_several_partitions():
            return f"messages of {count} keys stand in several partitions, where they have no order"
        return ""

    def _add_messages(self, rows: ReplayedComparison, messages: LastMessages, key: list[ColumnInfo]) -> None:
        for values, is_whole in self._values(messages.rows(), self._columns):
            rows.add_stored(0, values, None, None, None if is_whole or self._feed.knows_defaults else MAX_TS)
        for values, _ in self._values(messages.gone(), key):
            rows.add_gone(1, values)

    def _values(
        self, pieces: Iterator[tuple[int, pa.Array]], columns: list[ColumnInfo] | tuple[ColumnInfo, ...]
    ) -> Iterator[tuple[list[pa.BinaryArray], bool]]:
        """Yield columns, and whether the messages have all of them."""
        names = {self._names[column.name] for column in columns}
        for number, records in pieces:
            schema = self._topics.schema(number)
            if names - {*schema.fields} and {*schema.fields} - names - EXTENSION:
                raise _Renamed
            found = schema.read(records)
            yield (
                [
                    shown(self._info, column, found.get(self._names[column.name]), len(records), self._feed.time_zone)
                    for column in columns
                ],
                names <= {*schema.fields},
            )
