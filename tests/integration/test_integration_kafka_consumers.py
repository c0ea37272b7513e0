"""Messages in a real broker, read by others: Flink's own formats, and Kafka Connect's converter and transforms.

What these readers need to be told stands in a table of docs/databases.md; each of its cells is run here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from changefeed.objectstore.patience import Patience
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import Touched
from changefeed.schema.table_info import parse_table_info
from changefeed.sink.contract import Claim, Ddl, Entry, EntryId, Surroundings
from changefeed.sink.kafka.driver import KafkaDriver
from changefeed.sink.kafka.entry_writer import KafkaJob, KafkaWriter
from changefeed.sink.kafka.options import KafkaEndpoint
from changefeed.upstream.tikv.tidb.job import parse_job
from integration_connect_reader import ConnectReader, Unwrapped, connect_reader
from integration_flink_reader import Change, FlinkReader, Refused, Row, flink_reader, replayed, typed_row
from integration_java import FETCH_S
from integration_kafka_broker import Broker, consumed, running
from integration_kafka_history import CHUNK_TS, COLUMNS, Reading, State, history, table

CHUNKS, ROWS, KEYS, PARTITIONS = 12, 40, 60, 3
#: By the chunk that they come before.
STATEMENTS = {
    1: (Action.CREATE_TABLE, "CREATE TABLE t (id BIGINT PRIMARY KEY)"),
    5: (Action.MODIFY_TABLE_COMMENT, "ALTER TABLE t COMMENT 'a \"b\"'"),
    9: (Action.ADD_INDEX, "CREATE INDEX v ON t (v)"),
}
CANAL = {
    "enableTidbExtension": False,
    "contentCompatible": False,
    "onlyOutputUpdatedColumns": False,
    "deleteOnlyOutputHandleKeyColumns": False,
    "ddls": False,
}
TOLD = {"watermarks": True, "ddls": True}
NOT_TOLD = dict.fromkeys(TOLD, False)
IGNORE = {"ignore-parse-errors": "true"}

pytestmark = pytest.mark.timeout(FETCH_S + 120)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> FlinkReader:
    return flink_reader(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> ConnectReader:
    return connect_reader(tmp_path_factory.mktemp("classes"))


def options(topic: str, protocol: str, more: dict[str, bool]) -> dict[str, Any]:
    dispatcher = {"matcher": ["*.*"], "partition": "index-value", "topic": topic, "index": "", "columns": []}
    return {
        "protocol": protocol,
        "cloudEvents": False,
        "partitionNum": PARTITIONS,
        "replicationFactor": 1,
        "dispatchers": [dispatcher],
        "largeMessages": {"option": "none"},
        "canalJson": CANAL | more,
        "debezium": NOT_TOLD | more,
    }


def ddl(ts: int, action: Action, query: str) -> Ddl:
    own = parse_table_info({"id": 1, "name": {"O": "t"}}, "shop")
    job = parse_job({"id": ts, "type": int(action), "query": query})
    return Ddl(ts, ts, change=job, query=query, touched=Touched((own,), (own,)), is_told=True)


def failed(error: BaseException) -> None:
    raise error


def told(
    broker: Broker, topic: str, folder: Path, protocol: str, **more: bool
) -> tuple[list[tuple[bytes | None, bytes | None]], State]:
    """A changefeed's messages, as a consumer gets them, and the table that they are of. `more`: the protocol's options.

    Statements stand between chunks, and a checkpoint behind each of them.
    """
    job = KafkaJob(KafkaEndpoint(f"kafka://{broker.cluster.brokers}/{topic}", "PLAIN", 1 << 20, "none"), True, False)
    asked, patience = options(topic, protocol, more), Patience(60)
    driver = KafkaDriver(job, asked, "UTC", "feed", [], lambda: None, patience)
    writer = KafkaWriter(job, Surroundings(topic, folder, patience, patience, failed))
    chunks, state = history(sum(topic.encode()), CHUNKS, ROWS, KEYS)
    claim, info = Claim(topic, 77, 1, "n", 1), table()
    for number, records in enumerate(chunks, 1):
        ts, upto = number * CHUNK_TS, (number + 1) * CHUNK_TS - 1
        if number in STATEMENTS:
            driver.execute(ddl(ts, *STATEMENTS[number]))
        entry = Entry(claim, EntryId(1, number), upto, {}, info, 1, info.output_columns, 7, "UTC", asked)
        assert writer.write(entry, iter([records])) is not None
        driver.write_checkpoint(upto)
    return [(key, value) for _, key, value in consumed(broker.cluster, topic)], state


def types_of(readings: Mapping[str, Reading]) -> list[tuple[str, str]]:
    return [(name, reading.flink) for name, reading in readings.items()]


def refused(read: list[list[Change] | Refused]) -> set[int]:
    """The numbers of the messages that are."""
    return {number for number, each in enumerate(read) if isinstance(each, Refused)}


def those_of(kinds: list[str], *wanted: str) -> set[int]:
    """The numbers of the messages of these kinds; there are some of each."""
    assert set(wanted) <= set(kinds)
    return {number for number, kind in enumerate(kinds) if kind in wanted}


def applied(read: list[list[Change] | Refused]) -> dict[int, Row]:
    return replayed([change for each in read if not isinstance(each, Refused) for change in each], "id")


def meant(state: State, readings: Mapping[str, Reading]) -> dict[int, Row]:
    """The table as Flink is to have it."""
    return {
        key: {name: None if value is None else readings[name].meaning(value) for name, value in row.items()}
        for key, row in state.items()
    }


def different(read: dict[int, Row], right: dict[int, Row]) -> list[tuple[int, str, Any, Any]]:
    """(key, column, what was read, what is right)."""
    assert read.keys() == right.keys()
    cells = ((key, name, read[key][name], value) for key, row in right.items() for name, value in row.items())
    return [cell for cell in cells if cell[2] != cell[3]]


def check_ignored(lenient: list[list[Change] | Refused], strict: list[list[Change] | Refused]) -> None:
    """With ignore-parse-errors, what was refused is passed over, and the rest is as it was."""
    assert lenient == [[] if isinstance(each, Refused) else each for each in strict]


@pytest.mark.parametrize(
    ("topic", "canal", "ends_at"),
    [
        ("canal", {}, []),
        ("canal-ddls", {"ddls": True}, ["ALTER", "CINDEX"]),
        ("canal-tidb-extension", {"enableTidbExtension": True, "onlyOutputUpdatedColumns": True}, ["ALTER", "CINDEX"]),
        ("canal-content-compatible", {"contentCompatible": True}, []),
    ],
)
def test_flink_reads_canal_json(
    broker: Broker, flink: FlinkReader, tmp_path: Path, topic: str, canal: dict[str, bool], ends_at: list[str]
) -> None:
    """Without DDLs and watermarks as it comes: it ends at DDLs but CREATE TABLE, and at watermarks."""
    readings = {column.name: column.canal for column in COLUMNS}
    messages, state = told(broker, topic, tmp_path, "canal-json", **canal)
    values = [value for _, value in messages]
    strict = flink.read("canal-json", {"database.include": "shop"}, types_of(readings), values)
    assert different(applied(strict), meant(state, readings)) == []
    kinds = [json.loads(value or b"")["type"] for value in values]
    assert refused(strict) == those_of(kinds, *ends_at)
    assert {"INSERT", "UPDATE", "DELETE"} <= set(kinds)
    assert ("CREATE" in kinds) == bool(ends_at)
    assert ("TIDB_WATERMARK" in kinds) == canal.get("enableTidbExtension", False)
    as_it_comes = flink.read("canal-json", {}, types_of(readings), values)
    ends_at = [*ends_at, "TIDB_WATERMARK"] if "TIDB_WATERMARK" in kinds else ends_at
    assert refused(as_it_comes) == those_of(kinds, *ends_at)
    check_ignored(flink.read("canal-json", IGNORE, types_of(readings), values), as_it_comes)


@pytest.mark.parametrize(("topic", "more", "ends_at"), [("debezium", {}, []), ("debezium-told", TOLD, ["DDL", "m"])])
def test_flink_reads_debezium(
    broker: Broker, flink: FlinkReader, tmp_path: Path, topic: str, more: dict[str, bool], ends_at: list[str]
) -> None:
    """Without options as it comes. It passes over DDLs and watermarks only with ignore-parse-errors."""
    readings = {column.name: column.debezium for column in COLUMNS}
    messages, state = told(broker, topic, tmp_path, "debezium", **more)
    values = [value for _, value in messages]
    asked = {"schema-include": "true", "timestamp-format.standard": "ISO-8601"}
    strict = flink.read("debezium-json", asked, types_of(readings), values)
    assert different(applied(strict), meant(state, readings)) == []
    kinds = [json.loads(value or b"")["payload"].get("op", "DDL") for value in values]
    assert set(kinds) == {"c", "u", "d", *ends_at}
    assert refused(strict) == those_of(kinds, *ends_at)
    check_ignored(flink.read("debezium-json", asked | IGNORE, types_of(readings), values), strict)


@pytest.mark.parametrize("more", [{}, TOLD])
def test_connect_unwraps_debezium(
    broker: Broker, connect: ConnectReader, tmp_path: Path, more: dict[str, bool]
) -> None:
    """Whatever is sent beside rows is dropped, and rows are what Flink makes of them, in either mode of deletes."""
    readings = {column.name: column.debezium for column in COLUMNS}
    messages, state = told(broker, f"connect-{len(more)}", tmp_path, "debezium", **more)
    kinds = [json.loads(value or b"")["payload"].get("op", "DDL") for _, value in messages]
    assert set(kinds) == {"c", "u", "d"} | ({"DDL", "m"} if more else set())
    dropped = those_of(kinds, *(["DDL", "m"] if more else []))
    for mode in ("tombstone", "rewrite"):
        read = connect.read({"delete.tombstone.handling.mode": mode}, messages)
        assert {number for number, each in enumerate(read) if each is None} == dropped
        table: dict[int, Row] = {}
        for kind, record in zip(kinds, read, strict=True):
            if record is not None:
                apply(table, kind, record, readings)
        assert different(table, meant(state, readings)) == []


def apply(table: dict[int, Row], kind: str, record: object, readings: Mapping[str, Reading]) -> None:
    """As a connector does that upserts by key, and deletes at a tombstone or a row that says so."""
    assert isinstance(record, Unwrapped), record
    assert record.key is not None
    value = record.value
    is_deleted = value is None or value.pop("__deleted", "false") == "true"
    assert is_deleted == (kind == "d")
    if is_deleted:
        del table[record.key["id"]]
    else:
        table[record.key["id"]] = typed_row(types_of(readings), value or {})
