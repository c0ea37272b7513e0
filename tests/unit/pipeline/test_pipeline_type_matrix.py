"""Every type by NULL, its least, its greatest and an odd value: what csv and canal-json write of it, byte by byte.

`type_matrix.md` holds what is written, to be read beside the formats' rules (docs/sink-files.md, Types);
`CHANGEFEED_REWRITE=1` writes it anew. Rows come from the development cluster's encoder, but for JSON and VECTOR, whose
bytes stand here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed.model.position import OP_INSERT
from changefeed.model.rows import RAW_SCHEMA
from changefeed.pipeline.mounter import mount
from changefeed.schema.table_info import parse_table_info
from changefeed.sink.records import Records
from changefeed.sink.storage.codec import csv
from changefeed.sink.text import canal_json
from changefeed_devcluster import keys
from changefeed_devcluster.tidb import rows
from changefeed_devcluster.tidb.schema import NewColumn, make_table

TABLE = Path(__file__).parent / "type_matrix.md"
CASES = ("NULL", "least", "greatest", "odd")
_HEAD = """# What is written of each type

Made by `test_pipeline_type_matrix.py`: `CHANGEFEED_REWRITE=1` writes it anew. The time zone is Asia/Shanghai. `\\udcff`
is the byte FF, which is no UTF-8.

| type | case | csv | canal-json |
| --- | --- | --- | --- |
"""
_DECIMAL_65 = Decimal("9" * 35 + "." + "9" * 30)
_LONG = timedelta(hours=838, minutes=59, seconds=59)
#: SQL type: least, greatest, odd.
VALUES: dict[str, tuple[Any, Any, Any]] = {
    "tinyint": (-128, 127, 0),
    "tinyint unsigned": (0, 255, 128),
    "smallint": (-32768, 32767, -1),
    "smallint unsigned": (0, 65535, 32768),
    "mediumint": (-8388608, 8388607, -129),
    "mediumint unsigned": (0, 16777215, 8388608),
    "int": (-2147483648, 2147483647, 65536),
    "int unsigned": (0, 4294967295, 2147483648),
    "int(5) unsigned zerofill": (0, 4294967295, 7),
    "bigint": (-(1 << 63), (1 << 63) - 1, -(1 << 31) - 1),
    "bigint unsigned": (0, (1 << 64) - 1, 1 << 63),
    "float": (-3.4028234663852886e38, 3.4028234663852886e38, 1.401298464324817e-45),
    "double": (-1.7976931348623157e308, 1.7976931348623157e308, -5e-324),
    "decimal(65,30)": (_DECIMAL_65.copy_negate(), _DECIMAL_65, Decimal("-0.000000000000000000000000000001")),
    "decimal(10,0)": (Decimal(-9999999999), Decimal(9999999999), Decimal(0)),
    "bit(1)": (0, 1, 1),
    "bit(64)": (0, (1 << 64) - 1, 1 << 63),
    "year": (1901, 2155, 0),
    "date": (date(1, 1, 1), date(9999, 12, 31), "0000-00-00"),
    "datetime(6)": (
        datetime(1, 1, 1),
        datetime(9999, 12, 31, 23, 59, 59, 999999),
        "2024-00-00 00:00:00",
    ),
    "timestamp(3)": (
        datetime(1970, 1, 1, 0, 0, 1),
        datetime(2038, 1, 19, 3, 14, 7, 999000),
        datetime(1991, 4, 13, 16),  # Shanghai's clocks are set forward
    ),
    "time(6)": (-_LONG, _LONG, timedelta(microseconds=-1)),
    "char(8)": ("", "a" * 8, '",\\\r\n\t\0'),
    "char(9)": ("", "\u00e4" * 9, b"a\xff\xe4\xbd"),  # no UTF-8
    "varchar(20)": ("", "\U0010ffff" * 20, "\\N"),
    "tinytext": ("", "a" * 20, "</script>&\u2028\u2029"),
    "text": ("", "é" * 20, " leading, trailing "),
    "mediumtext": ("", "z", "'single'"),
    "longtext": ("", "z", "\x7f\x1b\x01"),
    "binary(4)": (b"", b"\xff" * 4, b"\0a"),
    "varbinary(20)": (b"", b"\xff" * 20, b'"\r\n'),
    "tinyblob": (b"", b"\xff", b"text"),
    "blob": (b"", b"\xff\xfe", b"\0"),
    "mediumblob": (b"", b"\xff", b","),
    "longblob": (b"", b"\xff", b"\\N"),
    "enum('','a,b','c\"d')": ("", 'c"d', "a,b"),
    "set('a','b c','\"')": ("", 'a,b c,"', '"'),
}
#: Stored bytes: least, greatest, odd.
STORED: dict[str, tuple[bytes, bytes, bytes]] = {
    "json": (
        b"\x04\x00",  # null
        b"\x0a" + b"\xff" * 8,  # the greatest unsigned number
        b"\x0c\x06" + '"<é\n'.encode() + b"\x01",
    ),
    "vector": (
        b"\0\0\0\0",
        b"\x02\0\0\0" + b"\xff\xff\x7f\x7f" * 2,
        b"\x01\0\0\0" + b"\x01\0\0\0",
    ),
}
_CODES = {"json": (0xF5, 4294967295, "binary"), "vector": (0xE1, -1, "binary")}


def cells(sql: str) -> tuple[dict[str, Any], list[bytes]]:
    """The definition of a table with one such column, and its four rows."""
    if sql in STORED:
        upstream = make_table(5, "t", [NewColumn("id", "bigint"), NewColumn("v", "blob", nullable=True)], "id")
        definition = upstream.to_json()
        tp, flen, charset = _CODES[sql]
        definition["cols"][1]["type"] |= {"Tp": tp, "Flen": flen, "Charset": charset, "Collate": charset, "Flag": 128}
        return definition, [rows.assemble({2: stored}) for stored in (None, *STORED[sql])]
    upstream = make_table(5, "t", [NewColumn("id", "bigint"), NewColumn("v", sql, nullable=True)], "id")
    return upstream.to_json(), [rows.encode_row(upstream, {"id": 1, "v": value}) for value in (None, *VALUES[sql])]


def mounted(sql: str) -> Records:
    definition, values = cells(sql)
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "span_id": 1, "commit_ts": 5, "start_ts": 1, "op": OP_INSERT, "key": keys.record_key(5, n),
                "value": value, "old_value": None, "txn_source": 0,
            }
            for n, value in enumerate(values)
        ],
        RAW_SCHEMA,
    )  # fmt: skip
    return mount(batch, parse_table_info(definition, "s"), "Asia/Shanghai", with_old=True)


def written(sql: str) -> Iterator[str]:
    """A line of the table for each case."""
    records = mounted(sql)
    plain = csv.encode(records, csv.CsvFormat(terminator="<END>")).to_pybytes().decode(errors="surrogateescape")
    lines = [line.split(",", 4)[4] for line in plain.split("<END>")[:-1]]
    pieces = canal_json.encode(records, 0, canal_json.CanalJsonFormat(terminator="\n"))
    messages = b"".join(piece.to_pybytes() for piece in pieces)
    for case, line, message in zip(CASES, lines, messages.splitlines(), strict=True):
        data = message.partition(b',"data":[')[2].rpartition(b"]")[0].decode()
        cell = data.partition(',"v":')[2].removesuffix("}")
        yield f"| {sql} | {case} | `{_shown(line)}` | `{_shown(cell)}` |"


def _shown(text: str) -> str:
    return text.encode("unicode_escape").decode().replace("|", "\\|")


@pytest.fixture(scope="module")
def known() -> dict[str, list[str]]:
    """By type."""
    if os.environ.get("CHANGEFEED_REWRITE"):
        lines = [line for sql in (*VALUES, *STORED) for line in written(sql)]
        TABLE.write_text(_HEAD + "".join(f"{line}\n" for line in lines))
    found: dict[str, list[str]] = {}
    for line in TABLE.read_text().removeprefix(_HEAD).splitlines():
        found.setdefault(line.split(" | ")[0].removeprefix("| "), []).append(line)
    return found


@pytest.mark.parametrize("sql", [*VALUES, *STORED])
def test_each_type_is_written_as_the_table_says(known: dict[str, list[str]], sql: str) -> None:
    assert list(written(sql)) == known[sql]


def test_the_table_has_no_other_type(known: dict[str, list[str]]) -> None:
    assert list(known) == [*VALUES, *STORED]
