"""`KafkaDriver` sends the driver's messages (DDLs, resolved-ts) to every partition of every topic of its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from changefeed.errors import NeedsHuman
from changefeed.model.tso import physical_ms
from changefeed.objectstore.patience import Patience
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Ddl, SinkDriver
from changefeed.sink.kafka.codec.message import DdlEvent, Message
from changefeed.sink.kafka.entry_writer import KafkaJob, codec_for
from changefeed.sink.kafka.options import cloud_events, progress_topic, rules_of
from changefeed.sink.kafka.to_all import Fence, ToAll
from changefeed.sink.kafka.topics import create_topic

PROGRESS_PARTITIONS = 8


class Topics:
    """Those of a changefeed: made when they are first needed, before any row goes there."""

    def __init__(self, job: KafkaJob, options: Mapping[str, Any], patience: Patience) -> None:
        self._job, self._options, self._patience = job, options, patience
        self._cluster = job.endpoint.cluster()
        self._rules = rules_of(options, job.endpoint.topic, job.case_sensitive)
        self._known: dict[str, int] = {}

    def make(self, tables: Iterable[TableInfo]) -> None:
        """The default one, those of the tables, and the progress topic where there is one."""
        if self._job.exactly_once:
            self._create(progress_topic(), PROGRESS_PARTITIONS, compacted=True)
        self.of("", "")
        for table in tables:
            self.of(table.schema_name, table.name)

    def of(self, schema: str, table: str) -> tuple[str, int]:
        """Return the topic of a table, or of a database's own statements, with its number of partitions."""
        topic = self._rules.topic(schema, table)
        if topic not in self._known:
            self._known[topic] = self._create(topic, self._options["partitionNum"])
        return topic, self._known[topic]

    @property
    def all(self) -> list[tuple[str, int]]:
        return sorted(self._known.items())

    def _create(self, topic: str, partitions: int, *, compacted: bool = False) -> int:
        replicas = self._options["replicationFactor"]
        create = partial(create_topic, self._cluster, topic, partitions, replicas, compacted=compacted)
        return self._patience.call(f"Kafka at {self._cluster.brokers}", create)


class KafkaDriver(SinkDriver):
    """Tells consumers of DDLs and of the resolved-ts; files of entries, and syncpoints, they have no use for."""

    def __init__(
        self,
        job: KafkaJob,
        options: Mapping[str, Any],
        time_zone: str,
        changefeed: str,
        tables: Iterable[tuple[TableInfo, int]],
        poll_fence: Callable[[], object],
        patience: Patience,
    ) -> None:
        """`changefeed`: its log's name. `tables`: those that there are, with their versions. Raises Fenced."""
        known = list(tables)
        self._cloud_events = cloud_events(options, changefeed)
        self._topics = Topics(job, options, patience)
        self._topics.make(table for table, _ in known)
        self._codec = codec_for(job, options, time_zone)
        fence = Fence(f"{changefeed}.driver", poll_fence) if job.exactly_once else None
        self._to_all = ToAll(job.endpoint.cluster(), patience, fence)
        self._only_first = options["protocol"] == "canal-json"
        self._resolved_ts = 0  # told
        for table, version in known:
            self._tell_definition(table, version)

    def execute(self, ddl: Ddl) -> None:
        """The statement to the topics of the tables that it concerns, or of the database."""
        assert ddl.change is not None, "of this run"
        change, (schema, name) = ddl.change, ddl.touched.name
        if ddl.ts <= self._resolved_ts:
            raise NeedsHuman(
                f"A DDL of ts {ddl.ts} comes after resolved-ts {self._resolved_ts}.",
                "Report this as a bug, with the log.",
            )
        for table in ddl.tables.values():
            self._topics.of(table.schema_name, table.name)
        if not ddl.is_told:
            return
        own = ddl.touched.own
        event = DdlEvent(
            action=change.type,
            query=ddl.query,
            schema_name=schema,
            table_name=name,
            commit_ts=ddl.ts,
            table=own,
            before=None if own is None else ddl.touched.was(own) or next(iter(ddl.touched.before), None),
            table_version=ddl.ts,
        )
        concerned = {self._topics.of(schema, name)}
        concerned |= {self._topics.of(table.schema_name, table.name) for table in ddl.before.values()}
        concerned |= {self._topics.of(table.schema_name, table.name) for table in ddl.tables.values()}
        if (message := self._codec.ddl(event, physical_ms(ddl.ts))) is not None:
            message = self._with_headers(message, "ddl", f"ddl-{ddl.ts}-{ddl.job_id}", f"{schema}.{name}")
            self._to_all.send(sorted(concerned), message, first_only=self._only_first)

    def write_checkpoint(self, ts: int) -> None:
        """As a resolved-ts, which never goes back: every row up to it is in the topics."""
        if ts <= self._resolved_ts:
            return
        if (message := self._codec.resolved(ts, physical_ms(ts))) is not None:
            self._to_all.send(self._topics.all, self._with_headers(message, "resolved", f"resolved-{ts}"))
        self._resolved_ts = ts

    def _tell_definition(self, table: TableInfo, version: int) -> None:
        """For consumers that begin here, where the protocol has such a message."""
        if (message := self._codec.bootstrap(table, version, physical_ms(version))) is not None:
            subject = f"{table.schema_name}.{table.name}"
            message = self._with_headers(message, "definition", f"definition-{table.id}-{version}", subject)
            self._to_all.send([self._topics.of(table.schema_name, table.name)], message)

    def _with_headers(self, message: Message, kind: str, id_: str, subject: str = "") -> Message:
        events = self._cloud_events
        return message if events is None else replace(message, headers=events.one(kind, id_, subject))
