"""What a consumer that keeps the last message of each key has of a topic, in a database that spills to disk.

A message is in Confluent's wire format: a zero byte, the number of the schema, the record. Keys are told apart by their
records, of whatever schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import duckdb
import pyarrow as pa

from changefeed.verify.kafka.heads import Message
from changefeed.verify.kafka.stored import LinePosition

_BATCH_ROWS = 1 << 14
_HEADER = 5


class LastMessages:
    """The last messages of one topic; a database has one at a time.

    `problem` is told of messages that are in no such format.
    """

    def __init__(self, db: duckdb.DuckDBPyConnection, topic: str, problem: Callable[[str], None]) -> None:
        self._db, self._topic, self._problem = db, topic, problem
        db.execute(
            "CREATE OR REPLACE TABLE messages(part INTEGER, position BIGINT, key BLOB, value BLOB, "
            "key_schema BIGINT, value_schema BIGINT)"
        )

    def add(self, positions: Sequence[LinePosition], messages: Sequence[Message]) -> None:
        """Add messages of any partitions, each one's in their order."""
        keys, values = [_split(key) for key, _ in messages], [_split(value) for _, value in messages]
        sound = [key is not None and value is not None for key, value in zip(keys, values, strict=True)]
        for position, is_sound in zip(positions, sound, strict=True):
            if not is_sound:
                where = f"Topic {self._topic}, partition {position.part}, offset {position.offset}"
                self._problem(f"{where}: its key or its value is not Avro behind a schema's number.")
        chosen = [number for number, is_sound in enumerate(sound) if is_sound]
        given = {
            "part": pa.array([positions[number].part for number in chosen], pa.int32()),
            "position": pa.array([positions[number].offset for number in chosen], pa.int64()),
        }
        for name, sides in (("key", keys), ("value", values)):
            split = [sides[number] or (None, None) for number in chosen]
            given[name] = pa.array([record for _, record in split], pa.binary())
            given[f"{name}_schema"] = pa.array([schema for schema, _ in split], pa.int64())
        self._db.register("given", pa.table(given))
        try:
            self._db.execute("INSERT INTO messages BY NAME FROM given")
        finally:
            self._db.unregister("given")

    def have_no_key(self) -> bool:
        return bool(self._count("key_schema IS NULL"))

    def in_several_partitions(self) -> int:
        """How many keys have messages in more than one, which have no order then."""
        ((count,),) = self._all(
            "SELECT count(*) FROM (SELECT 1 FROM messages GROUP BY key HAVING min(part) < max(part))"
        )
        return int(count)

    def settle(self) -> None:
        """Keep the last message of each key."""
        self._db.execute(
            "CREATE OR REPLACE TABLE messages AS SELECT * FROM messages "
            "QUALIFY row_number() OVER (PARTITION BY key ORDER BY position DESC) = 1"
        )

    def rows(self) -> Iterator[tuple[int, pa.Array]]:
        """(schema, records) of the rows that are there, in pieces."""
        yield from self._pieces("value", "value_schema IS NOT NULL")

    def gone(self) -> Iterator[tuple[int, pa.Array]]:
        """(schema, records) of the keys whose rows are deleted, in pieces."""
        yield from self._pieces("key", "value_schema IS NULL")

    def _pieces(self, side: str, where: str) -> Iterator[tuple[int, pa.Array]]:
        for (schema,) in self._all(f"SELECT DISTINCT {side}_schema FROM messages WHERE {where} ORDER BY 1"):
            cursor = self._db.cursor()
            try:
                chosen = f"SELECT {side} FROM messages WHERE {where} AND {side}_schema = {schema}"
                for batch in cursor.sql(chosen).to_arrow_reader(_BATCH_ROWS):
                    yield schema, batch.column(0)
            finally:
                cursor.close()

    def _count(self, where: str) -> int:
        ((count,),) = self._all(f"SELECT count(*) FROM messages WHERE {where}")
        return int(count)

    def _all(self, sql: str) -> list[tuple[int, ...]]:
        return self._db.execute(sql).fetchall()


def _split(side: bytes | None) -> tuple[int | None, bytes | None] | None:
    """(the schema's number, the record), both None if there is nothing; None: it is something else."""
    if side is None:
        return None, None
    if len(side) < _HEADER or side[0]:
        return None
    return int.from_bytes(side[1:_HEADER], "big"), side[_HEADER:]
