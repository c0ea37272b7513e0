"""DDLs of every class on the tables of a story, with rows between them."""

from __future__ import annotations

from changefeed_devcluster.ddl import columns, databases, indexes, partitions, tables
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.tidb.schema import NewColumn
from verify_story import Story

ITEMS = (NewColumn("id", "bigint"), NewColumn("price", "int"), NewColumn("note", "varchar(24)", nullable=True))
PARTS: dict[str, int | None] = {"p0": 10, "p1": 20, "p2": None}


def create_drop_and_truncate(story: Story) -> None:
    story.tidb.create_table(story.db, "more", ITEMS)
    story.insert("more", range(5), price=1)
    story.tidb.truncate_table(story.table("more"))
    story.insert("more", range(2), price=2)
    story.tidb.truncate_table(story.table("items"))
    story.insert("items", range(2), price=3)
    story.tidb.drop_table(story.table("items"))
    story.tidb.create_table(story.db, "items", ITEMS)
    story.insert("items", (7,), price=4)


def create_several(story: Story) -> None:
    tables.create_tables(story.tidb, story.db, [tables.NewTable("one", ITEMS), tables.NewTable("two", ITEMS)])
    story.insert("two", (1,), price=1)


def rename(story: Story) -> None:
    story.update("items", 1, note="before")
    tables.rename_table(story.tidb, story.table("items"), story.tidb.databases[story.too], "renamed")
    story.update(f"{story.too}.renamed", 2, note="after")
    story.delete(f"{story.too}.renamed", 3)


def swap(story: Story) -> None:
    story.tidb.create_table(story.db, "other", ITEMS)
    story.insert("other", range(4), price=9)
    story.update("items", 1, note="before")
    tables.swap_tables(story.tidb, story.table("items"), story.table("other"))
    story.update("other", 2, note="was items")
    story.delete("items", 3)


def rename_out_and_in(story: Story) -> None:
    inside, outside = (story.tidb.databases[name] for name in (story.db, story.out))
    tables.rename_table(story.tidb, story.table("items"), outside, "items")
    story.insert(f"{story.out}.items", (50,), price=1)
    tables.rename_table(story.tidb, story.table(f"{story.out}.items"), inside, "back")
    story.update("back", 50, note="seen")


def add_columns(story: Story) -> None:
    added = {
        "int": "-7", "bigint unsigned": "18446744073709551615", "varchar(24)": "so, 'so'", "char(8)": "c",
        "decimal(18,4)": "-1.5000", "double": "0.5", "date": "2024-02-29", "datetime(3)": "1999-12-31 23:59:59.999",
        "datetime(6)": "1999-12-31 23:59:59.5", "timestamp": "2001-01-01 00:00:00", "time(6)": "-12:00:00.5",
        "year": "1999", "bit(12)": "5", "enum('a','b,c','it')": "b,c", "set('x','y','z')": "x,z", "varbinary(16)": "b",
    }  # fmt: skip
    for number, (kind, default) in enumerate(added.items()):
        after = (None, columns.FIRST, "id")[number % 3]
        last(columns.add_column(story.tidb, story.table("items"), NewColumn(f"c{number}", kind, True, default), after))
        last(columns.add_column(story.tidb, story.table("items"), NewColumn(f"n{number}", kind, True)))
    story.insert("items", (30,), price=1, c0=8, c2="mine")


def drop_a_column(story: Story) -> None:
    last(columns.drop_column(story.tidb, story.table("items"), "note"))
    story.update("items", 1, price=77)
    last(columns.add_column(story.tidb, story.table("items"), NewColumn("note", "varchar(9)", True, "again")))


def rename_columns(story: Story) -> None:
    last(columns.modify_column(story.tidb, story.table("items"), "note", NewColumn("text", "varchar(24)", True)))
    story.update("items", 1, text="after")
    last(columns.modify_column(story.tidb, story.table("items"), "price", NewColumn("price", "int"), columns.FIRST))
    story.update("items", 2, price=6)


def widen_a_column(story: Story) -> None:
    last(columns.modify_column(story.tidb, story.table("items"), "price", NewColumn("price", "bigint")))
    last(columns.modify_column(story.tidb, story.table("items"), "note", NewColumn("note", "varchar(60)", True)))
    last(columns.set_default(story.tidb, story.table("items"), "price", "42"))
    story.insert("items", (40,), price=1 << 40, note="x" * 50)


def change_an_index(story: Story) -> None:
    indexes.add_index(story.tidb, story.table("items"), "i", ["note"], False)
    story.update("items", 1, note="with an index")
    indexes.drop_index(story.tidb, story.table("items"), "i")
    story.update("items", 2, note="without one")


def change_several(story: Story) -> None:
    last(columns.change_several(story.tidb, story.table("items"), NewColumn("more", "int", True, "3"), "note"))
    story.update("items", 1, more=4)


def recover(story: Story) -> None:
    story.update("items", 1, note="before")
    dropped = story.table("items")
    story.tidb.drop_table(dropped)
    tables.recover_table(story.tidb, dropped, "recovered")
    story.update("recovered", 2, note="after")


def add_a_partition(story: Story) -> None:
    partitions.drop_partition(story.tidb, story.table("parted"), "p2")
    partitions.add_partition(story.tidb, story.table("parted"), "p3", 40)
    story.insert("parted", (22, 33), price=1)


def truncate_a_partition(story: Story) -> None:
    story.update("parted", 11, note="before")
    partitions.truncate_partition(story.tidb, story.table("parted"), "p1")
    story.insert("parted", (12,), price=1)


def exchange_a_partition(story: Story) -> None:
    tables.create_like(story.tidb, story.table("parted"), "twin")
    story.insert("twin", (3, 14), price=8)
    story.update("parted", 11, note="before")
    partitions.exchange_partition(story.tidb, story.table("parted"), "p1", story.table("twin"))
    story.update("twin", 12, note="was in p1")
    story.update("parted", 14, note="was in twin")


def views(story: Story) -> None:
    view = tables.create_view(story.tidb, "seen", story.table("items"))
    tables.create_view(story.tidb, "gone", story.table("items"))
    tables.create_view(story.tidb, "seen", story.table("parted"), replaced=view)
    tables.drop_view(story.tidb, story.table("gone"))


def drop_a_database(story: Story) -> None:
    story.tidb.create_table(story.too, "inside", ITEMS)
    story.insert(f"{story.too}.inside", (1,), price=1)
    databases.alter_database(story.tidb, story.too, "utf8mb4", "utf8mb4_general_ci")
    databases.drop_database(story.tidb, story.too)
    databases.create_database(story.tidb, story.too)
    story.tidb.create_table(story.too, "inside", ITEMS)


def convert_a_column(story: Story) -> None:
    last(columns.modify_column(story.tidb, story.table("items"), "price", NewColumn("price", "varchar(24)")))
    story.update("items", 1, price="text")


def reorganize_partitions(story: Story) -> None:
    partitions.reorganize_partition(story.tidb, story.table("parted"), ["p2"], {"p5": 22, "p6": None})
    story.update("parted", 21, note="moved")


def partition_a_table(story: Story) -> None:
    partitions.alter_partitioning(story.tidb, story.table("items"), {"q0": 5, "q1": None})
    story.update("items", 11, note="in q1")
    partitions.remove_partitioning(story.tidb, story.table("parted"))
    story.update("parted", 11, note="in none")
