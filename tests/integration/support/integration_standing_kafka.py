"""A standing changefeed (integration_standing) that writes to Kafka, exactly once."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from changefeed.log.state import State
from changefeed.spec.parse import parse
from changefeed.verify.kafka.report import verify
from confluent_kafka.admin import AdminClient
from integration_kafka_broker import Broker, consumed
from integration_points_databases import progress_topic_of
from integration_standing import Broken, Key, World, check_changes

_PARTITIONS = 2
_DELETED_S = 30.0


@dataclass
class Read:
    """A topic, as who reads only what is committed meets it partition by partition."""

    changes: dict[Key, list[tuple[int, bytes]]] = field(default_factory=lambda: defaultdict(list))  # by commit ts
    ddls: dict[int, bytes] = field(default_factory=dict)  # a DDL may come twice, with the same ts
    resolved: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by partition

    def take(self, partition: int, value: bytes) -> None:
        """The next message. Raises Broken when it must not stand there."""
        said = json.loads(value)
        resolved_ts = max(self.resolved[partition], default=0)
        if said["type"] == "TIDB_WATERMARK":
            ts = said["_tidb"]["watermarkTs"]
            if ts < resolved_ts:
                raise Broken(f"resolved-ts {ts} stands behind {resolved_ts} in partition {partition}")
            self.resolved[partition].append(ts)
            return
        ts = said["_tidb"]["commitTs"]
        if said["isDdl"]:
            if self.ddls.setdefault(ts, value) != value:
                raise Broken(f"the DDL of {ts} is told twice, in other words")
            return
        if ts <= resolved_ts:
            raise Broken(f"a row of {said['table']}, commit ts {ts}, stands behind resolved-ts {resolved_ts}")
        changes = self.changes[said["table"], int(said["data"][0]["id"])]
        if changes and ts <= changes[-1][0]:
            raise Broken(f"a row of {said['table']}, commit ts {ts}, stands behind one of {changes[-1][0]}")
        changes.append((ts, value))

    @property
    def order(self) -> dict[Key, list[int]]:
        """The commit ts of each row's changes."""
        return {key: [ts for ts, _ in changes] for key, changes in self.changes.items()}


@dataclass
class KafkaWorld(World):
    """Each time it is cleared it gets other topics."""

    broker: Broker
    name: str  # no other world has it
    turn: int = 0

    inside_a_plan = ("commit an entry: acknowledged", 2)

    @property
    def topic(self) -> str:
        return f"{self.name}.{self.turn}"

    def spec(self) -> dict[str, Any]:
        kafka = {
            "uri": f"kafka://{self.broker.cluster.brokers}/{self.topic}",
            "protocol": "canal-json",
            "canalJson": {"enableTidbExtension": True},
            "delivery": "exactly-once",
            "partitionNum": _PARTITIONS,
            "dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}],
        }
        return {"sink": {"kafka": kafka}}

    def clear(self) -> None:
        super().clear()
        admin = AdminClient(self.broker.cluster.client_config())
        there = admin.list_topics(timeout=_DELETED_S).topics
        if old := [topic for topic in (self.topic, progress_topic_of(self.topic)) if topic in there]:
            for deleted in admin.delete_topics(old).values():
                deleted.result(_DELETED_S)
        self.turn += 1

    def sink(self) -> dict[str, bytes]:
        """What is told of each row, and of each DDL."""
        read = self._read()
        rows = {f"{name} {pk}": b"\n".join(value for _, value in told) for (name, pk), told in read.changes.items()}
        return rows | {f"DDL {ts}": value for ts, value in read.ddls.items()}

    def downstream(self) -> Mapping[str, Any]:
        topics = (self.topic, progress_topic_of(self.topic))
        return {topic: sorted(consumed(self.broker.cluster, topic), key=lambda message: message[0]) for topic in topics}

    def written(self, state: State) -> str:
        read = self._read()
        told = len({ts for partition in read.resolved.values() for ts in partition})
        return f"{sum(map(len, read.changes.values()))} changes, {len(read.ddls)} DDLs and {told} resolved-ts are told"

    def look(self) -> None:
        read = self._read()
        highest = max((ts for partition in read.resolved.values() for ts in partition), default=0)
        if highest > (reached := self.log().checkpoint_ts):
            raise Broken(f"resolved-ts {highest} is told, but the log is at {reached}")
        check_changes(read.order, self._made(), whole=False)

    def check(self) -> None:
        verdict = asyncio.run(verify(parse(json.dumps(self.resource()))))
        if not verdict.ok:
            raise Broken(f"verify: {verdict.first_problem}")
        read = self._read()
        check_changes(read.order, self._made(), whole=True)
        for partition in range(_PARTITIONS):
            if max(read.resolved[partition], default=0) != self.history.target_ts:
                raise Broken(f"the end is not told in partition {partition}")

    def _made(self) -> dict[Key, list[int]]:
        return {key: [change.commit_ts for change in made] for key, made in self.history.changes.items()}

    def _read(self) -> Read:
        read = Read()
        for partition, _, value in consumed(self.broker.cluster, self.topic):
            read.take(partition, value)
        return read
