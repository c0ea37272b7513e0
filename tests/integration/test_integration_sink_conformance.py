"""Every sink keeps the rules of sink/contract.py; a sink that breaks one is found out by a check."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from changefeed.errors import ChangefeedError
from changefeed.objectstore.local import LocalStore
from changefeed.sink.blackhole import BlackholeJob
from changefeed.sink.contract import Entry, Event, EventSink, Surroundings
from changefeed.sink.delta.event_sink import DeltaJob
from changefeed.sink.iceberg.event_sink import IcebergJob
from changefeed.sink.kafka.entry_writer import KafkaJob
from changefeed.sink.kafka.options import KafkaEndpoint, progress_topic
from changefeed.sink.mysql.entry_writer import MysqlEndpoint, MysqlJob
from changefeed.sink.mysql.sink import Options
from changefeed.sink.records import Records
from changefeed.sink.storage.event_sink import StorageJob
from integration_kafka_broker import Broker, committed, made_topic
from integration_kafka_broker import running as broker_running
from integration_mariadb import MariaDb
from integration_mariadb import running as mariadb_running
from integration_sink_rules import CHECKS, DISPATCHERS, FAULTS, Memory, Row, World, entry_of

CSV = {
    "delimiter": ",",
    "quote": '"',
    "null": "\\N",
    "includeCommitTs": True,
    "binaryEncodingMethod": "base64",
    "outputOldValue": False,
    "outputFieldHeader": False,
}
CANAL = {
    "enableTidbExtension": True,
    "contentCompatible": False,
    "onlyOutputUpdatedColumns": False,
    "deleteOnlyOutputHandleKeyColumns": False,
}
KAFKA: dict[str, Any] = {
    "protocol": "canal-json",
    "canalJson": CANAL,
    "dispatchers": [],
    "cloudEvents": False,
    "largeMessages": {"option": "none"},
    "saslMechanism": "PLAIN",
    "maxMessageBytes": "64Ki",
    "compression": "none",
}
BY_NOTHING = {"matcher": ["*.*"], "topic": "", "partition": "columns", "index": "", "columns": ["gone"]}
PARTITIONS = 2


@dataclass
class Storage:
    folder: Path
    name: str = "storage"
    remembers: bool = True
    fences: bool = False  # by the log (rule 6); a late file has the bytes of its plan (rule 16)

    def __post_init__(self) -> None:
        self.lake = LocalStore(self.folder / "lake")

    def open(self, around: Surroundings) -> EventSink:
        return StorageJob(self.lake.location).open(around)

    def entry(self, dispatcher: int, number: int, writer: int) -> Entry:
        options = {"protocol": "csv", "terminator": "\n", "csv": CSV, "canalJson": CANAL}
        return entry_of(dispatcher, number, writer, options, self._path(dispatcher, number))

    def _path(self, dispatcher: int, number: int) -> str:
        return f"shop/t{dispatcher}/5/CDC{number + 10:020}.csv"

    def rows(self, dispatcher: int) -> list[Row]:
        found: list[Row] = []
        for path in sorted((self.lake.root / f"shop/t{dispatcher}/5").glob("*.csv")):
            with path.open(newline="") as file:
                found += [(int(key), int(value)) for *_, key, value in csv.reader(file)]
        return found

    def spoil(self, dispatcher: int) -> None:
        for number in range(100):
            self.lake.create(self._path(dispatcher, number), b"somebody else's")


@dataclass
class Iceberg:
    """What tasks do is not yet a table's: the driver reads the files that they have put."""

    folder: Path
    name: str = "iceberg"
    remembers: bool = True
    fences: bool = False  # as storage

    def __post_init__(self) -> None:
        self.lake = LocalStore(self.folder / "lake")

    def open(self, around: Surroundings) -> EventSink:
        return IcebergJob(self.lake.location).open(around)

    def entry(self, dispatcher: int, number: int, writer: int) -> Entry:
        return entry_of(dispatcher, number, writer, {"mode": "append"}, self._path(dispatcher, number))

    def _path(self, dispatcher: int, number: int) -> str:
        return f"shop/t{dispatcher}/{number + 10:010}.parquet"

    def rows(self, dispatcher: int) -> list[Row]:
        files = sorted((self.lake.root / f"shop/t{dispatcher}").glob("*.parquet"))
        return [(row["id"], row["v"]) for path in files for row in pq.read_table(path).to_pylist()]

    def spoil(self, dispatcher: int) -> None:
        for number in range(100):
            self.lake.create(self._path(dispatcher, number), b"somebody else's")


@dataclass
class Delta(Iceberg):
    """The same."""

    name: str = "delta"

    def open(self, around: Surroundings) -> EventSink:
        return DeltaJob(self.lake.location).open(around)


@dataclass
class Blackhole:
    """What its sink has taken, as nobody can read it there."""

    folder: Path
    name: str = "blackhole"
    remembers: bool = False
    fences: bool = False
    taken: dict[int, list[Row]] = field(default_factory=dict)
    spoiled: set[int] = field(default_factory=set)

    def open(self, around: Surroundings) -> EventSink:
        return Watched(self, BlackholeJob().open(around))

    def rows(self, dispatcher: int) -> list[Row]:
        return list(self.taken.get(dispatcher, []))

    def entry(self, dispatcher: int, number: int, writer: int) -> Entry:
        made = entry_of(dispatcher, number, writer, {})
        return replace(made, upto=made.upto - 1000) if dispatcher in self.spoiled else made

    def spoil(self, dispatcher: int) -> None:
        """Its rows are above the ends of their entries."""
        self.spoiled.add(dispatcher)


class Watched:
    def __init__(self, world: Blackhole, sink: EventSink) -> None:
        self._world, self._sink = world, sink
        self.cpu_seconds, self.close = sink.cpu_seconds, sink.close

    def write(self, event: Event) -> None:
        taken = self._world.taken.setdefault(event.entry.claim.dispatcher, [])

        def chunks() -> Iterator[Records]:
            for records in event.chunks:
                taken.extend(zip(*(values.to_pylist() for values in records.columns), strict=True))
                yield records

        self._sink.write(Event(event.entry, chunks(), event.written))


@dataclass
class Mysql:
    folder: Path
    database: MariaDb
    name: str = "mysql"
    remembers: bool = True
    fences: bool = True

    def __post_init__(self) -> None:
        tables = [f"CREATE TABLE shop.t{each} (id BIGINT PRIMARY KEY, v BIGINT)" for each in DISPATCHERS]
        drop = [f"DROP DATABASE IF EXISTS {name}" for name in ("shop", "changefeed")]
        self.database.query(*drop, "CREATE DATABASE shop", *tables)

    def open(self, around: Surroundings) -> EventSink:
        return MysqlJob(MysqlEndpoint(f"mysql://127.0.0.1:{self.database.port}"), Options(workers=4)).open(around)

    def entry(self, dispatcher: int, number: int, writer: int) -> Entry:
        return entry_of(dispatcher, number, writer, {})

    def rows(self, dispatcher: int) -> list[Row]:
        found = self.database.query(f"SELECT id, v FROM shop.t{dispatcher} ORDER BY id")
        return [(int(key), int(value)) for key, value in found]

    def spoil(self, dispatcher: int) -> None:
        self.database.query(f"DROP TABLE shop.t{dispatcher}")


@dataclass
class Kafka:
    """A topic of its own."""

    folder: Path
    broker: Broker
    topic: str
    exactly_once: bool
    spoiled: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.name = "kafka"
        self.remembers = self.fences = self.exactly_once
        self._endpoint = KafkaEndpoint.of(
            KAFKA | {"uri": f"kafka://127.0.0.1:{self.broker.port}/{self.topic}"}, None, None
        )
        made_topic(self._endpoint.cluster(), self.topic, PARTITIONS)
        made_topic(self._endpoint.cluster(), progress_topic(), 1, compacted=True)

    def open(self, around: Surroundings) -> EventSink:
        surroundings = Surroundings(
            f"shop/{self.topic}", around.spool_folder, around.patience, around.disk, around.failed
        )
        return KafkaJob(self._endpoint, self.exactly_once, case_sensitive=False).open(surroundings)

    def entry(self, dispatcher: int, number: int, writer: int) -> Entry:
        options = KAFKA | {"dispatchers": [BY_NOTHING]} if dispatcher in self.spoiled else KAFKA
        made = entry_of(dispatcher, number, writer, options)
        return replace(made, claim=replace(made.claim, changefeed=f"shop/{self.topic}"))

    def rows(self, dispatcher: int) -> list[Row]:
        found: list[Row] = []
        parts = (committed(self.broker.cluster, self.topic, part, within_s=10) for part in range(PARTITIONS))
        for message in chain.from_iterable(parts):
            said = json.loads(message.value())
            if said["table"] == f"t{dispatcher}" and said["data"]:
                found += [(int(row["id"]), int(row["v"])) for row in said["data"]]
        return found

    def spoil(self, dispatcher: int) -> None:
        """Its rows are dispatched by a column that they have not."""
        self.spoiled.add(dispatcher)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    with mariadb_running(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker_running(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(params=["storage", "iceberg", "delta", "blackhole", "mysql", "at-least-once", "exactly-once"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "storage":
        return Storage(tmp_path)
    if request.param == "iceberg":
        return Iceberg(tmp_path)
    if request.param == "delta":
        return Delta(tmp_path)
    if request.param == "blackhole":
        return Blackhole(tmp_path)
    if request.param == "mysql":
        return Mysql(tmp_path, request.getfixturevalue("database"))
    topic = "".join(c if c.isalnum() else "_" for c in request.node.name)[-80:]
    return Kafka(tmp_path, request.getfixturevalue("broker"), topic, request.param == "exactly-once")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sink_keeps_the_rules(world: World, check: Callable[[World], None]) -> None:
    check(world)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_rules_can_be_kept(tmp_path: Path, check: Callable[[World], None]) -> None:
    check(Memory(tmp_path))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_sink_that_breaks_a_rule_is_found_out(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("integration_sink_rules.DEADLINE_S", 0.2)
    assert any(not holds(check, tmp_path, fault) for check in CHECKS)


def holds(check: Callable[[World], None], folder: Path, fault: str) -> bool:
    try:
        check(Memory(folder, fault))
    except (AssertionError, ChangefeedError, pytest.fail.Exception):
        return False
    return True
