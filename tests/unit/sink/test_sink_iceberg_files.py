"""The files of an entry: the same bytes however its rows come, typed for readers, with the table's field ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.sql_type import SqlType
from changefeed.schema.values import arrow_type
from changefeed.sink.iceberg.files import encode_files
from changefeed.sink.iceberg.layout import deletes_file
from changefeed.sink.iceberg.shape import file_schema, identifier_columns
from changefeed.sink.records import Records
from changefeed.sink.table_format import parquet_file
from sink_iceberg_lake import DELETE, ID, INSERT, UPDATE, Change, column, entry_of, records, table_of

T = table_of()
CHANGES: list[Change] = [(INSERT, n, n) for n in range(40)] + [(UPDATE, n, -n) for n in range(0, 40, 3)]
CHANGES += [(DELETE, n, n) for n in range(0, 40, 4)]


def encoded(folder: Path, chunks: Sequence[Records], upsert: bool) -> dict[str, bytes]:
    made = encode_files(entry_of(T, "t/1.parquet", upsert=upsert), chunks, folder)
    bodies = {}
    for path, spool in made.items():
        body = spool.body()
        assert isinstance(body, bytes)
        bodies[path] = body
        spool.discard()
    return bodies


@pytest.mark.parametrize("upsert", [False, True])
def test_rule_10_the_bytes_do_not_depend_on_how_the_rows_come(
    tmp_path: Path, upsert: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_file, "GROUP_ROWS", 8)
    whole = encoded(tmp_path, [records(T, CHANGES, 100)], upsert)
    assert len(whole) == 1 + upsert
    for size in (1, 7, 8, 9, 30):
        chunks = [records(T, CHANGES[at : at + size], 100 + at) for at in range(0, len(CHANGES), size)]
        assert encoded(tmp_path, chunks, upsert) == whole, size
    (tmp_path / "file").write_bytes(whole["t/1.parquet"])
    footer = pq.read_metadata(tmp_path / "file")
    groups = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    assert groups == [8] * (footer.num_rows // 8) + [footer.num_rows % 8] * bool(footer.num_rows % 8)
    assert not list(tmp_path.glob("1-*")), "no spool is left"


@pytest.mark.parametrize("upsert", [False, True])
def test_an_entry_without_rows_has_no_file(tmp_path: Path, upsert: bool) -> None:
    assert encoded(tmp_path, [], upsert) == {}


def test_an_upserted_entry_is_its_last_rows_and_the_keys_that_it_takes(tmp_path: Path) -> None:
    changes: list[Change] = [(INSERT, 1, 10), (UPDATE, 2, 21), (UPDATE, 4, 30, 3), (DELETE, 5, 50), (UPDATE, 1, 11)]
    made = encoded(tmp_path, [records(T, changes, 100)], upsert=True)
    for path, body in made.items():
        (tmp_path / path.replace("/", "-")).write_bytes(body)
    rows, keys = (
        pq.read_table(tmp_path / path.replace("/", "-")) for path in ("t/1.parquet", deletes_file("t/1.parquet"))
    )
    assert rows.to_pydict() == {"id": [2, 4, 1], "v": [21, 30, 11]}
    assert keys.to_pydict() == {"id": [2, 3, 1, 5]}, "the key of a row that was only inserted takes nothing"


def test_decimals_are_stored_as_the_specification_says(tmp_path: Path) -> None:
    """Decimals of up to 9 digits are stored as 32 bits, of up to 18 as 64."""
    digits = {9: "INT32", 10: "INT64", 18: "INT64", 19: "FIXED_LEN_BYTE_ARRAY"}
    columns = [column(n, f"d{n}", SqlType.DECIMAL, place=at, Flen=n) for at, n in enumerate(digits, 1)]
    table = table_of(columns=[ID, *columns])
    cells = [pa.array([1], pa.int64()), *(pa.nulls(1, arrow_type(each)) for each in table.output_columns[1:])]
    row = replace(records(T, [(INSERT, 1, 1)], 100), table=table, columns=cells, written=table.output_columns)
    (spool,) = encode_files(entry_of(table, "t/1.parquet"), [row], tmp_path).values()
    schema = pq.read_metadata(pa.BufferReader(spool.body())).schema
    assert [schema.column(at).physical_type for at in range(3, 7)] == list(digits.values())


def test_only_deletes_leave_a_file_of_no_rows(tmp_path: Path) -> None:
    made = encoded(tmp_path, [records(T, [(DELETE, 1, 10)], 100)], upsert=True)
    (tmp_path / "rows").write_bytes(made["t/1.parquet"])
    assert (len(made), pq.read_metadata(tmp_path / "rows").num_rows) == (2, 0)


def test_what_the_rows_raise_leaves_no_spool(tmp_path: Path) -> None:
    def chunks() -> object:
        yield records(T, CHANGES, 100)
        raise NeedsHuman("no", "no")

    with pytest.raises(NeedsHuman, match="no"):
        encode_files(entry_of(T, "t/1.parquet"), chunks(), tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_fields_have_the_ids_of_their_columns() -> None:
    table = table_of(columns=[ID, column(7, "note", SqlType.VARCHAR)])

    def ids(upsert: bool) -> dict[str, bytes]:
        return {
            field.name: field.metadata[b"PARQUET:field_id"]
            for field in file_schema(table, table.output_columns, upsert=upsert)
        }

    assert ids(False) == {"_op": b"1", "_commit_ts": b"2", "id": b"3", "note": b"9"}
    assert ids(True) == {"id": b"3", "note": b"9"}


def test_a_primary_key_over_all_partitions_is_refused() -> None:
    index = {"id": 1, "idx_name": {"O": "p"}, "idx_cols": [{"name": {"O": "id"}, "length": -1}], "state": 5}
    index |= {"is_unique": True, "is_primary": True}
    more = {"pk_is_handle": False, "partition": {"enable": True, "definitions": [{"id": 5}]}}
    assert identifier_columns(table_of(**more, index_info=[index]))[0].name == "id"
    with pytest.raises(NeedsHuman, match="whose rows change their partition"):
        identifier_columns(table_of(**more, index_info=[index | {"is_global": True}]))
