"""Shards that are written to one table: whether they fit, and which of their DDLs are for all."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.routing.merging import Unmergeable, check_fit, is_told
from changefeed.schema.table_info import TableInfo
from schema_sql_story import BIGINT, DATETIME, NOT_NULL, PRI, VARCHAR, column, index, partition, partitions, table

ID = column(1, "id", BIGINT, NOT_NULL | PRI)
NAME = column(2, "name", VARCHAR, flen=20)
LATE = column(3, "late")
STERN = column(3, "stern", flag=NOT_NULL)
CLOCK = column(3, "at", DATETIME, default="CURRENT_TIMESTAMP")
DOUBLE = column(3, "double", generated_expr_string="`id` * 2")
BY_NAME = index(1, "by_name", "name")


def shard(*more: Any, of: int = 1, **options: Any) -> TableInfo:
    return table(ID, NAME, *more, name="orders", database=f"shop_{of}", id_=of, **options)


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (shard(), shard(of=2), ""),
        (shard(), shard(LATE, of=2), ""),
        (shard(LATE), shard(of=2), ""),
        (shard(index_info=[BY_NAME]), shard(of=2), ""),
        (shard(CLOCK), shard(CLOCK, of=2), ""),
        (shard(DOUBLE), shard(DOUBLE, of=2), "column double is generated"),
        (shard(), shard(STERN, of=2), "column stern is NOT NULL"),
        (shard(STERN), shard(of=2), "column stern is NOT NULL"),
        (shard(), table(ID, column(2, "name", VARCHAR, flen=30), name="orders", id_=2), "has another column name"),
        (shard(), shard(index_info=[index(1, "k", "name", is_unique=True)], of=2), "other primary or unique keys"),
        (shard(partition=partitions(partition(7, "p0", "10"))), shard(of=2), "is partitioned"),
        (shard(), shard(partition=partitions(partition(7, "p0", "10")), of=2), "that is partitioned"),
    ],
)
def test_which_shards_fit(one: TableInfo, other: TableInfo, why: str) -> None:
    if not why:
        check_fit(one, [other])
        return
    with pytest.raises(Unmergeable, match=why):
        check_fit(one, [other])


@pytest.mark.parametrize(
    ("before", "after", "others", "is_for_all"),
    [
        (shard(), shard(LATE), [shard(of=2)], True),
        (shard(), shard(LATE), [shard(LATE, of=2)], False),
        (shard(), shard(LATE), [shard(of=2), shard(LATE, of=3)], False),
        (shard(LATE), shard(), [shard(LATE, of=2)], False),
        (shard(LATE), shard(), [shard(of=2)], True),
        (shard(), shard(index_info=[BY_NAME]), [shard(of=2)], True),
        (shard(), shard(index_info=[BY_NAME]), [shard(index_info=[BY_NAME], of=2)], False),
    ],
)
def test_which_change_of_a_shard_is_for_all(
    before: TableInfo, after: TableInfo, others: list[TableInfo], is_for_all: bool
) -> None:
    assert is_told(before, after, others) == is_for_all


@pytest.mark.parametrize(
    ("before", "after", "others", "why"),
    [
        (shard(), table(ID, column(2, "name", VARCHAR, flen=30), name="orders"), [shard(of=2)], "another column name"),
        (shard(), shard(index_info=[index(1, "k", "name", is_unique=True)]), [shard(of=2)], "primary or unique keys"),
        (shard(), shard(STERN), [shard(of=2)], "stern"),
        (shard(), shard(CLOCK), [shard(of=2)], "get the time of the DDL in column at"),
        (shard(), shard(CLOCK), [shard(CLOCK, of=2)], "get the time of the DDL in column at"),
        (shard(), shard(LATE, index_info=[BY_NAME]), [shard(LATE, of=2)], "at once what other shards have"),
        (shard(), shard(LATE), [shard(column(3, "late", BIGINT), of=2)], "another column late"),
    ],
)
def test_what_would_harm_the_others_is_refused(
    before: TableInfo, after: TableInfo, others: list[TableInfo], why: str
) -> None:
    with pytest.raises(Unmergeable, match=why):
        is_told(before, after, others)
