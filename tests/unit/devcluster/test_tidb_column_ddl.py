"""Columns and keys change state by state, while sessions go on with the definition before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.verify.upstream.history import Collected, read_history
from changefeed_devcluster import keys
from changefeed_devcluster.ddl import columns, indexes
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import PRIMARY, NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb

_COLUMNS = [NewColumn("id", "bigint"), NewColumn("n", "int"), NewColumn("v", "varchar(20)", nullable=True)]


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(stores=1) as cluster:
        yield cluster


@pytest.fixture
def tidb(cluster: DevCluster) -> Tidb:
    tidb = Tidb(cluster)
    tidb.bootstrap()
    tidb.create_database("shop")
    return tidb


@pytest.fixture
def orders(tidb: Tidb) -> NamedTable:
    table = tidb.create_table("shop", "orders", _COLUMNS)
    with tidb.begin() as txn:
        for number in range(1, 201):
            txn.insert(table, {"id": number, "n": number, "v": f"v{number}"})
    return table


def rows(tidb: Tidb, table: NamedTable) -> dict[Any, dict[str, Any]]:
    return tidb.snapshot(table, tidb.now())


def names(table: NamedTable) -> list[str]:
    return [column.name for column in table.info.public]


def job_states(tidb: Tidb, after_ts: int) -> list[int]:
    changes = tidb.history(tidb.tables["mysql.tidb_ddl_job"], after_ts, tidb.now())
    return [json.loads(change.row["job_meta"])["state"] for change in changes if change.row is not None]


def test_an_added_column_is_written_before_it_is_seen(tidb: Tidb, orders: NamedTable) -> None:
    states = columns.add_column(tidb, orders, NewColumn("late", "int", default=7), after="id")
    hidden = next(states)
    assert names(hidden) == ["id", "n", "v"]
    with tidb.begin() as txn:
        txn.update(hidden, {"id": 1, "n": 0})
        txn.update(orders, {"id": 2, "n": 0})  # by a session that knows nothing of it yet
    done = last(states)
    assert names(done) == ["id", "late", "n", "v"]
    assert [rows(tidb, done)[pk]["late"] for pk in (1, 2, 3)] == [7, 7, 7]
    assert tidb.tables["shop.orders"] == done


def test_a_column_that_is_dropped_is_written_a_while_longer(tidb: Tidb, orders: NamedTable) -> None:
    states = columns.drop_column(tidb, orders, "n")
    hidden = next(states)
    assert names(hidden) == ["id", "v"]
    with tidb.begin() as txn:
        txn.update(hidden, {"id": 1, "v": "x"})
    assert rows(tidb, orders)[1] == {"id": 1, "n": 0, "v": "x"}, "who knows it still reads a value"
    assert rows(tidb, last(states))[2] == {"id": 2, "v": "v2"}


async def test_a_type_that_reads_other_bytes_has_rows_rewritten_which_no_changefeed_sees(
    tidb: Tidb, orders: NamedTable, cluster: DevCluster
) -> None:
    start_ts = tidb.now()
    states = columns.modify_column(tidb, orders, "n", NewColumn("n", "varchar(24)"))
    both = next(states)
    next(states)  # some rows
    with tidb.begin() as txn:
        txn.update(both, {"id": 200, "n": -5})
        txn.update(orders, {"id": 199, "n": -4})  # in the definition before: the reorganisation comes by later
    done = last(states)
    found = rows(tidb, done)
    assert [found[pk]["n"] for pk in (1, 198, 199, 200)] == ["1", "198", "-4", "-5"]
    assert {column.name: column.id for column in done.info.columns}["n"] == 4
    with tidb.begin() as txn:
        txn.update(done, {"id": 1, "n": "one"})
    seen = Collected()
    pd = await PdClient.connect([cluster.pd_address])
    try:
        await read_history(pd, *keys.record_range(done.id), start_ts, tidb.now(), into=seen)
    finally:
        await pd.close()
    assert sorted(map(keys.handle_of, seen.table()["key"].to_pylist())) == [1, 199, 200]


def test_a_wider_type_another_name_and_another_place_leave_the_rows_alone(tidb: Tidb, orders: NamedTable) -> None:
    wide = last(columns.modify_column(tidb, orders, "n", NewColumn("n", "bigint")))
    renamed = last(columns.modify_column(tidb, wide, "n", NewColumn("number", "bigint"), after=columns.FIRST))
    assert names(renamed) == ["number", "id", "v"]
    assert {column.name: column.id for column in renamed.info.columns} == {"id": 1, "number": 2, "v": 3}
    assert rows(tidb, renamed)[5] == {"id": 5, "number": 5, "v": "v5"}


def test_a_reorganisation_waits_for_rows_that_are_locked(tidb: Tidb, orders: NamedTable) -> None:
    txn = tidb.begin()
    txn.update(orders, {"id": 1, "v": "late"})
    states = columns.modify_column(tidb, orders, "n", NewColumn("n", "decimal(12,2)"))
    next(states)
    txn.prewrite()
    for _ in range(10):
        next(states)
    txn.commit()
    assert rows(tidb, last(states))[1] == {"id": 1, "v": "late", "n": Decimal("1.00")}


def test_several_changes_are_one_job(tidb: Tidb, orders: NamedTable) -> None:
    before = tidb.now()
    done = last(columns.change_several(tidb, orders, NewColumn("late", "int", default=1), "v"))
    assert names(done) == ["id", "n", "late"]
    assert job_states(tidb, before) == [8, 1, 1, 1, 1, 1, 1, 1, 4]


def test_a_unique_key_over_duplicates_is_rolled_back(tidb: Tidb, orders: NamedTable) -> None:
    with tidb.begin() as txn:
        txn.update(orders, {"id": 2, "n": 1})
    before = tidb.now()
    with pytest.raises(ValueError, match=r"rows of shop\.orders have the same n"):
        indexes.add_index(tidb, orders, "by_n", ["n"], is_unique=True)
    assert job_states(tidb, before) == [8, 2, 3]
    assert tidb.tables["shop.orders"].info.indexes == ()


def test_keys_come_and_go_with_their_columns_flags(tidb: Tidb) -> None:
    table = tidb.create_table("shop", "loose", _COLUMNS, pk=None)
    with tidb.begin() as txn:
        txn.insert(table, {"_tidb_rowid": 1, "id": 7, "n": 1, "v": None})
    keyed = indexes.add_index(tidb, table, PRIMARY, ["id"], is_unique=True)
    both = indexes.add_index(tidb, keyed, "by_v", ["v", "n"], is_unique=False)
    assert [column.type.flag & 15 for column in both.info.columns] == [3, 1, 8]
    assert both.info.to_json()["is_common_handle"] is False
    with tidb.begin() as txn:
        txn.update(both, {"_tidb_rowid": 1, "v": "x"})
    dropped = indexes.drop_index(tidb, indexes.drop_index(tidb, both, PRIMARY), "by_v")
    assert [column.type.flag & 15 for column in dropped.info.columns] == [1, 1, 0]
    assert rows(tidb, dropped)[1]["v"] == "x"


@pytest.mark.parametrize("name", ["id", "nothing"])
def test_a_column_of_a_key_stays(tidb: Tidb, orders: NamedTable, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        last(columns.drop_column(tidb, orders, name))
