"""Rows of every type as typed columns: each cell is what the upstream's row has, or the changefeed stops."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import NeedsHuman
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.model.rows import RAW_SCHEMA
from changefeed.pipeline.mounter import mount
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.records import Records
from changefeed.sink.typed import schema_of, type_of, typed
from changefeed_devcluster import keys
from changefeed_devcluster.tidb import rows
from changefeed_devcluster.tidb.schema import NewColumn, make_table
from changefeed_devcluster.workload.random_values import value
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_rows import column

_LONG = timedelta(hours=838, minutes=59, seconds=59)


def _number(given: Any) -> Any:
    return given


def _text(given: Any) -> str:
    return str(given)


def _clock_text(given: timedelta) -> str:
    """`[-]HH:MM:SS.ffffff`."""
    size = abs(given) // timedelta(microseconds=1)
    minutes, micros = divmod(size, 60_000_000)
    clock = f"{minutes // 60:02}:{minutes % 60:02}:{micros // 1_000_000:02}.{micros % 1_000_000:06}"
    return ("-" if given < timedelta(0) else "") + clock


def _single(given: float) -> float:
    (found,) = struct.unpack("<f", struct.pack("<f", given))
    return float(found)


def _digits(given: Decimal) -> str:
    return f"{given:.30f}"


#: SQL type: the Arrow type, the cell that an upstream's value is, values at the ends of its range.
TYPES: dict[str, tuple[pa.DataType, Callable[[Any], Any], Sequence[Any]]] = {
    "tinyint": (pa.int32(), _number, (-128, 127)),
    "tinyint unsigned": (pa.int32(), _number, (0, 255)),
    "smallint": (pa.int32(), _number, (-32768, 32767)),
    "smallint unsigned": (pa.int32(), _number, (65535,)),
    "mediumint": (pa.int32(), _number, (-8388608, 8388607)),
    "mediumint unsigned": (pa.int32(), _number, (16777215,)),
    "int": (pa.int32(), _number, (-(1 << 31), (1 << 31) - 1)),
    "int unsigned": (pa.int64(), _number, ((1 << 32) - 1,)),
    "bigint": (pa.int64(), _number, (-(1 << 63), (1 << 63) - 1)),
    "bigint unsigned": (pa.decimal128(20, 0), Decimal, (0, (1 << 64) - 1)),
    "year": (pa.int32(), _number, (0, 1901, 2155)),
    "bit(1)": (pa.int64(), _number, (0, 1)),
    "bit(63)": (pa.int64(), _number, ((1 << 63) - 1,)),
    "bit(64)": (pa.decimal128(20, 0), Decimal, ((1 << 64) - 1,)),
    "float": (pa.float32(), _single, (-3.4028234663852886e38, 1.401298464324817e-45)),
    "double": (pa.float64(), _number, (-1.7976931348623157e308, 5e-324)),
    "decimal(18,4)": (pa.decimal128(18, 4), _number, (Decimal("99999999999999.9999"), Decimal("-0.0001"))),
    "decimal(38,30)": (pa.decimal128(38, 30), _number, (Decimal("-99999999." + "9" * 30),)),
    "decimal(39,30)": (pa.string(), _digits, (Decimal("-999999999." + "9" * 30),)),
    "decimal(65,30)": (pa.string(), _digits, (Decimal("9" * 35 + "." + "9" * 30),)),
    "date": (pa.date32(), _number, (date(1, 1, 1), date(9999, 12, 31))),
    "datetime": (pa.timestamp("us"), _number, (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59))),
    "datetime(6)": (pa.timestamp("us"), _number, (datetime(9999, 12, 31, 23, 59, 59, 999999),)),
    "timestamp(3)": (
        pa.timestamp("us", "UTC"),
        lambda at: at.replace(tzinfo=UTC),
        (datetime(1970, 1, 1, 0, 0, 1), datetime(2038, 1, 19, 3, 14, 7, 999000)),
    ),
    "time(6)": (pa.string(), _clock_text, (-_LONG, _LONG, timedelta(microseconds=-1))),
    "char(8)": (pa.string(), _text, ("", "\U0010ffff")),
    "varchar(24)": (pa.string(), _text, ("\\N",)),
    "binary(4)": (pa.binary(), lambda found: found.ljust(4, b"\0"), (b"\xff" * 4,)),
    "varbinary(16)": (pa.binary(), _number, (b"", b"\xff\xfe")),
    "enum('a','b,c','it')": (pa.string(), _text, ("b,c",)),
    "set('x','y','z')": (pa.string(), _text, ("", "x,y,z")),
}
UPSTREAM = make_table(
    5, "t", [NewColumn("id", "bigint"), *(NewColumn(f"c{n}", sql, nullable=True) for n, sql in enumerate(TYPES))], "id"
)
TABLE = parse_table_info(UPSTREAM.to_json(), "s")
ENDS = {f"c{n}": kind[2] for n, kind in enumerate(TYPES.values())}
Row = dict[str, Any]
Change = tuple[int, Row | None, Row | None]  # op, row, row before


def drawn(rng: random.Random) -> Row:
    row: Row = {"id": rng.randint(-(1 << 63), (1 << 63) - 1)}
    for each in UPSTREAM.columns[1:]:
        row[each.name] = rng.choice((None, rng.choice(ENDS[each.name]), value(rng, each.type), value(rng, each.type)))
    return row


def changes(rng: random.Random) -> list[Change]:
    found: list[Change] = []
    for _ in range(rng.randint(0, 6)):
        op, old, new = rng.choice((OP_DELETE, OP_UPDATE, OP_INSERT)), drawn(rng), drawn(rng)
        old["id"] = new["id"]
        found.append((op, None if op == OP_DELETE else new, None if op == OP_INSERT else old))
    return found


def mounted(upstream: Any, table: TableInfo, found: Sequence[Change]) -> Records:
    def encoded(row: Row | None) -> bytes | None:
        return None if row is None else rows.encode_row(upstream, row)

    batch = pa.RecordBatch.from_pylist(
        [
            {
                "span_id": 5, "commit_ts": 90 + n, "start_ts": 1, "op": op,
                "key": keys.record_key(5, rows.handle_of(upstream, new or old or {})),
                "value": encoded(new) or b"", "old_value": encoded(old), "txn_source": 0,
            }
            for n, (op, new, old) in enumerate(found)
        ],
        RAW_SCHEMA,
    )  # fmt: skip
    return mount(batch, table, "UTC", with_old=True)


def cells(row: Row) -> Row:
    """What readers find, cell by cell."""
    found: Row = {"id": row["id"]}
    for name, (_, cell, _) in zip(ENDS, TYPES.values(), strict=True):
        found[name] = None if row[name] is None else cell(row[name])
    return found


@settings(deadline=None)
@given(st.integers(0, 1 << 32), st.booleans())
def test_each_cell_is_the_upstreams_value(seed: int, with_old: bool) -> None:
    given_changes = changes(random.Random(seed))
    batch = typed(mounted(UPSTREAM, TABLE, given_changes), with_old=with_old)
    batch.validate(full=True)
    expected = []
    for n, (op, new, old) in enumerate(given_changes):
        row = {"_op": "DUI"[op], "_commit_ts": 90 + n} | cells(new or old or {})
        if with_old:
            row["_old"] = cells(old) if op == OP_UPDATE and old else None
        expected.append(row)
    assert batch.to_pylist() == expected


@pytest.mark.parametrize("with_old", [False, True])
def test_the_schema_is_that_of_the_types_and_of_the_rows(with_old: bool) -> None:
    schema = schema_of(TABLE, TABLE.output_columns, with_old=with_old)
    fields = [pa.field("id", pa.int64()), *(pa.field(f"c{n}", kind[0]) for n, kind in enumerate(TYPES.values()))]
    old = [pa.field("_old", pa.struct(fields))] if with_old else []
    assert schema == pa.schema([pa.field("_op", pa.string()), pa.field("_commit_ts", pa.int64()), *fields, *old])
    assert all(field.nullable for field in schema)
    assert typed(mounted(UPSTREAM, TABLE, []), with_old=with_old).schema == schema


@pytest.mark.parametrize(
    ("tp", "charset", "wanted"),
    [
        (SqlType.JSON, "binary", pa.string()),
        (SqlType.VECTOR, "binary", pa.string()),
        (SqlType.TEXT, "utf8mb4", pa.string()),
        (SqlType.LONGTEXT, "latin1", pa.string()),
        (SqlType.LONGTEXT, "binary", pa.binary()),
        (SqlType.NEW_DATE, "binary", pa.date32()),
    ],
)
def test_types_that_the_upstream_here_does_not_write(tp: int, charset: str, wanted: pa.DataType) -> None:
    (given_column,) = parse_table_info({"id": 5, "name": "t", "cols": [column(1, "v", tp, 0, charset)]}, "s").columns
    assert type_of(given_column) == wanted


def one_column(sql: str) -> tuple[Any, TableInfo]:
    upstream = make_table(5, "t", [NewColumn("id", "bigint"), NewColumn("v", sql, nullable=True)], "id")
    return upstream, parse_table_info(upstream.to_json(), "s")


@pytest.mark.parametrize(
    ("sql", "good", "bad", "shown"),
    [
        ("date", date(2024, 2, 29), "0000-00-00", "'0000-00-00' "),
        ("date", date(2024, 2, 29), "2024-00-01", "'2024-00-01'"),
        ("date", date(2024, 2, 29), "2024-01-00", "'2024-01-00'"),
        ("date", date(2024, 2, 29), "0000-01-01", "'0000-01-01'"),
        ("date", date(2024, 2, 29), "2023-02-29", "'2023-02-29'"),
        ("datetime(3)", None, "0000-00-00 00:00:00", "'0000-00-00 00:00:00.000'"),
        ("datetime", None, "0000-02-01 00:00:00", "'0000-02-01 00:00:00'"),
        ("timestamp", None, "0000-00-00 00:00:00", "'0000-00-00 00:00:00'"),
        ("varchar(9)", "é", b"a\xff".decode(errors="surrogateescape"), r"b'a\xff'"),
        ("text", None, b"\xe4".decode(errors="surrogateescape"), r"b'\xe4'"),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_a_value_that_has_no_type_stops_the_changefeed(sql: str, good: Any, bad: Any, shown: str, before: bool) -> None:
    upstream, table = one_column(sql)
    fine: Row = {"id": 7, "v": good}
    broken = fine | {"v": bad}
    update: Change = (OP_UPDATE, fine, broken) if before else (OP_UPDATE, broken, fine)
    records = mounted(upstream, table, [(OP_INSERT, fine, None), update, (OP_DELETE, None, fine)])
    with pytest.raises(NeedsHuman) as caught:
        typed(records, with_old=True)
    message = str(caught.value)
    for part in ("table s.t, column v", shown, "commit ts 91", "columnSelectors", "text format"):
        assert part in message
    if before:
        assert typed(records).num_rows == 3  # nobody asks for the row before


def test_of_a_long_value_only_the_beginning_is_told() -> None:
    upstream, table = one_column("varchar(999)")
    records = mounted(upstream, table, [(OP_INSERT, {"id": 1, "v": "a" * 900 + "\udcff"}, None)])
    with pytest.raises(NeedsHuman) as caught:
        typed(records)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["_op", "_Commit_TS", "_old"])
def test_a_column_with_a_name_of_ours_stops_the_changefeed_unless_it_is_left_out(name: str) -> None:
    table = parse_table_info(make_table(5, "t", [NewColumn("a", "int"), NewColumn(name, "int")], None).to_json(), "s")
    with pytest.raises(NeedsHuman, match=rf"table s\.t has a column {name}.*columnSelectors"):
        schema_of(table, table.output_columns)
    assert schema_of(table, table.output_columns[:1]).names == ["_op", "_commit_ts", "a"]
