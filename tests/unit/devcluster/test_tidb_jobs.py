"""DDL jobs as TiDB's executor fills them in, state by state (its pkg/ddl/executor.go, pkg/meta/model/job.go)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from changefeed_devcluster import keys
from changefeed_devcluster.ddl import columns, databases, partitions, tables
from changefeed_devcluster.ddl.jobs import DdlSession
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Op
from changefeed_devcluster.tidb.rows import decode_row
from changefeed_devcluster.tidb.schema import DDL_JOB_TABLE, NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb

COLUMNS = [NewColumn("id", "bigint"), NewColumn("n", "int")]
QUEUEING, RUNNING, DONE = 8, 1, 4
WRITE_ONLY, DELETE_ONLY, REORGANIZATION, DELETE_REORGANIZATION, PUBLIC = 2, 1, 3, 4, 5


@pytest.fixture
def tidb() -> Iterator[Tidb]:
    with DevCluster(stores=1) as cluster:
        made = Tidb(cluster)
        made.bootstrap()
        for name in ("Shop", "Archive"):
            made.create_database(name)
        yield made


@pytest.fixture
def orders(tidb: Tidb) -> NamedTable:
    return tidb.create_table("Shop", "Orders", COLUMNS)


def states(tidb: Tidb, do: Callable[[], object]) -> list[dict[str, Any]]:
    """The job's row in each of its states."""
    before, table = tidb.now(), tidb.tables[f"mysql.{DDL_JOB_TABLE}"]
    do()
    start: bytes | None
    start, end = keys.record_range(table.id)
    found = []
    while start is not None:
        versions, start = tidb.store.scan_versions(start, end, before, tidb.store.seq, 1000)
        found += [version for _, version, _ in versions if version.op is Op.PUT]
    rows = [decode_row(table.info, version.value or b"") for version in sorted(found, key=lambda each: each.commit_ts)]
    return [json.loads(row["job_meta"]) for row in rows]


def ran(tidb: Tidb, do: Callable[[], object]) -> dict[str, Any]:
    return states(tidb, do)[-1]


def test_names_are_in_lower_case_and_definitions_have_them_as_they_were_given(tidb: Tidb) -> None:
    job = ran(tidb, lambda: tidb.create_table("Shop", "Orders", COLUMNS))
    assert (job["schema_name"], job["table_name"], job["version"]) == ("shop", "orders", 2)
    assert job["binlog"]["TableInfo"]["name"] == {"O": "Orders", "L": "orders"}
    assert "involving_schema_info" not in job, "the table alone"
    made = ran(tidb, lambda: tidb.create_database("Blog"))
    assert (made["schema_name"], made["involving_schema_info"]) == ("blog", [{"database": "blog", "table": "*"}])


def test_a_rename_is_of_the_new_database_and_shows_the_name_before_it_is_done(tidb: Tidb, orders: NamedTable) -> None:
    found = states(tidb, lambda: tables.rename_table(tidb, orders, tidb.databases["Archive"], "Old"))
    assert [(job["state"], job["schema_state"]) for job in found] == [
        (QUEUEING, 0),
        (RUNNING, PUBLIC),
        (RUNNING, PUBLIC),
        (DONE, PUBLIC),
    ]
    job = found[-1]
    assert (job["schema_id"], job["schema_name"], job["table_name"]) == (
        tidb.databases["Archive"].id,
        "archive",
        "orders",
    )
    assert job["involving_schema_info"] == [
        {"database": "shop", "table": "orders"},
        {"database": "archive", "table": "old"},
    ]


def test_several_renames_are_of_the_last_ones_database_and_carry_all_definitions(
    tidb: Tidb, orders: NamedTable
) -> None:
    other = tidb.create_table("Archive", "Others", COLUMNS)
    job = ran(tidb, lambda: tables.swap_tables(tidb, orders, other))
    assert (job["schema_name"], job["table_name"], job["table_id"]) == ("archive", "", orders.id)
    named = [info["name"]["O"] for info in job["binlog"]["MultipleTableInfos"]]
    assert named == ["Orders_between", "Orders", "Others"]
    assert job["binlog"]["TableInfo"] == job["binlog"]["MultipleTableInfos"][-1]
    assert len(job["involving_schema_info"]) == 6


def test_an_exchange_is_of_the_table_without_partitions_and_carries_the_other_one(
    tidb: Tidb, orders: NamedTable
) -> None:
    parted = tidb.create_table("Archive", "Parted", COLUMNS, partitions={"P0": 10, "P1": None})
    job = ran(tidb, lambda: partitions.exchange_partition(tidb, parted, "P0", orders))
    assert (job["schema_name"], job["table_name"], job["table_id"]) == ("shop", "orders", orders.id)
    assert job["binlog"]["TableInfo"]["name"]["O"] == "Parted"
    args = {"partition_id": parted.physical_ids[0], "pt_schema_id": parted.db.id, "pt_table_id": parted.id}
    assert job["raw_args"] == args | {"partition_name": "p0"}, "what is false is not written"
    assert job["involving_schema_info"] == [
        {"database": "archive", "table": "parted"},
        {"database": "shop", "table": "orders"},
    ]


def test_like_reads_another_table(tidb: Tidb, orders: NamedTable) -> None:
    job = ran(tidb, lambda: tables.create_like(tidb, orders, "Copy"))
    assert job["involving_schema_info"] == [
        {"database": "shop", "table": "copy"},
        {"database": "shop", "table": "orders", "mode": 1},
    ]


def test_arguments_are_a_list_in_older_versions(tidb: Tidb, orders: NamedTable) -> None:
    tidb.session.job_version = 1
    job = ran(tidb, lambda: tables.rename_table(tidb, orders, tidb.databases["Archive"], "Old"))
    old, new = {"O": "Shop", "L": "shop"}, {"O": "Old", "L": "old"}
    assert (job["version"], job["raw_args"]) == (1, [orders.db.id, new, old])
    other = tidb.create_table("Archive", "Others", COLUMNS)
    swapped = ran(tidb, lambda: tables.swap_tables(tidb, tidb.tables["Archive.Old"], other))
    archive = tidb.databases["Archive"].id
    assert swapped["raw_args"][:2] == [[archive] * 3] * 2
    assert swapped["raw_args"][3] == [orders.id, other.id, orders.id]
    assert (len(swapped["raw_args"]), swapped["raw_args"][5]) == (6, None), "no old names"


def test_a_job_has_its_sessions_sql_mode_and_where_rows_may_be_rewritten_its_time_zone(
    tidb: Tidb, orders: NamedTable
) -> None:
    tidb.session = DdlSession("UTC", 28800, sql_mode=4, charset="latin1", collate="latin1_bin")
    job = ran(tidb, lambda: last(columns.modify_column(tidb, orders, "n", NewColumn("n", "varchar(9)"))))
    assert job["reorg_meta"]["location"] == {"name": "UTC", "offset": 28800}
    assert (job["sql_mode"], job["reorg_meta"]["sql_mode"]) == (4, 4)
    assert (job["charset"], job["collate"]) == ("latin1", "latin1_bin")
    added = ran(tidb, lambda: tidb.add_column(tidb.tables["Shop.Orders"], NewColumn("m", "int")))
    assert (added["reorg_meta"], added["sql_mode"]) == (None, 4)


def test_each_state_that_sessions_follow_has_a_schema_version_in_the_jobs_row(tidb: Tidb, orders: NamedTable) -> None:
    found = states(tidb, lambda: tidb.add_column(orders, NewColumn("m", "int")))
    versions = [job["last_schema_version"] for job in found]
    assert [job["schema_state"] for job in found] == [
        0,
        DELETE_ONLY,
        WRITE_ONLY,
        REORGANIZATION,
        REORGANIZATION,
        PUBLIC,
    ]
    assert versions[0] == 0
    assert sorted(set(versions[1:])) == list(range(versions[1], versions[1] + 4))
    assert [job["binlog"]["SchemaVersion"] for job in found] == [0] * 5 + [versions[-1]]
    assert found[0]["real_start_ts"] == 0 < found[0]["start_ts"] < found[1]["real_start_ts"]


@pytest.mark.parametrize(
    ("online", "schema_states"),
    [
        (True, [DELETE_ONLY, WRITE_ONLY, REORGANIZATION, PUBLIC, PUBLIC, PUBLIC, PUBLIC]),
        (False, [DELETE_ONLY, WRITE_ONLY, REORGANIZATION, REORGANIZATION, PUBLIC]),
    ],
)
def test_a_column_that_is_modified_is_shown_before_the_job_is_done_or_when_it_is(
    tidb: Tidb, orders: NamedTable, online: bool, schema_states: list[int]
) -> None:
    run = columns.modify_column(tidb, orders, "n", NewColumn("n", "varchar(9)"), online=online)
    shown: list[tuple[str, ...]] = []
    found = states(tidb, lambda: shown.extend(tuple(column.name for column in each.info.columns) for each in run))
    assert [job["schema_state"] for job in found[1:]] == schema_states
    between = [("id", "n", "_Tombstone$_n")] * 2 if online else []
    assert shown[-1 - len(between) :] == [*between, ("id", "n")]


def test_rows_of_an_online_modify_column_lack_the_old_column_before_its_end(tidb: Tidb, orders: NamedTable) -> None:
    run = columns.modify_column(tidb, orders, "n", NewColumn("n", "varchar(9)"))
    *_, writes, deletes, _ = run
    sizes = []
    for number, table in enumerate((writes, deletes)):
        with tidb.begin() as txn:
            txn.insert(table, {"id": number, "n": "x"})
        sizes.append(len(tidb.store.get(keys.record_key(table.id, number), tidb.now()) or b""))
    assert sizes[0] > sizes[1], "the old one's default is written a while longer"


def test_the_parts_of_several_changes_say_how_far_they_are(tidb: Tidb, orders: NamedTable) -> None:
    found = states(tidb, lambda: last(columns.change_several(tidb, orders, NewColumn("m", "int"), "n")))
    parts = [[(each["state"], each["schema_state"]) for each in job["multi_schema_info"]["sub_jobs"]] for job in found]
    assert parts[3] == [(RUNNING, REORGANIZATION), (RUNNING, PUBLIC)]
    assert parts[4:7] == [[(DONE, PUBLIC), (RUNNING, s)] for s in (WRITE_ONLY, DELETE_ONLY, DELETE_REORGANIZATION)]
    assert parts[-1] == [(DONE, PUBLIC)] * 2


def test_what_is_dropped_is_first_seen_no_longer(tidb: Tidb, orders: NamedTable) -> None:
    found = states(tidb, lambda: tidb.drop_table(orders))
    assert [job["schema_state"] for job in found] == [0, WRITE_ONLY, DELETE_ONLY, DELETE_ONLY, 0]
    gone = states(tidb, lambda: databases.drop_database(tidb, "Shop"))
    assert [job["schema_state"] for job in gone] == [0, WRITE_ONLY, DELETE_ONLY, DELETE_ONLY, 0]
    assert gone[-1]["binlog"]["DBInfo"]["state"] == 0
