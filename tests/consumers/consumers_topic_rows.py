"""A table with columns of every type, as a changefeed reads its rows, and what each value is to the upstream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

import pyarrow as pa
from changefeed.model.position import OP_INSERT, OP_UPDATE
from changefeed.model.rows import RAW_SCHEMA
from changefeed.pipeline.mounter import mount
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.records import Records
from changefeed_devcluster import keys
from changefeed_devcluster.tidb import rows, schema
from consumers_reading import Column
from consumers_topic_forms import without_zeros
from integration_types import BROKEN, KINDS

TABLE_ID = 77
_COMMIT_TS = 450_000_000_000_000_000
_TEXTS = ("char", "varchar", "binary", "varbinary", "enum", "set")


@dataclass(frozen=True)
class Kind:
    """A column type and values of it, as the development cluster takes them.

    `stored`: of a type that the cluster can't write, what its values mean, by their bytes.
    """

    column: Column
    given: tuple[Any, ...]
    stored: dict[bytes, str] | None = None

    @property
    def label(self) -> str:
        """As the page calls it; lengths of text say nothing."""
        return (self.column.base if self.column.base in _TEXTS else self.column.sql).upper()


def _kind(sql: str, *given: Any) -> Kind:
    return Kind(Column("", sql), given)


def _is_short(value: Any) -> bool:
    return not isinstance(value, str) or len(value) <= _MOST_CHARACTERS


#: What a second row of Berlin's clocks shows as the first one does, and dates that debezium takes for others.
_TWICE = datetime(2024, 10, 27, 0, 30), datetime(2024, 10, 27, 1, 30)
_MORE = {
    "date": (date(99, 12, 31), date(69, 1, 1)),
    "datetime(6)": (datetime(1, 1, 1), "2024-00-07 01:02:03"),
    "timestamp(3)": (*_TWICE, "0000-00-00 00:00:00"),
    "bigint": ((1 << 53) + 1,),
    "bigint unsigned": (1 << 63,),
}
_MOST_CHARACTERS = 1000
_JSON = {
    b"\x04\x00": "null",
    b"\x0a" + b"\xff" * 8: str((1 << 64) - 1),
    b"\x0c\x06" + '"<é\n'.encode() + b"\x01": '"\\"<é\\n\\u0001"',
}
_VECTORS = {
    b"\0\0\0\0": "[]",
    b"\x02\0\0\0" + b"\0\0\xc0\x3f\0\0\x80\xbf": "[1.5,-1]",
}
_ALL = (
    *(
        _kind(kind.sql, *filter(_is_short, (cell.value for cell in kind.cells)), *_MORE.get(kind.sql, ()))
        for kind in KINDS
    ),
    _kind("bit(12)", 0, 2571),
    _kind("datetime(3)", datetime(2024, 2, 29, 23, 59, 59, 999000), datetime(1, 1, 1), "0000-00-00 00:00:00"),
    Kind(Column("", "json"), tuple(_JSON), _JSON),
    Kind(Column("", "vector"), tuple(_VECTORS), _VECTORS),
)
_BASES = [kind.column.base for kind in _ALL]
#: In one table.
EVERY = tuple(sorted(_ALL, key=lambda kind: _BASES.index(kind.column.base)))
#: In a table of its own, as some readers can't read a row that has it.
NOT_UTF_8 = (_kind("varchar(20)", "whole ä", *(cell.value for cell in BROKEN)),)
_CODES = {"json": (0xF5, 4294967295), "vector": (0xE1, -1)}  # type and length


@dataclass(frozen=True)
class Tested:
    """A table with two columns of each kind, `c0`, `c1` … and, NOT NULL, `n0`, `n1` …; `meant`: its rows upstream."""

    kinds: tuple[Kind, ...]
    table: TableInfo
    values: tuple[bytes, ...]
    meant: tuple[dict[str, Any], ...]

    def records(self, time_zone: str, *, updates: bool = False) -> Records:
        """As they are mounted for a codec. `updates`: that change nothing, instead of inserts."""
        batch = pa.RecordBatch.from_pylist(
            [
                {
                    "span_id": 1, "commit_ts": _COMMIT_TS + number, "start_ts": 1,
                    "op": OP_UPDATE if updates else OP_INSERT, "key": keys.record_key(TABLE_ID, number),
                    "value": value, "old_value": value if updates else None, "txn_source": 0,
                }
                for number, value in enumerate(self.values)
            ],
            RAW_SCHEMA,
        )  # fmt: skip
        return mount(batch, self.table, time_zone, with_old=True)

    @property
    def columns(self) -> tuple[tuple[Kind, Column, Column], ...]:
        """The columns of each kind: the one that may be NULL, and the one that may not."""
        named = enumerate(self.kinds)
        return tuple((k, replace(k.column, name=f"c{n}"), replace(k.column, name=f"n{n}")) for n, k in named)


def table_of(kinds: tuple[Kind, ...]) -> Tested:
    """A row for each value, and one with NULL in each `c`. Where a kind has no value left: NULL, or its first one."""
    wanted = [schema.NewColumn("id", "bigint")]
    for number, kind in enumerate(kinds):
        sql = "blob" if kind.stored else kind.column.sql
        wanted += [schema.NewColumn(f"c{number}", sql, nullable=True), schema.NewColumn(f"n{number}", sql)]
    upstream = schema.make_table(TABLE_ID, "types", wanted, "id")
    given = [_row(kinds, number) for number in range(max(len(kind.given) for kind in kinds) + 1)]
    values = tuple(rows.encode_row(upstream, {"id": number, **row}) for number, row in enumerate(given))
    meant = tuple(_meant(kinds, rows.decode_row(upstream, value)) for value in values)
    return Tested(kinds, parse_table_info(_definition(kinds, upstream), "shop"), values, meant)


def _row(kinds: Sequence[Kind], number: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for n, kind in enumerate(kinds):
        value = kind.given[number] if number < len(kind.given) else None
        row[f"c{n}"] = value
        row[f"n{n}"] = kind.given[0] if value is None else value
    return row


def _meant(kinds: Sequence[Kind], row: dict[str, Any]) -> dict[str, Any]:
    for number, kind in enumerate(kinds):
        for name in (f"c{number}", f"n{number}"):
            value = row[name]
            row[name] = kind.stored[value] if kind.stored and value is not None else without_zeros(value)
    return row


def _definition(kinds: Sequence[Kind], upstream: schema.TidbTable) -> dict[str, Any]:
    definition = upstream.to_json()
    for column in definition["cols"][1:]:
        kind = kinds[int(column["name"]["O"][1:])]
        if kind.stored:
            tp, length = _CODES[kind.column.base]
            column["type"] |= {"Tp": tp, "Flen": length, "Charset": "binary", "Collate": "binary"}
    return definition
