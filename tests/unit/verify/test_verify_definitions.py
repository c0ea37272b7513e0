"""Definitions out of meta keys alone: what is in force, what is settled, and what a DDL has done to which table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from changefeed.reading.failures import NotVerifiable
from changefeed.schema.table_info import STATE_PUBLIC, TableInfo
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.verify.upstream.definitions import Definitions, SettledChange, SettledSchema
from changefeed.verify.upstream.meta import MetaWrite, read_meta
from changefeed_devcluster import keys
from changefeed_devcluster.ddl.tables import drop_table, rename_table
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.tidb.tidb import Tidb

START = 100
SHOP, LOST, MYSQL = 1, 2, 3
WRITE_ONLY = 2


def column(id_: int, name: str, tp: int = 8, state: int = STATE_PUBLIC, flag: int = 0) -> dict[str, Any]:
    return {"id": id_, "name": name, "offset": id_, "state": state, "type": {"Tp": tp, "Flag": flag}}


def table(id_: int, name: str, *columns: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": id_, "name": name, "cols": list(columns) or [column(1, "id")], "state": STATE_PUBLIC} | more


def database(ts: int, id_: int, name: str | None) -> MetaWrite:
    return MetaWrite(ts, id_, 0, None if name is None else {"id": id_, "db_name": name, "state": STATE_PUBLIC})


def parted(definitions: list[int], **lists: list[int]) -> dict[str, Any]:
    named = {"definitions": definitions} | lists
    return {"partition": {"enable": True} | {name: [{"id": id_} for id_ in ids] for name, ids in named.items()}}


ITEMS = table(10, "items", column(1, "id"), column(2, "a", 3))


def schema(*later: MetaWrite, items: Mapping[str, Any] = ITEMS) -> SettledSchema:
    """The tables shop.items (10) and mysql.user (11), and what was written afterwards."""
    base = [database(START, SHOP, "shop"), database(START, LOST, "lost"), database(START, MYSQL, "mysql")]
    tables = [MetaWrite(START, SHOP, 10, items), MetaWrite(START, MYSQL, 11, table(11, "user"))]
    return SettledSchema(START, Definitions([*base, *tables, *later]))


def names(tables: tuple[TableInfo, ...]) -> list[str]:
    return [info.full_name for info in tables]


def did(touched: SettledChange) -> tuple[list[str], list[str]]:
    return names(touched.before), names(touched.after)


def test_a_rename_is_what_its_transaction_wrote_in_whatever_order() -> None:
    moved = (MetaWrite(110, MYSQL, 10, table(10, "gone")), MetaWrite(110, SHOP, 10, None))
    for written in (moved, moved[::-1]):
        found = schema(*written)
        assert did(found.settle(110)) == (["shop.items"], ["mysql.gone"])
        assert [info.full_name for info in found.tables_at(109)] == ["shop.items", "mysql.user"]
        assert [info.full_name for info in found.tables_at(110)] == ["mysql.gone", "mysql.user"]


def test_a_database_goes_with_its_tables_even_if_their_keys_stay() -> None:
    found = schema(database(110, SHOP, None))
    touched = found.settle(110)
    assert (did(touched), touched.databases) == ((["shop.items"], []), {"shop"})
    assert [info.full_name for info in found.tables_at(110)] == ["mysql.user"]


def test_a_state_on_the_way_does_not_count_before_the_ddls_end() -> None:
    adding = table(10, "items", *ITEMS["cols"], column(3, "b", state=WRITE_ONLY))
    added = table(10, "items", *ITEMS["cols"], column(3, "b"))
    found = schema(MetaWrite(110, SHOP, 10, adding), MetaWrite(120, SHOP, 10, added))
    assert not found.shows_another(110)
    info = found.table(10, 119)
    assert info is not None
    assert [each.name for each in info.columns] == ["id", "a"]
    assert found.shows_another(120)
    (after,) = found.settle(120).after
    assert [each.name for each in after.columns] == ["id", "a", "b"]


@pytest.mark.parametrize(
    ("columns", "shows"),
    [
        ((column(1, "id"), column(3, "a", 15), column(2, "_Tombstone$_a", 3, WRITE_ONLY)), True),  # MODIFY, other bytes
        ((column(1, "id"), column(2, "b", 3)), True),
        ((column(1, "id"), column(2, "a", 8)), True),
        ((column(2, "a", 3), column(1, "id")), False),  # they stand by their offsets
        ((column(1, "id"), column(2, "a", 3, flag=1 << 20)), False),  # NULL is refused already, for a MODIFY … NOT NULL
    ],
)
def test_what_sessions_see_is_another_table(columns: tuple[dict[str, Any], ...], shows: bool) -> None:
    found = schema(MetaWrite(110, SHOP, 10, table(10, "items", *columns)))
    assert found.shows_another(110) is shows
    assert not found.shows_another(109)


def test_a_table_that_comes_or_goes_does_so_at_the_end() -> None:
    found = schema(MetaWrite(110, SHOP, 12, table(12, "new")), MetaWrite(120, SHOP, 10, ITEMS | {"state": WRITE_ONLY}))
    assert (found.shows_another(110), found.shows_another(120)) == (False, False)


def test_a_table_that_a_job_names_is_touched_even_if_it_stays_as_it_is() -> None:
    assert did(schema().settle(110)) == ([], [])
    assert did(schema().settle(110, named=[10])) == (["shop.items"], ["shop.items"])
    assert did(schema().settle(110, named=[99])) == ([], [])


def test_what_changes_no_column_of_a_table_that_no_job_names_does_not_touch_it() -> None:
    """As foreign keys of another one do, when that is renamed."""
    assert did(schema(MetaWrite(110, SHOP, 10, ITEMS | {"comment": "of a child"})).settle(110)) == ([], [])


def test_sequences_and_temporary_tables_are_none() -> None:
    found = schema(
        MetaWrite(110, SHOP, 12, table(12, "numbers", sequence={})),
        MetaWrite(110, SHOP, 13, table(13, "mine", temp_table_type=1)),
        MetaWrite(110, SHOP, 14, table(14, "seen", view={})),
    )
    assert did(found.settle(110)) == ([], ["shop.seen"])


@pytest.mark.parametrize(
    ("lists", "holds"),
    [
        (parted([7, 8], adding_definitions=[9]), (7, 8)),  # reorganised, rows being copied
        (parted([7, 9], adding_definitions=[9], dropping_definitions=[8]), (7, 8)),  # copied
        (parted([7], dropping_definitions=[8]), (7, 8)),  # dropped
        (parted([10], adding_definitions=[9]), ()),  # about to get partitions
        (parted([9], adding_definitions=[9], dropping_definitions=[10]), ()),
        (parted([7, 8]), (7, 8)),
    ],
)
def test_partitions_hold_rows_until_the_end_of_their_ddl(lists: dict[str, Any], holds: tuple[int, ...]) -> None:
    info = schema(items=ITEMS | lists).table(10, START)
    assert info is not None
    assert info.partition_ids == holds


def test_states_in_force_begin_with_the_one_before() -> None:
    later = [MetaWrite(ts, SHOP, 10, ITEMS | {"comment": str(ts)}) for ts in (110, 120, 130, 140)]
    found = schema(*later).definitions.in_force(10, 120, 140)
    assert [ts for ts, _ in found] == [110, 120, 130]
    assert schema().definitions.in_force(10, START, 140) == [(START, ITEMS)]


def test_without_the_table_of_jobs_nothing_can_be_followed() -> None:
    with pytest.raises(NotVerifiable, match=r"no table mysql.tidb_ddl_job at ts 100"):
        _ = schema().ddl_job_table


# --- from a cluster ---


@pytest.fixture
def tidb(cluster: DevCluster) -> Tidb:
    tidb = Tidb(cluster)
    tidb.bootstrap()
    return tidb


async def test_meta_is_read_as_it_stood_and_as_it_became(pd: PdClient, tidb: Tidb) -> None:
    tidb.create_database("shop")
    kept, moved, gone = (
        tidb.create_table("shop", name, [NewColumn("id", "bigint")]) for name in ("kept", "moved", "gone")
    )
    start_ts = tidb.now()
    rename_table(tidb, moved, tidb.databases["mysql"], "moved")
    drop_table(tidb, gone)
    with tidb.begin() as txn:  # counters stand beside definitions
        txn.write(keys.meta_hash(f"DB:{kept.db.id}", f"TID:{kept.id}"), b"30001")
    definitions = Definitions(await read_meta(pd, start_ts, tidb.now()))
    now = tidb.now()
    shown = {
        ts: {info.full_name for info in (definitions.settled(each.id, ts) for each in (kept, moved, gone)) if info}
        for ts in (start_ts, now)
    }
    assert shown == {start_ts: {"shop.kept", "shop.moved", "shop.gone"}, now: {"shop.kept", "mysql.moved"}}


async def test_a_definition_that_is_none_is_said(pd: PdClient, tidb: Tidb) -> None:
    with tidb.begin() as txn:
        txn.write(keys.meta_hash("DBs", "DB:7"), b"\0policy")
    now = tidb.now()
    with pytest.raises(NotVerifiable, match="holds no JSON"):
        await read_meta(pd, now, now)
