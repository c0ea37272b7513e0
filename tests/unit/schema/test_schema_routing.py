"""From a table's name upstream to the one that it is written under."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.routing.changes import check_view, routed_change, routed_touched, told
from changefeed.routing.routes import Routes, by_written_name
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import Rename
from changefeed.schema.history import Touched
from changefeed.schema.sql.definition import Definition
from changefeed.schema.table_info import TableInfo
from changefeed.spec.parse import parse
from changefeed.spec.problem import InvalidResource
from schema_sql_story import INT, column, job, renamed, table

ROUTES = [
    {"match": ["shop.orders"], "schema": "lake", "table": "all_orders"},
    {"match": ["shop_?.*", "!shop_9.*"], "schema": "shop", "table": "{schema}.{table}"},
    {"match": ["crm.*"], "schema": "{schema}_{schema}"},
    {"match": ["*.tmp"], "table": "{table}_{table}"},
]


def routes(*given: dict[str, Any], rules: tuple[str, ...] = ("*.*",), **filter_: Any) -> Routes:
    return Routes.of({"spec": {"filter": {"rules": list(rules), **filter_}, "routes": list(given or ROUTES)}})


@pytest.mark.parametrize(
    ("upstream", "written"),
    [
        ("shop.orders", "lake.all_orders"),
        ("SHOP.Orders", "lake.all_orders"),
        ("shop.items", "shop.items"),
        ("shop_1.items", "shop.shop_1.items"),
        ("shop_9.items", "shop_9.items"),
        ("crm.People", "crm_crm.People"),
        ("crm.tmp", "crm_crm.tmp"),
        ("x.tmp", "x.tmp_tmp"),
    ],
)
def test_the_first_route_that_fits_decides(upstream: str, written: str) -> None:
    schema, _, name = upstream.partition(".")
    assert ".".join(routes().name(schema, name)) == written


def test_only_what_is_selected_has_another_name() -> None:
    given = routes(rules=("shop.*", "!shop.orders"))
    assert given.name("shop", "orders") == ("shop", "orders")
    assert routes(caseSensitive=True).name("SHOP", "orders") == ("SHOP", "orders")


@pytest.mark.parametrize(
    ("name", "is_written"),
    [
        ("lake.all_orders", True),
        ("shop.orders", True),  # shop_1.… may be written to any name there
        ("x.tmp", False),
        ("x.tmp_tmp", True),
        ("x.other", True),
    ],
)
def test_which_names_the_sink_can_have(name: str, is_written: bool) -> None:
    schema, _, table_name = name.partition(".")
    given = routes(ROUTES[0], {"match": ["shop_?.*"], "schema": "shop"}, ROUTES[3])
    assert given.is_written(schema, table_name) == is_written


def test_a_routed_table_knows_where_it_comes_from_and_survives_the_log() -> None:
    upstream = table(name="orders", database="shop")
    written = routes().routed(upstream)
    assert (written.full_name, written.upstream_name) == ("lake.all_orders", ("shop", "orders"))
    read = TableInfo.from_json(written.to_json())
    assert (read.full_name, read.upstream_name, read.hash) == ("lake.all_orders", ("shop", "orders"), written.hash)
    assert written.hash != upstream.hash
    assert written.unrouted.hash == upstream.hash
    assert routes().routed(written) is written
    assert "routed_from" not in upstream.to_json()


def test_what_no_route_is_for_stays_the_same_object() -> None:
    upstream = table(name="items", database="shop")
    assert routes().routed(upstream) is upstream


def test_foreign_keys_name_tables_as_they_are_written() -> None:
    key = {"fk_name": {"O": "f"}, "cols": [{"O": "id"}], "ref_table": {"O": "orders"}, "ref_cols": [{"O": "id"}]}
    child = routes().routed(table(name="items", database="shop", fk_info=[{**key, "state": 5}]))
    (found,) = Definition.of(child).foreign_keys
    assert (
        found.to == ("lake", "all_orders") if hasattr(found, "to") else ("lake", "all_orders") in vars(found).values()
    )


def test_tables_that_meet_are_found_whatever_the_case() -> None:
    given = routes({"match": ["shop_*.*"], "schema": "shop"})
    one, other = table(name="a", database="shop_1"), table(name="A", database="shop_2", id_=2)
    assert [list(each) for each in by_written_name(map(given.routed, (one, other))).values()] == [[1, 2]]
    assert [list(each) for each in by_written_name(map(given.routed, (one, one))).values()] == [[1]]
    assert not given.merges(one)
    assert routes({"match": ["shop_*.*"], "schema": "shop", "merge": True}).merges(given.routed(one))


ORDERS = table(name="orders", database="shop")
LATE = table(column(1, "id", flag=3), column(2, "late", INT), name="orders", database="shop")


@pytest.mark.parametrize(
    ("action", "typed", "touched", "wanted"),
    [
        (Action.ADD_COLUMN, "ALTER TABLE orders ADD late INT", Touched((ORDERS,), (LATE,)),
         "ALTER TABLE `lake`.`all_orders` ADD COLUMN `late` INT"),
        (Action.TRUNCATE_TABLE, "TRUNCATE orders", Touched((ORDERS,), (ORDERS,)), "TRUNCATE TABLE `lake`.`all_orders`"),
        (Action.DROP_TABLE, "DROP TABLE orders", Touched((ORDERS,), ()), "DROP TABLE `lake`.`all_orders`"),
        (Action.RENAME_TABLE, "RENAME TABLE orders TO items", Touched((ORDERS,), (renamed(ORDERS, "shop", "items"),)),
         "RENAME TABLE `lake`.`all_orders` TO `shop`.`items`"),
        (Action.MODIFY_TABLE_COMMENT, "ALTER TABLE orders SHARD_ROW_ID_BITS = 2", Touched((ORDERS,), (ORDERS,)),
         "ALTER TABLE `lake`.`all_orders`"),
    ],
)  # fmt: skip
def test_a_statement_is_written_anew(action: Action, typed: str, touched: Touched, wanted: str) -> None:
    given = routes()
    assert told(job(action, typed), routed_touched(given, touched)).startswith(wanted)


def test_a_rename_that_leaves_the_written_name_alters_nothing() -> None:
    given = routes({"match": ["shop.tmp_*"], "table": "scratch"})
    before, after = table(name="tmp_a", database="shop"), table(name="tmp_b", database="shop")
    assert (
        told(
            job(Action.RENAME_TABLE, "RENAME TABLE tmp_a TO tmp_b"), routed_touched(given, Touched((before,), (after,)))
        )
        == "ALTER TABLE `shop`.`scratch`"
    )


def test_a_name_in_between_is_routed_too() -> None:
    a, b = table(name="a", database="crm"), table(name="b", database="crm", id_=2)
    touched = Touched((a, b), (renamed(b, "crm", "a"), renamed(a, "crm", "c"), renamed(a, "crm", "b")))
    renames = (Rename(1, 5, "crm", "c"), Rename(2, 5, "crm", "a"), Rename(1, 5, "crm", "b"))
    change = routed_change(
        routes(), job(Action.RENAME_TABLES, "RENAME TABLE a TO c, b TO a, c TO b", renames=()), touched
    )
    assert change.renames == ()
    from dataclasses import replace

    change = routed_change(routes(), replace(change, renames=renames), touched)
    assert [(each.old_schema_name, each.new_name) for each in change.renames] == [
        ("crm", "c"),
        ("crm", "a"),
        ("crm_crm", "b"),
    ]


def test_a_view_of_a_table_with_another_name_is_refused() -> None:
    text = "SELECT `shop`.`orders`.`id` AS `id` FROM `shop`.`orders`"
    with pytest.raises(NeedsHuman, match=r"view shop.v reads shop.orders, which is written as lake.all_orders"):
        check_view(routes(), table(name="v", database="shop", view={"view_select": text}))
    check_view(routes(), table(name="v", database="shop", view={"view_select": text.replace("orders", "items")}))


RESOURCE = """
apiVersion: changefeed.dev/v1alpha1
kind: Changefeed
metadata: {name: orders, namespace: shop}
spec:
  upstream: {pdAddresses: ["http://127.0.0.1:2379"]}
  sink: {storage: {uri: "s3://lake/orders", protocol: csv}}
  routes: %s
"""


@pytest.mark.parametrize(
    ("given", "field", "allowed"),
    [
        ("[{match: [a.b]}]", "spec.routes[0]", "schema, table or both"),
        ("[{match: [a.b], schema: MySQL}]", "spec.routes[0]", "no system schema"),
        ("[{match: [a.b], table: a/b}]", "spec.routes[0].table", "without /"),
        ("[{match: [a.b], table: '{x}'}]", "spec.routes[0].table", "{schema} and {table}"),
        (
            "[{match: [a.b], schema: s, table: t}, {match: [c.d], schema: s, table: t}]",
            "spec.routes",
            "different tables",
        ),
    ],
)
def test_what_is_refused_as_it_is_applied(given: str, field: str, allowed: str) -> None:
    with pytest.raises(InvalidResource) as refused:
        parse(RESOURCE % given)
    (problem,) = refused.value.problems
    assert problem.field == field
    assert allowed in str(problem.allowed)
