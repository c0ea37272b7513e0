"""Topics of a Kafka cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from changefeed.spec.field.fields import Bytes, Flag, Location, many, one_of, server, server_of, size, text, whole
from changefeed.spec.field.kind import fixed, rule, wrong
from changefeed.spec.field.location import is_this_machine
from changefeed.spec.field.section import FROM_CREATION, Credentials, Section, SinkTls, ruled
from changefeed.spec.filter.filters import Rule
from changefeed.spec.sink.formats import CanalJsonSpec
from changefeed.spec.sink.section import InClearText, SinkSection
from changefeed.spec.sink.staying import STAYS

_TOPIC = r"[A-Za-z0-9._\-]*(?:\{schema\})?(?:[A-Za-z0-9._\-]*\{table\})?[A-Za-z0-9._\-]*"
_TOPIC_ALLOWED = "[prefix]{schema}[middle]{table}[suffix], of letters, digits and . _ -"


class DispatcherSpec(Section):
    """Where the messages of the tables that `matcher` selects go. The first one that fits a table decides."""

    matcher: Annotated[tuple[Rule, ...], many(1, 64, "1 to 64 rules")]
    """Tables this applies to, in the syntax of `filter.rules`."""
    topic: Annotated[str, text(_TOPIC, _TOPIC_ALLOWED, 249)] = ""
    """Topic for each table, such as `{schema}_{table}`. Empty: the topic in the uri."""
    partition: Annotated[str, one_of("table", "index-value", "columns", "ts", "key")] = "table"
    """
    What determines a row's partition: its table, the values of an index or of columns, or its commit ts, as in TiCDC;
    or key (debezium, avro): a row goes where Kafka's Java clients send messages with its key.
    """
    index: Annotated[str, text(r"[^`]*", "the name of an index", 64)] = ""
    """Index for index-value. Empty: the primary key, or a unique key that can stand in for it."""
    columns: Annotated[tuple[Annotated[str, text(r"[^`]+", "a column's name", 64)], ...], many(0, 64, "64 names")] = ()
    """Columns for partition: columns."""


class LargeMessages(Section):
    """What becomes of a row whose message is larger than maxMessageBytes."""

    option: Annotated[str, one_of("none", "handle-key-only", "claim-check")] = "none"
    """none: stop the changefeed. handle-key-only: send only the row's key. claim-check: put the message in a store."""
    claim_check_uri: Annotated[Location | None, Field()] = None
    """Store for claim-check."""
    credentials: Credentials | None = None
    """Credentials to write to claimCheckUri. Without them, the environment's own are used."""


class KafkaCanalJson(CanalJsonSpec):
    """TiCDC's options that canal-json in topics has."""

    ddls: Flag = False
    """Send DDLs, at which Flink's canal-json format ends. With enableTidbExtension they are sent in any case."""


class DebeziumSpec(Section):
    """What is sent beside rows: Flink's debezium-json format ends at it, Debezium's ExtractNewRecordState drops it."""

    watermarks: Flag = False
    """Send the resolved-ts."""
    ddls: Flag = False
    """Send DDLs."""


class AvroSpec(Section):
    """TiCDC's handling modes."""

    decimal_handling_mode: Annotated[str, one_of("precise", "string")] = "precise"
    """DECIMAL as bytes of the logical type decimal, or as text."""
    bigint_unsigned_handling_mode: Annotated[str, one_of("long", "string")] = "long"
    """BIGINT UNSIGNED as a long, in which values from 2^63 on are negative, or as text."""


class RegistryCredentials(Credentials):
    over_http: Flag = False
    """Send them to an http registry too, where the network can read them."""


_NEEDS_STORE = "claimCheckUri for option: claim-check"


_KEYED = ("debezium", "avro")
_NEEDS_KEYS = f"partition: key with protocol {' or '.join(_KEYED)} only"
_ALL_KEYED = f"self.protocol in {list(_KEYED)} || !has(self.dispatchers)"

_NEEDS_HTTPS = "https in schemaRegistry, or overHttp: true in schemaRegistryCredentials"
_ENCRYPTED = "has(self.schemaRegistry) && self.schemaRegistry.startsWith('https:')"
_SAID = "has(self.schemaRegistryCredentials.overHttp) && self.schemaRegistryCredentials.overHttp"


class Kafka(SinkSection):
    """Topics of a Kafka cluster."""

    model_config = ruled(
        rule(f"{_ALL_KEYED} || self.dispatchers.all(d, !has(d.partition) || d.partition != 'key')", _NEEDS_KEYS),
        rule(f"!has(self.schemaRegistryCredentials) || ({_ENCRYPTED}) || ({_SAID})", _NEEDS_HTTPS),
    )

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
    dispatchers: Annotated[tuple[DispatcherSpec, ...], many(0, 64, "at most 64 dispatchers")] = ()
    """Topics and partitions by table. If none matches: the default topic, partitioned by table."""
    large_messages: LargeMessages = LargeMessages()
    """What to do about rows that are too large for a message."""
    canal_json: KafkaCanalJson = KafkaCanalJson()
    """Options for protocol: canal-json. The resolved-ts is only sent with enableTidbExtension."""
    debezium: DebeziumSpec = DebeziumSpec()
    """Options for protocol: debezium."""
    avro: AvroSpec = AvroSpec()
    """Options for protocol: avro."""
    schema_registry: Annotated[str | None, server_of(("http", "https"), "http://host:port")] = None
    """Where the API of a Confluent-compatible schema registry is, for protocol: avro."""
    schema_registry_credentials: RegistryCredentials | None = None
    """
    Keys: username, password. For OAuth: token-url, client-id, client-secret, scope; for Confluent Cloud also
    logical-cluster and identity-pool.
    """
    schema_registry_tls: SinkTls | None = None
    """TLS to the registry. Without it, an https registry's certificate is checked against public CAs."""
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

    @field_validator("dispatchers")
    @classmethod
    def _with_keys(cls, dispatchers: tuple[DispatcherSpec, ...], info: ValidationInfo) -> tuple[DispatcherSpec, ...]:
        if info.data.get("protocol", _KEYED[0]) not in _KEYED and any(each.partition == "key" for each in dispatchers):
            raise wrong(_NEEDS_KEYS)
        return dispatchers

    @field_validator("schema_registry_credentials")
    @classmethod
    def _encrypted(cls, given: RegistryCredentials | None, info: ValidationInfo) -> RegistryCredentials | None:
        registry = info.data.get("schema_registry") or ""
        if given is not None and not (given.over_http or registry.startswith("https:")):
            raise wrong(_NEEDS_HTTPS)
        return given

    @field_validator("large_messages")
    @classmethod
    def _with_a_store(cls, large: LargeMessages) -> LargeMessages:
        if large.option == "claim-check" and large.claim_check_uri is None:
            raise wrong(_NEEDS_STORE)
        return large

    def matchers(self) -> dict[str, tuple[str, ...]]:
        return {f"kafka.dispatchers[{n}].matcher": each.matcher for n, each in enumerate(self.dispatchers)}

    def servers(self) -> Iterator[str]:
        """Brokers that advertise other addresses are not among them."""
        yield from self._brokers()
        if self.schema_registry:
            yield self.schema_registry

    def stores(self) -> Iterator[str]:
        if self.large_messages.claim_check_uri:
            yield self.large_messages.claim_check_uri

    def in_clear_text(self) -> Iterator[InClearText]:
        # SCRAM proves the password without sending it.
        if self.credentials is not None and self.tls is None and self.sasl_mechanism == "PLAIN":
            brokers = (urlsplit(broker).hostname or "" for broker in self._brokers())
            host = next((host for host in brokers if not is_this_machine(host)), "localhost")
            yield InClearText("spec.sink.kafka.credentials", host, True, "Set spec.sink.kafka.tls.")
        if self.schema_registry_credentials is not None:
            registry = urlsplit(self.schema_registry or "")
            if registry.scheme == "http":
                field = "spec.sink.kafka.schemaRegistryCredentials"
                yield InClearText(field, registry.hostname or "", False, "Use https in schemaRegistry.")

    def _brokers(self) -> list[str]:
        return [f"kafka://{broker}" for broker in urlsplit(self.uri).netloc.split(",")]
