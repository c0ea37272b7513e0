"""`SchemaHistory`: what each kind of DDL job does to the definitions."""

from __future__ import annotations

import itertools

import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.ddls import DDLS, Effect
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import DatabaseInfo, parse_table_info
from changefeed.upstream.tikv.tidb.job import parse_job
from schema_fixtures import column, job_json, table, table_json

ID = column(1, "id", 3, 3)
SHOP, ARCHIVE = DatabaseInfo(1, "shop", "utf8mb4", "", 5), DatabaseInfo(2, "archive", "utf8mb4", "", 5)
SYSTEM = DatabaseInfo(9, "mysql", "utf8mb4", "", 5)
DDL_TABLE = table([ID])


def info(id_, name, columns=1, schema="shop", **more):
    extra = [column(number, f"c{number}", 3) for number in range(2, columns + 1)]
    return parse_table_info(table_json(id_, name, [ID, *extra], **more), schema)


def definition(id_, name, columns=1, **more):
    return dict(info(id_, name, columns, **more).raw)


def partitions(*ids):
    return {"partition": {"enable": True, "definitions": [{"id": i} for i in ids]}}


def history(*tables, ts=100):
    return SchemaHistory(ts, [SHOP, ARCHIVE, SYSTEM], tables or [info(10, "orders"), info(11, "items")], DDL_TABLE)


def names(schema, ts):
    return {(t.id, t.full_name, len(t.columns)) for t in schema.tables_at(ts)}


START = {(10, "shop.orders", 1), (11, "shop.items", 1)}


def job(id_, type_, **more):
    return parse_job(job_json(id_, type_, **more))


CASES = {
    "create": (
        job(1, Action.CREATE_TABLE, table_id=12, table=definition(12, "new")),
        START | {(12, "shop.new", 1)},
        {("shop", "new")},
        {12},
    ),
    "create-tables": (
        job(1, Action.CREATE_TABLES, tables=[definition(12, "a"), definition(13, "b")]),
        START | {(12, "shop.a", 1), (13, "shop.b", 1)},
        {("shop", "a"), ("shop", "b")},
        {12, 13},
    ),
    "drop": (job(1, Action.DROP_TABLE, table_id=10), START - {(10, "shop.orders", 1)}, {("shop", "orders")}, {10}),
    "truncate": (
        job(1, Action.TRUNCATE_TABLE, table_id=10, table=definition(20, "orders")),
        {(20, "shop.orders", 1), (11, "shop.items", 1)},
        {("shop", "orders")},
        {10, 20},
    ),
    "add-column": (
        job(1, Action.ADD_COLUMN, table_id=10, table=definition(10, "orders", 2)),
        {(10, "shop.orders", 2), (11, "shop.items", 1)},
        {("shop", "orders")},
        {10},
    ),
    "several-changes": (
        job(1, Action.MULTI_SCHEMA_CHANGE, table_id=10, table=definition(10, "orders", 3)),
        {(10, "shop.orders", 3), (11, "shop.items", 1)},
        {("shop", "orders")},
        {10},
    ),
    "rename-into-another-database": (
        job(1, Action.RENAME_TABLE, schema_id=2, table_id=10, table=definition(10, "old")),
        {(10, "archive.old", 1), (11, "shop.items", 1)},
        {("shop", "orders"), ("archive", "old")},
        {10},
    ),
    "swap-by-renaming-one-twice": (
        job(
            1,
            Action.RENAME_TABLES,
            raw_args={"rename_table_infos": [{"new_schema_id": i} for i in (2, 1, 1)]},
            tables=[definition(10, "tmp"), definition(11, "orders"), definition(10, "items")],
        ),
        {(10, "shop.items", 1), (11, "shop.orders", 1)},
        {("shop", "orders"), ("shop", "items"), ("archive", "tmp")},
        {10, 11},
    ),
    "recover-under-a-new-id": (
        job(1, Action.RECOVER_TABLE, table_id=12, table=definition(12, "back")),
        START | {(12, "shop.back", 1)},
        {("shop", "back")},
        {12},
    ),
    "partition-an-existing-table": (
        job(1, Action.ALTER_TABLE_PARTITIONING, table_id=10, table=definition(30, "orders", **partitions(31, 32))),
        {(30, "shop.orders", 1), (11, "shop.items", 1)},
        {("shop", "orders")},
        {10, 31, 32},
    ),
    "view": (
        job(1, Action.CREATE_VIEW, table_id=12, table=definition(12, "v", view={})),
        START | {(12, "shop.v", 1)},
        {("shop", "v")},
        {12},
    ),
    "sequence": (
        job(1, Action.CREATE_SEQUENCE, table_id=12, table=definition(12, "s", sequence={})),
        START,
        set(),
        set(),
    ),
    "system-table": (
        job(1, Action.CREATE_TABLE, table_id=12, schema_id=9, table=definition(12, "stats")),
        START,
        {("mysql", "stats")},
        {12},
    ),
    "rename-into-a-system-database": (
        job(1, Action.RENAME_TABLE, schema_id=9, schema_name="mysql", table_id=10, table=definition(10, "hidden")),
        START - {(10, "shop.orders", 1)},
        {("shop", "orders"), ("mysql", "hidden")},
        {10},
    ),
    "rename-out-of-a-system-database": (
        job(1, Action.RENAME_TABLE, table_id=12, table=definition(12, "shown")),
        START | {(12, "shop.shown", 1)},
        {("shop", "shown")},
        {12},
    ),
    "rename-of-several-the-last-one-into-a-system-database": (
        job(
            1,
            Action.RENAME_TABLES,
            schema_id=9,
            schema_name="mysql",
            version=1,
            raw_args=[[1, 1], [2, 9], [], [10, 11], [], None],
            tables=[definition(10, "old"), definition(11, "hidden")],
        ),
        {(10, "archive.old", 1)},
        {("shop", "orders"), ("archive", "old"), ("shop", "items"), ("mysql", "hidden")},
        {10, 11},
    ),
}


@pytest.mark.parametrize(("ddl", "after", "tables", "ids"), CASES.values(), ids=CASES)
def test_what_a_job_does_and_touches(ddl, after, tables, ids):
    schema = history()
    announced = schema.touches(ddl)
    schema.apply(ddl, 200)
    assert names(schema, 199) == START
    assert names(schema, 200) == names(schema, 10**9) == after
    assert announced == schema.touches(ddl)
    assert (set(announced.tables), set(announced.table_ids)) == (tables, ids)


def test_dropping_a_database_drops_and_touches_its_tables():
    schema = history(info(10, "orders"), info(11, "items", schema="archive"))
    drop = job(1, Action.DROP_SCHEMA, schema_id=1)
    schema.apply(drop, 200)
    assert names(schema, 200) == {(11, "archive.items", 1)}
    touched = schema.touches(drop)
    assert (touched.databases, touched.tables, touched.table_ids) == ({"shop"}, {("shop", "orders")}, {10})


def test_a_table_that_went_through_a_system_database_comes_back_as_it_is_then():
    """What was done to it there is not followed."""
    schema = history()
    away = job(1, Action.RENAME_TABLE, schema_id=9, schema_name="mysql", table_id=10, table=definition(10, "orders"))
    altered = job(
        2, Action.ADD_COLUMN, schema_id=9, schema_name="mysql", table_id=10, table=definition(10, "orders", 2)
    )
    back = job(3, Action.RENAME_TABLE, table_id=10, table=definition(10, "orders", 2))
    for ts, ddl in enumerate((away, altered, back), 200):
        schema.apply(ddl, ts)
    assert [names(schema, ts) - START for ts in (200, 201, 202)] == [set(), set(), {(10, "shop.orders", 2)}]
    assert schema.table(10, 201) is None
    assert (schema.touches(altered).before, schema.touches(back).before) == ((), ())


def test_the_jobs_own_names_name_nothing():
    """TiDB has them in lower case."""
    capital = DatabaseInfo(3, "Shop", "utf8mb4", "", 5)
    schema = SchemaHistory(100, [capital], [info(10, "Orders", schema="Shop")], DDL_TABLE)
    lower = {"schema_id": 3, "schema_name": "shop", "table_id": 10, "table_name": "orders"}
    altered = job(1, Action.ADD_COLUMN, table=definition(10, "Orders", 2), **lower)
    schema.apply(altered, 200)
    assert (schema.touches(altered).name, names(schema, 200)) == (("Shop", "Orders"), {(10, "Shop.Orders", 2)})
    dropped = job(2, Action.DROP_TABLE, **lower)
    schema.apply(dropped, 201)
    assert schema.touches(dropped).name == ("Shop", "Orders")
    gone = job(3, Action.DROP_SCHEMA, schema_id=3, schema_name="shop")
    assert (schema.touches(gone).name, schema.touches(gone).own) == (("Shop", ""), None)


def test_exchanging_a_partition_with_a_table_of_a_system_database():
    schema = history(info(10, "parted", **partitions(21, 22)))
    table_ = definition(10, "parted", **partitions(21, 11))
    exchange = job(
        1, Action.EXCHANGE_TABLE_PARTITION, schema_id=9, table_id=11, table=table_, raw_args=[22, 1, 10, "p1", True]
    )
    schema.apply(exchange, 200)
    assert [(t.name, t.physical_ids) for t in schema.tables_at(200)] == [("parted", (21, 11))]


def test_a_database_that_is_not_known_is_not_guessed():
    with pytest.raises(NeedsHuman, match=r"DDL job 1 .*is about database 77, which is not known"):
        history().apply(job(1, Action.CREATE_TABLE, schema_id=77, table_id=12, table=definition(12, "t")), 200)


def test_a_created_database_gives_its_tables_their_name():
    schema = history()
    create = job(1, Action.CREATE_SCHEMA, schema_id=3, schema_name="x", database={"id": 3, "db_name": {"O": "Blog"}})
    schema.apply(create, 200)
    assert schema.touches(create).databases == {"Blog"}
    schema.apply(job(2, Action.CREATE_TABLE, schema_id=3, table_id=12, table=definition(12, "posts")), 201)
    assert (12, "Blog.posts", 1) in names(schema, 201)


def test_replacing_a_view_drops_the_old_one():
    schema = history(info(10, "v", view={}))
    schema.apply(job(1, Action.CREATE_VIEW, table_id=12, table=definition(12, "v", view={})), 200)
    assert names(schema, 200) == {(12, "shop.v", 1)}


def test_exchanging_a_partition_swaps_the_physical_ids():
    schema = history(info(10, "parted", **partitions(21, 22)), info(11, "plain", 2))
    exchange = job(
        1,
        Action.EXCHANGE_TABLE_PARTITION,
        table_id=11,
        table=definition(10, "parted", **partitions(21, 11)),
        raw_args=[22, 1, 10, "p1", True],
    )
    schema.apply(exchange, 200)
    after = {t.name: (t.id, t.physical_ids, len(t.columns)) for t in schema.tables_at(200)}
    assert after == {"parted": (10, (21, 11), 1), "plain": (22, (22,), 2)}
    touched = schema.touches(exchange)
    assert (touched.tables, touched.table_ids) == ({("shop", "parted"), ("shop", "plain")}, {11, 21, 22})


def test_the_schema_before_the_snapshot_is_not_guessed():
    with pytest.raises(ValueError, match="from 100 on only"):
        history().table(10, 99)


def test_sequences_and_temporary_tables_are_no_tables():
    assert history(info(10, "s", sequence={}), info(11, "t", temp_table_type=1), info(12, "a")).tables_at(100) == [
        info(12, "a")
    ]


def test_renames_without_their_definitions_stop_it():
    renames = {"rename_table_infos": [{"new_schema_id": 1}, {"new_schema_id": 1}]}
    with pytest.raises(NeedsHuman, match="2 renames of 1 tables"):
        history().apply(job(1, Action.RENAME_TABLES, raw_args=renames, tables=[definition(10, "a", 1)]), 200)


@pytest.mark.parametrize("type_", [type_ for type_, ddl in DDLS.items() if ddl.effect is Effect.NOTHING])
def test_jobs_without_effect_touch_nothing(type_):
    schema = history()
    ddl = job(1, type_, table_id=10, table=definition(10, "orders", 2))
    schema.apply(ddl, 200)
    assert names(schema, 200) == START
    assert schema.touches(ddl) == schema.touches(job(2, Action.LOCK_TABLE))


def test_rule_9_ddls_order_by_finish_ts_then_job_id():
    jobs = [
        (200, job(7, Action.ADD_COLUMN, table_id=10, table=definition(10, "orders", 2))),
        (200, job(8, Action.ADD_COLUMN, table_id=10, table=definition(10, "orders", 3))),
        (201, job(3, Action.RENAME_TABLE, table_id=10, table=definition(10, "sales", 3))),
        (202, job(9, Action.TRUNCATE_TABLE, table_id=10, table=definition(40, "sales", 3))),
    ]
    for order in itertools.permutations(jobs):
        schema = history()
        for ts, ddl in order:
            schema.apply(ddl, ts)
        assert [names(schema, ts) - START for ts in (199, 200, 201, 202)] == [
            set(),
            {(10, "shop.orders", 3)},
            {(10, "shop.sales", 3)},
            {(40, "shop.sales", 3)},
        ]
        assert schema.touches(jobs[2][1]).tables == {("shop", "orders"), ("shop", "sales")}


def test_rule_9_a_job_is_applied_once():
    schema = history()
    create = job(1, Action.CREATE_TABLE, table_id=12, table=definition(12, "new"))
    schema.apply(create, 200)
    schema.apply(job(2, Action.DROP_TABLE, table_id=12), 201)
    schema.apply(create, 202)
    assert names(schema, 300) == START


def test_rule_9_a_row_at_the_ddls_ts_has_the_old_schema():
    schema = history()
    schema.apply(job(1, Action.ADD_COLUMN, table_id=10, table=definition(10, "orders", 2)), 200)
    commit_ts = 200
    assert len(schema.table(10, commit_ts - 1).columns) == 1
    assert len(schema.table(10, commit_ts).columns) == 2


def test_rule_10_a_change_without_output_keeps_the_hash():
    schema = history()
    before = schema.table(10, 100).hash
    schema.apply(job(1, Action.REBASE_AUTO_ID, table_id=10, table=definition(10, "orders", auto_inc_id=99)), 200)
    schema.apply(job(2, Action.ADD_COLUMN, table_id=10, table=definition(10, "orders", 2)), 201)
    assert schema.table(10, 200).hash == before
    assert schema.table(10, 201).hash != before


def test_rule_24_jobs_up_to_the_snapshot_are_in_it():
    schema = history(ts=200)
    schema.apply(job(1, Action.DROP_TABLE, table_id=10), 200)
    assert names(schema, 200) == START
    schema.apply(job(2, Action.DROP_TABLE, table_id=10), 201)
    assert names(schema, 201) == {(11, "shop.items", 1)}


@pytest.mark.parametrize("type_", [Action.FLASHBACK_CLUSTER, Action.RECOVER_SCHEMA, Action.REFRESH_META, 99])
def test_rule_29_jobs_that_cannot_be_followed_are_loud(type_):
    schema = history()
    query = "FLASHBACK CLUSTER TO TIMESTAMP '2024-01-01'"
    flashback = job(1, type_, query=query, table_id=10, table=definition(10, "orders"))
    for _ in range(2):
        with pytest.raises(NeedsHuman, match=r"DDL job 1 .*FLASHBACK CLUSTER TO .* cannot follow") as caught:
            schema.apply(flashback, 200)
        assert "new changefeed" in caught.value.next_step
    with pytest.raises(NeedsHuman, match="DDL job 1"):
        schema.touches(flashback)


def test_rule_29_a_table_job_without_a_definition_is_loud():
    with pytest.raises(NeedsHuman, match="carries no table definition"):
        history().apply(job(1, Action.ADD_COLUMN, table_id=10), 200)
    with pytest.raises(NeedsHuman, match="table 77, which is not known"):
        history().apply(job(1, Action.EXCHANGE_TABLE_PARTITION, table_id=77, raw_args=[22, 1, 10, "p", True]), 200)
