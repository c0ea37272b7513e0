"""A table with a column of each kind that other readers know, random changes to it, and what its rows mean to Flink."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.schema.values import arrow_type
from changefeed.sink.records import Records

Row = dict[str, Any]
State = dict[int, Row]

CHUNK_TS = 1000
ELEMS = ["a,b", 'x"y', "日本"]
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_CHARACTERS = "ab \"'\\/<>&\t\r\n\x00\x01\x1f\x7f\x85éß日本\u2028\u2029\ufeff\uffff\U0001f600\U0001f469\u200d\U0001f52c"
_DOUBLES = [0.0, -0.1, 1e-7, 1e21, 123456789.125, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308]


class Reading(NamedTuple):
    """The Flink type that a column is read as, and what a value is in it."""

    flink: str
    meaning: Callable[[Any], Any] = lambda value: value


class Column(NamedTuple):
    """`value`: at random, as `Records` have it; of an ENUM its number."""

    name: str
    tp: int
    type: dict[str, Any]
    value: Callable[[random.Random], Any]
    canal: Reading
    debezium: Reading


def _text(chance: random.Random) -> str:
    return "".join(chance.choices(_CHARACTERS, k=chance.choice([0, 1, 5, 200])))


def _moment(first: int, last: int, digits: int) -> Callable[[random.Random], str]:
    """From a year to before another; with `digits` of a second's fraction."""

    begin = datetime(first, 1, 1)
    size = (datetime(last, 1, 1) - begin) // _MICROSECOND

    def value(chance: random.Random) -> str:
        moment = begin + chance.randrange(size) * _MICROSECOND
        return moment.isoformat(" ", "microseconds")[: -6 + digits or None]

    return value


def _decimal(chance: random.Random) -> str:
    size = chance.choice([0, 1, 127, 10 ** chance.randrange(28), 10**28 - 1])
    return f"{chance.choice(['-', ''])}{size}.{chance.choice([0, 1, 10**10 - 1, chance.randrange(10**10)]):010}"


def _time(chance: random.Random) -> str:
    sign, hours = chance.choice(["-", ""]), chance.choice([0, 23, 100, 837])
    return f"{sign}{hours:02}:{chance.randrange(60):02}:{chance.randrange(60):02}.{chance.randrange(1000):03}"


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _days(value: str) -> int:
    return (date.fromisoformat(value) - _EPOCH.date()).days


def _microseconds(value: str) -> int:
    return (datetime.fromisoformat(value) - _EPOCH) // _MICROSECOND


def _duration(value: str) -> int:
    hours, minutes, seconds = value.lstrip("-").split(":")
    size = timedelta(hours=int(hours), minutes=int(minutes), milliseconds=int(seconds.replace(".", "")))
    return (-size if value.startswith("-") else size) // _MICROSECOND


def _zoned(value: str) -> datetime:
    return datetime.fromisoformat(value).replace(tzinfo=UTC)


def _single(value: float) -> float:
    return float(np.float32(value))


_KEY, _UNSIGNED = {"Flag": ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY}, {"Flag": ti.FLAG_UNSIGNED}
_BINARY = {"Charset": "binary", "Collate": "binary"}
_FRACTION_3, _FRACTION_6 = {"Decimal": 3}, {"Decimal": 6}
_BIGINT, _STRING = Reading("BIGINT"), Reading("STRING")
COLUMNS = (
    Column("id", SqlType.BIGINT, _KEY, lambda chance: 0, _BIGINT, _BIGINT),
    Column(
        "tiny", SqlType.TINYINT, {}, lambda chance: chance.randrange(-128, 128), Reading("TINYINT"), Reading("TINYINT")
    ),
    Column(
        "int", SqlType.INT, {}, lambda chance: chance.randrange(-(1 << 31), 1 << 31), Reading("INT"), Reading("INT")
    ),
    Column(
        "big",
        SqlType.BIGINT,
        _UNSIGNED,
        lambda chance: chance.choice([0, 1, 1 << 63, (1 << 64) - 1, chance.randrange(1 << 64)]),
        Reading("DECIMAL(20, 0)", Decimal),
        Reading("BIGINT", _signed),
    ),
    Column(
        "f",
        SqlType.FLOAT,
        {"Decimal": -1},
        lambda chance: chance.choice([0.0, -1.5, 0.1, 1e-7, 3.25e21, 16777216.0]),
        Reading("FLOAT", _single),
        Reading("FLOAT", _single),
    ),
    Column(
        "d",
        SqlType.DOUBLE,
        {"Decimal": -1},
        lambda chance: chance.choice([*_DOUBLES, chance.random()]),
        Reading("DOUBLE"),
        Reading("DOUBLE"),
    ),
    Column(
        "dec",
        SqlType.DECIMAL,
        {"Flen": 38, "Decimal": 10},
        _decimal,
        Reading("DECIMAL(38, 10)", Decimal),
        Reading("DOUBLE", float),
    ),
    Column("v", SqlType.VARCHAR, {}, _text, _STRING, _STRING),
    Column(
        "blob",
        SqlType.TEXT,
        _BINARY,
        lambda chance: chance.randbytes(chance.choice([0, 1, 100])),
        Reading("STRING", lambda value: value.decode("latin-1")),
        Reading("BYTES"),
    ),
    Column(
        "day",
        SqlType.DATE,
        {},
        lambda chance: _moment(1000, 9999, 1)(chance)[:10],
        Reading("DATE", date.fromisoformat),
        Reading("INT", _days),
    ),
    Column(
        "at",
        SqlType.DATETIME,
        _FRACTION_6,
        _moment(1000, 9999, 6),
        Reading("TIMESTAMP(6)", datetime.fromisoformat),
        Reading("BIGINT", _microseconds),
    ),
    Column(
        "ts",
        SqlType.TIMESTAMP,
        _FRACTION_3,
        _moment(1970, 2038, 3),
        Reading("TIMESTAMP(3)", datetime.fromisoformat),
        Reading("TIMESTAMP_LTZ(3)", _zoned),
    ),
    Column("time", SqlType.TIME, _FRACTION_3, _time, _STRING, Reading("BIGINT", _duration)),
    Column("year", SqlType.YEAR, {}, lambda chance: chance.choice([0, 1901, 2155]), Reading("INT"), Reading("INT")),
    Column(
        "bits",
        SqlType.BIT,
        _UNSIGNED | {"Flen": 12},
        lambda chance: chance.randrange(1 << 12),
        _BIGINT,
        Reading("BYTES", lambda value: value.to_bytes(2, "little")),
    ),
    Column(
        "e",
        SqlType.ENUM,
        {"Elems": ELEMS},
        lambda chance: chance.randrange(1, 1 + len(ELEMS)),
        _BIGINT,
        Reading("STRING", lambda value: ELEMS[value - 1]),
    ),
    Column("j", SqlType.JSON, {}, lambda chance: chance.choice(['{"a": "\\"😀"}', "null", "[1.5]"]), _STRING, _STRING),
)


def table() -> TableInfo:
    kinds = {"Flag": 0, "Flen": 20, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
    columns = [
        {"id": place + 1, "name": {"O": column.name}, "offset": place, "state": ti.STATE_PUBLIC}
        | {"type": {"Tp": column.tp} | kinds | column.type}
        for place, column in enumerate(COLUMNS)
    ]
    info = {"id": 77, "name": {"O": "t"}, "cols": columns, "pk_is_handle": True, "state": ti.STATE_PUBLIC}
    return parse_table_info(info, "shop")


def history(seed: int, chunks: int, rows: int, keys: int) -> tuple[list[Records], State]:
    """Changes of `keys` rows in order, `rows` to a chunk, and the table after them.

    The first chunk's commit ts are CHUNK_TS + 1, CHUNK_TS + 2 and so on, the next one's follow 2 * CHUNK_TS.
    """
    chance, state = random.Random(seed), State()
    made = []
    for number in range(1, chunks + 1):
        changes = [_change(chance, state, chance.randrange(keys)) for _ in range(rows)]
        made.append(_records(changes, number * CHUNK_TS + 1))
    return made, state


def _change(chance: random.Random, state: State, key: int) -> tuple[int, Row, Row | None]:
    """The op, the row that it shows, and the row before an update."""
    before = state.pop(key, None)
    if before is not None and chance.random() < 0.3:
        return OP_DELETE, before, None
    fresh = {column.name: _cell(chance, column) for column in COLUMNS} | {"id": key}
    if before is None:
        state[key] = fresh
        return OP_INSERT, fresh, None
    kept = chance.sample(COLUMNS, chance.randrange(len(COLUMNS)))
    state[key] = fresh | {column.name: before[column.name] for column in kept}
    return OP_UPDATE, state[key], before


def _cell(chance: random.Random, column: Column) -> Any:
    return None if chance.random() < 0.2 else column.value(chance)


def _records(changes: list[tuple[int, Row, Row | None]], first_ts: int) -> Records:
    info = table()
    nothing: Row = {column.name: None for column in COLUMNS}
    return Records(
        info,
        np.array([op for op, _, _ in changes], np.uint8),
        np.zeros(len(changes), np.bool_),
        pa.array(range(first_ts, first_ts + len(changes)), pa.uint64()),
        _arrays(info, [shown for _, shown, _ in changes]),
        _arrays(info, [before or nothing for _, _, before in changes]),
    )


def _arrays(info: TableInfo, rows: list[Row]) -> list[pa.Array]:
    arrays = []
    for column in info.output_columns:
        values = [row[column.name] for row in rows]
        if column.type == SqlType.ENUM:
            values = [None if v is None else {"number": v, "text": ELEMS[v - 1]} for v in values]
        arrays.append(pa.array(values, arrow_type(column)))
    return arrays
