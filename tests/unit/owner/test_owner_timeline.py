"""What DDLs mean for the dispatchers of a changefeed of `shop.*`, without `shop.tmp_*`."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.owner.planning.timeline import Timeline
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import parse_database_info, parse_table_info
from changefeed.sink.contract import Ddl
from changefeed.sink.storage.schema_file import files_of
from changefeed.upstream.tikv.tidb.job import parse_job

START_TS = 100
SHOP, OTHER, SYSTEM = 1, 2, 3
DATABASES = {SHOP: "shop", OTHER: "other", SYSTEM: "mysql"}
ORDERS, ITEMS, SCRATCH, ELSEWHERE = 10, 11, 12, 20


def raw(id_: int, name: str, column: str = "id", **more: Any) -> dict[str, Any]:
    column_ = {"id": 1, "name": {"O": column}, "offset": 0, "type": {"Tp": 8}, "state": 5}
    return {"id": id_, "name": {"O": name}, "cols": [column_], "state": 5, **more}


class Followed:
    def __init__(self) -> None:
        databases = [parse_database_info({"id": i, "db_name": {"O": n}}) for i, n in DATABASES.items()]
        tables = [
            parse_table_info(raw(ORDERS, "orders"), "shop"),
            parse_table_info(raw(ITEMS, "items"), "shop"),
            parse_table_info(raw(SCRATCH, "tmp_scratch"), "shop"),
            parse_table_info(raw(ELSEWHERE, "elsewhere"), "other"),
        ]
        job_table = parse_table_info(raw(1, "tidb_ddl_job"), "mysql")
        self.schema = SchemaHistory(START_TS, databases, tables, job_table)
        self.ignored: set[str] = set()  # names of tables, "" of the schema, whose DDLs are
        self.timeline = Timeline(
            _selects,
            lambda schema: schema == "shop",
            lambda job, schema, table: table in self.ignored,
            [ORDERS, ITEMS],
        )
        self.ts = START_TS

    def ddl(self, type_: Action, schema_id: int = SHOP, table: dict[str, Any] | None = None, **more: Any) -> Ddl | None:
        self.ts += 10
        binlog = {"TableInfo": table, "MultipleTableInfos": more.pop("tables", None)}
        job = parse_job(
            {
                "id": self.ts,
                "type": int(type_),
                "state": 4,
                "schema_id": schema_id,
                "schema_name": DATABASES[schema_id],
                "table_id": table["id"] if table else 0,
                "query": f"{type_.name} at {self.ts}",
                "binlog": binlog,
                **more,
            }
        )
        self.schema.apply(job, self.ts)
        return self.timeline.follow(job, self.ts, self.schema.touches(job))


def _selects(schema: str, table: str) -> bool:
    return schema == "shop" and not table.startswith("tmp_")


def shown(ddl: Ddl | None) -> tuple[set[int], set[int], set[int], list[tuple[str, bool]]]:
    """Involved, left, those that go on or join, and the notices: of what, and whether with the statement."""
    assert ddl is not None
    notices = [
        (f"{each.database}/{each.table.name if each.table else ''}", each.with_statement) for each in ddl.notices
    ]
    assert ddl.is_told == any(is_told for _, is_told in notices)
    return set(ddl.involved), set(ddl.left), set(ddl.tables), notices


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_an_altered_table_goes_on(followed: Followed) -> None:
    ddl = followed.ddl(Action.ADD_COLUMN, table=raw(ORDERS, "orders", "wide"))
    assert shown(ddl) == ({ORDERS}, set(), {ORDERS}, [("shop/orders", True)])
    assert ddl is not None
    assert [column.name for column in ddl.tables[ORDERS].columns] == ["wide"]
    (file,) = files_of(ddl)
    assert (ddl.ts, file.table_version, file.type) == (110, 110, Action.ADD_COLUMN)


def test_what_is_not_selected_does_not_concern_the_changefeed(followed: Followed) -> None:
    assert followed.ddl(Action.ADD_COLUMN, table=raw(SCRATCH, "tmp_scratch", "wide")) is None
    assert followed.ddl(Action.ADD_COLUMN, OTHER, raw(ELSEWHERE, "elsewhere", "wide")) is None
    assert followed.ddl(Action.LOCK_TABLE, table=raw(ORDERS, "orders")) is None


def test_a_created_table_joins_and_a_dropped_one_leaves(followed: Followed) -> None:
    assert shown(followed.ddl(Action.CREATE_TABLE, table=raw(30, "new"))) == (set(), set(), {30}, [("shop/new", True)])
    assert followed.ddl(Action.CREATE_TABLE, table=raw(31, "tmp_new")) is None
    dropped = followed.ddl(Action.DROP_TABLE, table=raw(30, "new"))
    assert shown(dropped) == ({30}, {30}, set(), [("shop/new", True)])


def test_a_truncated_table_is_another_dispatcher(followed: Followed) -> None:
    truncated = followed.ddl(Action.TRUNCATE_TABLE, table=raw(40, "orders"), table_id=ORDERS)
    assert shown(truncated) == ({ORDERS}, {ORDERS}, {40}, [("shop/orders", True)])


def test_renames_within_out_of_and_into_the_filter(followed: Followed) -> None:
    within = followed.ddl(Action.RENAME_TABLE, table=raw(ORDERS, "sales"))
    assert shown(within) == ({ORDERS}, set(), {ORDERS}, [("shop/sales", True)])
    out = followed.ddl(Action.RENAME_TABLE, table=raw(ORDERS, "tmp_sales"))
    assert shown(out) == ({ORDERS}, {ORDERS}, set(), [("shop/tmp_sales", True)])
    again = followed.ddl(Action.RENAME_TABLE, table=raw(ORDERS, "orders"))
    assert shown(again) == (set(), set(), {ORDERS}, [("shop/orders", False)]), "a reader has no table to rename"


def test_renames_into_and_out_of_a_system_database(followed: Followed) -> None:
    out = followed.ddl(Action.RENAME_TABLE, SYSTEM, raw(ORDERS, "orders"))
    assert shown(out) == ({ORDERS}, {ORDERS}, set(), [("mysql/orders", True)])
    assert followed.ddl(Action.ADD_COLUMN, SYSTEM, raw(ORDERS, "orders", "wide")) is None
    back = followed.ddl(Action.RENAME_TABLE, table=raw(ORDERS, "orders", "wide"))
    assert shown(back) == (set(), set(), {ORDERS}, [("shop/orders", False)])


def test_a_statement_of_several_renames_has_a_database_for_each(followed: Followed) -> None:
    args = [[SHOP] * 2, [SYSTEM, SHOP], [], [ORDERS, ITEMS], [], None]
    tables = [raw(ORDERS, "hidden"), raw(ITEMS, "shown")]
    ddl = followed.ddl(Action.RENAME_TABLES, tables=tables, raw_args=args, version=1)
    told = [("mysql/hidden", True), ("shop/shown", True)]
    assert shown(ddl) == ({ORDERS, ITEMS}, {ORDERS}, {ITEMS}, told)


def test_a_ddl_is_described_by_the_name_of_the_definition(followed: Followed) -> None:
    """TiDB's job has names in lower case."""
    followed.ddl(Action.CREATE_TABLE, table=raw(30, "New"), table_name="new")
    altered = followed.ddl(Action.ADD_COLUMN, table=raw(30, "New", "wide"), table_name="new")
    dropped = followed.ddl(Action.DROP_TABLE, table_id=30, table_name="new")
    gone = followed.ddl(Action.DROP_SCHEMA, schema_name="SHOP")
    described = [ddl.description.partition(":")[0] for ddl in (altered, dropped, gone) if ddl]
    assert described == ["ADD_COLUMN of shop.New", "DROP_TABLE of shop.New", "DROP_SCHEMA of shop"]


def test_readers_are_told_both_names_of_a_rename_in_full(followed: Followed) -> None:
    """As it was typed, it would mean a table of whatever database its session had chosen."""
    ddl = followed.ddl(Action.RENAME_TABLE, OTHER, raw(ORDERS, "archive"), query="RENAME TABLE orders TO other.archive")
    assert ddl is not None
    wanted = "RENAME TABLE `shop`.`orders` TO `other`.`archive`"
    assert [ddl.query, *(file.query for file in files_of(ddl))] == [wanted, wanted]


def test_an_event_filter_is_asked_by_the_name_that_a_rename_begins_with(followed: Followed) -> None:
    followed.ignored = {"orders", "sales"}
    away = followed.ddl(Action.RENAME_TABLE, table=raw(ORDERS, "other"))
    assert shown(away) == ({ORDERS}, set(), {ORDERS}, [("shop/other", False)])
    into = followed.ddl(Action.RENAME_TABLE, table=raw(ITEMS, "sales"))
    assert shown(into) == ({ITEMS}, set(), {ITEMS}, [("shop/sales", True)])
    several = followed.ddl(
        Action.RENAME_TABLES,
        tables=[raw(ORDERS, "orders"), raw(ITEMS, "things")],
        raw_args={"rename_table_infos": [{"new_schema_id": SHOP}] * 2},
    )
    assert shown(several)[3] == [("shop/orders", True), ("shop/things", False)]


def test_an_event_filter_is_asked_by_the_partitioned_table_of_an_exchange(followed: Followed) -> None:
    exchange = {"table": partitioned(60, "parted", ORDERS, 62), "table_id": ORDERS}
    exchange["raw_args"] = [61, SHOP, 60, "p0", True]
    for ignored, is_told in (({"orders"}, True), ({"parted"}, False)):
        again = Followed()
        again.ddl(Action.CREATE_TABLE, table=partitioned(60, "parted", 61, 62))
        again.ignored = ignored
        assert shown(again.ddl(Action.EXCHANGE_TABLE_PARTITION, **exchange))[3] == [
            ("shop/orders", is_told),
            ("shop/parted", False),
        ]


def test_tables_that_swap_names_at_once_go_on_under_each_others(followed: Followed) -> None:
    swapped = [raw(ORDERS, "tmp_swap"), raw(ITEMS, "orders"), raw(ORDERS, "items")]
    args = [[SHOP] * 3, [SHOP] * 3, [], [], []]
    ddl = followed.ddl(Action.RENAME_TABLES, tables=swapped, raw_args=args)
    involved, left, tables, files = shown(ddl)
    assert (involved, left, tables) == ({ORDERS, ITEMS}, set(), {ORDERS, ITEMS})
    assert ddl is not None
    assert {id_: table.name for id_, table in ddl.tables.items()} == {ORDERS: "items", ITEMS: "orders"}
    assert sorted(files) == [("shop/items", True), ("shop/orders", True)]


def test_a_dropped_database_takes_its_tables_along_and_is_told_once(followed: Followed) -> None:
    dropped = followed.ddl(Action.DROP_SCHEMA)
    assert shown(dropped) == ({ORDERS, ITEMS}, {ORDERS, ITEMS}, set(), [("shop/", True)])


def test_a_view_is_told_and_not_pulled(followed: Followed) -> None:
    view = followed.ddl(Action.CREATE_VIEW, table=raw(50, "v", view={}))
    assert shown(view) == (set(), set(), set(), [("shop/v", True)])


def partitioned(id_: int, name: str, *partitions: int) -> dict[str, Any]:
    return raw(id_, name, partition={"enable": True, "definitions": [{"id": partition} for partition in partitions]})


def test_each_partition_is_a_dispatcher(followed: Followed) -> None:
    created = followed.ddl(Action.CREATE_TABLE, table=partitioned(60, "parted", 61, 62))
    assert shown(created) == (set(), set(), {61, 62}, [("shop/parted", True)])
    added = followed.ddl(Action.ADD_TABLE_PARTITION, table=partitioned(60, "parted", 61, 62, 63))
    assert shown(added) == ({61, 62}, set(), {61, 62, 63}, [("shop/parted", True)])
    dropped = followed.ddl(Action.DROP_TABLE_PARTITION, table=partitioned(60, "parted", 62, 63))
    assert shown(dropped) == ({61, 62, 63}, {61}, {62, 63}, [("shop/parted", True)])
    truncated = followed.ddl(Action.TRUNCATE_TABLE_PARTITION, table=partitioned(60, "parted", 64, 63))
    assert shown(truncated) == ({62, 63}, {62}, {64, 63}, [("shop/parted", True)])
    gone = followed.ddl(Action.DROP_TABLE, table=partitioned(60, "parted", 64, 63))
    assert shown(gone) == ({64, 63}, {64, 63}, set(), [("shop/parted", True)])


def test_a_table_gets_partitions_and_loses_them_under_a_new_id(followed: Followed) -> None:
    parted = followed.ddl(Action.ALTER_TABLE_PARTITIONING, table=partitioned(60, "orders", 61, 62), table_id=ORDERS)
    assert shown(parted) == ({ORDERS}, {ORDERS}, {61, 62}, [("shop/orders", True)])
    whole = followed.ddl(Action.REMOVE_PARTITIONING, table=raw(70, "orders"), table_id=60)
    assert shown(whole) == ({61, 62}, {61, 62}, {70}, [("shop/orders", True)])


def test_an_exchanged_partition_and_table_go_on_with_each_others_definition(followed: Followed) -> None:
    followed.ddl(Action.CREATE_TABLE, table=partitioned(60, "parted", 61, 62))
    exchanged = followed.ddl(
        Action.EXCHANGE_TABLE_PARTITION,
        table=partitioned(60, "parted", ORDERS, 62),
        table_id=ORDERS,
        raw_args=[61, SHOP, 60, "p0", True],
    )
    involved, left, tables, files = shown(exchanged)
    assert (involved, left, tables) == ({ORDERS, 61, 62}, set(), {61, ORDERS, 62})
    assert exchanged is not None
    definitions = {id_: table.name for id_, table in exchanged.tables.items()}
    assert definitions == {61: "orders", ORDERS: "parted", 62: "parted"}
    assert sorted(files) == [("shop/orders", True), ("shop/parted", False)]


def test_an_ignored_ddl_is_followed_and_its_statement_is_not_told(followed: Followed) -> None:
    followed.ignored = {"orders", "new", "v", ""}
    altered = followed.ddl(Action.ADD_COLUMN, table=raw(ORDERS, "orders", "wide"))
    assert shown(altered) == ({ORDERS}, set(), {ORDERS}, [("shop/orders", False)])
    assert altered is not None
    assert [(file.table_version, file.query, file.type) for file in files_of(altered)] == [(altered.ts, "", 0)]
    assert shown(followed.ddl(Action.CREATE_TABLE, table=raw(30, "new"))) == (set(), set(), {30}, [("shop/new", False)])
    assert shown(followed.ddl(Action.DROP_TABLE, table=raw(30, "new"))) == ({30}, {30}, set(), [])
    assert followed.ddl(Action.CREATE_VIEW, table=raw(50, "v", view={})) is None
    assert shown(followed.ddl(Action.DROP_SCHEMA)) == ({ORDERS, ITEMS}, {ORDERS, ITEMS}, set(), [])


def test_a_table_that_cannot_be_replicated_stops_the_run_by_name(followed: Followed) -> None:
    odd = raw(ORDERS, "orders")
    odd["cols"][0]["type"]["Tp"] = 0xFF
    with pytest.raises(NeedsHuman, match=r"shop\.orders.*GEOMETRY"):
        followed.ddl(Action.MODIFY_COLUMN, table=odd)


def folders(ddl: Ddl | None) -> list[tuple[str, str, bool]]:
    """Return the folder, the table, and whether with the statement, of schema files in folders named by ids."""
    files = files_of(ddl, by_id=True) if ddl else []
    return [(file.path.partition("/meta/")[0], file.table, bool(file.query)) for file in files]


def test_by_id_a_table_is_told_in_its_folder_and_each_partition_has_the_definition() -> None:
    by_id = Followed()
    renamed = by_id.ddl(Action.RENAME_TABLE, table=raw(ORDERS, "sales"))
    assert folders(renamed) == [(str(ORDERS), "sales", True)]
    truncated = by_id.ddl(Action.TRUNCATE_TABLE, table=raw(40, "sales"), table_id=ORDERS)
    assert folders(truncated) == [("40", "sales", True)]
    created = by_id.ddl(Action.CREATE_TABLE, table=partitioned(60, "parted", 61, 62))
    assert folders(created) == [("60", "parted", True), ("61", "parted", False), ("62", "parted", False)]
    gone = by_id.ddl(Action.DROP_TABLE, table=partitioned(60, "parted", 61, 62))
    assert folders(gone) == [("60", "parted", True)]


def test_by_id_nothing_is_told_of_a_database() -> None:
    dropped = Followed().ddl(Action.DROP_SCHEMA)
    assert dropped is not None
    assert (dropped.left, folders(dropped)) == ({ORDERS, ITEMS}, [])
