"""Databases, tables and DDL jobs, as a changefeed finds them in the store.

See docs/design/tidb.md, Meta keys, DDL jobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed_devcluster import keys
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import KeyIsLocked, TxnLockNotFound
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.tidb.server import CommittedChange
from changefeed_devcluster.tidb.tidb import Tidb

_COLUMNS = [NewColumn("id", "bigint"), NewColumn("v", "varchar(20)", nullable=True)]


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


def _jobs(tidb: Tidb, after_ts: int) -> list[tuple[CommittedChange, dict[str, Any]]]:
    """The put rows of the job table, with their jobs."""
    changes = tidb.history(tidb.tables["mysql.tidb_ddl_job"], after_ts, tidb.now())
    return [(change, json.loads(change.row["job_meta"])) for change in changes if change.row is not None]


def test_a_job_goes_through_its_states_and_leaves(tidb: Tidb) -> None:
    before = tidb.now()
    table = tidb.create_table("shop", "orders", _COLUMNS)
    jobs = [job for _, job in _jobs(tidb, before)]
    assert [(job["state"], job["binlog"]["TableInfo"] is None) for job in jobs] == [(8, True), (1, True), (4, False)]
    assert tidb.snapshot(tidb.tables["mysql.tidb_ddl_job"], tidb.now()) == {}
    done, job = _jobs(tidb, before)[-1]
    assert done.commit_ts == tidb.last_ddl_ts
    assert (job["type"], job["table_id"], job["schema_name"], job["table_name"]) == (3, table.id, "shop", "orders")
    assert job["binlog"]["TableInfo"] == table.info.to_json()
    assert job["query"].startswith("CREATE TABLE `shop`.`orders` (`id` bigint NOT NULL")


def test_meta_changes_exactly_at_the_finish_ts(tidb: Tidb, cluster: DevCluster) -> None:
    table = tidb.create_table("shop", "orders", _COLUMNS)
    key = keys.meta_hash(f"DB:{table.db.id}", f"Table:{table.id}")
    assert cluster.store.get(key, tidb.last_ddl_ts - 1) is None
    stored = cluster.store.get(key, tidb.last_ddl_ts)
    assert stored is not None
    assert json.loads(stored) == table.info.to_json()


def test_each_ddl_raises_the_schema_version_and_tells_the_difference(tidb: Tidb, cluster: DevCluster) -> None:
    def version() -> int:
        return int(cluster.store.get(keys.meta_string("SchemaVersionKey"), tidb.now()) or b"0")

    first = version()
    tidb.create_table("shop", "orders", _COLUMNS)
    assert version() == first + 1
    diff = json.loads(cluster.store.get(keys.meta_string(f"Diff:{first + 1}"), tidb.now()) or b"")
    assert (diff["version"], diff["type"]) == (first + 1, 3)


def test_an_added_column_stands_in_the_job_and_has_its_default(tidb: Tidb) -> None:
    table = tidb.create_table("shop", "orders", _COLUMNS)
    with tidb.begin() as txn:
        txn.insert(table, {"id": 1, "v": "a"})
    before = tidb.now()
    wider = tidb.add_column(table, NewColumn("n", "int", default=9))
    _, job = _jobs(tidb, before)[-1]
    assert (job["type"], [column["id"] for column in job["binlog"]["TableInfo"]["cols"]]) == (5, [1, 2, 3])
    assert tidb.snapshot(wider, tidb.now()) == {1: {"id": 1, "v": "a", "n": 9}}


def test_a_dropped_table_leaves_the_catalog_only(tidb: Tidb, cluster: DevCluster) -> None:
    table = tidb.create_table("shop", "orders", _COLUMNS)
    before = tidb.now()
    tidb.drop_table(table)
    _, job = _jobs(tidb, before)[-1]
    assert (job["type"], job["table_id"], job["binlog"]["TableInfo"]["id"]) == (4, table.id, table.id)
    assert cluster.store.get(keys.meta_hash(f"DB:{table.db.id}", f"Table:{table.id}"), tidb.now()) is None
    tidb.create_table("shop", "orders", _COLUMNS)


def test_truncate_gives_a_new_id_and_tells_the_old_one(tidb: Tidb) -> None:
    table = tidb.create_table("shop", "orders", _COLUMNS)
    with tidb.begin() as txn:
        txn.insert(table, {"id": 1})
    before = tidb.now()
    empty = tidb.truncate_table(table)
    _, job = _jobs(tidb, before)[-1]
    assert (job["type"], job["table_id"], job["binlog"]["TableInfo"]["id"]) == (11, table.id, empty.id)
    assert tidb.snapshot(empty, tidb.now()) == {}


def test_a_database_is_a_job_of_its_own(cluster: DevCluster) -> None:
    tidb = Tidb(cluster)
    tidb.bootstrap()
    before = tidb.now()
    db = tidb.create_database("Shop")
    _, job = _jobs(tidb, before)[-1]
    assert (job["type"], job["schema_id"], job["binlog"]["DBInfo"]["db_name"]) == (1, db.id, {"O": "Shop", "L": "shop"})


def test_a_table_spans_the_regions_asked_for(tidb: Tidb, cluster: DevCluster) -> None:
    table = tidb.create_table("shop", "orders", _COLUMNS, regions=4, handles=1000)
    start, end = keys.record_range(table.id)
    inside = [region.start for region in cluster.regions.all() if start < region.start < end]
    assert [keys.handle_of(key) for key in inside] == [251, 501, 751]


@pytest.mark.parametrize(("db", "name", "why"), [("shop", "orders", "exists"), ("nope", "t", "no database nope")])
def test_a_table_that_cant_be_made(tidb: Tidb, db: str, name: str, why: str) -> None:
    tidb.create_table("shop", "orders", _COLUMNS)
    with pytest.raises(ValueError, match=why):
        tidb.create_table(db, name, _COLUMNS)


def test_a_restarted_cluster_has_its_catalog_and_no_locks_of_the_dead(tmp_path: Path) -> None:
    cluster = DevCluster(data_dir=tmp_path)
    tidb = Tidb(cluster)
    tidb.bootstrap()
    tidb.create_database("shop")
    table = tidb.create_table("shop", "orders", _COLUMNS)
    with tidb.begin() as txn:
        txn.insert(table, {"id": 1, "v": "kept"})
    lost = tidb.begin()
    lost.update(table, {"id": 1, "v": "lost"})
    lost.prewrite()
    version = tidb.last_ddl_ts
    cluster.stop()

    cluster = DevCluster(data_dir=tmp_path)
    again = Tidb(cluster)
    with pytest.raises(KeyIsLocked):
        again.snapshot(table, again.now())
    again.bootstrap()
    assert again.tables == tidb.tables
    assert again.snapshot(table, again.now()) == {1: {"id": 1, "v": "kept"}}
    assert again.create_table("shop", "more", _COLUMNS).id > table.id
    assert again.last_ddl_ts > version
    with pytest.raises(TxnLockNotFound):
        cluster.store.commit([keys.record_key(table.id, 1)], lost.start_ts, again.now())
    cluster.stop()
