"""Transactions: what is seen when, what conflicts, what the history tells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from changefeed_devcluster import keys
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import AlreadyExist, KeyIsLocked, WriteConflict
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.server import CommittedChange
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.tidb.transaction import RowMissing


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    cluster = DevCluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def tidb(cluster: DevCluster) -> Tidb:
    tidb = Tidb(cluster)
    tidb.bootstrap()
    tidb.create_database("shop")
    return tidb


@pytest.fixture
def table(tidb: Tidb) -> NamedTable:
    return tidb.create_table("shop", "orders", [NewColumn("id", "bigint"), NewColumn("v", "int", nullable=True)])


@pytest.mark.parametrize("one_phase", [False, True])
def test_rows_are_seen_at_the_commit_ts_and_not_before(tidb: Tidb, table: NamedTable, one_phase: bool) -> None:
    with tidb.begin(one_phase) as txn:
        txn.insert(table, {"id": 1, "v": 10})
        txn.insert(table, {"id": 2})
    assert txn.commit_ts > txn.start_ts
    assert tidb.snapshot(table, txn.commit_ts - 1) == {}
    assert tidb.snapshot(table, txn.commit_ts) == {1: {"id": 1, "v": 10}, 2: {"id": 2, "v": None}}


def test_an_open_transaction_blocks_readers_and_a_rolled_back_one_leaves_nothing(tidb: Tidb, table: NamedTable) -> None:
    txn = tidb.begin()
    txn.insert(table, {"id": 1, "v": 10})
    assert tidb.snapshot(table, tidb.now()) == {}
    txn.prewrite()
    with pytest.raises(KeyIsLocked):
        tidb.snapshot(table, tidb.now())
    txn.rollback()
    assert tidb.snapshot(table, tidb.now()) == {}
    assert txn.commit() == 0


def test_a_block_that_raises_writes_nothing(tidb: Tidb, table: NamedTable) -> None:
    def insert_and_fail() -> None:
        with tidb.begin() as txn:
            txn.insert(table, {"id": 1})
            txn.update(table, {"id": 2, "v": 1})

    with pytest.raises(RowMissing):
        insert_and_fail()
    assert tidb.snapshot(table, tidb.now()) == {}


def test_the_second_of_two_writers_conflicts_and_leaves_no_lock(tidb: Tidb, table: NamedTable) -> None:
    with tidb.begin() as txn:
        txn.insert(table, {"id": 1, "v": 0})
        txn.insert(table, {"id": 2, "v": 0})
    first, second = tidb.begin(), tidb.begin()
    first.update(table, {"id": 1, "v": 1})
    second.update(table, {"id": 2, "v": 2})  # its primary: locked before the conflict is met
    second.update(table, {"id": 1, "v": 2})
    first.commit()
    with pytest.raises(WriteConflict):
        second.commit()
    assert tidb.snapshot(table, tidb.now()) == {1: {"id": 1, "v": 1}, 2: {"id": 2, "v": 0}}


def test_a_transaction_reads_its_own_writes_and_its_start(tidb: Tidb, table: NamedTable) -> None:
    txn = tidb.begin()
    with tidb.begin() as other:
        other.insert(table, {"id": 1})
    assert txn.get(table, 1) is None
    txn.insert(table, {"id": 2, "v": 5})
    assert txn.get(table, 2) == {"id": 2, "v": 5}


def test_taken_keys_are_refused(tidb: Tidb) -> None:
    people = tidb.create_table(
        "shop", "people", [NewColumn("id", "int"), NewColumn("mail", "varchar(9)", True, unique=True)]
    )
    with tidb.begin() as txn:
        txn.insert(people, {"id": 1, "mail": "a"})
        txn.insert(people, {"id": 2})
        txn.insert(people, {"id": 3})  # NULLs are not equal
    for row in ({"id": 1, "mail": "b"}, {"id": 4, "mail": "a"}):
        with pytest.raises(AlreadyExist), tidb.begin() as txn:
            txn.insert(people, row)
    with tidb.begin() as txn:
        txn.delete(people, 1)
        txn.insert(people, {"id": 4, "mail": "a"})
    with tidb.begin() as txn:
        txn.update(people, {"id": 4, "mail": "c"})
        txn.insert(people, {"id": 5, "mail": "a"})
    assert {row["mail"] for row in tidb.snapshot(people, tidb.now()).values()} == {None, "a", "c"}


def test_a_unique_index_has_keys_outside_the_span_of_rows(tidb: Tidb, cluster: DevCluster) -> None:
    people = tidb.create_table("shop", "people", [NewColumn("id", "int"), NewColumn("mail", "varchar(9)", unique=True)])
    with tidb.begin() as txn:
        txn.insert(people, {"id": 7, "mail": "abc"})
    prefix = keys.table_prefix(people.id)
    found = cluster.store.scan(prefix, keys.prefix_end(prefix), tidb.now())
    assert [key[9:].hex() for key, _ in found] == [
        "5f698000000000000001" + "016162630000000000fa",
        "5f728000000000000007",
    ]
    assert found[0][1].hex() == "0000000000000007"


def test_history_tells_every_change_with_its_old_row(tidb: Tidb, table: NamedTable) -> None:
    ends = []
    for step in (
        lambda txn: txn.insert(table, {"id": 1, "v": 1}),
        lambda txn: txn.update(table, {"id": 1, "v": 2}),
        lambda txn: txn.delete(table, 1),
        lambda txn: txn.insert(table, {"id": 1, "v": 3}),
    ):
        with tidb.begin() as txn:
            step(txn)
        ends.append((txn.commit_ts, txn.start_ts))
    one, two, three = ({"id": 1, "v": v} for v in (1, 2, 3))
    want = [
        CommittedChange(*ends[0], "insert", 1, one, None),
        CommittedChange(*ends[1], "update", 1, two, one),
        CommittedChange(*ends[2], "delete", 1, None, two),
        CommittedChange(*ends[3], "insert", 1, three, None),
    ]
    assert tidb.history(table, 0, tidb.now()) == want
    assert tidb.history(table, ends[0][0], ends[2][0]) == want[1:3]


def test_a_row_inserted_and_deleted_by_one_transaction_is_no_change(tidb: Tidb, table: NamedTable) -> None:
    with tidb.begin() as txn:
        txn.insert(table, {"id": 1})
        txn.delete(table, 1)
    assert txn.commit_ts == 0
    assert tidb.history(table, 0, tidb.now()) == []


def test_a_table_without_primary_key_is_addressed_by_row_id(tidb: Tidb) -> None:
    log = tidb.create_table("shop", "log", [NewColumn("line", "text")], pk=None)
    assert log.info.to_json()["pk_is_handle"] is False
    with tidb.begin() as txn:
        txn.insert(log, {"_tidb_rowid": 3, "line": "x"})
    with tidb.begin() as txn:
        txn.update(log, {"_tidb_rowid": 3, "line": "y"})
    assert tidb.snapshot(log, tidb.now()) == {3: {"_tidb_rowid": 3, "line": "y"}}


def test_a_large_unsigned_key_is_read_back(tidb: Tidb) -> None:
    table = tidb.create_table("shop", "big", [NewColumn("id", "bigint unsigned")])
    with tidb.begin() as txn:
        txn.insert(table, {"id": (1 << 64) - 1})
    assert tidb.snapshot(table, tidb.now()) == {(1 << 64) - 1: {"id": (1 << 64) - 1}}
