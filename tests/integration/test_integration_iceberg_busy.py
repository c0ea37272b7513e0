"""Commits to busy catalogs: locks that are held, connections that are cut, answers that are lost. Each row counts once.

`CHANGEFEED_EVIDENCE=FILE`: 200 of each kind instead of 2, and what was counted goes there.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changefeed.log.records import CommitRecord, FileCommitted, PlanEntry
from changefeed.model.position import Position
from changefeed.objectstore.open import local_path
from changefeed.objectstore.patience import Patience
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, TableInfo, parse_table_info
from changefeed.sink.iceberg.driver import IcebergDriver
from changefeed.sink.iceberg.shape import file_schema
from changefeed.sink.iceberg.tables import LakeTables, TableWriter
from integration_busy_catalogs import Busy, database, rest, sqlite
from integration_java import COMPILE_S, FETCH_S
from pyiceberg.table import Table
from test_integration_iceberg import read_in_java
from test_integration_iceberg_catalogs import rest_catalog

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
EACH = 200 if EVIDENCE else 2

pytestmark = pytest.mark.timeout(FETCH_S + COMPILE_S + (7200 if EVIDENCE else 240))

_KEY = {"Tp": SqlType.BIGINT, "Flag": FLAG_NOT_NULL | FLAG_PRI_KEY, "Flen": 20, "Decimal": 0}
_ID = {"id": 1, "name": {"O": "id"}, "offset": 0, "type": _KEY, "state": 5}
T = parse_table_info({"id": 101, "name": {"O": "t"}, "cols": [_ID], "pk_is_handle": True, "state": 5}, "shop")


@contextmanager
def rest_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    with rest_catalog(folder) as address, rest(address, folder, monkeypatch) as busy:
        yield busy


CATALOGS = {
    "sqlite": sqlite,
    "mariadb": partial(database, "mariadb"),
    "postgresql": partial(database, "postgresql"),
    "rest": rest_of,
}


def written(busy: Busy, number: int) -> tuple[PlanEntry, FileCommitted]:
    """Entry `number` of the table, whose file has the row of that id."""
    planned = PlanEntry.model_validate(
        {
            "entry": 0,
            "dispatcher": T.id,
            "table_id": T.id,
            "from": Position.end_of(number),
            "to": Position.end_of(number + 1),
            "output": {"path": f"shop/t-101/data/{number}.parquet"},
            "table_version": 5,
            "table_info": T.hash,
            "estimate": 1,
            "reason": "interval",
        }
    )
    rows = [{"_op": "I", "_commit_ts": number, "id": number}]
    path = Path(local_path(busy.endpoint.warehouse.uri, "warehouse")) / planned.output["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, file_schema(T, T.output_columns, upsert=False)), path)
    return planned, FileCommitted(plan=number, entry=0, rows=1, raw_rows=1, filtered_rows=0, bytes=1, hash="h")


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["id"]) for row in rows)


def driver_of(busy: Busy, table: TableInfo, slept: Callable[[float], None]) -> IcebergDriver:
    endpoint, writer = busy.endpoint, TableWriter("uid/origin", 1, lambda: None)
    tables = LakeTables(endpoint.open(), endpoint.catalog_uri, writer, Patience(900, slept))
    return IcebergDriver(endpoint, tables, upsert=False, there={table.id: (table, 5)})


def opened(table: Table, folder: Path) -> str:
    """A file with the table's metadata: a catalog that is in memory has its own for itself."""
    if Path(local_path(table.metadata_location, "warehouse")).exists():
        return table.metadata_location
    file = folder / "read.metadata.json"
    file.write_text(table.metadata.model_dump_json(exclude_none=True))
    return file.as_uri()


@pytest.mark.parametrize("catalog", CATALOGS)
def test_each_row_is_there_once_whatever_becomes_of_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: str
) -> None:
    with CATALOGS[catalog](tmp_path, monkeypatch) as busy:
        waits = Counter[str]()
        let_go: list[Callable[[], None]] = []
        kind = ""

        def slept(_: float) -> None:
            waits[kind] += 1
            if waits[kind] % 2 == 0 and let_go:
                let_go.pop()()

        sink = driver_of(busy, T, slept)
        sink.create()
        number = 0
        kinds = [*["lock held"] * EACH * (busy.hold is not None), *["cut"] * 2 * EACH * (busy.cut is not None)]
        for number, kind in enumerate(kinds, 1):
            planned, file = written(busy, number)
            if kind == "lock held" and busy.hold is not None:
                let_go.append(busy.hold())
            elif busy.cut is not None:
                busy.cut()
            sink.publish([planned], CommitRecord(n=number, epoch=1, nonce="n", checkpoint_ts=number, files=(file,)))
        sink.close()
        expected = {"lock held": 2 * kinds.count("lock held"), "cut": kinds.count("cut")}
        assert waits == Counter({each: count for each, count in expected.items() if count})
        table = busy.endpoint.open().load_table(("shop", "t"))
        there = list(range(1, number + 1))
        assert ids(table.scan().to_arrow().to_pylist()) == there
        if EVIDENCE or catalog == "sqlite":
            assert ids(list(read_in_java(opened(table, tmp_path)))) == there
    if EVIDENCE:
        said = {"catalog": catalog, "commits": len(kinds), "waits": waits, "rows": len(there), "missing": 0}
        with Path(EVIDENCE).open("a") as log:
            log.write(json.dumps(said) + "\n")
