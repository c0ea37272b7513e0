"""What the encoder makes once for each configuration, and not for every chunk of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Claim, Entry, EntryId
from changefeed.sink.kafka import entry_writer
from changefeed.sink.kafka.entry_writer import KafkaJob, MessageEncoder
from changefeed.sink.kafka.options import KafkaEndpoint
from sink_kafka_rows import records

CHUNKS = [records(seed, 5)[0] for seed in range(3)]
TABLE = CHUNKS[0].table
OPTIONS = {
    "protocol": "simple",
    "cloudEvents": True,
    "dispatchers": [{"matcher": ["*.*"], "topic": "{table}", "partition": "table", "index": "", "columns": []}],
    "canalJson": {},
}
ENDPOINT = KafkaEndpoint("kafka://b:1/feed", "PLAIN", 1 << 20, "none")
JOB = KafkaJob(ENDPOINT, False, False, large_messages="claim-check", claim_check_uri="file:///claims")


def entry_of(number: int, options: dict[str, Any], time_zone: str = "UTC") -> Entry:
    claim = Claim("shop/feed", 77, 1, "run", 0)
    return Entry(claim, EntryId(1, number), 1 << 60, "", TABLE, 1, TABLE.output_columns, 1, time_zone, options)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these is called."""
    counts: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            counts[name] += 1
            return real(*args, **more)

        return call

    for name in ("open_store", "rules_of", "message_codec", "cloud_events"):
        monkeypatch.setattr(entry_writer, name, counted(name, getattr(entry_writer, name)))
    monkeypatch.setattr(entry_writer, "partitions_of", lambda cluster, topic: 3)
    return counts


def test_rules_codec_and_store_are_made_once_for_a_configuration(made: Counter[str]) -> None:
    encoder = MessageEncoder(JOB, ENDPOINT.cluster(), Patience())
    entries = [entry_of(number, dict(OPTIONS)) for number in range(2)]  # equal, and parsed apart
    sent = [encoder.messages(entry, chunk, 0)[0] for entry in entries for chunk in CHUNKS]
    assert sent == ["t_1_"] * 6
    assert made == {"open_store": 1, "rules_of": 1, "message_codec": 1, "cloud_events": 1}


def test_rule_10_an_entry_of_another_configuration_is_encoded_by_that(made: Counter[str]) -> None:
    encoder = MessageEncoder(JOB, ENDPOINT.cluster(), Patience())
    other = OPTIONS | {"protocol": "open-protocol", "dispatchers": [], "cloudEvents": False}
    first, second = entry_of(0, OPTIONS), entry_of(1, other)
    third = replace(first, time_zone="Asia/Shanghai")
    alone = [
        MessageEncoder(JOB, ENDPOINT.cluster(), Patience()).messages(entry, CHUNKS[0], 0)
        for entry in (first, second, third)
    ]
    assert alone[0][1] != alone[2][1]
    made.clear()
    for entry, number in ((first, 0), (second, 1), (first, 0), (third, 2), (second, 1)):
        topic, messages, partitions = encoder.messages(entry, CHUNKS[0], 0)
        expected_topic, expected, expected_partitions = alone[number]
        assert (topic, messages) == (expected_topic, expected)
        assert partitions.tolist() == expected_partitions.tolist()
    assert made == {"rules_of": 3, "message_codec": 3, "cloud_events": 3}
