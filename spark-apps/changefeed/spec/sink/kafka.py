"""Topics of a Kafka cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from changefeed.spec.field.fields import Bytes, Flag, Location, many, one_of, server, size, text, whole
from changefeed.spec.field.kind import fixed, wrong
from changefeed.spec.field.section import FROM_CREATION, Credentials, Section, SinkTls
from changefeed.spec.filter.filters import Rule
from changefeed.spec.sink.formats import CanalJson
from changefeed.spec.sink.staying import STAYS

_TOPIC = r"[A-Za-z0-9._\-]*(?:\{schema\})?(?:[A-Za-z0-9._\-]*\{table\})?[A-Za-z0-9._\-]*"
_TOPIC_ALLOWED = "[prefix]{schema}[middle]{table}[suffix], of letters, digits and . _ -"


class Dispatcher(Section):
    """Where the messages of the tables that `matcher` selects go. The first one that fits a table decides."""

    matcher: Annotated[tuple[Rule, ...], many(1, 64, "1 to 64 rules")]
    """Tables this applies to, in the syntax of `filter.rules`."""
    topic: Annotated[str, text(_TOPIC, _TOPIC_ALLOWED, 249)] = ""
    """Topic for each table, such as `{schema}_{table}`. Empty: the topic in the uri."""
    partition: Annotated[str, one_of("table", "index-value", "columns", "ts")] = "table"
    """What determines a row's partition: its table, the values of an index or of columns, or its commit ts."""
    index: Annotated[str, text(r"[^`]*", "the name of an index", 64)] = ""
    """Index for index-value. Empty: the primary key, or a unique key that can stand in for it."""
    columns: Annotated[tuple[Annotated[str, text(r"[^`]+", "a column's name", 64)], ...], many(0, 64, "64 names")] = ()
    """Columns for partition: columns."""


class LargeMessages(Section):
    """What becomes of a row whose message is larger than maxMessageBytes."""

    option: Annotated[str, one_of("none", "handle-key-only", "claim-check")] = "none"
    """none: stop the changefeed. handle-key-only: send only the row's key. claim-check: put the message in a store."""
    claim_check_uri: Annotated[Location | None, Field()] = None
    """Store for claim-check, written with the environment's own credentials."""


_NEEDS_STORE = "claimCheckUri for option: claim-check"


class Kafka(Section):
    """Topics of a Kafka cluster."""

    uri: Annotated[str, server("kafka", "kafka://host:port/topic"), STAYS, fixed(FROM_CREATION)]
    """Brokers, separated by commas, and the default topic."""
    protocol: Annotated[str, one_of("canal-json", "open-protocol", "simple", "debezium", "avro")]
    """Message format."""
    delivery: Annotated[str, one_of("at-least-once", "exactly-once")] = "at-least-once"
    """exactly-once uses Kafka transactions; consumers need isolation.level=read_committed."""
    partition_num: Annotated[int, whole(1, 1_000)] = 3
    """Partitions of the topics that the changefeed creates."""
    replication_factor: Annotated[int, whole(1, 16)] = 1
    """Replicas of the topics that the changefeed creates."""
    max_message_bytes: Annotated[Bytes, size("1Ki", "1Gi")] = 10 << 20
    """Largest message to send; see largeMessages for larger ones. The topic's max.message.bytes must allow it."""
    compression: Annotated[str, one_of("none", "gzip", "snappy", "lz4", "zstd")] = "none"
    """Compression of message batches."""
    dispatchers: Annotated[tuple[Dispatcher, ...], many(0, 64, "at most 64 dispatchers")] = ()
    """Topics and partitions by table. If none matches: the default topic, partitioned by table."""
    large_messages: LargeMessages = LargeMessages()
    """What to do about rows that are too large for a message."""
    canal_json: CanalJson = CanalJson()
    """Options for protocol: canal-json. Resolved-ts messages are only sent with enableTidbExtension."""
    schema_registry: Annotated[str | None, text(r"https?://[^@\s]+", "http://host:port", 1024)] = None
    """Confluent-compatible schema registry, for protocol: avro."""
    output_raw_change_event: Flag = False
    """Write an update of a primary or unique key as one update instead of a delete and an insert."""
    cloud_events: Flag = False
    """Add CloudEvents headers to each message (binary content mode). Costs one client call per message."""
    sasl_mechanism: Annotated[str, one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")] = "PLAIN"
    """SASL mechanism for the credentials' user."""
    tls: SinkTls | None = None
    """TLS to the brokers."""
    credentials: Credentials | None = None
    """Credentials to write with."""

    @field_validator("large_messages")
    @classmethod
    def _with_a_store(cls, large: LargeMessages) -> LargeMessages:
        if large.option == "claim-check" and large.claim_check_uri is None:
            raise wrong(_NEEDS_STORE)
        return large
