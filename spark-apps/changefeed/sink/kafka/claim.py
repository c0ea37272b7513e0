"""Topics of a Kafka cluster. The driver creates them, and sends DDLs and the resolved-ts to all their partitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from changefeed.errors import InvalidSpec
from changefeed.log.state import State
from changefeed.objectstore.patience import Patience
from changefeed.schema.table_info import TableInfo
from changefeed.sink.claim import SinkClaim, Taken, Versions, identity_downstream
from changefeed.sink.contract import SinkDriver
from changefeed.sink.kafka.codec.choice import fingerprint
from changefeed.sink.kafka.driver import KafkaDriver
from changefeed.sink.kafka.entry_writer import KafkaJob
from changefeed.sink.kafka.options import KafkaEndpoint, rules_of
from changefeed.sink.kafka.registry import RegistryEndpoint
from changefeed.sink.kafka.topics import partitions_of
from changefeed.spec.field.secret import secret_folder, store_secret
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective
from changefeed.spec.sink.kafka import Kafka


def registry_endpoint(spec: Kafka, secrets_dir: Path | None) -> RegistryEndpoint | None:
    """Raises as `kafka_endpoint`."""
    if spec.schema_registry is None:
        return None
    field = "spec.sink.kafka.schemaRegistry"
    return RegistryEndpoint(
        spec.schema_registry,
        secret_folder(f"{field}Credentials", spec.schema_registry_credentials, secrets_dir),
        secret_folder(f"{field}Tls", spec.schema_registry_tls, secrets_dir),
    )


def kafka_endpoint(changefeed: Changefeed, secrets_dir: Path | None = None) -> KafkaEndpoint:
    """Raises InvalidSpec without the folder of the Secrets that it needs."""
    spec = changefeed.spec.sink.kafka
    assert spec is not None, "the sink is kafka"
    return KafkaEndpoint.of(
        effective(changefeed)["spec"]["sink"]["kafka"],
        secret_folder("spec.sink.kafka.credentials", spec.credentials, secrets_dir),
        secret_folder("spec.sink.kafka.tls", spec.tls, secrets_dir),
    )


class KafkaClaim(SinkClaim):
    """Holds no topic: with exactly-once delivery, transactional ids keep an older writer out."""

    in_order = True

    def __init__(self, changefeed: Changefeed, secrets_dir: Path | None = None) -> None:
        spec = changefeed.spec.sink.kafka
        assert spec is not None, "the sink is kafka"
        config = effective(changefeed)
        self.uri = spec.uri
        self._options = config["spec"]["sink"]["kafka"]
        self.fingerprint = fingerprint(self._options)
        endpoint = kafka_endpoint(changefeed, secrets_dir)
        if not endpoint.topic:
            raise InvalidSpec("spec.sink.kafka.uri", f"{spec.uri} names no topic", "Write kafka://host:port/topic.")
        if spec.protocol == "avro" and spec.schema_registry is None:
            raise InvalidSpec(
                "spec.sink.kafka.schemaRegistry",
                "missing; protocol: avro needs it",
                "Set it to the registry's address.",
            )
        case_sensitive = changefeed.spec.filter.case_sensitive
        self._rules = rules_of(self._options, endpoint.topic, case_sensitive)
        large = spec.large_messages
        self._job = KafkaJob(
            endpoint,
            spec.delivery == "exactly-once",
            case_sensitive,
            registry_endpoint(spec, secrets_dir),
            large.option,
            large.claim_check_uri,
            store_secret(large.claim_check_uri or "", large.credentials, secrets_dir),
        )
        self._time_zone = self._job.mounting(self._options, config["spec"]["timeZone"]).time_zone
        self._tables: list[tuple[TableInfo, int]] = []

    def open(self) -> None:
        endpoint = self._job.endpoint
        Patience().call(self.uri, lambda: partitions_of(endpoint.cluster(), endpoint.topic))

    def check_rewind(self, state: State, state_uri: str) -> None:
        raise InvalidSpec(
            "spec.restart",
            "what consumers have read can't be withdrawn",
            "Create a new changefeed with startTs, and a topic of its own.",
        )

    def settle_in(self, taken: Taken, tables: Versions) -> None:
        self._tables = list({table.id: (table, version) for _, table, version, _ in tables}.values())
        if self._options["protocol"] == "avro" and not taken.state.rows and not taken.state.plans:
            self._check_topics()

    def _check_topics(self) -> None:
        """Check avro's topics before anything is written: registries compare a subject's schemas as one table's."""
        of_topics: dict[str, TableInfo] = {}
        for table, _ in self._tables:
            topic = self._rules.topic(table.schema_name, table.name)
            other = of_topics.setdefault(topic, table)
            if other is not table:
                raise InvalidSpec(
                    "spec.sink.kafka.dispatchers",
                    f"{other.full_name} and {table.full_name} would both go to topic {topic}, and with protocol: avro "
                    "a topic's schema is one table's",
                    'Give each table a topic: [{matcher: ["*.*"], topic: "{schema}_{table}"}].',
                )

    def job(self) -> KafkaJob:
        return self._job

    def driver(self, taken: Taken, poll_fence: Callable[[], object], patience: Patience) -> SinkDriver:
        changefeed = identity_downstream(taken.state)
        return KafkaDriver(self._job, self._options, self._time_zone, changefeed, self._tables, poll_fence, patience)
