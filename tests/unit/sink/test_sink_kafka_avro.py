"""Rows as Avro, read by a small decoder of its own and by the schema that was registered."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from changefeed.model.position import OP_DELETE, OP_UPDATE
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, parse_table_info
from changefeed.schema.values import arrow_type
from changefeed.sink.kafka.codec.avro.binary import field
from changefeed.sink.kafka.codec.avro.codec import Avro
from changefeed.sink.kafka.codec.avro.schema import AvroTypes, schema_of
from changefeed.upstream.tikv.row.defaults import absent_value
from sink_kafka_rows import BUILD_MS, ELEMS, FLOATS, ROWS, SEEDS, SOURCE, number, pairs, records, table


class Reader:
    """Avro's binary form, by a schema."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def take(self, size: int) -> bytes:
        found, self.raw = self.raw[:size], self.raw[size:]
        assert len(found) == size
        return found

    def long(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def value(self, kind: Any) -> Any:
        if isinstance(kind, list):
            return self.value(kind[self.long()])
        if isinstance(kind, dict):
            found = self.value(kind["type"])
            if kind.get("logicalType") == "decimal":
                return Decimal(f"{int.from_bytes(found, 'big', signed=True)}E-{kind['scale']}")
            return found
        if kind == "null":
            return None
        if kind in ("int", "long"):
            return self.long()
        if kind in ("float", "double"):
            return struct.unpack("<f" if kind == "float" else "<d", self.take(4 if kind == "float" else 8))[0]
        raw = self.take(self.long())
        return raw.decode() if kind == "string" else raw


@pytest.mark.parametrize("seed", SEEDS)
def test_avro(seed: int) -> None:
    made, rows = records(seed, ROWS)
    known: dict[tuple[str, str], int] = {}
    codec = Avro(lambda subject, schema: known.setdefault((subject, schema), 1000 + len(known)), "feed", True)

    def read(raw: bytes, subject: str) -> dict[str, Any]:
        by_number = {number: (of, json.loads(schema)) for (of, schema), number in known.items()}
        assert raw[0] == 0
        of, schema = by_number[int.from_bytes(raw[1:5], "big")]
        assert of == subject
        reader = Reader(raw[5:])
        found = {field["name"]: reader.value(field["type"]) for field in schema["fields"]}
        assert not reader.raw
        return found

    for (key, value), (op, ts, shown, _) in zip(pairs(codec.rows(made, SOURCE, BUILD_MS)), rows, strict=True):
        assert read(key, "shop_t-key") == {"id": shown["id"]}
        if op == OP_DELETE:
            assert value is None
            continue
        found = read(value, "shop_t-value")
        assert (found.pop("_tidb_op"), found.pop("_tidb_commit_ts")) == ("u" if op == OP_UPDATE else "c", ts)
        assert found.pop("_tidb_commit_physical_time") == ts >> 18
        check_avro(found, shown)


def check_avro(found: dict[str, Any], row: dict[str, Any]) -> None:
    assert list(found) == list(row)
    for name, value in row.items():
        if value is None:
            assert found[name] is None, name
        elif name in FLOATS:
            assert number(name, found[name]) == number(name, value)
        elif name == "dec":
            assert found[name] == Decimal(value)
        elif name == "bits":
            assert int.from_bytes(found[name], "big") == value
            assert len(found[name]) == 2
        elif name == "big":
            assert found[name] % (1 << 64) == value
        elif name == "e":
            assert found[name] == ["", *ELEMS][value]
        else:
            assert found[name] == value, name


def column(name: str, tp: int, flag: int = 0, **more: Any) -> ColumnInfo:
    """`more`: of the column, of its type where that has it."""
    kind = {"Tp": tp, "Flag": flag, "Flen": 20, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
    kind |= {key: more.pop(key) for key in list(more) if key in (*kind, "Elems")}
    info = {"id": 1, "name": {"O": name}, "offset": 0, "type": kind, "state": 5} | more
    return parse_table_info({"id": 77, "name": {"O": "t"}, "cols": [info], "state": 5}, "shop").columns[0]


SURE, TEXT = ti.FLAG_NOT_NULL, {"bigint_unsigned_as_text": True, "decimal_as_text": True}
BINARY = {"Charset": "binary", "Collate": "binary"}


@pytest.mark.parametrize(
    ("made", "types", "default"),
    [
        (column("a", SqlType.INT, SURE, default="5"), {}, 5),
        (column("a", SqlType.INT, SURE, default="6", origin_default="5"), {}, 5),
        (column("a", SqlType.INT, default="5"), {}, 5),
        (column("a", SqlType.INT), {}, None),
        (column("a", SqlType.INT, SURE), {}, None),
        (column("a", SqlType.BIGINT, SURE | ti.FLAG_UNSIGNED, default=str((1 << 64) - 1)), {}, -1),
        (column("a", SqlType.BIGINT, SURE | ti.FLAG_UNSIGNED, default=str((1 << 64) - 1)), TEXT, str((1 << 64) - 1)),
        (column("a", SqlType.DOUBLE, SURE, default="0.5", Decimal=-1), {}, 0.5),
        (column("a", SqlType.DECIMAL, SURE, default="0.50", Flen=9, Decimal=2), {}, None),
        (column("a", SqlType.DECIMAL, SURE, default="0.5", Flen=9, Decimal=2), TEXT, "0.50"),
        (column("a", SqlType.VARCHAR, SURE, default="x"), {}, "x"),
        (column("a", SqlType.VARCHAR, SURE, default=""), {}, ""),
        (column("a", SqlType.VARCHAR, default="null"), {}, "null"),
        (column("a", SqlType.VARCHAR, SURE, default="\u00e9", **BINARY), {}, "\u00c3\u00a9"),
        (column("a", SqlType.BIT, SURE, default_bit="AQI=", Flen=12), {}, "\x01\x02"),
        (column("a", SqlType.ENUM, SURE, default="y", Elems=["x", "y"]), {}, "y"),
        (column("a", SqlType.DATETIME, SURE, default="2020-01-02 03:04:05"), {}, "2020-01-02 03:04:05"),
        (column("a", SqlType.DATETIME, SURE, default="CURRENT_TIMESTAMP"), {}, None),
        (
            column("a", SqlType.TIMESTAMP, SURE, default="2020-01-02 03:04:05", version=1),
            {"time_zone": "Asia/Tokyo"},
            "2020-01-02 12:04:05",
        ),
        (column("a", SqlType.YEAR, SURE, default="2020"), {}, 2020),
    ],
)
def test_avros_defaults(made: ColumnInfo, types: dict[str, Any], default: Any) -> None:
    """A union's first type is the default's, and a value of either is read."""
    chosen = AvroTypes(**types)
    (said,) = json.loads(schema_of(replace(table(), columns=(made,)), [made], "feed", chosen, with_extension=False))[
        "fields"
    ]
    assert said.get("default") == default
    assert ("default" in said) == (made.nullable or default is not None)
    if made.nullable:
        kinds = [each if isinstance(each, str) else each["type"] for each in said["type"]]
        assert kinds[0 if default is None else 1] == "null"
        for value in (None, absent_value(replace(made, origin_default="7"), "UTC")[0].as_py()):
            (raw,) = field(made, pa.array([value], arrow_type(made)), chosen).to_pylist()
            assert Reader(raw).value(said["type"]) == value


def test_avros_names_are_told_apart() -> None:
    names = ["a_b", "a-b", "a.b", "1", "_1"]
    made = replace(table(), columns=tuple(column(name, SqlType.INT) for name in names))
    said = json.loads(schema_of(made, made.columns[1:], "feed", AvroTypes(), with_extension=False))
    assert [each["name"] for each in said["fields"]] == ["a_b_", "a_b__", "_1_", "_1"]


@pytest.mark.parametrize(("name", "of_text"), [("big", str), ("dec", str)])
def test_avro_tells_numbers_as_text_if_that_is_asked_for(name: str, of_text: Any) -> None:
    made, rows = records(1, ROWS)
    (shown,) = [each for each in made.shown if each.name == name]
    values = made.columns[list(made.shown).index(shown)]
    types = AvroTypes(**TEXT)
    (said,) = json.loads(schema_of(table(), [shown], "feed", types, with_extension=False))["fields"]
    assert said["type"][1]["type"] == "string"
    assert "logicalType" not in said["type"][1]
    read = [Reader(raw).value(said["type"]) for raw in field(shown, values, types).to_pylist()]
    assert read == [None if row[name] is None else of_text(row[name]) for _, _, row, _ in rows]
