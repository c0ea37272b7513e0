"""A table with a column of each kind, its records, and what each value means to whoever reads a message of it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.schema.values import arrow_type
from changefeed.sink.kafka.codec.message import Messages, Source
from changefeed.sink.records import Records

ELEMS = ["a,b", "x'y", "z"]
SOURCE = Source(77, 400, "shop.t")
BUILD_MS = 1_700_000_000_000
SEEDS = range(6)
ROWS = 60
FLOATS = {"f": np.float32, "d": np.float64}


def _column(number: int, name: str, tp: int, flag: int = 0, **more: Any) -> dict[str, Any]:
    kind = {"Tp": tp, "Flag": flag, "Flen": 20, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"} | more
    return {"id": number, "name": {"O": name}, "offset": number - 1, "type": kind, "state": 5}


def table(name: str = "t<1>") -> TableInfo:
    key = ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY
    binary = {"Charset": "binary", "Collate": "binary"}
    columns = [
        _column(1, "id", SqlType.BIGINT, key),
        _column(2, "tiny", SqlType.TINYINT),
        _column(3, "big", SqlType.BIGINT, ti.FLAG_UNSIGNED),
        _column(4, "f", SqlType.FLOAT, Decimal=-1),
        _column(5, "d", SqlType.DOUBLE, Decimal=-1),
        _column(6, "dec", SqlType.DECIMAL, Flen=40, Decimal=5),
        _column(7, "v", SqlType.VARCHAR),
        _column(8, "vb", SqlType.VARCHAR, **binary),
        _column(9, "b", SqlType.TEXT, **binary),
        _column(10, "day", SqlType.DATE),
        _column(11, "at", SqlType.DATETIME, Decimal=6),
        _column(12, "ts", SqlType.TIMESTAMP, Decimal=3),
        _column(13, "time", SqlType.TIME, Decimal=3),
        _column(14, "bits", SqlType.BIT, ti.FLAG_UNSIGNED, Flen=12),
        _column(15, "e", SqlType.ENUM, Elems=ELEMS),
        _column(16, "j", SqlType.JSON),
        _column(17, "y", SqlType.YEAR),
        _column(18, "sure", SqlType.VARCHAR, ti.FLAG_NOT_NULL),
    ]
    info = {"id": 77, "name": {"O": name}, "cols": columns, "pk_is_handle": True, "state": 5}
    return parse_table_info(info, "shop")


_TEXTS = ["", "plain", 'q"uo\\te', "<&>", "line\nend\t\x01", "grüße", "日本\u2028", "\U0001f600", "a" * 300]
_BYTES = [b"", b"plain", b'"\\', b"\x00\xff\x80", "grüße".encode(), b"\x07\x7f"]


def _value(chance: random.Random, name: str) -> Any:
    fraction = chance.randrange(1000)
    clock = f"{chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}"
    day = f"{chance.choice([1000, 1969, 1970, 2026, 9999])}-0{chance.randrange(1, 10)}-{chance.randrange(10, 29)}"
    return {
        "tiny": chance.randrange(-128, 128),
        "big": chance.choice([0, 1, 1 << 63, (1 << 64) - 2]),
        "f": chance.choice([0.0, -1.5, 1e-7, 3.25e21, 16777216.0]),
        "d": chance.choice([0.0, -0.1, 1e-7, 1e300, 123456789.125, 5e-324]),
        "dec": f"{chance.choice(['-', ''])}{chance.choice([0, 1, 127, 128, 255, 10**30])}.{chance.randrange(10**5):05}",
        "v": chance.choice(_TEXTS),
        "vb": chance.choice(_BYTES),
        "b": chance.choice(_BYTES),
        "day": day,
        "at": f"{day} {clock}.{fraction:06}",
        "ts": f"{day} {clock}.{fraction:03}",
        "time": f"{chance.choice(['-', ''])}{chance.choice(['00', '23', '838'])}:{clock[3:]}.{fraction:03}",
        "bits": chance.randrange(1 << 12),
        "e": chance.randrange(len(ELEMS) + 1),
        "j": chance.choice(['{"a": 1}', "null", '["<x>"]']),
        "y": chance.choice([0, 1901, 2155]),
        "sure": chance.choice(_TEXTS),
    }[name]


def _row(chance: random.Random, info: TableInfo, handle: int) -> dict[str, Any]:
    found: dict[str, Any] = {"id": handle}
    for column in info.output_columns[1:]:
        is_null = column.nullable and chance.random() < 0.2
        found[column.name] = None if is_null else _value(chance, column.name)
    return found


def _arrays(info: TableInfo, rows: list[dict[str, Any]]) -> list[pa.Array]:
    arrays = []
    for column in info.output_columns:
        values = [row[column.name] for row in rows]
        if column.type == SqlType.ENUM:
            names = ["", *column.elems]
            values = [None if v is None else {"number": v, "text": names[v]} for v in values]
        arrays.append(pa.array(values, arrow_type(column)))
    return arrays


def records(seed: int, rows: int) -> tuple[Records, list[tuple[int, int, dict[str, Any], dict[str, Any] | None]]]:
    """Records, and of each: op, commit ts, what it shows, what was before an update."""
    chance, info = random.Random(seed), table()
    ops = [chance.choice([OP_DELETE, OP_UPDATE, OP_INSERT]) for _ in range(rows)]
    ts = [(1 << 58) + number * 7 for number in range(rows)]
    shown = [_row(chance, info, number) for number in range(rows)]
    nothing = {column.name: None for column in info.output_columns}
    before = [
        {**_row(chance, info, number), **chance.choice([{}, shown[number]])} if op == OP_UPDATE else nothing
        for number, op in enumerate(ops)
    ]
    made = Records(
        info,
        np.array(ops, np.uint8),
        np.zeros(rows, np.bool_),
        pa.array(ts, pa.uint64()),
        _arrays(info, shown),
        _arrays(info, before),
    )
    told = [
        (op, ts[number], shown[number], before[number] if op == OP_UPDATE else None) for number, op in enumerate(ops)
    ]
    return made, told


def pairs(messages: Messages) -> list[tuple[Any, Any]]:
    return list(zip(messages.keys.to_pylist(), messages.values.to_pylist(), strict=True))


def number(name: str, value: Any) -> Any:
    """Compared by their bits."""
    return FLOATS[name](value).tobytes()
