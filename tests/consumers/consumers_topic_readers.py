"""How readers are run over topics: Flink's formats, Kafka Connect, fastavro, and Kafka's own consumer in Java."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import fastavro
import integration_flink_reader
import integration_kafka_broker
from consumers_reading import Column
from consumers_topic_forms import Unreadable
from consumers_topic_messages import AVRO, CANAL, DEBEZIUM, Row, avro
from consumers_topics import Pair, Topics
from integration_connect_reader import CONNECT, Unwrapped, connect_reader
from integration_connect_reader import DEBEZIUM as DEBEZIUM_VERSION
from integration_flink_reader import Change, flink_reader
from integration_java import checked, compiled, java_tool

READ_S = 60.0
_JAVA_SOURCE = Path(__file__).parent / "topics" / "TopicReader.java"
_MOST_DIGITS = 38
#: As who does not know what stands in the messages would declare them.
_FLINK = {
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "BYTES"),
    "tinyint": "TINYINT", "tinyint unsigned": "SMALLINT", "smallint": "SMALLINT", "mediumint": "INT", "int": "INT",
    "smallint unsigned": "INT", "int unsigned": "BIGINT", "int unsigned zerofill": "BIGINT", "bigint": "BIGINT",
    "bigint unsigned": "DECIMAL(20, 0)", "year": "INT", "bit": "BIGINT", "bit(64)": "DECIMAL(20, 0)",
    "float": "FLOAT", "double": "DOUBLE", "date": "DATE", "datetime": "TIMESTAMP(0)", "datetime(3)": "TIMESTAMP(3)",
    "datetime(6)": "TIMESTAMP(6)", "timestamp": "TIMESTAMP_LTZ(0)", "timestamp(3)": "TIMESTAMP_LTZ(3)",
    "time": "TIME(0)", "time(6)": "TIME(6)",
}  # fmt: skip
_OF_CANAL = {
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "time", "time(6)"), "STRING"),
    "timestamp": "TIMESTAMP(0)", "timestamp(3)": "TIMESTAMP(3)", "enum": "BIGINT", "set": "BIGINT",
}  # fmt: skip
_OF_DEBEZIUM = {
    "bigint unsigned": "BIGINT", "bit(1)": "BOOLEAN", "bit": "BYTES", "bit(64)": "BYTES", "decimal": "DOUBLE",
    "date": "INT", "datetime": "BIGINT", "datetime(3)": "BIGINT", "datetime(6)": "BIGINT", "time": "BIGINT",
    "time(6)": "BIGINT",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Reading:
    """`read` gets a topic's messages and the columns that may be NULL. `types`: Flink's, instead of `_FLINK`'s.

    `lenient`: options with which it passes over single values; they show for which types it refuses messages.
    """

    tool: str
    protocol: str
    read: Callable[[Readers, Reading, Sequence[Pair], Sequence[Column]], list[Row | Unreadable]]
    options: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    lenient: Mapping[str, str] = field(default_factory=dict)


class Readers:
    """Compiled into a folder, once each."""

    def __init__(self, folder: Path, topics: Topics) -> None:
        self._folder, self.topics = folder, topics
        self.flink = cache(lambda: flink_reader(self._made("flink")))
        self.connect = cache(lambda: connect_reader(self._made("connect")))
        self._java = cache(lambda: compiled(_JAVA_SOURCE, self._made("java"), topics.broker.jars))

    def _made(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder

    def partitions(self, topic: str) -> list[tuple[int, int]]:
        """Return each message's partition, and the one that a producer in Java would choose by its key."""
        command = [java_tool("java"), "-cp", self._java(), "TopicReader", self.topics.broker.cluster.brokers, topic]
        lines = checked(command, f"reading {topic}", READ_S).decode().splitlines()
        return [(int(ours), int(theirs)) for ours, theirs in map(str.split, lines)]


def _by_flink(
    readers: Readers, reading: Reading, messages: Sequence[Pair], columns: Sequence[Column]
) -> list[Row | Unreadable]:
    types = [(column.name, flink_type(reading, column)) for column in columns]
    name = "canal-json" if reading.protocol == CANAL else "debezium-json"
    read = readers.flink().read(name, reading.options, types, [value for _, value in messages])
    return [_changed(changes) if isinstance(changes, list) else Unreadable(changes.why) for changes in read]


def flink_type(reading: Reading, column: Column) -> str:
    if column.base == "decimal" and column.digits[0] > _MOST_DIGITS and "decimal" not in reading.types:
        return "STRING"
    return column.typed(dict(reading.types), column.typed(_FLINK | {"decimal": "DECIMAL({0}, {1})"}, "STRING"))


def _changed(changes: Sequence[Change]) -> Row | Unreadable:
    """Return the row of an insert."""
    ((kind, row),) = changes or [("nothing", {})]
    return row if kind == "+I" else Unreadable(f"reads {kind}")


def _by_connect(
    readers: Readers, reading: Reading, messages: Sequence[Pair], columns: Sequence[Column]
) -> list[Row | Unreadable]:
    read = readers.connect().read(reading.options, messages)
    return [
        each.value or {} if isinstance(each, Unwrapped) else Unreadable("drops it" if each is None else each.why)
        for each in read
    ]


def _by_fastavro(
    readers: Readers, reading: Reading, messages: Sequence[Pair], columns: Sequence[Column]
) -> list[Row | Unreadable]:
    return avro([value or b"" for _, value in messages], cache(readers.topics.registry.schema)).rows


_FLINK_TOOL = f"Flink {integration_flink_reader.VERSION}"
_CONNECT_TOOL = f"Kafka Connect {CONNECT} with Debezium {DEBEZIUM_VERSION}: JsonConverter, ExtractNewRecordState"
_SCHEMA = {"schema-include": "true", "timestamp-format.standard": "ISO-8601"}
READINGS = (
    Reading(_FLINK_TOOL, CANAL, _by_flink, lenient={"ignore-parse-errors": "true"}),
    Reading(_FLINK_TOOL, CANAL, _by_flink, {}, _OF_CANAL),
    Reading(_FLINK_TOOL, DEBEZIUM, _by_flink),
    Reading(_FLINK_TOOL, DEBEZIUM, _by_flink, _SCHEMA, _OF_DEBEZIUM),
    Reading(_CONNECT_TOOL, DEBEZIUM, _by_connect),
    Reading(f"fastavro {fastavro.__version__}", AVRO, _by_fastavro),
)
JAVA = f"Kafka's consumer in Java {integration_kafka_broker.VERSION}"
