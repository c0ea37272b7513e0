"""Avro as TiCDC writes it, in Confluent's wire format: a zero byte, the schema's number, the record.

Keys are the primary key; a delete has no value, as compacted topics want it. DDL and watermarks are not told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_UPDATE
from changefeed.schema.table_info import TableInfo
from changefeed.sink.kafka.codec.avro.binary import field, longs, texts
from changefeed.sink.kafka.codec.avro.schema import AvroTypes, schema_of
from changefeed.sink.kafka.codec.by_op import by_op
from changefeed.sink.kafka.codec.message import DdlEvent, LargeRow, Messages, Source
from changefeed.sink.records import Records, narrowed
from changefeed.sink.text.canal_types import primary_key

_LOGICAL_BITS = 18
_AS_USUAL = AvroTypes()
_KEY, _VALUE = "-key", "-value"


@dataclass(frozen=True)
class Avro:
    """`number_of`: that a schema has in the registry, by subject and text; asked once for each chunk, so it remembers.

    `namespace`: the changefeed's. `enable_tidb_extension`: the op and its times are columns, too.
    """

    number_of: Callable[[str, str], int]
    namespace: str = "default"
    enable_tidb_extension: bool = False
    types: AvroTypes = _AS_USUAL
    tells_large: bool = False

    @property
    def time_zone(self) -> str:
        return self.types.time_zone

    def rows(self, records: Records, source: Source, build_ms: int, large: LargeRow | None = None) -> Messages:
        subject = source.topic.replace(".", "_")
        return Messages.of(self._keys(records, subject), by_op(records, partial(self._values, subject)))

    def _keys(self, records: Records, subject: str) -> pa.Array | None:
        key = narrowed(records, frozenset(primary_key(records.table)))
        if not key.shown:
            return None
        schema = schema_of(records.table, key.shown, self.namespace, self.types, with_extension=False)
        return self._record(subject + _KEY, schema, key, [])

    def _values(self, subject: str, op: int, records: Records) -> pa.Array:
        if op == OP_DELETE:
            return pa.nulls(len(records.op), pa.binary())
        is_extended = self.enable_tidb_extension
        schema = schema_of(records.table, records.shown, self.namespace, self.types, with_extension=is_extended)
        more: list[pa.Array] = []
        if self.enable_tidb_extension:
            ts = records.commit_ts
            name = pa.array(["u" if op == OP_UPDATE else "c"] * len(ts))
            more = [texts(name), longs(ts), longs(pc.shift_right(ts, pa.scalar(_LOGICAL_BITS, pa.uint64())))]
        return self._record(subject + _VALUE, schema, records, more)

    def _record(self, subject: str, schema: str, records: Records, more: list[pa.Array]) -> pa.Array:
        header = b"\0" + self.number_of(subject, schema).to_bytes(4, "big")
        fields = [field(*each, self.types) for each in zip(records.shown, records.columns, strict=True)]
        return pc.binary_join_element_wise(pa.scalar(header, pa.binary()), *fields, *more, b"")

    def ddl(self, event: DdlEvent, build_ms: int) -> None:
        return None

    def resolved(self, ts: int, build_ms: int) -> None:
        return None

    def bootstrap(self, table: TableInfo, table_version: int, build_ms: int) -> None:
        return None
