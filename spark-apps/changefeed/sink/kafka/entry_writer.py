"""Writes entries as messages: encoded, partitioned, and sent exactly once or at least once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from changefeed.errors import Transient
from changefeed.objectstore.open import open_store
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Claim, Entry, Surroundings, Written
from changefeed.sink.kafka.client import Cluster
from changefeed.sink.kafka.codec.choice import message_codec
from changefeed.sink.kafka.codec.cloud_events import CloudEvents
from changefeed.sink.kafka.codec.large import Limit, encoded, keeper
from changefeed.sink.kafka.codec.message import MessageCodec, Messages, Source
from changefeed.sink.kafka.codec.open_protocol import OpenProtocol, frame
from changefeed.sink.kafka.codec.partition import by_key
from changefeed.sink.kafka.codec.partition import partitions_of as partitions_of_rows
from changefeed.sink.kafka.exactly_once import ExactlyOnce
from changefeed.sink.kafka.options import KafkaEndpoint, cloud_events, progress_topic, rules_of
from changefeed.sink.kafka.producer import AtLeastOnce
from changefeed.sink.kafka.progress import ClaimVerdict
from changefeed.sink.kafka.registry import RegistryEndpoint, SchemaRegistry
from changefeed.sink.kafka.topics import Rule, Rules, partitions_of
from changefeed.sink.lanes import Lanes
from changefeed.sink.records import Mounting, Records

_PRODUCERS = 32  # of exactly-once, each with a thread and connections of its own
_SENDERS = 4
_KEPT_BYTES = 64 << 20
_BATCH_ROWS = 16  # of open-protocol: TiCDC's max-batch-size


class _Topic(Protocol):
    def send(self, topic: str, messages: Messages, partitions: npt.NDArray[np.int32]) -> None: ...


@dataclass(frozen=True)
class KafkaJob:
    """Implements SinkJob. `claim_check_secret`: the folder of the Secret of the store `claim_check_uri`.

    What becomes of large messages is the newest spec's, not the plan's: who is told to change it must get a way out,
    and of an entry that was refused there is nothing that a retry could differ from.
    """

    endpoint: KafkaEndpoint
    exactly_once: bool
    case_sensitive: bool
    registry: RegistryEndpoint | None = None
    large_messages: str = "none"
    claim_check_uri: str | None = None
    claim_check_secret: Path | None = None

    def mounting(self, options: Mapping[str, Any], time_zone: str) -> Mounting:
        zone = "UTC" if options["protocol"] == "debezium" else time_zone
        return Mounting(zone, with_old=True, split=not options["outputRawChangeEvent"])

    def open(self, around: Surroundings) -> Lanes:
        return Lanes(KafkaWriter(self, around), around)


class KafkaWriter:
    """Implements EntryWriter."""

    def __init__(self, job: KafkaJob, around: Surroundings) -> None:
        self._job = job
        self._cluster = job.endpoint.cluster()
        self._patience = around.patience
        self._encoder = MessageEncoder(job, self._cluster, around.patience)
        if job.exactly_once:
            self._deliver: Callable[[Entry, Callable[[_Topic], int]], int | None] = ExactlyOnceDelivery(
                self._cluster, around.patience
            ).deliver
        else:
            self._deliver = AtLeastOnceDelivery(self._cluster, around.patience).deliver

    def write(self, entry: Entry, chunks: Iterator[Records]) -> Written | None:
        """What is small enough is kept until it is written, to be sent again when the brokers could not take it."""
        again = Again(chunks)
        while True:
            try:
                size = self._deliver(entry, partial(self._send, entry, again))
            except Transient:
                if not again.can_begin_anew:
                    raise
                continue
            return None if size is None else Written(size)

    def close(self) -> None:
        pass

    def _send(self, entry: Entry, again: Again, to: _Topic) -> int:
        """How many bytes."""
        size = rows = 0
        for records in again:
            topic, messages, partitions = self._encoder.messages(entry, records, rows)
            to.send(topic, messages, partitions)
            size += int(messages.values.nbytes)
            rows += len(records.op)
        return size


class Again:
    """Chunks that can be taken several times, while they are few."""

    def __init__(self, chunks: Iterator[Records]) -> None:
        self._chunks = chunks
        self._kept: list[Records] = []
        self._bytes = 0

    @property
    def can_begin_anew(self) -> bool:
        return self._bytes <= _KEPT_BYTES

    def __iter__(self) -> Iterator[Records]:
        return chain(list(self._kept), self._new())

    def _new(self) -> Iterator[Records]:
        for records in self._chunks:
            self._bytes += sum(int(values.nbytes) for values in records.columns)
            if self.can_begin_anew:
                self._kept.append(records)
            else:
                self._kept.clear()
            yield records


@dataclass(frozen=True)
class Encoding:
    """What the encoder makes of a configuration."""

    rules: Rules
    codec: MessageCodec
    cloud_events: CloudEvents | None


class MessageEncoder:
    """Messages of rows, with their topic and partitions. Any thread.

    A task's entries are of the run's configuration, and of those of the plans that earlier runs have left open.
    """

    def __init__(self, job: KafkaJob, cluster: Cluster, patience: Patience) -> None:
        self._job, self._cluster, self._patience = job, cluster, patience
        self._lock = threading.Lock()
        self._partitions: dict[str, int] = {}
        self._registry = None if job.registry is None else SchemaRegistry(job.registry, patience)
        self._limit = _limit_of(job, patience)
        self._encodings: list[tuple[Mapping[str, Any], str, Encoding]] = []  # by options and time zone

    def messages(self, entry: Entry, records: Records, first: int) -> tuple[str, Messages, npt.NDArray[np.int32]]:
        """`first`: how many records of the entry came before these."""
        encoding, table = self._encoding_of(entry), entry.table
        rules, codec = encoding.rules, encoding.codec
        topic, rule = rules.topic(table.schema_name, table.name), rules.of(table.schema_name, table.name)
        source = Source(entry.claim.dispatcher, entry.table_version, topic)
        rows = encoded(codec, records, source, entry.pd_ms, self._limit)
        partitions = self._partitions_of(records, rows, topic, rule)
        is_framed = isinstance(codec, OpenProtocol)
        if is_framed:
            rows, partitions = frame(rows, partitions, _BATCH_ROWS, self._job.endpoint.max_message_bytes)
        if (events := encoding.cloud_events) is not None:
            name, subject = f"{entry.id.plan}-{entry.id.entry}", f"{table.schema_name}.{table.name}"
            if is_framed:
                headers = events.batches(name, first, subject, len(rows.values))
            else:
                headers = events.rows(name, first, subject, records.commit_ts.to_numpy())
            rows = replace(rows, headers=headers)
        return topic, rows, partitions

    def _encoding_of(self, entry: Entry) -> Encoding:
        with self._lock:
            for options, time_zone, known in self._encodings:
                if time_zone == entry.time_zone and options == entry.options:
                    return known
            options, time_zone = entry.options, entry.time_zone
            made = Encoding(
                rules_of(options, self._job.endpoint.topic, self._job.case_sensitive),
                message_codec(options, time_zone, self._number_of),
                cloud_events(options, entry.claim.changefeed),
            )
            self._encodings.append((options, time_zone, made))
            return made

    def _number_of(self, subject: str, schema: str) -> int:
        assert self._registry is not None, "avro needs one"
        return self._registry.number_of(subject, schema)

    def _partitions_of(self, records: Records, rows: Messages, topic: str, rule: Rule) -> npt.NDArray[np.int32]:
        with self._lock:
            count = self._partitions.get(topic)
        if count is None:
            count = self._patience.call(topic, partial(_known, self._cluster, topic))
            with self._lock:
                self._partitions[topic] = count
        if rule.partition == "key":
            return by_key(records.table.schema_name, records.table.name, rows.keys, count)
        return partitions_of_rows(records, count, rule.partition, rule.index, rule.columns)


def _limit_of(job: KafkaJob, patience: Patience) -> Limit:
    keep = None
    if (uri := job.claim_check_uri) is not None:
        where = "spec.sink.kafka.largeMessages.claimCheckUri"
        keep = keeper(open_store(uri, where, job.claim_check_secret), patience)
    return Limit(job.endpoint.max_message_bytes, job.large_messages, keep)


def _known(cluster: Cluster, topic: str) -> int:
    found = partitions_of(cluster, topic)
    if not found:
        raise Transient(f"Kafka at {cluster.brokers} does not know topic {topic}, which the driver has made.")
    return found


class ExactlyOnceDelivery:
    """A producer for each dispatcher that is written: those that have been idle for longest are let go."""

    def __init__(self, cluster: Cluster, patience: Patience) -> None:
        self._cluster, self._patience = cluster, patience
        self._lock = threading.Lock()
        self._idle: OrderedDict[Claim, ExactlyOnce] = OrderedDict()
        self._progress: tuple[str, int] | None = None

    def deliver(self, entry: Entry, send: Callable[[_Topic], int]) -> int | None:
        """None: it was there."""
        with self._lock:
            producer = self._idle.pop(entry.claim, None)
        if producer is None:
            producer = ExactlyOnce(self._cluster, entry.claim, self._progress_topic(), self._patience)
        if producer.claim(entry.id) is ClaimVerdict.SKIP:
            self._keep(entry.claim, producer)
            return None
        try:
            size = send(producer)
        except Transient:
            raise  # the producer is of no more use
        except BaseException:
            producer.abort()
            raise
        producer.done()
        self._keep(entry.claim, producer)
        return size

    def _keep(self, claim: Claim, producer: ExactlyOnce) -> None:
        with self._lock:
            self._idle[claim] = producer
            while len(self._idle) > _PRODUCERS:
                self._idle.popitem(last=False)

    def _progress_topic(self) -> tuple[str, int]:
        with self._lock:
            if self._progress is None:
                topic = progress_topic()
                self._progress = topic, self._patience.call(topic, partial(_known, self._cluster, topic))
            return self._progress


class AtLeastOnceDelivery:
    """A few producers, each with one entry at a time."""

    def __init__(self, cluster: Cluster, patience: Patience) -> None:
        self._cluster, self._patience = cluster, patience
        self._room = threading.BoundedSemaphore(_SENDERS)
        self._idle: list[AtLeastOnce] = []

    def deliver(self, entry: Entry, send: Callable[[_Topic], int]) -> int:
        with self._sender() as sender:
            size = send(sender)
            sender.done()
            return size

    @contextmanager
    def _sender(self) -> Iterator[AtLeastOnce]:
        """One that has failed is of no more use."""
        with self._room:
            sender = self._idle.pop() if self._idle else AtLeastOnce(self._cluster, self._patience)
            yield sender
            self._idle.append(sender)


def codec_for(job: KafkaJob, options: Mapping[str, Any], time_zone: str) -> MessageCodec:
    """Return the codec of the driver's own messages, none of which has a schema in a registry."""

    def number_of(subject: str, schema: str) -> int:
        raise AssertionError(f"{job.endpoint.uri}: the driver writes no rows")

    return message_codec(options, time_zone, number_of)
