"""What follows from a Relation: the changes that lead there, as readers are told and as rows are decoded."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from changefeed.errors import NeedsHuman
from changefeed.owner.planning.timeline import Timeline
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.sink.storage.schema_file import files_of
from changefeed.upstream.postgresql.schema import evolution
from changefeed.upstream.postgresql.schema.catalog import PublishedTables
from changefeed.upstream.postgresql.schema.definitions import schema_of
from changefeed.upstream.postgresql.schema.relation_columns import MADE, fits
from postgresql_tables import BIGINT, ID, INT, TEXT, A, B, Column, Table, catalog

ORDERS = Table(100, "orders", (ID, A, B))
OPTIONS = "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


class Story:
    """A changefeed that began with these tables; what a Relation leads to is applied at once."""

    def __init__(self, *tables: Table, domains: Mapping[int, tuple[int, int]] | None = None) -> None:
        self.schema = schema_of(catalog(*tables, domains=domains), 1_000, {})
        self.changes: list[tuple[int, SchemaChange]] = []
        self._ts = 1_000

    def said(self, table: Table, *now: Table, domains: Mapping[int, tuple[int, int]] | None = None) -> list[str]:
        """The statements of the changes. `now`: all that the catalog has."""
        found = catalog(*now, domains=domains)
        self._ts += 10
        told = []
        while (change := evolution.next_change(self._ts, table.said, self.schema, found)) is not None:
            self._apply(change)
            told.append(f"{change.type_name}: {change.query}")
        self._is_as(table, found)
        return told

    def truncated(self, *oids: int) -> list[str]:
        self._ts += 10
        told = []
        for oid in oids:
            if (change := evolution.truncation(self._ts, oid, self.schema)) is not None:
                self._apply(change)
                told.append(f"{change.type_name}: {change.query}")
        return told

    def numbers(self, table: Table) -> list[int]:
        found = self.schema.newest(table.oid)
        assert found is not None
        return [column.id for column in found.output_columns]

    def _apply(self, change: SchemaChange) -> None:
        assert not self.schema.has(change.id)
        assert len(self.changes) < 1_000, "it comes to no end"
        self.schema.apply(change, self._ts)
        self.changes.append((self._ts, change))
        self._ts += 1

    def _is_as(self, table: Table, now: PublishedTables) -> None:
        found = self.schema.newest(table.oid)
        assert found is not None
        assert fits(found, table.said, now.domains)
        assert found.from_json(found.to_json()) == found
        assert len({column.id for column in found.columns}) == len(found.columns)


# 1.-5.: a column


def test_1_a_column_is_added() -> None:
    after = ORDERS.having(ID, A, B, Column(4, "n"))
    assert Story(ORDERS).said(after, after) == ["ADD_COLUMN: ALTER TABLE `shop`.`orders` ADD COLUMN `n` INT NULL"]


def test_2_a_column_is_dropped() -> None:
    after = ORDERS.having(ID, B)
    assert Story(ORDERS).said(after, after) == ["DROP_COLUMN: ALTER TABLE `shop`.`orders` DROP COLUMN `a`"]


def test_3_a_column_is_renamed_if_the_catalog_has_its_number() -> None:
    after = ORDERS.having(ID, replace(A, name="z"), B)
    story = Story(ORDERS)
    assert story.said(after, after) == [
        "MODIFY_COLUMN: ALTER TABLE `shop`.`orders` CHANGE COLUMN `a` `z` INT NULL",
    ]
    assert story.numbers(ORDERS) == [1, 2, 3]


def test_3_a_column_is_renamed_while_the_catalog_is_ahead() -> None:
    after = ORDERS.having(ID, replace(A, name="z"), B)
    now = ORDERS.having(ID, replace(A, name="z"), B, Column(4, "later"))
    story = Story(ORDERS)
    assert story.said(after, now) == ["MODIFY_COLUMN: ALTER TABLE `shop`.`orders` CHANGE COLUMN `a` `z` INT NULL"]
    assert story.numbers(ORDERS) == [1, 2, 3]


def test_3_the_last_column_is_renamed_while_the_catalog_is_ahead() -> None:
    """It might be a new one, but for its number."""
    after = ORDERS.having(ID, A, replace(B, name="z"))
    now = ORDERS.having(ID, A, replace(B, name="z"), Column(4, "later"))
    story = Story(ORDERS)
    assert story.said(after, now) == ["MODIFY_COLUMN: ALTER TABLE `shop`.`orders` CHANGE COLUMN `b` `z` INT NULL"]
    assert story.numbers(ORDERS) == [1, 2, 3]


def test_3_a_column_is_renamed_that_the_catalog_has_no_more() -> None:
    """It stands ahead of an old one, so it is no new one."""
    after = ORDERS.having(ID, replace(A, name="z"), B)
    story = Story(ORDERS)
    assert story.said(after) == ["MODIFY_COLUMN: ALTER TABLE `shop`.`orders` CHANGE COLUMN `a` `z` INT NULL"]
    assert story.numbers(ORDERS) == [1, 2, 3]


def test_4_a_column_has_another_type() -> None:
    after = ORDERS.having(ID, replace(A, type=BIGINT), B)
    for now in (after, ORDERS.having(ID)):
        assert Story(ORDERS).said(after, now) == [
            "MODIFY_COLUMN: ALTER TABLE `shop`.`orders` MODIFY COLUMN `a` BIGINT NULL",
        ]


def test_5_a_column_is_dropped_and_another_one_has_its_name() -> None:
    """Columns can't change places: one that stands behind younger ones is another one."""
    after = ORDERS.having(ID, B, Column(4, "a"))
    for now in (after, ORDERS.having(ID, B)):
        assert Story(ORDERS).said(after, now) == [
            "DROP_COLUMN: ALTER TABLE `shop`.`orders` DROP COLUMN `a`",
            "ADD_COLUMN: ALTER TABLE `shop`.`orders` ADD COLUMN `a` INT NULL",
        ]


def test_5_the_last_column_is_dropped_and_another_one_has_its_name() -> None:
    """Only the catalog tells."""
    after = ORDERS.having(ID, A, Column(4, "b", BIGINT))
    assert Story(ORDERS).said(after, after) == [
        "DROP_COLUMN: ALTER TABLE `shop`.`orders` DROP COLUMN `b`",
        "ADD_COLUMN: ALTER TABLE `shop`.`orders` ADD COLUMN `b` BIGINT NULL",
    ]


# 6.-9.: a table


def test_6_a_table_is_renamed() -> None:
    after = replace(ORDERS, name="sales")
    assert Story(ORDERS).said(after, after) == ["RENAME_TABLE: RENAME TABLE `shop`.`orders` TO `shop`.`sales`"]


def test_7_a_table_moves_to_a_schema_that_is_not_known() -> None:
    after = replace(ORDERS, schema="attic")
    assert Story(ORDERS).said(after, after) == [
        "CREATE_SCHEMA: CREATE DATABASE `attic`",
        "RENAME_TABLE: RENAME TABLE `shop`.`orders` TO `attic`.`orders`",
    ]


def test_8_several_things_are_done_at_once() -> None:
    after = replace(ORDERS, name="sales").having(ID, replace(B, name="z"), Column(4, "n"))
    story = Story(ORDERS)
    assert story.said(after, after) == [
        "RENAME_TABLE: RENAME TABLE `shop`.`orders` TO `shop`.`sales`",
        "MULTI_SCHEMA_CHANGE: ALTER TABLE `shop`.`sales` DROP COLUMN `a`, CHANGE COLUMN `b` `z` INT NULL, "
        "ADD COLUMN `n` INT NULL",
    ]


@pytest.mark.parametrize("now", [(), (ORDERS,), (ORDERS.having(ID),)], ids=["gone", "as said", "ahead"])
def test_9_a_new_table(now: tuple[Table, ...]) -> None:
    assert Story().said(ORDERS, *now) == [
        "CREATE_TABLE: CREATE TABLE `shop`.`orders` (`id` INT NOT NULL, `a` INT NULL, `b` INT NULL, "
        f"PRIMARY KEY (`id`)) {OPTIONS}"
    ]


def test_9_a_new_table_with_a_key_that_mysql_can_not_have() -> None:
    long = Table(100, "orders", (Column(1, "id", 1043, 1_004),))
    (told,) = Story().said(long, long)
    assert "PRIMARY KEY" not in told
    assert "`id` VARCHAR(1000)" in told


# 10.-13.: the stream and the catalog


def test_10_a_table_is_emptied() -> None:
    story = Story(ORDERS)
    before = story.schema.newest(ORDERS.oid)
    assert story.truncated(ORDERS.oid, 999) == ["TRUNCATE_TABLE: TRUNCATE TABLE `shop`.`orders`"]
    assert story.schema.newest(ORDERS.oid) == before


def test_11_the_same_relation_is_said_again() -> None:
    story = Story(ORDERS)
    after = ORDERS.having(ID, A)
    assert story.said(ORDERS, ORDERS) == []
    assert story.said(after, after) != []
    assert story.said(after, after) == []
    assert story.said(after) == []


def test_12_the_catalog_is_ahead_and_later_it_is_not() -> None:
    story = Story(ORDERS)
    middle = ORDERS.having(ID, A, B, Column(4, "m"))
    last = ORDERS.having(ID, A, B, Column(5, "n"))
    assert story.said(middle, last) == ["ADD_COLUMN: ALTER TABLE `shop`.`orders` ADD COLUMN `m` INT NULL"]
    assert story.numbers(ORDERS) == [1, 2, 3, MADE]
    assert story.said(last, last) == [
        "MULTI_SCHEMA_CHANGE: ALTER TABLE `shop`.`orders` DROP COLUMN `m`, ADD COLUMN `n` INT NULL"
    ]
    assert story.numbers(ORDERS) == [1, 2, 3, 5]


def test_12_a_column_keeps_the_number_that_it_got_while_the_catalog_was_ahead() -> None:
    """Iceberg knows it by that."""
    story = Story(ORDERS)
    middle = ORDERS.having(ID, A, B, Column(4, "m"))
    assert story.said(middle, ORDERS.having(ID, A, B, Column(4, "x"))) != []
    after = ORDERS.having(ID, A, B, Column(4, "m"), Column(5, "n"))
    assert story.said(after, after) == ["ADD_COLUMN: ALTER TABLE `shop`.`orders` ADD COLUMN `n` INT NULL"]
    assert story.numbers(ORDERS) == [1, 2, 3, MADE, 5]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_13_the_primary_key_is_another_one(is_ahead: bool) -> None:
    after = replace(ORDERS, key=("id", "a"))
    assert Story(ORDERS).said(after, ORDERS.having(ID, A, key=("id",)) if is_ahead else after) == [
        "MULTI_SCHEMA_CHANGE: ALTER TABLE `shop`.`orders` DROP PRIMARY KEY, MODIFY COLUMN `a` INT NOT NULL, "
        "ADD PRIMARY KEY (`id`, `a`)"
    ]


def test_13_the_primary_key_is_dropped() -> None:
    after = replace(ORDERS, key=())
    assert Story(ORDERS).said(after, after) == [
        "MULTI_SCHEMA_CHANGE: ALTER TABLE `shop`.`orders` DROP PRIMARY KEY, MODIFY COLUMN `id` INT NULL"
    ]


def test_13_under_replica_identity_full_no_relation_says_what_the_key_is() -> None:
    after = replace(ORDERS, identity="f")
    story = Story(ORDERS)
    assert story.said(after, after) == []
    assert story.said(after.having(ID, A), after.having(ID)) == [
        "DROP_COLUMN: ALTER TABLE `shop`.`orders` DROP COLUMN `b`"
    ]


def test_14_a_domain_is_what_it_is_based_on() -> None:
    domains = {50_000: (INT, -1)}
    with_domain = ORDERS.having(ID, A, replace(B, type=50_000))
    assert Story(with_domain, domains=domains).said(with_domain, with_domain, domains=domains) == []
    assert Story(ORDERS).said(with_domain, with_domain, domains=domains) == []


# 15.-17.: names that others have


def test_15_a_table_was_dropped_and_made_again() -> None:
    again = replace(ORDERS, oid=200)
    assert [each.split(" (")[0] for each in Story(ORDERS).said(again, again)] == [
        "DROP_TABLE: DROP TABLE `shop`.`orders`",
        "CREATE_TABLE: CREATE TABLE `shop`.`orders`",
    ]


def test_16_a_table_was_renamed_to_make_room() -> None:
    new, old = replace(ORDERS, oid=200), replace(ORDERS, name="old", schema="attic")
    story = Story(ORDERS)
    assert [each.split(" (")[0] for each in story.said(new, new, old)] == [
        "CREATE_SCHEMA: CREATE DATABASE `attic`",
        "RENAME_TABLE: RENAME TABLE `shop`.`orders` TO `attic`.`old`",
        "CREATE_TABLE: CREATE TABLE `shop`.`orders`",
    ]
    assert story.said(old, new, old) == []


def test_17_two_tables_that_change_places_need_a_human() -> None:
    items = Table(200, "items", (ID,))
    now = replace(ORDERS, name="items"), replace(items, name="orders")
    with pytest.raises(NeedsHuman, match=r"table shop.items was another one before \(OID 200, now 100\)"):
        Story(ORDERS, items).said(now[0], *now)


def test_18_tables_of_a_schema_that_no_filter_selects_lead_to_nothing() -> None:
    story = Story()
    table = replace(ORDERS, schema="sys")
    assert evolution.next_change(1_010, table.said, story.schema, catalog(table)) is None


# -- what a changefeed starts with


def test_19_what_the_log_knows_counts_and_what_has_its_name_now_is_not_there_yet() -> None:
    old = ORDERS.having(ID).info({})
    again, other = replace(ORDERS, oid=200), Table(300, "items", (ID,))
    schema = schema_of(catalog(again, other), 1_000, {old.id: old})
    assert schema.tables_at(1_000) == [old, other.info({})]


def test_19_a_schema_that_is_gone_is_still_there() -> None:
    old = replace(ORDERS, schema="attic").info({})
    schema = schema_of(catalog(), 1_000, {old.id: old})
    assert (number := schema.database_id("attic")) is not None
    assert schema.database_name(number) == "attic"


# -- all of it at once


@pytest.mark.parametrize("seed", range(60))
def test_any_history_is_followed_wherever_the_catalog_stands(seed: int) -> None:
    """A Relation is what counts, and it comes to an end."""
    dice = random.Random(seed)
    versions = [ORDERS]
    for _ in range(12):
        versions.append(_altered(versions[-1], dice, len(versions) + 10))
    story, reached = Story(ORDERS), 0
    for place in sorted(dice.sample(range(1, len(versions)), 6)):
        now = versions[reached := max(reached, dice.randrange(place, len(versions)))]
        story.said(versions[place], now)
        assert story.said(versions[place], now) == []


def _altered(table: Table, dice: random.Random, number: int) -> Table:
    columns = list(table.columns)
    place = dice.randrange(len(columns))
    name = f"c{dice.randrange(6)}"
    is_free = name not in {column.name for column in columns}
    match dice.randrange(5):
        case 0 if is_free:
            columns.append(Column(number, name, dice.choice([INT, TEXT])))
        case 1 if place:
            del columns[place]
        case 2 if place and is_free:
            columns[place] = replace(columns[place], name=name)
        case 3 if place:
            columns[place] = replace(columns[place], type=dice.choice([INT, BIGINT, TEXT]))
        case 4:
            return replace(table, name=dice.choice(["orders", "sales"]), schema=dice.choice(["shop", "attic"]))
    return table.having(*columns)


def test_readers_of_files_are_told_and_dispatchers_go_on() -> None:
    """A table that is renamed out of what the filter selects ends; one that is emptied goes on."""
    story = Story(ORDERS)
    added = ORDERS.having(ID, A, B, Column(4, "n", TEXT))
    story.said(added, added)
    story.truncated(ORDERS.oid)
    items = Table(200, "items", (ID,))
    story.said(items, added, items)
    hidden = replace(added, schema="attic")
    story.said(hidden, hidden, items)
    timeline = Timeline(lambda schema, _: schema == "shop", lambda name: name == "shop", lambda *_: False, [ORDERS.oid])
    ddls = [timeline.follow(change, ts, story.schema.touches(change)) for ts, change in story.changes]
    assert [ddl is None for ddl in ddls] == [False, False, False, True, False], "CREATE DATABASE attic is nobody's"
    dispatchers = [(set(ddl.involved), set(ddl.left), set(ddl.tables)) for ddl in ddls if ddl is not None]
    assert dispatchers == [
        ({100}, set(), {100}),
        ({100}, set(), {100}),
        (set(), set(), {200}),
        ({100}, {100}, set()),
    ]
    files = [file for ddl in ddls if ddl is not None for file in files_of(ddl)]
    assert [(file.schema, file.table, file.table_version, file.query, file.type) for file in files] == [
        (
            "shop",
            "orders",
            1_010,
            "ALTER TABLE `shop`.`orders` ADD COLUMN `n` LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL",
            Action.ADD_COLUMN,
        ),
        ("shop", "orders", 1_021, "TRUNCATE TABLE `shop`.`orders`", Action.TRUNCATE_TABLE),
        (
            "shop",
            "items",
            1_032,
            f"CREATE TABLE `shop`.`items` (`id` INT NOT NULL, PRIMARY KEY (`id`)) {OPTIONS}",
            Action.CREATE_TABLE,
        ),
        ("attic", "orders", 1_044, "RENAME TABLE `shop`.`orders` TO `attic`.`orders`", Action.RENAME_TABLE),
    ]
    assert [column["ColumnName"] for column in files[1].columns] == ["id", "a", "b", "n"]
