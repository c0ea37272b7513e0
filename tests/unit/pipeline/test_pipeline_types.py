"""Rows of every type from raw bytes to csv lines, and updates of unique keys of every type.

Rows come from the development cluster's encoders. Reads no corpus file: what each value's text is, test_pipeline_csv
(corpus/sink_vectors.jsonl) and test_schema_corpus (corpus/rows.jsonl) compare.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE, Position
from changefeed.model.rows import RAW_SCHEMA
from changefeed.pipeline.mounter import mount
from changefeed.pipeline.sorter import sort_rows
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.storage.codec.csv import CsvFormat, encode
from changefeed_devcluster import keys
from changefeed_devcluster.tidb import rows
from changefeed_devcluster.tidb.schema import NewColumn, make_table
from changefeed_devcluster.tidb.schema import TidbTable as Upstream
from pipeline_rows import segment

VALUES: dict[str, Any] = {
    "tinyint": -128,
    "int(4) unsigned zerofill": 7,
    "bigint unsigned": (1 << 64) - 1,
    "year": 2024,
    "bit(10)": 0x123,
    "float": 1e6,
    "double": 0.1,
    "decimal(8,3)": Decimal("-1.5"),
    "char(5)": 'a"b',
    "text": "line\r\nend",
    "binary(3)": b"a",
    "blob": b"\xff",
    "date": date(2024, 2, 29),
    "datetime(3)": datetime(2024, 2, 29, 1, 2, 3, 456789),
    "timestamp": datetime(2024, 2, 29, 23, 0),
    "time(1)": timedelta(hours=-100, minutes=-1, microseconds=-200000),
    "enum('x','y')": "y",
    "set('x','y','z')": "x,z",
}
LINE = (
    '-128,7,18446744073709551615,2024,291,1e+06,0.1,"-1.500","a""b","line\r\nend","YQAA","/w==","2024-02-29",'
    '"2024-02-29 01:02:03.456","2024-03-01 07:00:00","-100:01:00.2","y","x,z"\n'
)
TYPES = make_table(5, "t", [NewColumn(f"c{n}", sql, nullable=True) for n, sql in enumerate(VALUES)], None)
ROW = {f"c{n}": value for n, value in enumerate(VALUES.values())}
NULLS = dict.fromkeys(ROW)
FORMAT = CsvFormat(terminator="\n")


def product(upstream: Upstream) -> TableInfo:
    return parse_table_info(upstream.to_json(), "shop")


def change(upstream: Upstream, old: dict[str, Any] | None, new: dict[str, Any] | None, ts: int = 5) -> dict[str, Any]:
    addressed: Any = {"_tidb_rowid": 1} | (new or old or {})
    return {
        "span_id": upstream.id,
        "commit_ts": ts,
        "start_ts": 1,
        "op": OP_DELETE if new is None else OP_INSERT if old is None else OP_UPDATE,
        "key": keys.record_key(upstream.id, rows.handle_of(upstream, addressed)),
        "value": b"" if new is None else rows.encode_row(upstream, new),
        "old_value": None if old is None else rows.encode_row(upstream, old),
        "txn_source": 0,
    }


def raw(*changes: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(changes), RAW_SCHEMA)


def csv_of(batch: pa.RecordBatch, fmt: CsvFormat = FORMAT, **options: Any) -> str:
    return encode(mount(batch, product(TYPES), "Asia/Shanghai", **options), fmt).to_pybytes().decode()


def test_a_row_of_every_type_is_written_as_ticdc_does():
    assert csv_of(raw(change(TYPES, None, ROW))) == '"I","t","shop",' + LINE


def test_a_delete_shows_the_row_that_was_and_null_is_null_in_every_type():
    lines = csv_of(raw(change(TYPES, ROW, None), change(TYPES, NULLS, None)))
    assert lines == '"D","t","shop",' + LINE + '"D","t","shop",' + ",".join(["\\N"] * len(VALUES)) + "\n"


def test_an_update_in_two_records_shows_both_rows():
    fmt = CsvFormat(terminator="\n", output_old_value=True)
    lines = csv_of(raw(change(TYPES, NULLS, ROW)), fmt, halve_updates=True)
    nulls = ",".join(["\\N"] * len(VALUES))
    assert lines == f'"D","t","shop",true,{nulls}\n"I","t","shop",true,{LINE}'


def test_old_columns_are_the_row_before_an_update_and_null_for_others():
    batch = raw(
        change(TYPES, None, ROW), change(TYPES, ROW, NULLS), change(TYPES, ROW, None), change(TYPES, NULLS, ROW)
    )
    records = mount(batch, product(TYPES), "UTC", with_old=True)
    assert records.old_columns is not None
    for column, old in zip(records.columns, records.old_columns, strict=True):
        old.validate(full=True)
        assert (len(old), old.type) == (4, column.type)
        assert old.to_pylist() == [None, column[0].as_py(), None, None]
    assert mount(batch, product(TYPES), "UTC").old_columns is None


def test_old_columns_of_updates_alone_and_of_none():
    updates = mount(raw(change(TYPES, ROW, NULLS)), product(TYPES), "UTC", with_old=True)
    inserts = mount(raw(change(TYPES, None, ROW)), product(TYPES), "UTC", with_old=True)
    assert updates.old_columns is not None
    assert inserts.old_columns is not None
    assert [old.to_pylist() for old in updates.old_columns] == [values.to_pylist() for values in inserts.columns]
    assert {old.null_count for old in inserts.old_columns} == {1}


# -- updates of unique keys

CHANGES: dict[str, tuple[Any, Any]] = {
    "bit(10)": (1, 2),
    "double": (1.5, 1.25),
    "varchar(20)": ("case", "Case"),  # by bytes, whatever the collation says
    "char(9)": ("a", "b"),
    "varbinary(9)": (b"a", b"a\0"),
    "date": (date(2024, 1, 1), date(2024, 1, 2)),
    # One hour apart, and the same on a clock in New York, where it is set back.
    "timestamp": (datetime(2024, 11, 3, 5, 30), datetime(2024, 11, 3, 6, 30)),
    "time": (timedelta(1), timedelta(0)),
    "enum('x','y')": ("x", "y"),
    "set('x','y')": ("x", "x,y"),
}


@pytest.mark.parametrize("sql", CHANGES)
def test_an_update_of_a_unique_key_of_any_type_is_split(sql):
    upstream = make_table(
        5, "t", [NewColumn("id", "int"), NewColumn("u", sql, unique=True), NewColumn("v", "int")], "id"
    )
    before, after = ({"id": 1, "u": value, "v": 1} for value in CHANGES[sql])
    everything = (Position.end_of(0), Position.end_of(1 << 63))
    for new, ops in ((after, [OP_DELETE, OP_INSERT]), (before | {"v": 2}, [OP_UPDATE])):
        batch = pa.Table.from_batches([raw(change(upstream, before, new))])
        found = sort_rows([(segment(0), batch)], product(upstream), *everything, split=True)
        assert found.rows.column("op").to_pylist() == ops


def test_a_clustered_key_that_sorts_the_same_but_differs_is_split():
    upstream = make_table(5, "t", [NewColumn("k", "varchar(20)"), NewColumn("v", "int")], "k")
    batch = pa.Table.from_batches([raw(change(upstream, {"k": "a", "v": 1}, {"k": "a ", "v": 1}))])
    everything = (Position.end_of(0), Position.end_of(1 << 63))
    found = sort_rows([(segment(0), batch)], product(upstream), *everything, split=True)
    assert found.rows.column("op").to_pylist() == [OP_DELETE, OP_INSERT]


def test_rule_10_a_chunk_of_rows_gives_the_bytes_that_it_gives_among_others():
    batch = raw(*(change(TYPES, None, row) for row in (ROW, NULLS, ROW | {"c9": None}, NULLS | {"c16": ""}, ROW)))
    whole = csv_of(batch).splitlines(keepends=True)
    lines = [csv_of(batch.slice(n, 1)) for n in range(batch.num_rows)]
    assert "".join(lines) == "".join(whole)
