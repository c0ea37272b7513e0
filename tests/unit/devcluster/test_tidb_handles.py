"""Tables whose handle is not one integer column, through transactions, snapshots and history."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import AlreadyExist
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.tidb.transaction import RowMissing

_COLUMNS = [
    NewColumn("a", "varchar(20)"),
    NewColumn("b", "decimal(5,2)"),
    NewColumn("v", "int", unique=True, nullable=True),
]


@pytest.fixture
def tidb() -> Iterator[Tidb]:
    cluster = DevCluster()
    tidb = Tidb(cluster)
    tidb.bootstrap()
    tidb.create_database("shop")
    yield tidb
    cluster.stop()


@pytest.fixture
def table(tidb: Tidb) -> NamedTable:
    return tidb.create_table("shop", "orders", _COLUMNS, ("a", "b"))


def test_rows_of_a_clustered_key_are_written_read_and_in_the_history(tidb: Tidb, table: NamedTable) -> None:
    start = tidb.now()
    row = {"a": "x", "b": Decimal("1.50"), "v": 1}
    with tidb.begin() as txn:
        txn.insert(table, row)
    with tidb.begin() as txn:
        assert txn.get(table, ("x", Decimal("1.5"))) == row
        txn.update(table, {"a": "x ", "b": Decimal("1.5"), "v": 2})
    changed = {"a": "x ", "b": Decimal("1.50"), "v": 2}
    assert tidb.snapshot(table, tidb.now()) == {("x", Decimal("1.50")): changed}
    with tidb.begin() as txn:
        txn.delete(table, ("x", Decimal("1.5")))
    assert tidb.snapshot(table, tidb.now()) == {}
    history = tidb.history(table, start, tidb.now())
    assert [(change.op, change.old_row, change.row) for change in history] == [
        ("insert", None, row),
        ("update", row, changed),
        ("delete", changed, None),
    ]


def test_a_clustered_key_is_unique_and_its_rows_must_exist(tidb: Tidb, table: NamedTable) -> None:
    with tidb.begin() as txn:
        txn.insert(table, {"a": "x", "b": 1, "v": None})
        with pytest.raises(AlreadyExist):
            txn.insert(table, {"a": "x  ", "b": 1})  # the same but for trailing spaces
        txn.insert(table, {"a": "y", "b": 1, "v": None})
        with pytest.raises(RowMissing):
            txn.delete(table, ("z", 1))
        with pytest.raises(ValueError, match="needs a value for b"):
            txn.insert(table, {"a": "q"})
    assert len(tidb.snapshot(table, tidb.now())) == 2


def test_the_definition_survives_a_restart_and_is_not_split_by_handles(tidb: Tidb, table: NamedTable) -> None:
    stored = tidb.tables["shop.orders"].info
    assert (stored.pk, stored.clustered) == (None, ("a", "b"))
    with pytest.raises(ValueError, match="can't be split"):
        tidb.create_table("shop", "other", _COLUMNS, "a", regions=2)


def test_rows_of_a_table_without_a_primary_key_are_addressed_by_rowid(tidb: Tidb) -> None:
    table = tidb.create_table("shop", "log", [NewColumn("line", "text")], None)
    with tidb.begin() as txn:
        txn.insert(table, {"_tidb_rowid": 1, "line": "a"})
    with tidb.begin() as txn:
        txn.update(table, {"_tidb_rowid": 1, "line": "b"})
    assert tidb.snapshot(table, tidb.now()) == {1: {"_tidb_rowid": 1, "line": "b"}}
