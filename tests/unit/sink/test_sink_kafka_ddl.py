"""What the driver tells consumers: its order and its retries; how messages get to a broker, integration tests show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from changefeed.errors import ChangefeedError, NeedsHuman, Transient
from changefeed.objectstore.patience import Patience
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import Touched
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.contract import Ddl
from changefeed.sink.kafka import driver, to_all
from changefeed.sink.kafka.codec.message import Message
from changefeed.sink.kafka.driver import KafkaDriver
from changefeed.sink.kafka.entry_writer import KafkaJob
from changefeed.sink.kafka.options import KafkaEndpoint
from changefeed.upstream.tikv.tidb.job import parse_job

CANAL = {
    "enableTidbExtension": True,
    "contentCompatible": False,
    "onlyOutputUpdatedColumns": False,
    "deleteOnlyOutputHandleKeyColumns": False,
    "ddls": False,
}
OPTIONS = {
    "uri": "kafka://b:1/feed",
    "protocol": "canal-json",
    "cloudEvents": False,
    "partitionNum": 3,
    "replicationFactor": 1,
    "dispatchers": [{"matcher": ["shop.u"], "topic": "{table}", "partition": "table", "index": "", "columns": []}],
    "canalJson": CANAL,
}
JOB = KafkaJob(KafkaEndpoint("kafka://b:1/feed", "PLAIN", 1 << 20, "none"), exactly_once=False, case_sensitive=False)


class Sent:
    """What is sent, by which of the senders; fails as often as it is told."""

    def __init__(self, failures: Sequence[ChangefeedError]) -> None:
        self.failures, self.senders, self.messages = list(failures), 0, list[tuple[int, Any, bytes]]()
        self.headers: list[dict[str, bytes]] = []

    def sender(self, *_: Any) -> int:
        self.senders += 1
        return self.senders

    def to_all(self, sender: int, topics: Any, message: Message) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.messages.append((sender, topics, message.value or b""))
        self.headers.append(dict(message.headers or []))


def sink_that(monkeypatch: pytest.MonkeyPatch, *failures: ChangefeedError, **options: Any) -> tuple[KafkaDriver, Sent]:
    sent = Sent(failures)
    monkeypatch.setattr(to_all, "Sender", sent.sender)
    monkeypatch.setattr(to_all, "send_to_all", sent.to_all)
    monkeypatch.setattr(driver, "create_topic", lambda cluster, topic, partitions, replicas, **_: partitions)
    return KafkaDriver(
        JOB, OPTIONS | options, "UTC", "feed", [], lambda: None, Patience(60, sleep=lambda seconds: None)
    ), sent


def ddl(ts: int, table: str = "t", query: str = "ALTER TABLE t ADD c INT") -> Ddl:
    said = {"id": ts, "type": int(Action.ADD_COLUMN), "schema_name": "lower", "table_name": "case", "query": query}
    own = parse_table_info({"id": 1, "name": {"O": table}}, "Shop")
    return Ddl(ts, ts, change=parse_job(said), query=query, touched=Touched((own,), (own,)), is_told=True)


def watermarks(sent: Sent) -> list[bool]:
    return [b"TIDB_WATERMARK" in value for _, _, value in sent.messages]


def test_a_resolved_ts_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, sent = sink_that(monkeypatch)
    for ts in (5, 4, 5, 6):
        sink.write_checkpoint(ts)
    assert [b'"watermarkTs":%d' % ts in value for ts, (_, _, value) in zip((5, 6), sent.messages, strict=True)] == [
        True
    ] * 2
    with pytest.raises(NeedsHuman, match="ts 6 comes after resolved-ts 6"):
        sink.execute(ddl(6))


def test_a_ddl_goes_to_its_tables_topic_and_the_resolved_ts_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, sent = sink_that(monkeypatch, protocol="open-protocol")
    sink.execute(ddl(1))
    sink.execute(ddl(2, "u"))
    sink.write_checkpoint(3)
    assert [topics for _, topics, _ in sent.messages] == [[("feed", 3)], [("u", 3)], [("feed", 3), ("u", 3)]]


def defined(id_: int, name: str, schema: str = "Shop", *partitions: int) -> TableInfo:
    parted = {"enable": True, "definitions": [{"id": each} for each in partitions]} if partitions else None
    return parse_table_info({"id": id_, "name": {"O": name, "L": name.lower()}, "partition": parted}, schema)


@pytest.mark.parametrize(
    ("action", "before", "after", "said", "topics"),
    [
        (Action.RENAME_TABLE, [defined(1, "A")], [defined(1, "B", "Other")], ("Other", "B"), ["Other_B", "Shop_A"]),
        (
            Action.EXCHANGE_TABLE_PARTITION,
            [defined(1, "Plain", "Dst"), defined(2, "Parted", "Shop", 21)],
            [defined(21, "Plain", "Dst"), defined(2, "Parted", "Shop", 1)],
            ("Shop", "Parted"),
            ["Dst_Plain", "Shop_Parted"],
        ),
        (Action.DROP_TABLE, [defined(1, "A")], [], ("Shop", "A"), ["Shop_A"]),
    ],
)
def test_a_ddl_names_the_table_that_it_is_of_as_it_is_defined(
    monkeypatch: pytest.MonkeyPatch,
    action: Action,
    before: list[TableInfo],
    after: list[TableInfo],
    said: tuple[str, str],
    topics: list[str],
) -> None:
    """And goes to the topics of all that it concerns. What TiDB's job calls it is in lower case, or another table."""
    dispatchers = [{"matcher": ["*.*"], "topic": "{schema}_{table}", "partition": "table", "index": "", "columns": []}]
    sink, sent = sink_that(monkeypatch, dispatchers=dispatchers, cloudEvents=True)
    job = parse_job({"id": 9, "type": int(action), "schema_name": "dst", "table_name": "a", "query": "a statement"})
    ids = [{id_: table for table in tables for id_ in table.physical_ids} for tables in (before, after)]
    touched = Touched(tuple(before), tuple(after))
    sink.execute(Ddl(9, 9, job, "a statement", before=ids[0], tables=ids[1], touched=touched, is_told=True))
    (found,) = [json.loads(value) for _, _, value in sent.messages]
    assert (found["database"], found["table"]) == said
    assert [topic for topic, _ in sent.messages[0][1]] == topics
    assert sent.headers[0]["ce_subject"] == ".".join(said).encode()


def test_canal_has_a_ddl_in_the_first_partition_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, sent = sink_that(monkeypatch)
    sink.execute(ddl(1))
    sink.write_checkpoint(2)
    assert [topics for _, topics, _ in sent.messages] == [[("feed", 1)], [("feed", 3)]]


@pytest.mark.parametrize(
    ("protocol", "asked", "told"),
    [
        ("canal-json", {}, []),
        ("canal-json", {"ddls": True}, ["ddl"]),
        ("canal-json", {"enableTidbExtension": True}, ["ddl", "resolved"]),
        ("debezium", {}, []),
        ("debezium", {"ddls": True}, ["ddl"]),
        ("debezium", {"watermarks": True}, ["resolved"]),
    ],
)
def test_what_readers_of_rows_do_not_know_is_told_if_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, protocol: str, asked: dict[str, bool], told: list[str]
) -> None:
    canal = dict.fromkeys(CANAL, False) | (asked if protocol == "canal-json" else {})
    debezium = {"watermarks": False, "ddls": False} | (asked if protocol == "debezium" else {})
    sink, sent = sink_that(monkeypatch, protocol=protocol, canalJson=canal, debezium=debezium, cloudEvents=True)
    sink.execute(ddl(1))
    sink.write_checkpoint(2)
    assert [headers["ce_type"].decode().rpartition(".")[2] for headers in sent.headers] == told


def test_a_ddl_that_an_event_filter_leaves_out_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, sent = sink_that(monkeypatch)
    sink.execute(replace(ddl(1), is_told=False))
    assert not sent.messages


def test_what_may_pass_is_tried_again_by_a_new_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, sent = sink_that(monkeypatch, Transient("away"), Transient("away"))
    sink.write_checkpoint(5)
    sink.write_checkpoint(6)
    assert [sender for sender, _, _ in sent.messages] == [3, 3]


def test_what_is_not_written_is_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, sent = sink_that(monkeypatch, NeedsHuman("no topic"))
    with pytest.raises(NeedsHuman, match="no topic"):
        sink.write_checkpoint(5)
    sink.write_checkpoint(5)
    assert watermarks(sent) == [True]


def test_messages_are_cloud_events_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, sent = sink_that(monkeypatch, cloudEvents=True)
    sink.execute(ddl(5))
    sink.write_checkpoint(6)
    same = {"ce_specversion": b"1.0", "ce_source": b"/changefeeds/feed", "content-type": b"application/json"}
    assert sent.headers == [
        same | {"ce_type": b"dev.changefeed.ddl", "ce_id": b"ddl-5-5", "ce_subject": b"Shop.t"},
        same | {"ce_type": b"dev.changefeed.resolved", "ce_id": b"resolved-6"},
    ]
