"""A SQLite catalog that another process reads: a commit that fails is no commit, whatever is read afterwards."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sink_iceberg_lake import INSERT, UPDATE, Lake, publish, table_of
from sqlalchemy import event

T = table_of()


class Reader:
    """Has a result of the catalog's that it does not finish, so that no commit counts until it is let go."""

    def __init__(self, lake: Lake) -> None:
        self._connection = sqlite3.connect(lake.folder / "catalog.db", check_same_thread=False)
        self._cursor = self._connection.execute("SELECT * FROM iceberg_tables UNION ALL SELECT * FROM iceberg_tables")
        self._cursor.fetchone()

    def let_go(self) -> None:
        self._cursor.close()
        self._connection.close()


def impatient(catalog: SqlCatalog) -> SqlCatalog:
    """Waits for no lock, where others wait five seconds."""

    def connecting(_: Any, __: Any, ___: Any, parameters: dict[str, Any]) -> None:
        parameters["timeout"] = 0

    event.listen(catalog.engine, "do_connect", connecting)
    catalog.engine.dispose()
    return catalog


@pytest.mark.parametrize("upsert", [False, True])
def test_rows_of_a_commit_that_met_a_reader_are_there_in_the_end(tmp_path: Path, upsert: bool) -> None:
    lake = Lake(tmp_path, upsert)
    lake.driver(T).create()
    waits: list[float] = []
    reader: Reader | None = None

    def slept(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3 and reader is not None:
            reader.let_go()

    driver = lake.driver(T, wrap=impatient, slept=slept)
    publish(driver, 7, lake.written(3, T, [(INSERT, 1, 10)]))
    reader = Reader(lake)
    publish(driver, 8, lake.written(4, T, [(INSERT, 2, 20)]))
    publish(driver, 9, lake.written(5, T, [(UPDATE, 1, 11)]))
    rows = [(1, 11), (2, 20)] if upsert else [("I", 30, 1, 10), ("I", 40, 2, 20), ("U", 50, 1, 11)]
    assert lake.rows() == rows
    assert len(waits) == 3
