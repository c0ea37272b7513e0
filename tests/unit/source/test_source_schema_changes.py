"""Which DDLs a stream outlives, and what it says at those that it doesn't."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Ddl
from changefeed.source.options import TableName
from changefeed.source.read_schema import ReadSchema, schema_of
from changefeed.source.schema_changes import SchemaChanged, check_columns, definition_after
from pipeline_rows import PEOPLE, TABLE_ID, column, make_table

NAME = TableName("shop", "T")
WIDER = make_table([*(PEOPLE.raw["cols"]), column(4, "age", SqlType.BIGINT)])
TS = 200
BEFORE, AFTER = 100, 300  # when the read schema was made


def ddl(action: Action, *after: TableInfo) -> Ddl:
    change = SchemaChange(id=1, type=int(action), query="ALTER ...")
    tables = {id_: table for table in after for id_ in table.physical_ids}
    return Ddl(
        TS, 1, change, description=f"{action.name} of shop.t: ALTER ...", involved=frozenset({TABLE_ID}), tables=tables
    )


def follow(given: Ddl, table: TableInfo = PEOPLE, as_of_ts: int = BEFORE, name: TableName = NAME) -> TableInfo:
    read = ReadSchema.of(schema_of(PEOPLE), PEOPLE, as_of_ts, is_whole=True)
    return definition_after(given, table, name, read)


def ended(*args: Any, **more: Any) -> str:
    with pytest.raises(SchemaChanged) as error:
        follow(*args, **more)
    return str(error.value)


def parts(*ids: int) -> TableInfo:
    return replace(PEOPLE, partition_ids=ids)


def test_an_index_is_none_of_readers_business() -> None:
    after = replace(PEOPLE, indexes=())
    assert follow(ddl(Action.DROP_INDEX, after)) is after


def test_a_new_column_ends_a_stream_that_runs() -> None:
    said = ended(ddl(Action.ADD_COLUMN, WIDER))
    assert "column age is new" in said
    assert f"after the DDL at ts {TS} (ADD_COLUMN of shop.t: ALTER ...)" in said
    assert "restart with the same checkpoint" in said


def test_a_stream_that_was_loaded_after_it_goes_on() -> None:
    assert follow(ddl(Action.ADD_COLUMN, WIDER), as_of_ts=AFTER) is WIDER


def test_a_column_that_had_another_type_is_refused_even_later() -> None:
    columns = [each if each["id"] != 2 else column(2, "k", 15) for each in PEOPLE.raw["cols"]]
    with pytest.raises(NeedsHuman, match="column k holds string, which can't be read as int64"):
        follow(ddl(Action.MODIFY_COLUMN, make_table(columns)), as_of_ts=AFTER)


@pytest.mark.parametrize("action", [Action.DROP_TABLE, Action.TRUNCATE_TABLE, Action.EXCHANGE_TABLE_PARTITION])
def test_rows_that_go_without_changes_end_the_stream(action: Action) -> None:
    said = ended(ddl(action, replace(PEOPLE, id=78)))
    assert f"appeared or disappeared without row changes at ts {TS} ({action.name}" in said
    assert f"startingVersion {TS + 1}" in said


def test_a_renamed_table_is_followed_by_its_new_name() -> None:
    renamed = replace(PEOPLE, name="people")
    assert "Set the option tables to its new name" in ended(ddl(Action.RENAME_TABLE, renamed))
    assert "Set the option tables to its new name" in ended(ddl(Action.RENAME_TABLE))
    assert follow(ddl(Action.RENAME_TABLE, renamed), name=TableName("shop", "people")) is renamed


@pytest.mark.parametrize("action", [Action.ADD_TABLE_PARTITION, Action.REORGANIZE_PARTITION])
def test_new_partitions_are_followed(action: Action) -> None:
    assert follow(ddl(action, parts(1, 3)), parts(1, 2)).partition_ids == (1, 3)


@pytest.mark.parametrize("action", [Action.DROP_TABLE_PARTITION, Action.TRUNCATE_TABLE_PARTITION])
def test_partitions_that_go_with_their_rows_end_the_stream(action: Action) -> None:
    assert "appeared or disappeared" in ended(ddl(action, parts(1)), parts(1, 2))


def test_a_table_that_was_changed_before_the_stream_began_is_told() -> None:
    read = ReadSchema.of(schema_of(PEOPLE), PEOPLE, BEFORE, is_whole=True)
    with pytest.raises(
        SchemaChanged, match=r"Table shop\.t does not match the stream's columns at ts 150: column age is new"
    ):
        check_columns(WIDER, read, "at ts 150")
