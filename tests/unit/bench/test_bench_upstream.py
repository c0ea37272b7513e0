"""The rows of the bench's upstream: the same whenever they are made, as wide as their columns, none left out."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.tidb import Tidb
from upstream import DATABASE, SHAPES, Upstream, shape_of

ROWS, TABLES, REGIONS = 50, 2, 3


@pytest.mark.parametrize("name", SHAPES)
def test_rows_are_a_function_of_their_numbers(name: str) -> None:
    shape = shape_of(name)
    numbers = np.arange(1, 1001, dtype=np.int64)
    whole, part = shape.values(numbers), shape.values(numbers[500:])
    assert len(whole) == len(shape.columns)
    for all_of_them, some in zip(whole, part, strict=True):
        assert np.array_equal(all_of_them[500:], some)
        assert len(np.unique(all_of_them, axis=0)) == 1000


def test_a_shape_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no shape tall: one of insert, update"):
        shape_of("tall")


@pytest.fixture
def written() -> tuple[Tidb, Upstream]:
    """Loaded, in a cluster that does not serve."""
    tidb = Tidb(DevCluster())
    tidb.bootstrap()
    tidb.create_database(DATABASE)
    upstream = Upstream(tidb, shape_of("update"), ["sbtest1", "sbtest2"], REGIONS, ROWS)
    assert upstream.load() == ROWS * TABLES
    return tidb, upstream


def test_an_update_changes_each_row_once(written: tuple[Tidb, Upstream]) -> None:
    tidb, upstream = written
    loaded = tidb.now()
    assert upstream.update() == ROWS * TABLES
    for table in tidb.tables.values():
        if table.name.startswith("sbtest."):
            changes = tidb.history(table, loaded, tidb.now())
            assert sorted(change.pk for change in changes) == list(range(1, ROWS + 1))
            assert all(change.op == "update" and change.row != change.old_row for change in changes)


@pytest.mark.parametrize("rate", [1e9, 4_000.0])
def test_the_writer_takes_tables_and_regions_by_turns_and_every_row_in_the_end(
    written: tuple[Tidb, Upstream], rate: float
) -> None:
    tidb, upstream = written
    loaded = tidb.now()
    count = upstream.write(threading.Event(), rate, ROWS * TABLES)
    assert ROWS * TABLES <= count < ROWS * TABLES + 128
    tables = [table for name, table in tidb.tables.items() if name.startswith("sbtest.")]
    changed = [{change.pk for change in tidb.history(table, loaded, tidb.now())} for table in tables]
    assert changed == [set(range(1, ROWS + 1))] * TABLES


def test_a_writer_that_is_told_to_end_writes_nothing_more(written: tuple[Tidb, Upstream]) -> None:
    stop = threading.Event()
    stop.set()
    assert written[1].write(stop, 1e9, None) == 0
