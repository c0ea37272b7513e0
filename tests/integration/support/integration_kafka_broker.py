"""A real Kafka broker for tests: its jars fetched by Maven into the cache once, started on a free port."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from changefeed.objectstore.patience import Patience
from changefeed.secret_files import TlsFiles
from changefeed.sink.kafka.client import Cluster, Sasl
from changefeed.sink.kafka.topics import create_topic, partitions_of
from changefeed_devcluster.certificates import CLIENT, Certificates
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from integration_java import jars, java_tool, leaves_in

VERSION = "4.2.0"
USER, PASSWORD = "me", "verysecret"
_START_S, _STOP_S, _READ_S = 120.0, 30.0, 30.0
_JAVA = ("-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SECURE://127.0.0.1:{secure_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.secure.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.secure.scram-sha-256.sasl.jaas.config={modules}.scram.ScramLoginModule required;
ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={folder}/tls/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/tls/ca.crt
controller.listener.names=CONTROLLER
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@dataclass
class Broker:
    folder: Path
    port: int
    secure_port: int
    controller: int
    jars: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def cluster(self) -> Cluster:
        return Cluster(f"127.0.0.1:{self.port}")

    def secure(self, sasl: Sasl) -> Cluster:
        """As a client with a certificate that the broker trusts reaches it."""
        client = self.folder / "tls" / CLIENT
        tls = TlsFiles(client / "ca.crt", client / "tls.crt", client / "tls.key")
        return Cluster(f"127.0.0.1:{self.secure_port}", sasl, tls)

    def format(self) -> None:
        Certificates(self.folder / "tls", ["127.0.0.1"])
        ports = {"port": self.port, "secure_port": self.secure_port, "controller": self.controller}
        user = {"user": USER, "password": PASSWORD, "modules": "org.apache.kafka.common.security"}
        (self.folder / "server.properties").write_text(_PROPERTIES.format(**ports, **user, folder=self.folder))
        command = self._java("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk")
        command = [*command, "--add-scram", f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"]
        done = subprocess.run(
            [*command, "-c", str(self.folder / "server.properties")], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.fail(f"formatting Kafka's storage failed:\n{done.stdout}\n{done.stderr}")

    def start(self) -> None:
        with (self.folder / "broker.log").open("ab") as log:
            command = self._java("kafka.Kafka", str(self.folder / "server.properties"))
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return
            time.sleep(0.05)
        pytest.fail(f"Kafka did not start:\n{(self.folder / 'broker.log').read_text()[-4000:]}")

    def kill(self) -> None:
        """As a machine that loses its power does: what is not flushed is in the page cache all the same."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_STOP_S)

    def _java(self, *arguments: str) -> Sequence[str]:
        return [java_tool("java"), leaves_in(self.folder), *_JAVA, "-cp", f"{self.jars}/*", *arguments]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Broker]:
    """A broker with no topics; stopped at the end, whatever happens."""
    libraries = jars(f"kafka-{VERSION}", f"org.apache.kafka:kafka_2.13:{VERSION}")
    broker = Broker(folder, _free_port(), _free_port(), _free_port(), libraries)
    broker.format()
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def made_topic(cluster: Cluster, topic: str, partitions: int, *, compacted: bool = False) -> int:
    """How many partitions it has; a busy broker takes a moment until it knows a topic that it has made."""
    return Patience(_START_S).call(topic, lambda: create_topic(cluster, topic, partitions, 1, compacted=compacted))


def consumed(cluster: Cluster, topic: str) -> list[tuple[int, bytes | None, bytes]]:
    """(partition, key, value) of all committed messages, each partition's in its order."""
    return [(message.partition(), message.key(), message.value()) for message in messages_of(cluster, topic)]


def messages_of(cluster: Cluster, topic: str) -> list[Any]:
    """All that are committed, each partition's in their order."""
    return [message for part in range(partitions_of(cluster, topic)) for message in committed(cluster, topic, part)]


def committed(cluster: Cluster, topic: str, partition: int, within_s: float = _READ_S) -> Iterator[Any]:
    """The messages that a read_committed consumer gets, to the end of the partition. `within_s`: each of them."""
    config = {"group.id": "test", "isolation.level": "read_committed", "enable.partition.eof": True}
    at_once = {"enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = Consumer(cluster.client_config() | config | at_once)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    try:
        while (message := consumer.poll(within_s)) is not None:
            if message.error() is None:
                yield message
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return
        raise AssertionError(f"partition {partition} of {topic} can't be read to its end")
    finally:
        consumer.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
