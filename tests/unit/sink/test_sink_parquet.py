"""Parquet files: what other readers find in them, and that their bytes follow from the rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changefeed.errors import NeedsHuman
from changefeed.model.position import Position
from changefeed.pipeline import run
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY
from changefeed.sink.storage.codec import parquet
from changefeed.sink.storage.codec.choice import file_codec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipeline_rows import (
    PARQUET,
    PEOPLE,
    STORAGE,
    Row,
    column,
    delete,
    encode_file,
    index,
    insert,
    make_table,
    make_work,
    recipe_of,
    shuffled,
    update,
    with_index,
)

ROWS = [
    insert(5, 1, 10, "Ann"),
    insert(5, 2, 20, None),
    update(6, 1, (10, "Ann"), (10, "Anna")),
    update(6, 2, (20, None), (21, "Bo")),
    delete(7, 1, 10, "Anna"),
]


def many(count: int) -> list[Row]:
    return [insert(5 + n // 7, n, n, "x" * (n % 50)) for n in range(count)]


def written(folder: Path, *segments: list[Row], old_values: bool = False, **options: Any) -> bytes:
    options.setdefault("parquet", PARQUET | {"oldValues": old_values})
    return encode_file(folder, *segments, protocol="parquet", **options)[1]


def test_duckdb_reads_the_rows_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(written(tmp_path, ROWS[:3], ROWS[3:], old_values=True))
    found = duckdb.sql(f"SELECT * FROM '{path}'").fetchall()
    assert found == [
        ("I", 5, 1, 10, "Ann", None),
        ("I", 5, 2, 20, None, None),
        ("U", 6, 1, 10, "Anna", {"id": 1, "k": 10, "name": "Ann"}),
        ("U", 6, 2, 21, "Bo", {"id": 2, "k": 20, "name": None}),
        ("D", 7, 1, 10, "Anna", None),
    ]


def test_without_old_values_there_is_no_column_for_them(tmp_path: Path) -> None:
    found = pq.read_table(pa.BufferReader(written(tmp_path, ROWS)))
    assert found.schema.names == ["_op", "_commit_ts", "id", "k", "name"]
    assert found["_op"].to_pylist() == list("IIUUD")


def test_an_update_of_a_unique_key_is_two_rows(tmp_path: Path) -> None:
    found = pq.read_table(pa.BufferReader(written(tmp_path, ROWS[3:4], table=with_index(PEOPLE, index("k")))))
    assert found["_op"].to_pylist() == ["D", "I"]
    assert found["k"].to_pylist() == [20, 21]


@pytest.mark.parametrize("old_values", [False, True])
def test_rule_13_an_entry_without_rows_is_a_file_with_its_schema(tmp_path: Path, old_values: bool) -> None:
    content = written(tmp_path, ROWS, to=Position.end_of(4), old_values=old_values)
    found = pq.read_table(pa.BufferReader(content))
    assert found.num_rows == 0
    assert found.schema.equals(pq.read_schema(pa.BufferReader(written(tmp_path, ROWS, old_values=old_values))))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.integers(0, 120), st.integers(0, 1 << 32), st.integers(1, 5), st.integers(1, 4000), st.integers(1, 40))
def test_rule_10_other_segments_and_chunks_give_the_same_bytes(
    tmp_path: Path, count: int, seed: int, segments: int, chunk_bytes: int, group_rows: int
) -> None:
    rows = many(count)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parquet, "GROUP_ROWS", group_rows)
        patched.setattr(parquet, "GROUP_BYTES", 400)
        whole = written(tmp_path, rows, old_values=True)
        patched.setattr(run, "CHUNK_BYTES", chunk_bytes)
        assert written(tmp_path, *shuffled(rows, seed, segments), old_values=True) == whole


@pytest.mark.parametrize(
    ("digits", "stored"), [(9, "INT32"), (10, "INT64"), (18, "INT64"), (19, "FIXED_LEN_BYTE_ARRAY")]
)
def test_a_decimal_that_fits_an_integer_is_stored_as_one(tmp_path: Path, digits: int, stored: str) -> None:
    """In fixed bytes, which are Arrow's default, Flink's reader fails on a dictionary of them."""
    amount = column(2, "amount", SqlType.DECIMAL)
    amount["type"] |= {"Flen": digits, "Decimal": 2}
    table = make_table([column(1, "id", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY), amount])
    found = pq.read_metadata(pa.BufferReader(written(tmp_path, ROWS, table=table, to=Position.end_of(4)))).schema
    assert found.column(3).physical_type == stored
    assert found.to_arrow_schema().field("amount").type == pa.decimal128(digits, 2)


def test_row_groups_are_bounded_by_rows_and_bytes_and_have_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 30)
    few = pq.read_metadata(pa.BufferReader(written(tmp_path, many(100))))
    assert [few.row_group(n).num_rows for n in range(few.num_row_groups)] == [30, 30, 30, 10]
    bounds = [few.row_group(n).column(1).statistics for n in range(few.num_row_groups)]
    assert [(each.min, each.max) for each in bounds] == [(5, 9), (9, 13), (13, 17), (17, 19)]
    monkeypatch.setattr(parquet, "GROUP_BYTES", 600)
    found = pq.read_metadata(pa.BufferReader(written(tmp_path, many(100))))
    assert found.num_row_groups > 4
    assert found.num_rows == 100


@pytest.mark.parametrize(("compression", "inside"), [("zstd", "ZSTD"), ("snappy", "SNAPPY"), ("none", "UNCOMPRESSED")])
def test_pages_are_compressed_as_the_resource_says(tmp_path: Path, compression: str, inside: str) -> None:
    content = written(tmp_path, ROWS, parquet={"oldValues": False, "compression": compression})
    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    assert {group.column(n).compression for n in range(group.num_columns)} == {inside}


def test_the_fingerprint_names_what_writes_the_files() -> None:
    assert file_codec(STORAGE | {"protocol": "parquet"}).fingerprint == f"parquet-2 pyarrow-{pa.__version__}"


def test_timestamps_are_mounted_in_utc() -> None:
    table = make_table(
        [column(1, "id", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY), column(2, "at", SqlType.TIMESTAMP)]
    )
    work, entry = make_work([], table, time_zone="Asia/Shanghai", protocol="parquet")
    rows = run.EntryRows(recipe_of(work, entry), entry, lambda piece: pa.table({}))
    assert rows.recipe.mounting.time_zone == "UTC"


def test_a_column_with_a_name_of_ours_stops_even_an_entry_without_rows(tmp_path: Path) -> None:
    table = make_table(
        [column(1, "id", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY), column(2, "_op", SqlType.VARCHAR)]
    )
    with pytest.raises(NeedsHuman, match="columnSelectors"):
        written(tmp_path, [], table=table)
    selectors = [{"matcher": ["*.*"], "columns": ["*", "!_op"]}]
    found = written(tmp_path, [], table=table, columnSelectors=selectors)
    assert pq.read_schema(pa.BufferReader(found)).names == ["_op", "_commit_ts", "id"]
    assert list(tmp_path.iterdir()) == []
