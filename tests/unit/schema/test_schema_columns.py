"""From a table's columns upstream to those that are written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.filter.rows import RowFilter
from changefeed.routing.changes import check_view
from changefeed.routing.column_changes import first_difference
from changefeed.routing.routes import Routes
from changefeed.schema.masks import Mask
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo
from changefeed.spec.filter.filters import Filter
from changefeed.spec.parse import parse
from changefeed.spec.problem import InvalidResource
from schema_sql_story import (
    AUTO,
    BIGINT,
    BLOB,
    CHAR,
    DATE,
    INT,
    JSON,
    NOT_NULL,
    PRI,
    VARCHAR,
    column,
    created,
    index,
    partition,
    partitions,
    table,
)

FLOAT, DOUBLE = 4, 5
HASH: dict[str, Any] = {"hash": {"secretRef": {"name": "masking"}}}
KEY = column(1, "id", BIGINT, NOT_NULL | PRI, 20)


def shaped(info: TableInfo, *given: dict[str, Any], **spec: Any) -> TableInfo:
    entries = [{"match": ["*.*"], **each} for each in given]
    return Routes.of({"spec": {"filter": {"rules": ["*.*"]}, "columns": entries, **spec}}).routed(info)


def people(*more: Any, **of_table: Any) -> TableInfo:
    email = column(2, "email", VARCHAR, NOT_NULL, 100, default="nobody@shop")
    return table(KEY, email, column(3, "Phone", VARCHAR, 0, 20), *more, name="people", database="shop", **of_table)


def test_a_hashed_column_is_64_characters_of_text_and_knows_no_default() -> None:
    written = shaped(people(), {"columns": ["email"], **HASH})
    id_, email, phone = written.columns
    assert (email.name, email.type, email.flen, email.nullable) == ("email", SqlType.VARCHAR, 64, False)
    assert email.default is None
    assert written.masks == ((2, Mask("hash", secret="masking")),)
    assert (id_.type, phone.name, phone.flen) == (SqlType.BIGINT, "Phone", 20)
    assert created(written) == (
        "CREATE TABLE `shop`.`people` (`id` BIGINT NOT NULL, `email` VARCHAR(64) CHARACTER SET utf8mb4 COLLATE "
        "utf8mb4_bin NOT NULL, `Phone` VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, PRIMARY KEY (`id`)) "
        "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    )


def test_a_shaped_table_survives_the_log_with_the_upstreams_definition_within_it() -> None:
    upstream = people()
    written = shaped(upstream, {"columns": ["email"], **HASH}, {"columns": ["phone"], "drop": True})
    read = TableInfo.from_json(written.to_json())
    assert read == written
    assert read.hash == written.hash != upstream.hash
    assert read.unrouted.hash == read.decoded_by.hash == upstream.hash
    assert shaped(written, {"columns": ["id"], "rename": "x"}) is written


def test_without_an_entry_for_it_a_table_stays_the_same_object() -> None:
    upstream = people()
    assert shaped(upstream) is upstream
    assert shaped(upstream, {"columns": ["other"], **HASH}) is upstream
    assert shaped(upstream, {"match": ["crm.*"], "columns": ["*"], **HASH}) is upstream
    excluded = shaped(upstream, {"columns": ["email"], **HASH}, filter={"rules": ["crm.*"]})
    assert excluded is upstream


def test_the_first_entry_decides_and_a_rename_stands_beside_it() -> None:
    written = shaped(
        people(),
        {"columns": ["*", "!id", "!phone"], "truncate": 3},
        {"columns": ["email"], "rename": "{column}_head"},
        {"columns": ["EMAIL"], **HASH},
        {"columns": ["email"], "rename": "other"},
        {"columns": ["ph*"], "setNull": True},
    )
    assert [each.name for each in written.columns] == ["id", "email_head", "Phone"]
    assert dict(written.masks) == {2: Mask("truncate", length=3), 3: Mask("null")}
    assert written.columns[1].default == "nob"
    assert written.columns[2].nullable


def test_routes_and_columns_meet_in_one_definition() -> None:
    routes = [{"match": ["shop.*"], "schema": "lake"}]
    written = shaped(people(), {"match": ["shop.people"], "columns": ["phone"], "drop": True}, routes=routes)
    assert (written.full_name, written.upstream_name) == ("lake.people", ("shop", "people"))
    assert [each.name for each in written.columns] == ["id", "email"]
    assert written.unrouted.full_name == "shop.people"
    assert [each.offset for each in written.columns] == [0, 1]


def test_keys_can_be_hashed_and_renamed_and_stay_keys() -> None:
    keyed = table(
        column(1, "id", BIGINT, NOT_NULL | PRI | AUTO, 20), column(2, "v"), database="shop", auto_random_bits=5
    )
    written = shaped(keyed, {"columns": ["id"], **HASH}, {"columns": ["id"], "rename": "who"})
    assert written.handle_column is not None
    assert (written.handle_column.name, written.handle_column.type) == ("who", SqlType.VARCHAR)
    said = created(written)
    assert "PRIMARY KEY (`who`)" in said
    assert "AUTO" not in said
    clustered = people(
        is_common_handle=True, pk=False, index_info=[index(1, "PRIMARY", ("email", 10))],
    )  # fmt: skip
    written = shaped(clustered, {"columns": ["email"], **HASH})
    assert written.indexes[0].columns == (("email", -1),)


@pytest.mark.parametrize(
    "action", [{"drop": True}, {"truncate": 3}, {"setNull": True}, {"constant": "1"}], ids=lambda each: next(iter(each))
)
@pytest.mark.parametrize("has_primary", [True, False])
def test_keys_are_not_masked_so_that_rows_become_one(action: dict[str, Any], has_primary: bool) -> None:
    text = column(1, "code", VARCHAR, NOT_NULL | (PRI if has_primary else 0), 20)
    name = "PRIMARY" if has_primary else "by_code"
    keyed = table(text, column(2, "v"), database="shop", pk=False, index_info=[index(1, name, "code", is_unique=True)])
    with pytest.raises(InvalidSpec, match=r"spec.columns\[0\].columns: column code of shop.Orders is in the key") as no:
        shaped(keyed, {"columns": ["code"], **action})
    assert "Hash it instead" in no.value.next_step


def test_other_unique_indexes_go_with_what_made_them_unique() -> None:
    indexes = [
        index(1, "by_email", "email", is_unique=True),
        index(2, "by_phone", ("Phone", 4), is_unique=True),
        index(3, "both", "email", "Phone"),
    ]
    info = people(index_info=indexes)
    hashed = shaped(info, {"columns": ["phone"], **HASH})
    assert [(each.name, each.columns) for each in hashed.indexes][1:] == [
        ("by_phone", (("Phone", -1),)),
        ("both", (("email", -1), ("Phone", -1))),
    ]
    cut = shaped(info, {"columns": ["email"], "truncate": 2})
    assert [each.name for each in cut.indexes] == ["by_phone", "both"]
    gone = shaped(info, {"columns": ["phone"], "drop": True})
    assert [each.name for each in gone.indexes] == ["by_email"]


@pytest.mark.parametrize(
    ("of", "action", "why"),
    [
        (column(9, "c", DOUBLE), HASH, "DOUBLE has no exact text"),
        (column(9, "c", FLOAT), HASH, "FLOAT has no exact text"),
        (column(9, "c", INT), {"truncate": 2}, "INT is neither text nor binary"),
        (column(9, "c", JSON), {"truncate": 2}, "JSON is neither text nor binary"),
        (column(9, "c", DATE), {"constant": "x"}, "DATE is neither text nor integer"),
        (column(9, "c", INT), {"constant": "x"}, "INT has whole numbers from -2147483648 to 2147483647"),
        (column(9, "c", INT), {"constant": "2147483648"}, "INT has whole numbers"),
        (column(9, "c", VARCHAR, flen=2), {"constant": "abc"}, "it holds 2 at most"),
        (column(9, "c", generated_expr_string="`id`"), HASH, "it is virtual"),
    ],
)
def test_a_column_that_can_not_be_masked_so_is_refused_with_the_way_on(
    of: dict[str, Any], action: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        shaped(people(of), {"columns": ["email"], "rename": "mail"}, {"columns": ["c"], **action})
    assert str(refused.value).startswith("spec.columns[1].columns: column c of shop.people can't be ")
    assert why in str(refused.value)
    assert "before this one" in refused.value.next_step


@pytest.mark.parametrize(
    ("of", "action"),
    [
        (column(9, "c", JSON), HASH),
        (column(9, "c", INT), {"constant": "-3"}),
        (column(9, "c", DATE), {"setNull": True}),
        (column(9, "c", BLOB, charset="binary", collate="binary"), {"truncate": 0}),
        (column(9, "c", CHAR, flen=3), {"constant": "äöü"}),
    ],
)
def test_columns_that_can(of: dict[str, Any], action: dict[str, Any]) -> None:
    assert [id_ for id_, _ in shaped(people(of), {"columns": ["c"], **action}).masks] == [9]


def test_what_is_computed_from_a_masked_column_must_be_masked_too() -> None:
    domain = column(9, "domain", VARCHAR, 0, 50, generated_expr_string="substr(`email`, 3)", generated_stored=True)
    info = people(domain)
    with pytest.raises(InvalidSpec, match=r"column domain of shop.people is computed from email, which is written"):
        shaped(info, {"columns": ["email"], **HASH})
    written = shaped(info, {"columns": ["email", "domain"], **HASH})
    assert not any(each.is_generated for each in written.columns)
    assert "GENERATED" not in created(written)
    assert [each.name for each in shaped(info, {"columns": ["email", "domain"], "drop": True}).columns] == [
        "id",
        "Phone",
    ]


def test_indexes_of_expressions_checks_and_foreign_keys_of_masked_columns_are_left_out() -> None:
    hidden = column(9, "_v$_lower_0", VARCHAR, 0, 50, generated_expr_string="lower(`email`)", hidden=True)
    key = {"id": 1, "fk_name": "f", "cols": ["email"], "ref_table": "mails", "ref_cols": ["mail"], "state": 5}
    info = people(
        hidden,
        index_info=[index(1, "lower", "_v$_lower_0")],
        fk_info=[key],
        constraint_info=[{"constraint_name": "c", "expr_string": "`email` like '%@%'", "state": 5, "enforced": True}],
        ttl_info={"column": "email"},
    )
    said = created(shaped(info, {"columns": ["email"], **HASH}))
    assert not any(word in said for word in ("KEY `lower`", "FOREIGN", "CHECK", "TTL"))
    other = people(fk_info=[key | {"cols": ["Phone"]}])
    assert "FOREIGN" in created(shaped(other, {"columns": ["email"], **HASH}))
    assert "FOREIGN" not in created(shaped(other, {"match": ["shop.mails"], "columns": ["mail"], **HASH}))


def test_what_rows_are_partitioned_by_is_written_as_it_is() -> None:
    parted = people(partition=partitions(partition(11, "p0", "10"), expr="`id`"))
    with pytest.raises(InvalidSpec, match=r"column id of shop.people says which partition a row is in"):
        shaped(parted, {"columns": ["id"], **HASH})
    assert shaped(parted, {"columns": ["email"], **HASH}).partition_ids == (11,)


def test_no_two_columns_get_one_name_and_one_is_left() -> None:
    with pytest.raises(InvalidSpec, match=r"spec.columns\[0\].rename: columns email and Phone of .* written as Phone"):
        shaped(people(), {"columns": ["email"], "rename": "PHONE"})
    with pytest.raises(InvalidSpec, match=r"columns email and Phone of shop.people would both be written as x"):
        shaped(people(), {"columns": ["email", "phone"], "rename": "x"})
    bare = table(column(1, "a"), database="shop", pk=False)
    with pytest.raises(InvalidSpec, match=r"no column of shop.Orders is left"):
        shaped(bare, {"columns": ["*"], "drop": True})


def test_filters_see_the_upstreams_columns() -> None:
    rules = {"eventFilters": [{"matcher": ["*.*"], "ignoreInsertValueExpr": "email = 'x' and Phone = 'y'"}]}
    written = shaped(people(), {"columns": ["email"], **HASH}, {"columns": ["phone"], "drop": True})
    (test,) = RowFilter.of(Filter.model_validate(rules), written, "UTC").tests
    assert [each.name for each in test.columns] == ["email", "Phone"]
    assert [each.flen for each in test.columns] == [100, 20]


def test_messages_say_no_key_of_a_table_with_masked_columns() -> None:
    assert people().said_key(b"\x01") == "key 01"
    assert "01" not in shaped(people(), {"columns": ["id"], **HASH}).said_key(b"\x01")


def test_a_view_of_such_a_table_is_refused() -> None:
    view = replace(people(), name="seen", is_view=True, raw={"view": {"view_select": "SELECT * FROM `shop`.`people`"}})
    entry = {"match": ["shop.people"], "columns": ["email"], **HASH}
    routes = Routes.of({"spec": {"filter": {"rules": ["*.*"]}, "columns": [entry]}})
    with pytest.raises(NeedsHuman, match=r"view shop.seen reads shop.people, whose columns are written otherwise"):
        check_view(routes, view)
    assert routes.routed(view) is view


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([], [{"columns": ["email"], **HASH}], "column email is written as email, but would be hashed by Secret mask"),
        ([{"columns": ["email"], **HASH}], [], "column email is hashed by Secret masking, as email, but would be wri"),
        ([{"columns": ["email"], "drop": True}], [], "column email is dropped, but would be written as email"),
        ([{"columns": ["email"], "truncate": 2}], [{"columns": ["email"], "truncate": 3}], "truncated to 2, as email"),
        ([{"columns": ["email"], "rename": "a"}], [{"columns": ["email"], "rename": "b"}], "written as a, but would"),
        ([{"columns": ["email"], **HASH}], [{"columns": ["em*", "later"], **HASH}], ""),
    ],
)
def test_what_is_written_stays(before: list[dict[str, Any]], after: list[dict[str, Any]], said: str) -> None:
    was = TableInfo.from_json(shaped(people(), *before).to_json())
    found = first_difference(was, shaped(was.unrouted, *after))
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    ("entry", "is_allowed"),
    [
        ({"drop": True}, True),
        ({"drop": False, "truncate": 0}, True),
        ({"constant": ""}, True),
        ({}, False),
        ({"drop": True, "setNull": True}, False),
        ({"rename": "x", **HASH}, False),
        ({"drop": False}, False),
    ],
)
def test_an_entry_does_one_thing(entry: dict[str, Any], is_allowed: bool) -> None:
    spec: dict[str, Any] = {
        "upstream": {"pdAddresses": ["http://pd:2379"]},
        "sink": {"storage": {"uri": "file:///lake", "protocol": "csv"}},
    }
    spec["columns"] = [{"match": ["a.*"], "columns": ["c"], **entry}]
    head = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "a"}}
    text = json.dumps(head | {"spec": spec})
    if is_allowed:
        assert len(parse(text).spec.columns) == 1
        return
    with pytest.raises(InvalidResource, match="exactly one of drop, rename, hash, truncate, setNull and constant"):
        parse(text)
