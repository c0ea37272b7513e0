"""Sends rows to topics: queues them in batches and waits until the brokers have acknowledged all, or have failed.

Order: messages in a partition are in the order of `send`. Idempotence preserves it across the client's retries; nothing
here resends a message itself, because a second attempt after later messages would change their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer

from changefeed.errors import ChangefeedError, NeedsHuman, Transient, Unavailable
from changefeed.objectstore.patience import Patience
from changefeed.sink.kafka.client import Cluster, error_of, raised
from changefeed.sink.kafka.codec.message import Headers, Message, Messages

T = TypeVar("T")

#: Handed to the client at a time, and unacknowledged at most.
BATCH_MESSAGES, BATCH_BYTES = 10_000, 8 << 20
WINDOW_MESSAGES, WINDOW_BYTES = 200_000, 64 << 20
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_STEP_S = 0.1
_CALL_S = 10.0


class Sender:
    """One producer of the client library. Not thread-safe. After an error it is of no more use."""

    def __init__(self, cluster: Cluster, patience: Patience, transactional_id: str | None = None, **config: Any):
        self.where = f"Kafka at {cluster.brokers}"
        self._patience = patience
        self._failed: ChangefeedError | None = None
        self._purged: ChangefeedError | None = None  # given up because the transaction has failed, not why
        self._sent = 0
        self._batches: deque[tuple[int, int]] = deque()  # (messages sent up to its end, its bytes)
        self._queued_bytes = 0
        settings = cluster.producer_config() | {"error_cb": self._client_failed, "log_level": 0} | config
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        try:
            self.producer = Producer(settings)
        except KafkaException as failure:
            raise raised(self.where, failure) from None

    def send(self, topic: str, messages: Messages, partitions: npt.NDArray[np.int32]) -> None:
        """Queue them. Waits while too much is unacknowledged.

        Raises Transient (do the entry again), Fenced, NeedsHuman.
        """
        # The library takes one partition for a batch: what it says of a message's own one, it does not do.
        order = np.argsort(partitions, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(partitions[order])) + 1, len(order))
        for rows in np.split(order, ends[:-1]) if len(order) else []:
            self._send_to(topic, int(partitions[rows[0]]), messages.take(rows))

    def _send_to(self, topic: str, partition: int, messages: Messages) -> None:
        for piece in _pieces(messages.keys, messages.values):
            self._make_room()
            sides = (side.slice(piece.start, len(piece)).to_pylist() for side in (messages.keys, messages.values))
            listed = [{"key": key, "value": value} for key, value in zip(*sides, strict=True)]
            self._queue(topic, partition, listed, messages.headers and messages.headers[piece.start : piece.stop])

    def _queue(
        self, topic: str, partition: int, messages: list[dict[str, Any]], headers: Sequence[Headers] | None
    ) -> None:
        size = sum(len(message["key"] or b"") + len(message["value"] or b"") for message in messages)
        produce = self.producer.produce_batch if headers is None else partial(self._produce_each, headers)
        try:
            queued = produce(topic, messages, partition=partition, on_delivery=self._delivered)
        except BufferError as failure:
            raise self._of(failure) from None
        except KafkaException as failure:
            raise self._refused(topic, failure) from None
        if queued < len(messages):
            refused: KafkaError = next(message["_error"] for message in messages if "_error" in message)
            raise self._refused(topic, KafkaException(refused))
        self._sent += queued
        self._queued_bytes += size
        self._batches.append((self._sent, size))
        self._poll(0)

    def _produce_each(
        self, headers: Sequence[Headers], topic: str, messages: list[dict[str, Any]], **options: Any
    ) -> int:
        """As the client's `produce_batch`, which takes no headers."""
        for message, each in zip(messages, headers, strict=True):
            self.producer.produce(topic, **message, headers=each, **options)
        return len(messages)

    def _make_room(self) -> None:
        while True:
            acknowledged = self._sent - len(self.producer)
            # The oldest are not always the first that are acknowledged; as a bound on memory it is near enough.
            while self._batches and self._batches[0][0] <= acknowledged:
                self._queued_bytes -= self._batches.popleft()[1]
            if self._sent - acknowledged < WINDOW_MESSAGES and self._queued_bytes < WINDOW_BYTES:
                return
            self._poll(_STEP_S)

    def flush(self) -> None:
        """Returns when all that was sent is acknowledged. Raises as `send`."""
        while len(self.producer):
            # The client gives each message up by itself (message.timeout.ms), so this ends.
            self._serve(self.producer.flush, _STEP_S)
        self._poll(0)
        if self._purged is not None:
            raise self._purged

    def call(self, ask: Callable[[float], T]) -> T:
        """A call of the client's transactions, again while its failure may pass for this producer.

        Raises as `send`: Transient when the transaction is void, and this producer with it.
        """

        def attempt() -> T:
            try:
                return ask(_CALL_S)
            except KafkaException as failure:
                error = self._of(failure)
                said = failure.args[0]
                if isinstance(error, Transient | Unavailable) and (said.fatal() or said.txn_requires_abort()):
                    raise _Void(error.message) from None
                raise error from None

        try:
            return self._patience.call(self.where, attempt)
        except _Void as void:
            raise Transient(void.message, "Another producer does it again.") from None

    def abort(self) -> None:
        """End the open transaction, so that no reader waits for it. The producer is of no more use.

        Asked for once, and nothing hangs on it: whoever claims next aborts what is open. It does fail with brokers that
        work: an abort that overtakes the first rows is one of a transaction that the coordinator has not seen begin.
        """
        with suppress(KafkaException):
            self.producer.abort_transaction(_CALL_S)

    def _poll(self, seconds: float) -> None:
        self._serve(self.producer.poll, seconds)

    def _serve(self, wait: Callable[[float], object], seconds: float) -> None:
        """Let the client call back; raises what it has told."""
        try:
            wait(seconds)
        except KafkaException as failure:  # it is a producer no more
            raise self._of(failure) from None
        if self._failed is not None:
            raise self._failed

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            return
        found = error_of(f"{self.where}, topic {message.topic()}", error)
        if error.code() in _PURGED:
            self._purged = self._purged or found
        elif self._failed is None or (isinstance(self._failed, Transient) and not isinstance(found, Transient)):
            self._failed = found

    def _client_failed(self, error: KafkaError) -> None:
        """A connection lost is the client's to mend; what is fatal ends the producer."""
        found = error_of(self.where, error)
        if error.fatal() or (isinstance(found, NeedsHuman) and self._failed is None):
            self._failed = found

    def _refused(self, topic: str, failure: KafkaException) -> ChangefeedError:
        """Return the error of a message that the client refuses. In a transaction that has failed it takes none."""
        if failure.args[0].code() == KafkaError._STATE:
            with suppress(KafkaException):
                self.producer.flush(_CALL_S)  # why may not have been told yet
        return self._failed or self._purged or raised(f"{self.where}, topic {topic}", failure)

    def _of(self, failure: Exception) -> ChangefeedError:
        if self._failed is not None and not isinstance(self._failed, Transient):
            return self._failed
        if isinstance(failure, KafkaException):
            return raised(self.where, failure)
        return Transient(f"{self.where}: the client's queue is full.")


class _Void(ChangefeedError):
    """No second attempt of this producer helps: patience lets it through."""


def _pieces(keys: pa.Array, values: pa.Array) -> Iterator[range]:
    sizes = np.cumsum(_lengths(keys) + _lengths(values))
    start = 0
    while start < len(keys):
        before = int(sizes[start - 1]) if start else 0
        full = int(np.searchsorted(sizes, before + BATCH_BYTES)) + 1
        end = min(start + BATCH_MESSAGES, full, len(keys))
        yield range(start, end)
        start = end


def _lengths(texts: pa.Array) -> npt.NDArray[np.int64]:
    lengths = pc.fill_null(pc.binary_length(texts), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


class AtLeastOnce:
    """An entry's rows without a transaction: what a lost task has written is written again by the next one."""

    def __init__(self, cluster: Cluster, patience: Patience) -> None:
        self._sender = Sender(cluster, patience)

    def send(self, topic: str, messages: Messages, partitions: npt.NDArray[np.int32]) -> None:
        """As `Sender.send`."""
        self._sender.send(topic, messages, partitions)

    def done(self) -> None:
        """The entry is written when this returns. Raises Transient (do it again), NeedsHuman."""
        self._sender.flush()


def send_to_all(sender: Sender, topics: Sequence[tuple[str, int]], message: Message) -> None:
    """To all partitions of the topics, acknowledged when this returns."""
    for topic, count in topics:
        keys, values = (pa.array([side] * count, pa.binary()) for side in (message.key, message.value))
        messages = Messages(keys, values, None if message.headers is None else [message.headers] * count)
        sender.send(topic, messages, np.arange(count, dtype=np.int32))
    sender.flush()
