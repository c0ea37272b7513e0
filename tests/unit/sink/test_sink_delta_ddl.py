"""What DDLs make of the tables, once and again; what becomes of rows that were written before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, FLAG_UNSIGNED, TableInfo
from changefeed.sink.delta.marks import TABLE, TRUNCATED, VERSION
from sink_delta_lake import DeltaLake, publish
from sink_iceberg_lake import ID, INSERT, V, column, ddl, table_of

T = table_of()
TWO = [(INSERT, 1, 10), (INSERT, 2, 20)]
MODES = pytest.mark.parametrize("upsert", [False, True], ids=["append", "upsert"])


def began(folder: Path, *tables: TableInfo, upsert: bool = False) -> DeltaLake:
    """Each table has the two rows."""
    lake = DeltaLake(folder, upsert)
    driver = lake.driver(*tables)
    driver.create()
    publish(driver, 7, *(lake.written(3, table, TWO, n) for n, table in enumerate(tables)))
    return lake


def twice(lake: DeltaLake, what: Any, *tables: TableInfo) -> None:
    """Executed, and executed again by the next driver, which has the tables as they were."""
    for _ in range(2):
        lake.driver(*tables, epoch=lake.newest_epoch + 1).execute(what)


def fields(lake: DeltaLake, name: str = "t") -> list[str]:
    return [f"{field.name} {field.type.type}" for field in lake.table(name).schema().fields]


def states(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without what a changelog has before the row."""
    return [row[2:] if row[0] == "I" else row for row in rows]


@MODES
def test_a_column_is_added_without_a_new_data_file(tmp_path: Path, upsert: bool) -> None:
    lake = began(tmp_path, T, upsert=upsert)
    files = lake.table().file_uris()
    wider = table_of(columns=[ID, V, column(3, "note", SqlType.VARCHAR)])
    twice(lake, ddl(90, Action.ADD_COLUMN, [T], [wider]), T)
    assert (lake.table().file_uris(), lake.table().version()) == (files, 2)
    assert states(lake.rows()) == [(1, 10, None), (2, 20, None)]
    assert lake.marks().of(VERSION) == 90


@MODES
def test_columns_go_move_are_renamed_and_widened(tmp_path: Path, upsert: bool) -> None:
    lake = began(tmp_path, T, upsert=upsert)
    changed = table_of(
        columns=[
            column(3, "note", SqlType.VARCHAR, place=0),
            column(1, "key", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY, 1),
            column(2, "v", SqlType.BIGINT, place=2),
        ]
    )
    twice(lake, ddl(90, Action.MULTI_SCHEMA_CHANGE, [T], [changed]), T)
    assert fields(lake)[-3:] == ["note string", "key long", "v long"]
    assert states(lake.rows()) == [(None, 1, 10), (None, 2, 20)]
    key = column(1, "key", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY)
    narrow = table_of(columns=[key])
    twice(lake, ddl(95, Action.DROP_COLUMN, [changed], [narrow]), changed)
    assert states(lake.rows()) == [(1,), (2,)]
    again = table_of(columns=[key, column(4, "v", SqlType.INT)])
    twice(lake, ddl(99, Action.ADD_COLUMN, [narrow], [again]), narrow)
    assert states(lake.rows()) == [(1, None), (2, None)], "a column of that name, and another one"


@MODES
def test_two_columns_that_swap_their_names_keep_their_values(tmp_path: Path, upsert: bool) -> None:
    before = table_of(columns=[ID, V, column(3, "w", SqlType.INT)])
    lake = began(tmp_path, T, upsert=upsert)
    twice(lake, ddl(90, Action.ADD_COLUMN, [T], [before]), T)
    after = table_of(columns=[ID, column(2, "w", SqlType.INT), column(3, "v", SqlType.INT)])
    twice(lake, ddl(95, Action.MODIFY_COLUMN, [before], [after]), before)
    found = pa.table(pa.RecordBatchReader.from_stream(lake.table().scan())).to_pylist()
    assert sorted((row["id"], row["w"], row["v"]) for row in found) == [(1, 10, None), (2, 20, None)]


def test_an_added_index_changes_nothing_but_the_version(tmp_path: Path) -> None:
    lake = began(tmp_path, T)
    files = lake.table().file_uris()
    twice(lake, ddl(90, Action.ADD_INDEX, [T], [T]), T)
    assert (lake.table().file_uris(), lake.marks().of(VERSION)) == (files, 90)


def test_a_type_that_can_not_become_another_is_refused(tmp_path: Path) -> None:
    lake = began(tmp_path, T)
    doubled = table_of(columns=[ID, column(2, "v", SqlType.DOUBLE)])
    with pytest.raises(NeedsHuman, match=r"shop\.t: column v was int32 and is double now"):
        lake.driver(T).execute(ddl(90, Action.MODIFY_COLUMN, [T], [doubled]))


@MODES
def test_an_integer_becomes_an_unsigned_one(tmp_path: Path, upsert: bool) -> None:
    lake = began(tmp_path, T, upsert=upsert)
    unsigned = table_of(columns=[ID, column(2, "v", SqlType.BIGINT, FLAG_UNSIGNED)])
    twice(lake, ddl(90, Action.MODIFY_COLUMN, [T], [unsigned]), T)
    assert fields(lake)[-1] == "v decimal(20,0)"
    assert [int(row[-1]) for row in lake.rows()] == [10, 20]


def test_a_converted_column_is_a_new_one_for_a_changelog_and_refused_for_a_state(tmp_path: Path) -> None:
    converted = table_of(columns=[ID, column(3, "v", SqlType.VARCHAR, place=2)])
    what = ddl(90, Action.MODIFY_COLUMN, [T], [converted])
    lake = began(tmp_path / "append", T)
    twice(lake, what, T)
    assert lake.rows() == [("I", 30, 1, None), ("I", 31, 2, None)]
    lake = began(tmp_path / "upsert", T, upsert=True)
    with pytest.raises(NeedsHuman, match="gives values of v to rows that are there"):
        lake.driver(T).execute(what)


def test_a_dropped_table_stays_until_another_one_has_its_name(tmp_path: Path) -> None:
    lake, other = began(tmp_path, T), table_of(102)
    twice(lake, ddl(90, Action.DROP_TABLE, [T]), T)
    assert (len(lake.rows()), lake.marks().is_left) == (2, True)
    twice(lake, ddl(95, Action.CREATE_TABLE, [], [other]))
    assert (lake.rows(), lake.marks().of(TABLE), lake.marks().is_left) == ([], 102, False)
    lake.driver(epoch=9).execute(ddl(90, Action.DROP_TABLE, [T]))
    assert not lake.marks().is_left, "late: it is another table by now"


@MODES
def test_a_truncated_table_says_from_when(tmp_path: Path, upsert: bool) -> None:
    lake, after = began(tmp_path, T, upsert=upsert), table_of(102)
    twice(lake, ddl(90, Action.TRUNCATE_TABLE, [T], [after]), T)
    assert lake.marks().of(TRUNCATED) == 90
    publish(lake.driver(after, epoch=8), 12, lake.written(10, after, [(INSERT, 1, 11)]), epoch=8)
    lake.driver(T, epoch=9).execute(ddl(90, Action.TRUNCATE_TABLE, [T], [after]))
    rows = [(1, 11)] if upsert else [("I", 30, 1, 10), ("I", 31, 2, 20), ("I", 100, 1, 11)]
    assert lake.rows() == rows


@MODES
def test_a_renamed_table_is_in_another_folder_and_goes_on(tmp_path: Path, upsert: bool) -> None:
    lake, after, other = began(tmp_path, T, upsert=upsert), table_of(name="u"), table_of(102)
    written = lake.written(3, T, TWO)
    twice(lake, ddl(90, Action.RENAME_TABLE, [T], [after]), T)
    assert states(lake.rows("u")) == [(1, 10), (2, 20)]
    assert lake.marks().is_left
    assert lake.marks("u").done(T.id) == 3 << 24
    twice(lake, ddl(95, Action.CREATE_TABLE, [], [other]))
    assert lake.rows() == []
    publish(lake.driver(after, epoch=9), 12, lake.written(10, after, [(INSERT, 3, 30)]), epoch=9)
    assert len(lake.rows("u")) == 3
    del written


def test_a_rename_that_stopped_halfway_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, after = began(tmp_path, T), table_of(name="u")
    what = ddl(90, Action.RENAME_TABLE, [T], [after])
    stopped = lake.driver(T, epoch=2)
    monkeypatch.setattr(stopped, "_leave", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception, match="killed"):
        stopped.execute(what)
    lake.driver(T, epoch=3).execute(what)
    assert (len(lake.rows("u")), lake.marks().is_left, lake.marks("u").of(VERSION)) == (2, True, 90)


def test_tables_that_take_each_others_names_are_refused_before_any_effect(tmp_path: Path) -> None:
    one, two = T, table_of(102, "u")
    lake = began(tmp_path, one, two)
    swapped = [table_of(101, "u"), table_of(102, "t")]
    with pytest.raises(NeedsHuman, match="folders can't be renamed"):
        lake.driver(one, two).execute(ddl(90, Action.RENAME_TABLES, [one, two], swapped))
    assert [lake.table(name).version() for name in ("t", "u")] == [1, 1]


@MODES
def test_columns_of_others_stay(tmp_path: Path, upsert: bool) -> None:
    from deltalake import Field

    lake = began(tmp_path, T, upsert=upsert)
    lake.table().alter.add_columns([Field("theirs", "string")])
    publish(lake.driver(T, epoch=2), 9, lake.written(4, T, [(INSERT, 3, 30)]), epoch=2)
    renamed = table_of(columns=[ID, column(2, "w", SqlType.INT)])
    twice(lake, ddl(90, Action.MODIFY_COLUMN, [T], [renamed]), T)
    assert fields(lake)[-3:] == ["id long", "w integer", "theirs string"]
    clash = table_of(columns=[ID, column(2, "w", SqlType.INT), column(3, "Theirs", SqlType.INT)])
    with pytest.raises(NeedsHuman, match="somebody has added the column theirs"):
        lake.driver(renamed, epoch=9).execute(ddl(95, Action.ADD_COLUMN, [renamed], [clash]))


def test_names_that_delta_does_not_have_are_refused(tmp_path: Path) -> None:
    odd = table_of(columns=[ID, column(2, "a b", SqlType.INT)])
    with pytest.raises(NeedsHuman, match=r"shop\.t has a column 'a b'"):
        DeltaLake(tmp_path).driver(odd).create()


NAMES = [("Orders_1-x", "Orders_1-x"), ("a/..~b", "a~2F~2E~2E~7Eb"), ("ü", "~C3~BC")]


@pytest.mark.parametrize(("name", "folder"), NAMES)
def test_folders_have_the_names_of_tables(tmp_path: Path, name: str, folder: str) -> None:
    lake, table = DeltaLake(tmp_path), table_of(name=name)
    publish(lake.driver(table), 7, lake.written(3, table, TWO))
    assert len(lake.rows(folder)) == 2


@pytest.mark.parametrize("upsert", [False, True])
def test_a_table_that_takes_the_name_of_one_that_leaves_begins_empty(tmp_path: Path, upsert: bool) -> None:
    """Unhappy path: an online change of schema swaps tables, and the rules select their one name."""
    lake = began(tmp_path, T, upsert=upsert)
    other = table_of(102, columns=[ID, column(2, "w", SqlType.INT)])
    twice(lake, ddl(90, Action.RENAME_TABLES, [T], [other]), T)
    assert (lake.rows(), lake.marks().of(TABLE), lake.marks().is_left) == ([], 102, False)
    publish(lake.driver(other, epoch=8), 12, lake.written(10, other, [(INSERT, 1, 11)]), epoch=8)
    assert [row[-1] for row in lake.rows()] == [11]


def test_a_recovered_table_is_refused_as_nothing_says_its_rows(tmp_path: Path) -> None:
    lake = began(tmp_path, T)
    lake.driver(T, epoch=2).execute(ddl(90, Action.DROP_TABLE, [T]))
    with pytest.raises(NeedsHuman, match="RECOVER_TABLE of 95 brings back all rows"):
        lake.driver(epoch=3).execute(ddl(95, Action.RECOVER_TABLE, [], [T]))


def test_a_row_that_breaks_a_constraint_stops_and_is_not_shown(tmp_path: Path) -> None:
    lake = began(tmp_path, T, upsert=True)
    lake.table().alter.add_constraint({"small": "v < 100"})
    with pytest.raises(NeedsHuman, match="a row breaks one of its constraints") as stopped:
        publish(lake.driver(T, epoch=2), 12, lake.written(10, T, [(INSERT, 3, 987654)]), epoch=2)
    assert "987654" not in str(stopped.value)
