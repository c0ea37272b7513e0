"""Rows of any definition in one schema; what can't be shown is refused by name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo
from changefeed.source.read_schema import METADATA, ReadSchema, check_metadata, schema_of
from pipeline_rows import PEOPLE, column, make_table


def table(*columns: tuple[int, str, int], digits: tuple[int, int] = (20, 0)) -> TableInfo:
    """`columns`: id, name, type."""
    made: list[dict[str, Any]] = [column(*each) | {"offset": place} for place, each in enumerate(columns)]
    for each in made:
        each["type"] |= {"Flen": digits[0], "Decimal": digits[1]}
    return make_table(made)


def read_of(made_of: TableInfo, as_of_ts: int = 100) -> ReadSchema:
    return ReadSchema.of(schema_of(made_of), made_of, as_of_ts, is_whole=True)


def own(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([*fields, *METADATA])


def names(read: ReadSchema, definition: TableInfo) -> list[str | None]:
    return [None if each is None else each.name for each in read.shown(definition)]


def test_columns_come_first_and_then_deltas_names() -> None:
    assert schema_of(PEOPLE).names == ["id", "k", "name", "_change_type", "_commit_version", "_commit_timestamp"]


def test_a_column_of_our_name_is_refused() -> None:
    with pytest.raises(NeedsHuman, match="_Commit_Version"):
        schema_of(table((1, "_Commit_Version", SqlType.INT)))


def test_a_column_that_was_not_there_yet_is_null() -> None:
    now, before = table((1, "id", SqlType.INT), (2, "name", SqlType.VARCHAR)), table((1, "id", SqlType.INT))
    assert names(read_of(now), before) == ["id", None]


def test_a_column_that_is_gone_by_now_is_not_shown() -> None:
    now, before = table((1, "id", SqlType.INT)), table((1, "id", SqlType.INT), (2, "name", SqlType.VARCHAR))
    assert names(read_of(now), before) == ["id"]


def test_a_column_that_was_renamed_is_the_same_column() -> None:
    now, before = (
        table((1, "id", SqlType.INT), (2, "title", SqlType.VARCHAR)),
        table((1, "id", SqlType.INT), (2, "name", SqlType.VARCHAR)),
    )
    assert names(read_of(now), before) == ["id", "name"]


def test_two_columns_that_changed_names_are_told_apart() -> None:
    now, before = (
        table((1, "a", SqlType.INT), (2, "b", SqlType.INT)),
        table((1, "b", SqlType.INT), (2, "a", SqlType.INT)),
    )
    assert names(read_of(now), before) == ["b", "a"]


@pytest.mark.parametrize(
    ("stored", "digits", "wanted"),
    [
        (SqlType.INT, (20, 0), pa.int64()),
        (SqlType.FLOAT, (20, 0), pa.float64()),
        (SqlType.DECIMAL, (10, 2), pa.decimal128(12, 2)),
        (SqlType.DECIMAL, (10, 2), pa.decimal128(12, 4)),
    ],
)
def test_values_of_a_narrower_type_are_shown(stored: int, digits: tuple[int, int], wanted: pa.DataType) -> None:
    read = ReadSchema.of(own(("a", wanted)), None, 100, is_whole=False)
    assert names(read, table((1, "a", stored), digits=digits)) == ["a"]


@pytest.mark.parametrize(
    ("stored", "digits", "wanted"),
    [
        (SqlType.BIGINT, (20, 0), pa.int32()),
        (SqlType.DOUBLE, (20, 0), pa.float32()),
        (SqlType.VARCHAR, (20, 0), pa.int32()),
        (SqlType.DECIMAL, (12, 2), pa.decimal128(12, 4)),
    ],
)
def test_what_would_be_a_guess_is_refused(stored: int, digits: tuple[int, int], wanted: pa.DataType) -> None:
    read = ReadSchema.of(own(("a", wanted)), None, 100, is_whole=False)
    with pytest.raises(NeedsHuman, match=r"shop\.t: column a holds"):
        read.shown(table((1, "a", stored), digits=digits))


def test_differences_are_said_in_words() -> None:
    read = read_of(table((1, "id", SqlType.INT), (2, "name", SqlType.VARCHAR), (3, "price", SqlType.INT)))
    found = read.differences(
        table((1, "id", SqlType.INT), (4, "title", SqlType.VARCHAR), (5, "price", SqlType.VARCHAR))
    )
    assert found == ["it has no column name", "column title is new", "column price holds string, not int32"]


def test_who_has_chosen_columns_is_not_told_of_others() -> None:
    read = ReadSchema.of(own(("id", pa.int32())), None, 100, is_whole=False)
    assert read.differences(table((1, "ID", SqlType.INT), (2, "name", SqlType.VARCHAR))) == []


def test_metadata_has_its_types() -> None:
    check_metadata(pa.schema([("id", pa.int64()), ("_commit_version", pa.int64())]))
    with pytest.raises(NeedsHuman, match="_commit_version as int32"):
        check_metadata(pa.schema([("_commit_version", pa.int32())]))
