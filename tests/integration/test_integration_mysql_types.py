"""Each type's smallest, largest and NULL, through the sink into MariaDB and back."""

from __future__ import annotations

from typing import Any

import integration_mysql_bank as bank
import numpy as np
import pyarrow as pa
import pytest
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.values import arrow_type
from changefeed.sink.contract import EntryId
from changefeed.sink.mysql.rows.changes import Changes
from integration_mariadb import MariaDb
from integration_mysql_programs import every_server

_BINARY = {"Charset": "binary"}
_UNSIGNED = {"Flag": ti.FLAG_UNSIGNED}
_ALL_BYTES = bytes(range(256))
_TEXT = 'it\'s \\ "quoted" \n\r\t\0 % é 漢 🎉'

#: SQL type, TiDB's FieldType, values; of each how it reads back as text, where not as `str` has it.
KINDS: list[tuple[str, dict[str, Any], list[Any], list[str | bytes] | None]] = [
    ("TINYINT", {"Tp": SqlType.TINYINT}, [-128, 127], None),
    ("SMALLINT UNSIGNED", {"Tp": SqlType.SMALLINT} | _UNSIGNED, [0, 65535], None),
    ("MEDIUMINT", {"Tp": SqlType.MEDIUMINT}, [-(1 << 23), (1 << 23) - 1], None),
    ("INT", {"Tp": SqlType.INT}, [-(1 << 31), (1 << 31) - 1], None),
    ("BIGINT", {"Tp": SqlType.BIGINT}, [-(1 << 63), (1 << 63) - 1], None),
    ("BIGINT UNSIGNED", {"Tp": SqlType.BIGINT} | _UNSIGNED, [0, (1 << 64) - 1], None),
    ("YEAR", {"Tp": SqlType.YEAR}, [0, 1901, 2155], ["0000", "1901", "2155"]),
    ("BIT(64)", {"Tp": SqlType.BIT}, [0, (1 << 64) - 1], [bytes(8), b"\xff" * 8]),
    ("BIT(1)", {"Tp": SqlType.BIT}, [0, 1], [b"\x00", b"\x01"]),
    ("DECIMAL(65,30)", {"Tp": SqlType.DECIMAL}, ["-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 29 + "1"], None),
    ("CHAR(40)", {"Tp": SqlType.CHAR}, ["", _TEXT], None),
    ("VARCHAR(40) CHARACTER SET latin1", {"Tp": SqlType.VARCHAR}, ["é ' \\"], None),
    ("LONGTEXT", {"Tp": SqlType.LONGTEXT}, ["", _TEXT * 1000], None),
    ("VARBINARY(300)", {"Tp": SqlType.VARCHAR} | _BINARY, [b"", _ALL_BYTES], [b"", _ALL_BYTES]),
    ("BINARY(3)", {"Tp": SqlType.CHAR} | _BINARY, [b"a\0\0"], [b"a\0\0"]),
    ("LONGBLOB", {"Tp": SqlType.LONGTEXT} | _BINARY, [b"", _ALL_BYTES * 1000], [b"", _ALL_BYTES * 1000]),
    ("DATE", {"Tp": SqlType.DATE}, ["0000-00-00", "1000-01-01", "9999-12-31", "2024-02-31"], None),
    ("DATETIME(6)", {"Tp": SqlType.DATETIME}, ["0000-00-00 00:00:00.000000", "9999-12-31 23:59:59.999999"], None),
    ("TIMESTAMP(3) NULL", {"Tp": SqlType.TIMESTAMP}, ["1970-01-01 00:00:01.000", "2038-01-19 03:14:07.999"], None),
    ("TIME(6)", {"Tp": SqlType.TIME}, ["-838:59:59.000000", "838:59:59.000000", "00:00:00.000001"], None),
    ("JSON", {"Tp": SqlType.JSON}, ['{"a": [1, "\\"\\\\", null]}', "null"], None),
    ("ENUM('a','it''s')", {"Tp": SqlType.ENUM}, [(1, "a"), (2, "it's")], ["a", "it's"]),
    ("SET('a','b''c')", {"Tp": SqlType.SET}, [(0, ""), (3, "a,b'c")], ["", "a,b'c"]),
]  # fmt: skip
#: Read back as numbers: MariaDB prints fewer digits of a FLOAT than it keeps.
FLOATS = {
    "FLOAT": (SqlType.FLOAT, [0.1, -3.4028234663852886e38, 1.17549435e-38, 16777216.0]),
    "DOUBLE": (SqlType.DOUBLE, [0.1, -1.7976931348623157e308, 2.2250738585072014e-308, 123456789.12345678]),
}


@pytest.fixture
def database(mariadb: MariaDb) -> MariaDb:
    mariadb.query("CREATE DATABASE IF NOT EXISTS bank")
    return mariadb


def make_table(database: MariaDb, name: str, sql: str, kind: dict[str, Any]) -> ti.TableInfo:
    computed = "" if database.is_mysql else ", g INT AS (id * 2) STORED"
    create = f"CREATE TABLE bank.{name} (id BIGINT PRIMARY KEY, v {sql}{computed})"
    database.query(f"DROP TABLE IF EXISTS bank.{name}", create)
    kinds = {
        "id": {"Tp": SqlType.BIGINT, "Flag": ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY},
        "v": {"Charset": "utf8mb4", "Collate": "utf8mb4_bin"} | kind,
        "g": {"Tp": SqlType.BIGINT},
    }
    cols = [
        {"id": place, "name": name, "offset": place, "type": kinds[name], "state": ti.STATE_PUBLIC}
        for place, name in enumerate(kinds)
    ]
    cols[2] |= {"generated_expr_string": "`id` * 2", "generated_stored": True}
    info = {"id": 9, "name": name, "cols": cols, "pk_is_handle": True, "state": ti.STATE_PUBLIC}
    return ti.parse_table_info(info, "bank")


def rows_of(info: ti.TableInfo, op: int, ids: list[int], values: list[Any], before: list[Any] | None = None) -> Changes:
    count = len(ids)
    type_ = arrow_type(info.columns[1])
    if pa.types.is_struct(type_):
        values, before = (
            side and [dict(zip(("number", "text"), value or (None, None), strict=True)) for value in side]
            for side in (values, before)
        )
    doubled = pa.array([2 * each for each in ids], pa.int64())
    shown = [pa.array(ids, pa.int64()), pa.array(values, type_), doubled]
    if before is None:
        was = [pa.nulls(count, values_.type) for values_ in shown]
    else:
        was = [shown[0], pa.array(before, type_), doubled]
    ts = np.full(count, 10, np.uint64)
    return Changes(info, info.output_columns, np.full(count, op, np.uint8), ts, ts, shown, was)


def write(database: MariaDb, info: ti.TableInfo, *entries: Changes) -> None:
    database.query("DROP DATABASE IF EXISTS changefeed")
    sink = bank.open_sink(database.server())
    sink.claim(bank.claim(1))
    for number, changes in enumerate(entries):
        sink.write(bank.claim(1), EntryId(1, number), 10, [changes])
    sink.close()


def expected(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


@pytest.mark.parametrize(("sql", "kind", "values", "texts"), KINDS, ids=[kind[0] for kind in KINDS])
def test_inserted_updated_and_deleted(database: MariaDb, sql: str, kind: Any, values: list[Any], texts: Any) -> None:
    info = make_table(database, "t", sql, kind)
    values = [None, *values]
    wanted = [expected(text) for text in ([None, *texts] if texts is not None else values)]
    ids = list(range(len(values)))
    rotated = values[1:] + values[:1]
    inserts, updates = (
        rows_of(info, OP_INSERT, ids, values),
        rows_of(info, OP_UPDATE, ids, rotated, values),
    )
    write(database, info, inserts)
    assert database.query("SELECT v FROM bank.t ORDER BY id") == [(text,) for text in wanted]
    write(database, info, updates, rows_of(info, OP_DELETE, ids[:1], rotated[:1]))
    assert database.query("SELECT v, g FROM bank.t ORDER BY id") == [
        (text, b"%d" % (2 * id_)) for id_, text in zip(ids[1:], [*wanted[2:], wanted[0]], strict=True)
    ]


@every_server
@pytest.mark.parametrize("sql", FLOATS)
def test_floats_keep_every_bit(database: MariaDb, sql: str) -> None:
    tp, values = FLOATS[sql]
    info = make_table(database, "f", sql, {"Tp": tp})
    write(database, info, rows_of(info, OP_INSERT, list(range(len(values))), values))
    # As a double each FLOAT is exact, and the server prints a double's shortest digits.
    found = [float(text) for (text,) in database.query("SELECT v + 0e0 FROM bank.f ORDER BY id")]
    assert found == pa.array(values, arrow_type(info.columns[1])).cast(pa.float64()).to_pylist()


@every_server
@pytest.mark.parametrize(
    ("sql", "kind", "value"),
    [
        ("FLOAT", {"Tp": SqlType.FLOAT}, 0.1),
        ("DOUBLE", {"Tp": SqlType.DOUBLE}, 0.1),
        ("DECIMAL(20,5)", {"Tp": SqlType.DECIMAL}, "1.50000"),
        ("VARCHAR(40)", {"Tp": SqlType.VARCHAR}, "it's \\"),
        ("VARCHAR(40) CHARACTER SET latin1", {"Tp": SqlType.VARCHAR}, "é"),
        ("VARBINARY(40)", {"Tp": SqlType.VARCHAR} | _BINARY, b"\0'\xff"),
        ("BIT(8)", {"Tp": SqlType.BIT}, 200),
        ("DATETIME(6)", {"Tp": SqlType.DATETIME}, "2024-01-01 00:00:00.000001"),
        ("TIME(6)", {"Tp": SqlType.TIME}, "-00:00:00.000001"),
        ("ENUM('a','b')", {"Tp": SqlType.ENUM}, (2, "b")),
        ("SET('a','b')", {"Tp": SqlType.SET}, (3, "a,b")),
    ],
)
def test_a_row_is_found_by_a_key_of_each_type(database: MariaDb, sql: str, kind: dict[str, Any], value: Any) -> None:
    info = make_table(database, "k", sql, kind | {"Flag": ti.FLAG_NOT_NULL | kind.get("Flag", 0)})
    key = {"id": 1, "idx_name": "v", "idx_cols": [{"name": "v", "length": -1}], "is_unique": True, "is_primary": True}
    by_value = info.to_json() | {"index_info": [key | {"state": ti.STATE_PUBLIC}], "pk_is_handle": False}
    info = ti.TableInfo.from_json(by_value)
    write(database, info, rows_of(info, OP_INSERT, [1], [value]), rows_of(info, OP_DELETE, [1], [value]))
    assert database.query("SELECT COUNT(*) FROM bank.k") == [(b"0",)]
