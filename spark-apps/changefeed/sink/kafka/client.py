"""Connects to a Kafka cluster, and maps its errors to what the caller should do.

A password goes into librdkafka's configuration and nowhere else: no error and no repr contains one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException

from changefeed.errors import ChangefeedError, Fenced, NeedsHuman, Refused, Transient, Unavailable
from changefeed.secret_files import TlsFiles

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_UNKNOWN_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
#: librdkafka does not call these retriable, as the message or call is given up; the entry may be tried again.
_PASSING = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._QUEUE_FULL,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
#: No broker answered.
_AWAY = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
    }
)

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True)
class Sasl:
    mechanism: Mechanism
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Cluster:
    """`brokers`: host:port, with commas between. `max_message_bytes`: of a message with its key."""

    brokers: str
    sasl: Sasl | None = None
    tls: TlsFiles | None = None
    max_message_bytes: int = 10 << 20
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"

    def client_config(self) -> dict[str, Any]:
        """Return the configuration of every client, by librdkafka's names."""
        scheme = ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")
        config: dict[str, Any] = {"bootstrap.servers": self.brokers, "security.protocol": scheme}
        if self.sasl:
            config["sasl.mechanisms"] = self.sasl.mechanism
            config["sasl.username"], config["sasl.password"] = self.sasl.username, self.sasl.password
        if self.tls:
            files = {"ca": self.tls.ca, "certificate": self.tls.certificate, "key": self.tls.key}
            config |= {f"ssl.{name}.location": str(file) for name, file in files.items() if file}
        return config

    def producer_config(self) -> dict[str, Any]:
        """Return the configuration of a producer whose messages keep their order and come once while it lives."""
        return self.client_config() | {
            "enable.idempotence": True,  # acks=all and at most 5 requests in flight follow
            "message.max.bytes": self.max_message_bytes,
            "compression.type": self.compression,
            "linger.ms": 5,
            "topic.metadata.propagation.max.ms": 10_000,  # of a topic that was made a moment ago
            # Batches are counted before they are queued (producer.py): the client's own limits must never be met.
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": (2 << 20) - 1,
            # A callback for each message that is written would be most of the work.
            "delivery.report.only.error": True,
        }


def error_of(where: str, error: KafkaError) -> ChangefeedError:
    """What the caller must do about it. `where` names the cluster, and the topic if there is one."""
    failure = _meant(where, error)
    if failure.answered is None and error.code() in _AWAY:
        failure.answered = False
    elif failure.answered is None and error.code() > 0:  # librdkafka's own errors are below
        failure.answered = True
    return failure


def _meant(where: str, error: KafkaError) -> ChangefeedError:
    code = error.code()
    why = f"{where}: {error.str()} ({error.name()})."
    if code in _FENCED:
        return Fenced(f"{where}: a newer task has claimed what this one writes ({error.name()}).")
    if code in _REFUSED:
        return Refused(why, "Check spec.sink.kafka's credentials, and the ACLs of its user.")
    if code in _UNKNOWN_TOPIC:
        return NeedsHuman(why, "Create the topic with its partitions, or allow its creation.")
    if code in _TOO_LARGE:
        return NeedsHuman(
            why,
            "Raise max.message.bytes of the topic to maxMessageBytes of the sink.",
        )
    if error.fatal() or code == KafkaError._FATAL:  # the latter of a message: the client tells the reason later
        return Unavailable(why, "The producer has failed; a new one writes the entry again.")
    if error.retriable() or error.txn_requires_abort() or code in _PASSING:
        return Transient(why)
    return NeedsHuman(why, "Look up the error in Kafka's protocol guide, fix the cluster, then start again.")


def raised(where: str, failure: KafkaException) -> ChangefeedError:
    """Return the error of a call that failed."""
    return error_of(where, failure.args[0])
