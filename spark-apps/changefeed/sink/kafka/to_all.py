"""Sends messages to all partitions of topics, acknowledged before anything else follows.

The caller has seen all rows up to their ts written: committed by exactly-once tasks, acknowledged for others. So a
consumer that has read a partition up to a resolved-ts has seen each of its rows with a lower ts. A message whose fate
is unknown is sent again: consumers skip a DDL with a ts that they have already seen.

With `fence`, each is a transaction under the changefeed's own id, so a replaced driver can't send anything any more:
the newer one has claimed the log, and then the id. Whoever claims the id checks the log afterwards, so an old driver
that wakes up late and takes the id away finds out before it sends; the newer one takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from changefeed.errors import Fenced, NeedsHuman, Transient
from changefeed.objectstore.patience import Patience
from changefeed.sink.kafka.client import Cluster
from changefeed.sink.kafka.codec.message import Message
from changefeed.sink.kafka.producer import Sender, send_to_all

_TRANSACTION_MS = 60_000


@dataclass(frozen=True)
class Fence:
    """`poll` asks the log who drives: raises Fenced."""

    transactional_id: str
    poll: Callable[[], object]


class ToAll:
    """One caller at a time."""

    def __init__(self, cluster: Cluster, patience: Patience, fence: Fence | None = None) -> None:
        self._cluster, self._patience, self._fence = cluster, patience, fence
        self._where = f"Kafka at {cluster.brokers}"
        self._sender: Sender | None = None  # after a failure it is of no more use

    def send(self, topics: Sequence[tuple[str, int]], message: Message, *, first_only: bool = False) -> None:
        """`topics`: names and partitions. `first_only`: to the first partition alone, as canal-json has it of DDLs.

        Raises Fenced, NeedsHuman where nothing else helps, Unavailable.
        """
        partitions = [(topic, 1 if first_only else number) for topic, number in topics]

        def attempt() -> None:
            sender, self._sender = self._sender or self._open(), None
            self._send(sender, partitions, message)
            self._sender = sender

        self._patience.call(self._where, attempt)

    def _open(self) -> Sender:
        if (fence := self._fence) is None:
            return Sender(self._cluster, self._patience)
        timeouts = {"transaction.timeout.ms": _TRANSACTION_MS, "message.timeout.ms": _TRANSACTION_MS}
        sender = Sender(self._cluster, self._patience, fence.transactional_id, **timeouts)
        sender.call(sender.producer.init_transactions)
        fence.poll()
        return sender

    def _send(self, sender: Sender, partitions: Sequence[tuple[str, int]], message: Message) -> None:
        if (fence := self._fence) is None:
            send_to_all(sender, partitions, message)
            return
        try:
            sender.producer.begin_transaction()
            send_to_all(sender, partitions, message)
            sender.call(sender.producer.commit_transaction)
        except Fenced as error:
            fence.poll()
            raise Transient(error.message, "It is sent again.") from None
        except NeedsHuman:
            sender.abort()  # else readers wait for its end until the broker ends it
            raise
