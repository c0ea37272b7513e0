"""Topics: which one a table's messages go to, and their creation.

A topic expression is `[prefix]{schema}[middle]{table}[suffix]`; what Kafka does not allow in a name becomes `_`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from changefeed.errors import InvalidSpec, NeedsHuman, Transient
from changefeed.sink.kafka.client import Cluster, error_of, raised
from changefeed.spec.filter.table_filter import TableFilter

_LONGEST = 249
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9._\-]")
_EXPRESSION = re.compile(r"[A-Za-z0-9._\-]*(\{schema\})?([A-Za-z0-9._\-]*\{table\})?[A-Za-z0-9._\-]*")
_AVRO_EXPRESSION = re.compile(r"[A-Za-z0-9._\-]*\{schema\}[A-Za-z0-9._\-]*\{table\}[A-Za-z0-9._\-]*")
_CALL_S = 30.0


def check_expression(expression: str, *, avro: bool = False) -> None:
    """Raises InvalidSpec. `avro`: a schema is one table's, so a topic has to be, too."""
    if not (_AVRO_EXPRESSION if avro else _EXPRESSION).fullmatch(expression):
        raise InvalidSpec(
            "spec.sink.kafka.dispatchers.topic",
            f"{expression!r} is not a topic expression: [prefix]{{schema}}[middle]{{table}}[suffix]"
            + (", avro needs both" if avro else "")
            + ", the rest of letters, digits and . _ -",
        )


def topic_of(expression: str, schema: str, table: str) -> str:
    name = expression.replace("{schema}", _FORBIDDEN.sub("_", schema)).replace("{table}", _FORBIDDEN.sub("_", table))
    if len(name) > _LONGEST:
        return name[:_LONGEST]
    return {".": "_", "..": "__"}.get(name, name)


@dataclass(frozen=True)
class Rule:
    """The topic and partitions of the tables that `matcher` selects.

    `topic` "": the default one. `partition`: TiCDC's word for it.
    """

    matcher: tuple[str, ...]
    partition: str = "default"
    topic: str = ""
    index: str = ""
    columns: tuple[str, ...] = ()


class Rules:
    """The first that matches a table decides. Raises InvalidSpec for an expression, BadRule for a matcher."""

    def __init__(
        self, rules: Sequence[Rule], default_topic: str, *, case_sensitive: bool = False, avro: bool = False
    ) -> None:
        self._default_topic = default_topic
        for rule in rules:
            if rule.topic:
                check_expression(rule.topic, avro=avro)
        self._rules = [(TableFilter(rule.matcher, case_sensitive), rule) for rule in rules]

    def of(self, schema: str, table: str) -> Rule:
        return next((rule for matcher, rule in self._rules if matcher.matches(schema, table)), Rule(("*.*",)))

    def topic(self, schema: str, table: str = "") -> str:
        """Return the topic of the table; a database's own statements go to the default topic."""
        expression = self.of(schema, table).topic if table else ""
        return topic_of(expression, schema, table) if expression else self._default_topic


def partitions_of(cluster: Cluster, topic: str) -> int:
    """How many it has; 0: there is no such topic. Raises Transient, Refused."""
    where = f"Kafka at {cluster.brokers}, topic {topic}"
    try:
        found = (
            AdminClient(cluster.client_config() | {"log_level": 0}).list_topics(topic, timeout=_CALL_S).topics[topic]
        )
    except KafkaException as failure:
        raise raised(where, failure) from None
    if found.error is None:
        return len(found.partitions)
    if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return 0
    raise error_of(where, found.error)


def create_topic(cluster: Cluster, topic: str, partitions: int, replication: int, *, compacted: bool = False) -> int:
    """Make sure that there is the topic; how many partitions it has, which may be others. Raises as `partitions_of`."""
    where = f"Kafka at {cluster.brokers}, topic {topic}"
    config = {"cleanup.policy": "compact"} if compacted else {}
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=config)
    admin = AdminClient(cluster.client_config() | {"log_level": 0})
    try:
        admin.create_topics([wanted], operation_timeout=_CALL_S)[topic].result()
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR:
            raise NeedsHuman(
                f"{where} can't have {replication} replicas: {failure.args[0].str()}.",
                "Set replicationFactor to at most the number of brokers.",
            ) from None
        if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise raised(where, failure) from None
    found = partitions_of(cluster, topic)
    if not found:
        raise Transient(f"{where} was created a moment ago and is not known yet.")
    return found
