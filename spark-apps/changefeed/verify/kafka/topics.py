"""Reads topics from beginning to end, as a consumer with isolation.level=read_committed does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from changefeed.reading.failures import Break, NotVerifiable
from changefeed.sink.kafka.client import Cluster, error_of, raised
from changefeed.verify.kafka.heads import Message, heads
from changefeed.verify.kafka.stored import LinePosition, StoredLines

_BATCH = 4096  # messages
_CALL_S = 10.0
_WAIT_S = 0.2  # for a batch to become full
SILENT_S = 30.0


def read_topics(
    cluster: Cluster,
    parts: Sequence[tuple[str, int]],
    add: Callable[[list[LinePosition], list[Message]], None],
    read: Callable[[int], None],
) -> int:
    """Give `add` all that stands in these partitions now, each partition's in its order: how many messages.

    Raises NotVerifiable when some of it is gone, or hidden by a transaction that is open; Transient, Refused.
    """
    where = f"Kafka at {cluster.brokers}"
    numbers = {part: number for number, part in enumerate(parts)}
    try:
        ends = _ends(cluster, parts)
        consumer = Consumer(cluster.client_config() | _CONSUMER)
        try:
            return _read(where, consumer, ends, numbers, add, read)
        finally:
            consumer.close()
    except KafkaException as failure:
        raise raised(where, failure) from None


_CONSUMER = {
    "group.id": "changefeed-verify",  # asked for by the client; nothing is committed to it
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "log_level": 0,
}


def _ends(cluster: Cluster, parts: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Where each partition ends for readers that see open transactions, too."""
    admin = AdminClient(cluster.client_config() | {"log_level": 0})

    def offsets(spec: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(*part): spec for part in parts}
        answer = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_CALL_S)
        return {(part.topic, part.partition): int(found.result().offset) for part, found in answer.items()}

    for (topic, partition), begin in offsets(OffsetSpec.earliest()).items():
        if begin:
            raise NotVerifiable(
                f"Topic {topic}, partition {partition} begins at offset {begin}: what stood before it was deleted.",
                "Verify topics before their retention ends.",
            )
    return offsets(OffsetSpec.latest())


def _read(
    where: str,
    consumer: Consumer,
    ends: dict[tuple[str, int], int],
    numbers: dict[tuple[str, int], int],
    add: Callable[[list[LinePosition], list[Message]], None],
    read: Callable[[int], None],
) -> int:
    open_parts = {part for part, end in ends.items() if end}
    consumer.assign([TopicPartition(*part, 0) for part in sorted(open_parts)])
    count = 0
    heard_s = time.monotonic()
    while open_parts:
        if batch := consumer.consume(_BATCH, _WAIT_S):
            heard_s = time.monotonic()
        elif time.monotonic() - heard_s > SILENT_S:
            (topic, partition), *_ = sorted(open_parts)
            raise NotVerifiable(
                f"Topic {topic}, partition {partition} can't be read to offset {ends[topic, partition]}: a transaction "
                "is open there, or the broker is silent.",
                "Let the changefeed go on, or wait until the broker aborts it (10 minutes), then verify again.",
            )
        positions: list[LinePosition] = []
        messages: list[Message] = []
        for message in batch:
            part = message.topic(), message.partition()
            if (error := message.error()) is None:
                positions.append(LinePosition(numbers[part], message.offset()))
                messages.append((message.key(), message.value()))
                if message.offset() + 1 >= ends[part]:
                    open_parts.discard(part)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise error_of(where, error)
            elif message.offset() >= ends[part]:
                # The last ones may be transactions' markers, which are no messages.
                open_parts.discard(part)
        add(positions, messages)
        count += len(messages)
        read(len(messages))
    return count


def add_messages(
    into: StoredLines,
    protocol: str,
    problem: Callable[[str], None],
    positions: list[LinePosition],
    messages: list[Message],
) -> None:
    """What can't be decoded is a problem, and left out."""
    try:
        into.add(positions, heads(protocol, messages))
    except Break as undecodable:
        if len(messages) == 1:
            problem(f"{into.where(positions[0])} can't be decoded: {undecodable.message}.")
            return
        middle = len(messages) // 2
        add_messages(into, protocol, problem, positions[:middle], messages[:middle])
        add_messages(into, protocol, problem, positions[middle:], messages[middle:])
