"""The Kafka sink against a real broker, while writers are killed and the broker is restarted."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from changefeed.errors import Fenced, NeedsHuman, Refused, Transient
from changefeed.model.tso import compose
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Claim, Entry
from changefeed.sink.kafka.client import Mechanism, Sasl
from changefeed.sink.kafka.codec import message as kafka_message
from changefeed.sink.kafka.codec.cloud_events import CloudEvents
from changefeed.sink.kafka.codec.message import Message, Messages
from changefeed.sink.kafka.codec.partition import by_key, by_values
from changefeed.sink.kafka.entry_writer import AtLeastOnceDelivery, ExactlyOnceDelivery
from changefeed.sink.kafka.exactly_once import ExactlyOnce
from changefeed.sink.kafka.options import progress_topic
from changefeed.sink.kafka.producer import AtLeastOnce
from changefeed.sink.kafka.progress import ClaimVerdict
from changefeed.sink.kafka.to_all import ToAll
from changefeed.sink.kafka.topics import create_topic, partitions_of
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec
from integration_kafka_broker import PASSWORD, USER, Broker, consumed, made_topic, messages_of, running
from integration_kafka_history import table
from integration_kafka_writer import FENCED, KEYS, entry_of, send

PARTITIONS, ROWS, ENTRIES = 3, 400, 12
PROGRESS = "progress"
LARGE = "x" * 20_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        made_topic(broker.cluster, PROGRESS, 2, compacted=True)
        yield broker


class Writers:
    """Processes that write one dispatcher's entries; all are gone at the end."""

    def __init__(self, broker: Broker, folder: Path, topic: str, dispatcher: int, *, exactly_once: bool) -> None:
        made_topic(broker.cluster, topic, PARTITIONS)
        self._folder, self._processes = folder, list[subprocess.Popen[str]]()
        self._plan = {
            "brokers": broker.cluster.brokers,
            "topic": topic,
            "partitions": PARTITIONS,
            "progress": [PROGRESS, 2],
            "dispatcher": dispatcher,
            "exactly_once": exactly_once,
            "rows": ROWS,
            "entries": ENTRIES,
            "epoch": 1,
        }

    def start(self, **more: Any) -> subprocess.Popen[str]:
        number = len(self._processes)
        plan = self._folder / f"plan-{number}.json"
        plan.write_text(json.dumps(self._plan | {"writer": number + 1} | more))
        program = str(Path(__file__).parent / "support" / "integration_kafka_writer.py")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, program, str(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def until(process: subprocess.Popen[str], line: str) -> list[str]:
    """What it says up to the line."""
    assert process.stdout is not None
    said: list[str] = []
    for found in process.stdout:
        said.append(found.strip())
        if said[-1] == line:
            return said
    pytest.fail(f"the writer ended without {line!r}: {said}")


def check_partitions(found: list[tuple[int, bytes | None, bytes]]) -> None:
    """Each key has the partition that the rule gives it."""
    for partition, key, _ in found:
        (right,) = by_values("shop", "t", [("id", pa.array([key]))], 1, PARTITIONS)
        assert partition == right, "it is not where the rule puts it"
    assert {partition for partition, _, _ in found} == set(range(PARTITIONS))


@pytest.fixture
def exactly_once(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Writers]:
    writers = Writers(broker, tmp_path, request.node.name, len(request.node.name), exactly_once=True)
    yield writers
    writers.end()


def check_exactly_once(broker: Broker, topic: str) -> None:
    found = consumed(broker.cluster, topic)
    counts = Counter(int(value) for _, _, value in found)
    assert sorted(counts) == list(range(ENTRIES * ROWS)), "rows are missing"
    assert set(counts.values()) == {1}, "rows stand there twice"
    check_partitions(found)
    for key in range(KEYS):
        rows = [int(value) for _, found_key, value in found if found_key == str(key).encode()]
        assert rows == sorted(rows)


def test_rows_come_exactly_once_through_kills_of_writers_and_of_the_broker(
    broker: Broker, exactly_once: Writers, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(7)
    for number in range(0, ENTRIES, 2):
        process = exactly_once.start(wait=number)
        until(process, f"sent {number}")
        if chance.random() < 0.5:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        if number == 4:
            broker.kill()
            broker.start()
        process.kill()  # maybe while it commits
    last = exactly_once.start()
    until(last, f"done {ENTRIES - 1}")
    assert last.wait(60) == 0
    check_exactly_once(broker, request.node.name)


def test_a_task_that_lives_on_is_fenced_by_the_next_claim(
    broker: Broker, exactly_once: Writers, request: pytest.FixtureRequest
) -> None:
    zombie = exactly_once.start(wait=3)
    until(zombie, "sent 3")
    heir = exactly_once.start()
    said = until(heir, f"done {ENTRIES - 1}")
    assert said[:4] == ["skip 0", "skip 1", "skip 2", "sent 3"]
    zombie.communicate("\n", 60)
    assert zombie.returncode == FENCED
    check_exactly_once(broker, request.node.name)


def test_a_lower_epoch_is_refused_by_what_the_newer_one_has_claimed(broker: Broker) -> None:
    newer = ExactlyOnce(broker.cluster, Claim("feed", 900, 8, "new", 1), (PROGRESS, 2), Patience(30))
    assert newer.claim(entry_of(0)) is ClaimVerdict.WRITE
    older = ExactlyOnce(broker.cluster, Claim("feed", 900, 7, "old", 9), (PROGRESS, 2), Patience(30))
    with pytest.raises(Fenced, match=r"Epoch 7, .* epoch 8, writer 1 has claimed"):
        older.claim(entry_of(0))
    with pytest.raises(Fenced):  # it is fenced by the refused one, and the entry is given out again
        newer.done()


def test_an_open_transaction_of_another_dispatcher_hides_no_progress(broker: Broker) -> None:
    """The other one's messages stand before ours in the same partition, and nobody knows yet whether they count."""
    other = ExactlyOnce(broker.cluster, Claim("feed", 901, 1, "n", 1), (PROGRESS, 1), Patience(30), transaction_s=5)
    other.claim(entry_of(0))
    other._sender.send(PROGRESS, *_one_message())
    other._sender.producer.flush(10)
    first = ExactlyOnce(broker.cluster, Claim("feed", 902, 1, "n", 1), (PROGRESS, 1), Patience(60))
    with pytest.raises(AssertionError, match="claimed"):
        first.done()
    first.claim(entry_of(0))
    first.done()
    second = ExactlyOnce(broker.cluster, Claim("feed", 902, 1, "n", 2), (PROGRESS, 1), Patience(60))
    assert second.claim(entry_of(0)) is ClaimVerdict.SKIP


def _one_message() -> Any:
    return kafka_message.Messages.of(pa.array([b"other"]), pa.array([b"{}"])), np.zeros(1, np.int32)


def test_an_aborted_entry_is_not_seen_and_is_written_by_the_next_writer(broker: Broker) -> None:
    made_topic(broker.cluster, "aborted", PARTITIONS)
    plan = {"topic": "aborted", "partitions": PARTITIONS, "rows": 50}
    claim = Claim("feed", 903, 1, "n", 1)
    aborted = ExactlyOnce(broker.cluster, claim, (PROGRESS, 2), Patience(30))
    aborted.claim(entry_of(0))
    send(aborted, plan, 0)
    aborted.abort()
    writer = ExactlyOnce(broker.cluster, claim, (PROGRESS, 2), Patience(30))
    assert writer.claim(entry_of(0)) is ClaimVerdict.WRITE
    send(writer, plan, 0)
    writer.done()
    assert sorted(int(value) for _, _, value in consumed(broker.cluster, "aborted")) == list(range(50))


def test_at_least_once_loses_no_row_when_writers_are_killed(
    broker: Broker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    topic = request.node.name
    writers = Writers(broker, tmp_path, topic, 1, exactly_once=False)
    try:
        for number in range(0, ENTRIES, 3):
            process = writers.start(done=number)
            until(process, f"sent {number}")
            process.kill()
            until(writers.start(done=number, entries=number + 3), f"done {number + 2}")
        found = consumed(broker.cluster, topic)
    finally:
        writers.end()
    assert {int(value) for _, _, value in found} == set(range(ENTRIES * ROWS))
    check_partitions(found)


def test_a_resolved_ts_stands_behind_all_rows_up_to_it_in_every_partition(broker: Broker) -> None:
    made_topic(broker.cluster, "resolved", PARTITIONS)
    messages = ToAll(broker.cluster, Patience(30))
    plan = {"topic": "resolved", "partitions": PARTITIONS, "rows": 100}
    for number in range(4):
        writer = AtLeastOnce(broker.cluster, Patience(30))
        send(writer, plan, number)
        writer.done()
        messages.send([("resolved", PARTITIONS)], Message(b"resolved", str(number + 1).encode()))
    resolved = dict.fromkeys(range(PARTITIONS), 0)
    for partition, key, value in consumed(broker.cluster, "resolved"):
        if key == b"resolved":
            assert int(value) == resolved[partition] + 1
            resolved[partition] += 1
        else:
            assert int(value) // 100 >= resolved[partition], "a row comes after the resolved-ts that it is below"
    assert set(resolved.values()) == {4}


def written(writer: AtLeastOnce, plan: dict[str, Any]) -> None:
    send(writer, plan, 0)
    writer.done()


def test_what_a_person_must_mend_is_told_by_name(broker: Broker) -> None:
    assert partitions_of(broker.cluster, "nothing") == 0
    plan = {"topic": "nothing", "partitions": 1, "rows": 10}
    with pytest.raises(NeedsHuman, match=r"topic nothing.*Create the topic"):
        written(AtLeastOnce(broker.cluster, Patience(30)), plan)
    with pytest.raises(NeedsHuman, match="can't have 3 replicas"):
        create_topic(broker.cluster, "three", 1, 3)


@pytest.mark.parametrize("is_exactly_once", [True, False])
def test_after_a_message_that_is_too_large_for_the_topic_the_next_entries_are_written(
    broker: Broker, is_exactly_once: bool
) -> None:
    """By the same task, and no reader waits: the client's own next transaction in that partition would fail, too."""
    topic = f"narrow-{is_exactly_once}"
    made_topic(broker.cluster, topic, 1)
    if is_exactly_once:
        made_topic(broker.cluster, progress_topic(), 1, compacted=True)
    limit = ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[limit])
    admin = AdminClient(broker.cluster.client_config() | {"log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result()
    chosen = ExactlyOnceDelivery if is_exactly_once else AtLeastOnceDelivery
    delivery = chosen(broker.cluster, Patience(60))
    info = table()

    def deliver(number: int, *values: str) -> None:
        def sent(to: Any) -> int:
            for value in values:
                if value == LARGE:  # what is before it is in the topic
                    to._sender.flush()
                to.send(topic, Messages.of(None, pa.array([value])), np.zeros(1, np.int32))
            return 1

        claim = Claim("narrow", 7, 1, "n", 1)
        delivery.deliver(Entry(claim, entry_of(number), 9, {}, info, 1, info.output_columns, 1, "UTC", {}), sent)

    deliver(1, "a", "b")
    for number in (2, 4):
        with pytest.raises(NeedsHuman, match=f"{topic}.*max.message.bytes"):
            deliver(number, "before", LARGE, "after")
        # The broker marks an aborted transaction's end a moment after it has answered.
        Patience(30).call(topic, lambda: check_no_transaction_is_open(admin, topic))
        deliver(number, "c", "d")
        deliver(number + 1, "e")
    written = [value.decode() for _, _, value in consumed(broker.cluster, topic)]
    assert [value for value in written if value not in ("before", "after")] == ["a", "b", *["c", "d", "e"] * 2]
    assert ("before" in written) == (not is_exactly_once)


def test_a_key_has_the_partition_that_other_clients_give_it(broker: Broker) -> None:
    """The client library's own murmur2_random, which it has for agreeing with Java's clients."""
    made_topic(broker.cluster, "keyed", 12)
    chance = random.Random(1)
    keys = [chance.randbytes(chance.randrange(1, 40)) for _ in range(500)]
    producer = Producer(broker.cluster.producer_config() | {"partitioner": "murmur2_random"})
    for key in keys:
        producer.produce("keyed", b"", key)
    assert producer.flush(60) == 0
    theirs = {key: partition for partition, key, _ in consumed(broker.cluster, "keyed")}
    assert by_key("shop", "t", pa.array(keys, pa.binary()), 12).tolist() == [theirs[key] for key in keys]


def check_no_transaction_is_open(admin: AdminClient, topic: str) -> None:
    """Raises Transient while one is, which a read_committed reader waits for."""
    place, ends = TopicPartition(topic, 0), set[int]()
    for seen in IsolationLevel:
        ends.add(admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=seen)[place].result().offset)
    if len(ends) > 1:
        raise Transient(f"{topic}: a transaction is open at {min(ends)}.")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_user_with_a_certificate_and_a_password_gets_in(broker: Broker, mechanism: Mechanism) -> None:
    topic = f"secure-{mechanism}"
    cluster = broker.secure(Sasl(mechanism, USER, PASSWORD))
    assert made_topic(cluster, topic, 1) == 1
    written(AtLeastOnce(cluster, Patience(30)), {"topic": topic, "partitions": 1, "rows": 10})
    assert sorted(int(value) for _, _, value in consumed(broker.cluster, topic)) == list(range(10))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_refused_and_told_nowhere(broker: Broker, mechanism: Mechanism) -> None:
    made_topic(broker.cluster, "refused", 1)
    cluster = broker.secure(Sasl(mechanism, USER, "notmypassword"))
    with pytest.raises(Refused, match=r"Check spec\.sink\.kafka's credentials") as told:
        written(AtLeastOnce(cluster, Patience(30)), {"topic": "refused", "partitions": 1, "rows": 10})
    assert "notmypassword" not in f"{told.value} {cluster!r}"


def test_each_message_is_a_cloud_event_if_that_is_asked_for(broker: Broker) -> None:
    made_topic(broker.cluster, "events", PARTITIONS)
    rows = np.arange(7)
    events = CloudEvents("cluster/feed", "canal-json")
    commit_ts = np.array([compose(1_700_000_000_000 + int(row)) for row in rows], np.uint64)
    values = pa.array([b"%d" % row for row in rows])
    headers = events.rows("4-1", 100, "shop.t", commit_ts)
    writer = AtLeastOnce(broker.cluster, Patience(30))
    writer.send("events", kafka_message.Messages(values, values, headers), (rows % PARTITIONS).astype(np.int32))
    writer.done()
    found = {int(message.value()): dict(message.headers()) for message in messages_of(broker.cluster, "events")}
    assert sorted(found) == rows.tolist()
    assert found[5] == {
        "ce_specversion": b"1.0",
        "ce_source": b"/changefeeds/cluster/feed",
        "ce_type": b"dev.changefeed.row",
        "ce_subject": b"shop.t",
        "ce_id": b"4-1-105",
        "ce_time": b"2023-11-14T22:13:20.005Z",
        "content-type": b"application/json",
    }
