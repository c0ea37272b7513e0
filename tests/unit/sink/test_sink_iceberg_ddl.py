"""What DDLs make of the tables, once and again; which files that were written before can still be read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import Fenced, NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, FLAG_UNSIGNED, TableInfo
from changefeed.sink.iceberg.driver import TRUNCATED
from sink_iceberg_lake import DELETE, ID, INSERT, Lake, V, column, ddl, publish, table_of

LATER = ((90, 101), (95, 102))  # of two TRUNCATEs: ts, and the id of the table before
T = table_of()
TWO = [(INSERT, 1, 10), (INSERT, 2, 20)]


def began(folder: Path, *tables: TableInfo, upsert: bool = False) -> Lake:
    """Each table has the two rows."""
    lake = Lake(folder, upsert)
    driver = lake.driver(*tables)
    driver.create()
    publish(driver, 7, *(lake.written(3, table, TWO, n) for n, table in enumerate(tables)))
    return lake


def names(lake: Lake) -> list[str]:
    return sorted(".".join(name) for name in lake.endpoint.open().list_tables("shop"))


def fields(lake: Lake, name: str = "t") -> list[tuple[int, str, str]]:
    return [(field.field_id, field.name, str(field.field_type)) for field in lake.table(name).schema().fields]


def twice(lake: Lake, what: Any, *tables: TableInfo) -> None:
    """Executed, and executed again by the next driver, which has the tables as they were."""
    for _ in range(2):
        lake.driver(*tables, epoch=lake.newest_epoch + 1).execute(what)


def test_columns_come_go_move_are_renamed_and_widened(tmp_path: Path) -> None:
    lake = began(tmp_path, T)
    changed = table_of(
        columns=[
            column(3, "note", SqlType.VARCHAR, place=0),
            column(1, "key", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY, 1),
            column(2, "v", SqlType.BIGINT, place=2),
        ]
    )
    twice(lake, ddl(90, Action.MULTI_SCHEMA_CHANGE, [T], [changed]), T)
    assert fields(lake)[2:] == [(5, "note", "string"), (3, "key", "long"), (4, "v", "long")]
    assert lake.rows() == [("I", 30, None, 1, 10), ("I", 31, None, 2, 20)]
    twice(lake, ddl(95, Action.DROP_COLUMN, [changed], [table_of(columns=[ID])]), changed)
    assert lake.rows() == [("I", 30, 1), ("I", 31, 2)]
    again = table_of(columns=[ID, column(4, "v", SqlType.VARCHAR)])
    twice(lake, ddl(99, Action.ADD_COLUMN, [changed], [again]), changed)
    assert lake.rows() == [("I", 30, 1, None), ("I", 31, 2, None)], "a column of that name, and another one"


def test_an_added_index_changes_nothing_but_the_version(tmp_path: Path) -> None:
    lake = began(tmp_path, T)
    before = len(lake.table().schemas())
    twice(lake, ddl(90, Action.ADD_INDEX, [T], [T]), T)
    assert (len(lake.table().schemas()), lake.table().properties["changefeed.version"]) == (before, "90")


def test_a_type_that_can_not_become_another_is_refused(tmp_path: Path) -> None:
    lake = began(tmp_path, T)
    unsigned = table_of(columns=[ID, column(2, "v", SqlType.BIGINT, FLAG_UNSIGNED)])
    with pytest.raises(NeedsHuman, match=r"shop\.t: column v was int and is decimal\(20, 0\) now"):
        lake.driver(T).execute(ddl(90, Action.MODIFY_COLUMN, [T], [unsigned]))


def test_a_converted_column_is_a_new_one_for_a_changelog_and_refused_for_a_state(tmp_path: Path) -> None:
    converted = table_of(columns=[ID, column(3, "v", SqlType.VARCHAR, place=2)])
    what = ddl(90, Action.MODIFY_COLUMN, [T], [converted])
    lake = began(tmp_path / "append", T)
    twice(lake, what, T)
    assert lake.rows() == [("I", 30, 1, None), ("I", 31, 2, None)]
    lake = began(tmp_path / "upsert", T, upsert=True)
    with pytest.raises(NeedsHuman, match="gives values of v to rows that are there"):
        lake.driver(T).execute(what)


def test_a_table_is_created_dropped_and_created_anew(tmp_path: Path) -> None:
    lake, other = began(tmp_path, T), table_of(102)
    twice(lake, ddl(90, Action.DROP_TABLE, [T]), T)
    assert names(lake) == []
    twice(lake, ddl(95, Action.CREATE_TABLE, [], [other]))
    assert (names(lake), lake.rows()) == (["shop.t"], [])
    lake.driver(epoch=9).execute(ddl(90, Action.DROP_TABLE, [T]))
    assert names(lake) == ["shop.t"], "late: it is another table by now"
    assert list((tmp_path / "lake" / "shop" / "t-101").rglob("*.parquet")), "its files stay"


def test_a_drop_that_an_event_filter_ignores_leaves_the_table(tmp_path: Path) -> None:
    lake = began(tmp_path, T)
    lake.driver(T).execute(ddl(90, Action.DROP_TABLE, [T], told=False))
    assert len(lake.rows()) == 2


@pytest.mark.parametrize("upsert", [False, True])
def test_a_truncated_table_says_from_when(tmp_path: Path, upsert: bool) -> None:
    lake, after = began(tmp_path, T, upsert=upsert), table_of(102)
    twice(lake, ddl(90, Action.TRUNCATE_TABLE, [T], [after]), T)
    assert lake.table().properties[TRUNCATED] == "90"
    publish(lake.driver(after, epoch=8), 12, lake.written(10, after, [(INSERT, 1, 11)]), epoch=8)
    lake.driver(T, epoch=9).execute(ddl(90, Action.TRUNCATE_TABLE, [T], [after]))
    rows = [(1, 11)] if upsert else [("I", 30, 1, 10), ("I", 31, 2, 20), ("I", 100, 1, 11)]
    assert lake.rows() == rows


def test_a_late_ddl_of_a_driver_that_was_given_up_does_not_undo_later_ones(tmp_path: Path) -> None:
    """It stops right before its commit; neither DDL changes the schema, and no row comes between them."""
    lake = began(tmp_path, T)
    first, second = (ddl(ts, Action.TRUNCATE_TABLE, [table_of(id_)], [table_of(id_ + 1)]) for ts, id_ in LATER)

    class Stopped:
        def __init__(self, catalog: Any) -> None:
            self._catalog, self._is_stopped = catalog, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._catalog, name)

        def commit_table(self, *given: Any) -> Any:
            if not self._is_stopped:
                self._is_stopped = True
                successor = lake.driver(T, epoch=2)
                successor.execute(first)
                successor.execute(second)
            return self._catalog.commit_table(*given)

    with pytest.raises(Fenced):
        lake.driver(T, wrap=Stopped).execute(first)
    properties = lake.table().properties
    assert (properties["changefeed.table-id"], properties["changefeed.version"]) == ("103", "95")


def renames(*moves: tuple[int, str, str]) -> tuple[list[TableInfo], list[TableInfo]]:
    return [table_of(id_, was) for id_, was, _ in moves], [table_of(id_, now) for id_, _, now in moves]


@pytest.mark.parametrize("died_behind", range(5))
def test_tables_change_names_wherever_the_driver_has_died(tmp_path: Path, died_behind: int) -> None:
    before, after = renames((101, "a", "b"), (102, "b", "a"), (103, "c", "d"))
    lake = Lake(tmp_path)
    driver = lake.driver(*before)
    for number, table in enumerate(before):
        publish(driver, 7 + number, lake.written(3, table, [(INSERT, table.id, 0)], number))
    what, left = ddl(90, Action.RENAME_TABLES, before, after), died_behind

    class Dying:
        def __init__(self, catalog: Any) -> None:
            self._catalog = catalog

        def __getattr__(self, name: str) -> Any:
            return getattr(self._catalog, name)

        def rename_table(self, *given: Any) -> Any:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            return self._catalog.rename_table(*given)

    with suppress(KeyboardInterrupt):
        lake.driver(*before, wrap=Dying).execute(what)
    lake.driver(*before, epoch=2).execute(what)
    assert names(lake) == ["shop.a", "shop.b", "shop.d"]
    assert {name: lake.rows(name)[0][2] for name in "abd"} == {"a": 102, "b": 101, "d": 103}


def test_a_partition_that_is_dropped_stops_a_state_unless_that_is_ignored(tmp_path: Path) -> None:
    def parted(*ids: int) -> TableInfo:
        return table_of(partition={"enable": True, "definitions": [{"id": id_} for id_ in ids]})

    before, after = parted(201, 202), parted(202)
    lake = Lake(tmp_path, upsert=True)
    driver = lake.driver(before)
    first = lake.written(3, before, TWO, dispatcher=201), lake.written(3, before, [(INSERT, 5, 5)], 1, dispatcher=202)
    publish(driver, 7, *first)
    with pytest.raises(NeedsHuman, match="removes rows without a change for each"):
        driver.execute(ddl(90, Action.DROP_TABLE_PARTITION, [before], [after]))
    driver.execute(ddl(90, Action.DROP_TABLE_PARTITION, [before], [after], told=False))
    marks = [name for name in lake.table().properties if name.startswith("changefeed.done.")]
    assert (len(lake.rows()), marks) == (3, ["changefeed.done.202"])


@pytest.mark.parametrize(
    ("columns", "more", "why"),
    [
        ([V], {"pk_is_handle": False}, "has no primary key"),
        (
            [column(1, "id", SqlType.DOUBLE, FLAG_NOT_NULL | FLAG_PRI_KEY), V],
            {
                "pk_is_handle": False,
                "index_info": [
                    {"id": 1, "idx_name": {"O": "p"}, "idx_cols": [{"name": {"O": "id"}, "length": -1}], "state": 5}
                    | {"is_unique": True, "is_primary": True}
                ],
            },
            "by which Iceberg can't delete",
        ),
    ],
)
def test_a_table_that_has_no_key_to_upsert_by_is_named(
    tmp_path: Path, columns: Sequence[dict[str, Any]], more: dict[str, Any], why: str
) -> None:
    table = table_of(columns=columns, **more)
    with pytest.raises(NeedsHuman, match=rf"Table shop\.t .*{why}"):
        Lake(tmp_path, upsert=True).driver(table).create()
    Lake(tmp_path).driver(table).create()


def test_deletes_carry_the_key_by_its_field(tmp_path: Path) -> None:
    lake = began(tmp_path, T, upsert=True)
    publish(lake.driver(T, epoch=2), 9, lake.written(5, T, [(DELETE, 1, 10)]), epoch=2)
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    found = [
        entry.data_file.equality_ids
        for manifest in snapshot.manifests(lake.table().io)
        for entry in manifest.fetch_manifest_entry(lake.table().io)
        if entry.data_file.content.value
    ]
    assert found == [[3]]
    assert lake.table().schema().identifier_field_ids == [3]


@pytest.mark.parametrize("upsert", [False, True])
def test_a_table_that_takes_the_name_of_one_that_leaves_begins_empty(tmp_path: Path, upsert: bool) -> None:
    """Unhappy path: an online change of schema swaps tables, and the rules select their one name."""
    lake = began(tmp_path, T, upsert=upsert)
    other = table_of(102, columns=[ID, column(2, "w", SqlType.INT)])
    twice(lake, ddl(90, Action.RENAME_TABLES, [T], [other]), T)
    assert len(lake.table("t").scan().to_arrow()) == 0
    assert [name for _, name, _ in fields(lake)][-1:] == ["w"]


def test_a_recovered_table_is_refused_as_nothing_says_its_rows(tmp_path: Path) -> None:
    lake = began(tmp_path, T)
    lake.driver(T, epoch=2).execute(ddl(90, Action.DROP_TABLE, [T]))
    with pytest.raises(NeedsHuman, match="RECOVER_TABLE of 95 brings back all rows"):
        lake.driver(epoch=3).execute(ddl(95, Action.RECOVER_TABLE, [], [T]))
