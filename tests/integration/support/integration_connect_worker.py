"""Kafka Connect's own standalone worker, with Debezium's JDBC sink connector behind ExtractNewRecordState."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from conftest import free_port, wait_for
from integration_connect_reader import CONNECT
from integration_java import jars, java_tool, leaves_in
from integration_kafka_broker import Broker, messages_of
from integration_mariadb import MariaDb

DEBEZIUM = "3.4.0.Final"
PASSWORD = "verysecret"
_NAME = "jdbc"
_GROUP = f"connect-{_NAME}"
_ROWS = ("c", "u", "d")
_READ_S, _STOP_S = 120.0, 30.0
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC")
#: What docs/databases.md says a connector has to be told.
TOLD = {
    "insert.mode": "upsert",
    "delete.enabled": "true",
    "primary.key.mode": "record_key",
    "schema.evolution": "basic",
    "quote.identifiers": "true",
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "consumer.override.isolation.level": "read_committed",
}


@dataclass
class Worker:
    """A worker with one connector, of one topic."""

    folder: Path
    broker: Broker
    topic: str
    options: Mapping[str, str]
    libraries: Path
    _port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        self._port = free_port()
        of_worker = {
            "bootstrap.servers": self.broker.cluster.brokers,
            "listeners": f"http://127.0.0.1:{self._port}",
            "plugin.discovery": "service_load",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "true",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "true",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "offset.flush.interval.ms": "500",
        }
        of_connector = {
            "name": _NAME,
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "topics": self.topic,
            **self.options,
        }
        files = [self.folder / "worker.properties", self.folder / "connector.properties"]
        for file, options in zip(files, (of_worker, of_connector), strict=True):
            file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
        command = [java_tool("java"), leaves_in(self.folder), *_JAVA, "-cp", f"{self.libraries}/*"]
        command += ["org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(_STOP_S)

    def wait_until_read(self) -> None:
        """Its group has committed all rows that are in the topic now; fails when a task has failed.

        What the transform drops behind the last row is not counted: the connector commits what it has written.
        """
        offsets: dict[int, int] = {}
        for message in messages_of(self.broker.cluster, self.topic):
            if json.loads(message.value())["payload"].get("op") in _ROWS:
                offsets[message.partition()] = message.offset() + 1
        admin = AdminClient(self.broker.cluster.client_config())
        group = [ConsumerGroupTopicPartitions(_GROUP, [TopicPartition(self.topic, each) for each in offsets])]

        def has_read() -> bool:
            if (why := self._failure()) is not None:
                pytest.fail(f"the connector's task has failed: {why}")
            (answer,) = admin.list_consumer_group_offsets(group).values()
            return all(part.offset >= offsets[part.partition] for part in answer.result().topic_partitions)

        wait_for(has_read, f"the connector has read {offsets} of {self.topic}", _READ_S)

    def wait_until_failed(self) -> str:
        """What ended its task."""
        return str(wait_for(self._failure, "the task has failed", _READ_S))

    def _failure(self) -> str | None:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"Kafka Connect has ended:\n{self._log.read_text(errors='replace')[-4000:]}")
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/connectors/{_NAME}/status", timeout=10.0) as answer:
                said: dict[str, Any] = json.load(answer)
        except (URLError, TimeoutError):  # it has not started, or does not know the connector yet
            return None
        failed = [each["trace"] for each in (said["connector"], *said["tasks"]) if each["state"] == "FAILED"]
        return failed[0] if failed else None

    @property
    def _log(self) -> Path:
        return self.folder / "connect.log"


@contextmanager
def jdbc_sink(folder: Path, broker: Broker, topic: str, database: MariaDb, table: str) -> Iterator[Worker]:
    """Writes the topic into the table, `database.name`; not yet started, and killed at the end.

    Its user sees no other database: it takes columns of another's table of that name for the table's own.
    """
    schema, _, name = table.partition(".")
    database.query(f"CREATE USER {schema} IDENTIFIED BY '{PASSWORD}'", f"GRANT ALL ON {schema}.* TO {schema}")
    place = {
        "connection.url": f"jdbc:mariadb://127.0.0.1:{database.port}/{schema}?timezone=UTC",
        "connection.username": schema,
        "connection.password": PASSWORD,
        "collection.name.format": name,
        "consumer.override.auto.offset.reset": "earliest",
    }
    worker = Worker(folder, broker, topic, place | TOLD, _libraries())
    try:
        yield worker
    finally:
        if worker._process is not None:
            worker.kill()


def _libraries() -> Path:
    connect = [f"org.apache.kafka:{name}:{CONNECT}" for name in ("connect-runtime", "connect-json")]
    return jars(
        f"connect-jdbc-{CONNECT}-{DEBEZIUM}",
        *connect,
        f"io.debezium:debezium-connector-jdbc:{DEBEZIUM}",
        "org.slf4j:slf4j-simple:1.7.36",
    )
