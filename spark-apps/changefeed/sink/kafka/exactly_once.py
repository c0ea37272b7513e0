"""An entry's rows and its progress in one Kafka transaction.

*Why a task that lives on can't write after a claim.* The transactional id is the dispatcher's, not the task's: whoever
writes its rows does so under this one id. A claim begins with init_transactions, by which the coordinator raises the
id's producer epoch, aborts what was open under the old one, and first completes what was being committed. From then on

- the coordinator refuses the old epoch: no partition can be added to a transaction, none can be committed;
- each partition that the old transaction had been added to has an abort marker with the raised epoch, and its leader
  refuses a batch of a lower one, however late it comes. Other partitions never take a batch of it.

So when init_transactions has returned, each entry before is either in the topics for good or will never be seen by a
read_committed consumer, and the progress message, which was in the same transaction, says which. It is read after that,
never before. A task of a lower epoch may be the one that comes last and fence a newer one; it reads the newer one's
claim, which is committed before any row, and ends as Fenced. The newer one's entry is given out again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from changefeed.errors import ChangefeedError, Transient
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.kafka.client import Cluster, error_of, raised
from changefeed.sink.kafka.codec.message import Messages
from changefeed.sink.kafka.producer import Sender
from changefeed.sink.kafka.progress import ClaimVerdict, ProgressRecord, decide, decode, encode, progress_key

T = TypeVar("T")

#: The broker aborts a transaction that lasts longer: of a task that is gone, and that nobody claims from.
TRANSACTION_S = 600
_CALL_S = 10.0


class ExactlyOnce:
    """Writes one entry at a time of one dispatcher. Not thread-safe.

    `claim`, then `send` any number of times, then `done`. After `abort`, and after an error, it is of no more use.
    """

    def __init__(
        self,
        cluster: Cluster,
        claim: Claim,
        progress: tuple[str, int],
        patience: Patience,
        transaction_s: int = TRANSACTION_S,
    ) -> None:
        """`progress`: the compacted topic, and how many partitions it has."""
        self._cluster, self._claim, self._patience = cluster, claim, patience
        self._key = progress_key(claim)
        topic, partitions = progress
        self._partition = TopicPartition(topic, zlib.crc32(self._key) % partitions)
        timeouts = {"transaction.timeout.ms": transaction_s * 1000, "message.timeout.ms": transaction_s * 1000}
        self._sender = Sender(cluster, patience, f"{claim.changefeed}.{claim.dispatcher}", **timeouts)
        self._found: ProgressRecord | None = None
        self._is_first = True
        self._open: ProgressRecord | None = None  # what the open transaction makes of it

    def claim(self, entry: EntryId) -> ClaimVerdict:
        """Fence whoever wrote for the dispatcher before; WRITE: a transaction is open, SKIP: there is nothing to do.

        A later claim of the same writer costs no fencing: if somebody has fenced it, the claim's own message says so.
        Raises Fenced (a newer one has claimed it), and as `done`.
        """
        claim = self._claim
        if self._is_first:
            self._sender.call(self._sender.producer.init_transactions)
            self._found = read_progress(self._cluster, self._partition, self._key, self._patience)
        verdict = decide(self._found, claim, entry)
        if self._is_first:
            self._sender.producer.begin_transaction()
            self._commit(ProgressRecord.of(claim, self._found.done if self._found else None))
            self._is_first = False
        if verdict is ClaimVerdict.WRITE:
            self._sender.producer.begin_transaction()
            self._open = ProgressRecord.of(claim, entry)
        return verdict

    def send(self, topic: str, messages: Messages, partitions: npt.NDArray[np.int32]) -> None:
        """As `Sender.send`; read_committed consumers see nothing of it before `done`."""
        self._sender.send(topic, messages, partitions)

    def done(self) -> None:
        """All rows of the entry, and that it is done, are in the topics when this returns.

        Raises Transient (nothing of it is: another writer must claim it), Fenced, NeedsHuman, Unavailable.
        """
        assert self._open is not None, "claimed"
        # Last, so that an unfinished transaction seldom stands in the way of others' readers of the progress topic.
        self._commit(self._open)
        self._open = None

    def abort(self) -> None:
        """Nothing of the entry will be seen, and no reader waits for it."""
        self._sender.abort()

    def _commit(self, progress: ProgressRecord) -> None:
        message = Messages(pa.array([self._key], pa.binary()), pa.array([encode(progress)], pa.binary()))
        try:
            self._sender.send(self._partition.topic, message, np.array([self._partition.partition], np.int32))
            self._sender.flush()
            self._sender.call(self._sender.producer.commit_transaction)
        except BaseException:
            self.abort()
            raise
        self._found = progress


def read_progress(cluster: Cluster, partition: TopicPartition, key: bytes, patience: Patience) -> ProgressRecord | None:
    """The last committed message of the key; None when there is none.

    A read_committed reader gets as far as the first transaction that is open, maybe another dispatcher's, and our
    message may stand behind it. So the end is the one that read_uncommitted readers see, and that is waited for: until
    the other one is committed, claimed from, or aborted by the broker.
    """
    where = f"Kafka at {cluster.brokers}, topic {partition.topic}"
    end = patience.call(where, lambda: _asked(where, lambda: _end(cluster, partition)))
    config = cluster.client_config() | {
        "group.id": "changefeed-progress",  # asked for by the client; nothing is committed to it
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    consumer = Consumer(config)
    try:
        return patience.call(where, lambda: _asked(where, lambda: _last(where, consumer, partition, key, end)))
    finally:
        consumer.close()


def _end(cluster: Cluster, partition: TopicPartition) -> int:
    asked = {TopicPartition(partition.topic, partition.partition): OffsetSpec.latest()}
    admin = AdminClient(cluster.client_config() | {"log_level": 0})
    answer = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_CALL_S)
    (found,) = answer.values()
    return int(found.result().offset)


def _last(where: str, consumer: Consumer, partition: TopicPartition, key: bytes, end: int) -> ProgressRecord | None:
    consumer.assign([TopicPartition(partition.topic, partition.partition, 0)])
    last: bytes | None = None
    while consumer.position([partition])[0].offset < end:
        message = consumer.poll(_CALL_S)
        if message is None:
            raise Transient(f"{where}: a transaction is open before offset {end}.")
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # The last ones may be transactions' markers, which are no messages and move no position.
                if message.offset() >= end:
                    break
                continue
            raise error_of(where, error)
        if message.key() == key:
            last = message.value()
    return None if last is None else decode(last)


def _asked(where: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except KafkaException as failure:
        error: ChangefeedError = raised(where, failure)
        raise error from None
