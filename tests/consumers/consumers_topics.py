"""A topic of each protocol with every column type, written by the Kafka sink to a real broker, and what readers get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Claim, Entry, EntryId, Surroundings
from changefeed.sink.kafka.entry_writer import KafkaJob, KafkaWriter
from changefeed.sink.kafka.options import KafkaEndpoint
from changefeed.sink.kafka.registry import RegistryEndpoint
from changefeed.sink.records import Records
from consumers_topic_messages import AVRO, BUILD_MS, CANAL, DEBEZIUM, SOURCE, options_of
from consumers_topic_rows import EVERY, NOT_UTF_8, Kind, Tested, table_of
from integration_kafka_broker import Broker, consumed, made_topic, running
from integration_kafka_history import history
from integration_registry import RELEASES, RegistryServer, registry
from integration_types import ZONE

PARTITIONS = 8
_PATIENCE_S = 60.0
_KEY_ROWS, _KEYS = 200, 120
_TIMES = ("date", "datetime", "timestamp")
#: Rows of a topic: those that readers may refuse stand apart.
USUAL, ZEROS, BROKEN = "usual", "zeros", "broken"

Pair = tuple[bytes | None, bytes | None]


class Rows(NamedTuple):
    """`of`: by what is in them, their numbers."""

    table: Tested
    of: dict[str, list[int]]


def rows() -> Rows:
    """Values of every type, then dates that no calendar has, then bytes that are not UTF-8; NULL in the last row."""
    usual = [[value for value in kind.given if not _is_no_date(kind, value)] for kind in EVERY]
    zeros = [[value for value in kind.given if _is_no_date(kind, value)] for kind in EVERY]
    first, second = max(map(len, usual)), max(map(len, zeros))
    kinds = [
        replace(kind, given=(*values, *[None] * (first - len(values)), *more))
        for kind, values, more in zip(EVERY, usual, zeros, strict=True)
    ]
    (broken,) = NOT_UTF_8
    whole, *others = broken.given
    kinds.append(replace(broken, given=(whole, *[None] * (first + second - 1), *others)))
    end = first + second + len(others)
    of = {USUAL: [*range(first), end], ZEROS: [*range(first, first + second)], BROKEN: [*range(first + second, end)]}
    return Rows(table_of(tuple(kinds)), of)


def _is_no_date(kind: Kind, value: Any) -> bool:
    return kind.column.base in _TIMES and isinstance(value, str)


@dataclass(frozen=True)
class Topics:
    """`messages`: by protocol. `keyed`: by protocol, a topic with many keys and `partition: key`."""

    rows: Rows
    messages: dict[str, list[Pair]]
    keyed: dict[str, str]
    broker: Broker
    registry: RegistryServer


@contextmanager
def topics(folder: Path) -> Iterator[Topics]:
    for name in ("broker", "registry"):
        (folder / name).mkdir()
    with running(folder / "broker") as broker, registry(folder / "registry", RELEASES[0]) as server:
        written, messages = rows(), {}
        for protocol in (CANAL, DEBEZIUM, AVRO):
            records = written.table.records("UTC" if protocol == DEBEZIUM else ZONE)
            topic = _write(broker, server, "types", protocol, records, "table", folder)
            messages[protocol] = [pair[1:] for pair in consumed(broker.cluster, topic)]
        (many,), _ = history(1, 1, _KEY_ROWS, _KEYS)
        keyed = {
            protocol: _write(broker, server, "keys", protocol, many, "key", folder) for protocol in (DEBEZIUM, AVRO)
        }
        yield Topics(written, messages, keyed, broker, server)


def _write(
    broker: Broker, server: RegistryServer, name: str, protocol: str, records: Records, rule: str, folder: Path
) -> str:
    """The topic's name."""
    info = records.table
    topic = f"{protocol}-{name}_{info.schema_name}_{info.name}"
    made_topic(broker.cluster, topic, PARTITIONS if rule == "key" else 1)
    expression = f"{protocol}-{name}_{{schema}}_{{table}}"
    dispatcher = {"matcher": ["*.*"], "partition": rule, "topic": expression, "index": "", "columns": []}
    more = {"cloudEvents": False, "dispatchers": [dispatcher], "largeMessages": {"option": "none"}}
    endpoint = KafkaEndpoint(f"kafka://{broker.cluster.brokers}/{topic}", "PLAIN", 1 << 20, "none")
    patience = Patience(_PATIENCE_S)
    writer = KafkaWriter(
        KafkaJob(endpoint, False, False, RegistryEndpoint(server.uri)),
        Surroundings(topic, folder, patience, patience, _raise),
    )
    entry = Entry(
        Claim(topic, info.id, 1, "n", 1), EntryId(1, 1), 1 << 60, "", info, SOURCE.table_version, info.output_columns,
        BUILD_MS, ZONE, options_of(protocol, more),
    )  # fmt: skip
    writer.write(entry, iter([records]))
    return topic


def _raise(error: BaseException) -> None:
    raise error
