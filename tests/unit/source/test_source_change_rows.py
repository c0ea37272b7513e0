"""Raw rows as Delta's change data feed shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import NeedsHuman
from changefeed.model.tso import compose
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_PRI_KEY, TableInfo
from changefeed.source.change_rows import change_rows
from changefeed.source.read_schema import ReadSchema, schema_of
from pipeline_rows import PEOPLE, Row, column, delete, insert, make_table, raw, segment, update

FIRST = compose(1_700_000_000_123)
OF_TIME = datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)


def rows(
    given: list[list[Row]], bounds: tuple[int, int] = (0, 1 << 62), read: ReadSchema | None = None
) -> list[dict[str, Any]]:
    """`given`: segments."""
    read = read or ReadSchema.of(schema_of(PEOPLE), PEOPLE, 0, is_whole=True)
    slices = [(segment(number), raw(own)) for number, own in enumerate(given)]
    batches = list(change_rows(slices, PEOPLE, bounds, read.columns, read.shown(PEOPLE)))
    assert all(batch.schema.equals(read.columns) for batch in batches), "Spark takes no other"
    return [row for batch in batches for row in batch.to_pylist()]


def own(*fields: tuple[str, pa.DataType]) -> ReadSchema:
    return ReadSchema.of(pa.schema(fields), PEOPLE, 0, is_whole=False)


def test_an_update_is_the_row_before_and_the_row_after() -> None:
    found = rows(
        [
            [
                insert(FIRST, 7, 1, "a"),
                update(FIRST + 1, 7, (1, "a"), (2, None)),
                delete(FIRST + 2, 7, 2, None),
            ]
        ]
    )
    assert [(row["_change_type"], row["id"], row["k"], row["name"]) for row in found] == [
        ("insert", 7, 1, "a"),
        ("update_preimage", 7, 1, "a"),
        ("update_postimage", 7, 2, None),
        ("delete", 7, 2, None),
    ]
    assert [row["_commit_version"] for row in found] == [FIRST, FIRST + 1, FIRST + 1, FIRST + 2]
    assert {row["_commit_timestamp"] for row in found} == {OF_TIME}


def test_a_row_that_comes_twice_is_read_once_and_in_order() -> None:
    found = rows([[insert(30, 3), insert(20, 2)], [insert(20, 2), insert(10, 1)]])
    assert [row["id"] for row in found] == [1, 2, 3]


def test_a_batch_has_what_is_above_its_start_up_to_its_end() -> None:
    assert [row["id"] for row in rows([[insert(ts, ts) for ts in (10, 20, 30, 40)]], (10, 30))] == [20, 30]


def test_the_delete_of_no_row_is_no_change() -> None:
    gone = Row(10, 0, 1)
    assert [row["id"] for row in rows([[gone, insert(20, 2)]])] == [2]


def test_columns_are_those_that_were_asked_for() -> None:
    read = own(("_commit_version", pa.int64()), ("NAME", pa.string()))
    assert rows([[insert(10, 1, name="a")]], read=read) == [{"_commit_version": 10, "NAME": "a"}]


def test_metadata_alone_needs_no_column() -> None:
    assert rows([[insert(10, 1)]], read=own(("_change_type", pa.string()))) == [{"_change_type": "insert"}]


def test_a_column_that_the_table_has_not_is_null() -> None:
    read = own(("id", pa.int64()), ("age", pa.int32()), ("_change_type", pa.string()))
    assert rows([[insert(10, 1)]], read=read) == [{"id": 1, "age": None, "_change_type": "insert"}]


def test_a_value_that_has_no_type_names_the_way_out() -> None:
    broken = Row(10, 2, 1, insert(10, 1, name="xy").value.replace(b"xy", b"\xff\xfe"))
    with pytest.raises(NeedsHuman, match=r"column name: the value .* can't be written as string") as error:
        rows([[broken]])
    assert 'list the others in .schema("...")' in str(error.value)


def table_of(*columns: tuple[str, int]) -> TableInfo:
    made = [column(number, name, tp) for number, (name, tp) in enumerate(columns, 1)]
    made[0]["type"]["Flag"] = FLAG_PRI_KEY
    return make_table(made)


def test_columns_stand_in_the_querys_order() -> None:
    """Not in the table's: a column was moved, or the query names them in another."""
    wanted = schema_of(table_of(("name", SqlType.VARCHAR), ("id", SqlType.BIGINT)))
    read = ReadSchema.of(wanted, PEOPLE, 0, is_whole=False)
    (row,) = rows([[insert(10, 1, name="a")]], read=read)
    assert list(row.items())[:2] == [("name", "a"), ("id", 1)]
