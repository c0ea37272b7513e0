"""CPU seconds per million rows of the Kafka sink: each codec alone, and with the producer.

    .venv/bin/python bench/kafka_sink.py [--rows N] [--brokers HOST:PORT --topic NAME]

Without brokers the client library's own mock takes the messages, inside this process: its CPU counts too. A topic of
real brokers has at least PARTITIONS partitions.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from changefeed.model.position import OP_INSERT, OP_UPDATE
from changefeed.objectstore.patience import Patience
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.schema.values import arrow_type
from changefeed.sink.kafka.client import Cluster
from changefeed.sink.kafka.codec.avro.codec import Avro
from changefeed.sink.kafka.codec.canal import CanalJson
from changefeed.sink.kafka.codec.debezium.codec import Debezium
from changefeed.sink.kafka.codec.message import MessageCodec, Messages, Source
from changefeed.sink.kafka.codec.open_protocol import OpenProtocol, frame
from changefeed.sink.kafka.codec.partition import partitions_of
from changefeed.sink.kafka.codec.simple import Simple
from changefeed.sink.kafka.producer import Sender
from changefeed.sink.records import Records
from changefeed.sink.text.canal_json import CanalJsonFormat

PARTITIONS, CHUNK = 3, 100_000
MAX_ROWS, MAX_BYTES = 16, 1 << 20  # of a message of the open protocol

CODECS: dict[str, MessageCodec] = {
    "canal-json": CanalJson(CanalJsonFormat(terminator="", enable_tidb_extension=True)),
    "open-protocol": OpenProtocol(),
    "simple": Simple(),
    "debezium": Debezium("bench", with_schema=False),
    "debezium, schema": Debezium("bench"),
    "avro": Avro(lambda subject, schema: 1, enable_tidb_extension=True),
}


def table() -> TableInfo:
    """Eight columns, about 120 bytes of values a row."""
    kinds = {
        "id": (SqlType.BIGINT, ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY),
        "customer": (SqlType.BIGINT, ti.FLAG_NOT_NULL),
        "state": (SqlType.TINYINT, 0),
        "amount": (SqlType.DECIMAL, 0),
        "weight": (SqlType.DOUBLE, 0),
        "name": (SqlType.VARCHAR, 0),
        "note": (SqlType.VARCHAR, 0),
        "at": (SqlType.DATETIME, 0),
    }
    columns = [
        {
            "id": number,
            "name": {"O": name},
            "offset": number - 1,
            "state": ti.STATE_PUBLIC,
            "type": {"Tp": tp, "Flag": flag, "Flen": 20, "Decimal": 2, "Charset": "utf8mb4"},
        }
        for number, (name, (tp, flag)) in enumerate(kinds.items(), 1)
    ]
    info = {"id": 1, "name": {"O": "orders"}, "cols": columns, "pk_is_handle": True, "state": ti.STATE_PUBLIC}
    return parse_table_info(info, "bench")


def records(rows: int) -> Records:
    """A half of inserts, a half of updates."""
    info, numbers = table(), np.arange(rows)
    values = {
        "id": pa.array(numbers),
        "customer": pa.array(numbers % 9973),
        "state": pa.array(numbers % 7),
        "amount": pa.array([f"{number % 100_000}.25" for number in range(rows)]),
        "weight": pa.array(numbers / 7),
        "name": pa.array([f"customer {number}" for number in range(rows)]),
        "note": pa.array(["a note of some fifty characters, as people write them"] * rows),
        "at": pa.array([f"2026-01-01 12:{number % 60:02}:{number // 60 % 60:02}" for number in range(rows)]),
    }
    columns = [values[column.name].cast(arrow_type(column)) for column in info.output_columns]
    op = np.where(numbers % 2, OP_INSERT, OP_UPDATE).astype(np.uint8)
    ts = pa.array((numbers + (1 << 58)).astype(np.uint64))
    return Records(info, op, np.zeros(rows, np.bool_), ts, columns, columns)


def messages_of(
    codec: MessageCodec, made: Records, topic: str
) -> tuple[Messages, np.ndarray[tuple[int], np.dtype[np.int32]]]:
    partitions = partitions_of(made, PARTITIONS, "index-value")
    found = codec.rows(made, Source(1, 1, topic), 0)
    return frame(found, partitions, MAX_ROWS, MAX_BYTES) if isinstance(codec, OpenProtocol) else (found, partitions)


def cpu_of(work: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def measured(rows: int, sender: Sender, topic: str) -> Iterator[tuple[str, float, float, float, float]]:
    """Codec, bytes a row, CPU seconds per million rows encoded and written, rows a second on the wall."""
    made, chunks = records(CHUNK), max(1, rows // CHUNK)
    for name, codec in CODECS.items():
        encoded, partitions = messages_of(codec, made, topic)

        def encode(codec: MessageCodec = codec) -> None:
            for _ in range(chunks):
                messages_of(codec, made, topic)

        def write(
            encoded: Messages = encoded, partitions: np.ndarray[tuple[int], np.dtype[np.int32]] = partitions
        ) -> None:
            for _ in range(chunks):
                sender.send(topic, encoded, partitions)
            sender.flush()

        encoding, _ = cpu_of(encode)
        writing, wall = cpu_of(write)
        million = chunks * CHUNK / 1e6
        size = (encoded.keys.nbytes + encoded.values.nbytes) / CHUNK
        yield name, size, encoding / million, writing / million, chunks * CHUNK / wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--brokers", default="")
    parser.add_argument("--topic", default="bench")
    options = parser.parse_args()
    mock = {} if options.brokers else {"test.mock.num.brokers": 1}
    sender = Sender(Cluster(options.brokers or "mock"), Patience(), None, **mock)
    said = [f"{'codec':18}{'bytes/row':>10}{'encode, s/M rows':>18}{'produce, s/M rows':>19}{'produced rows/s':>17}"]
    for name, size, encoding, writing, pace in measured(options.rows, sender, options.topic):
        said.append(f"{name:18}{size:10.0f}{encoding:18.2f}{writing:19.2f}{pace:17.0f}")
    sys.stdout.write("\n".join(said) + "\n")


if __name__ == "__main__":
    main()
