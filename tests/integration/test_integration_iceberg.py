"""Whole runs into Iceberg tables: with DDLs, with verify, and read by Iceberg's own library."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from changefeed.cli.main import main
from changefeed_devcluster.ddl import tables
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from conftest import Changefeed, Upstream
from integration_iceberg import catalog_of, changelog, replayed, sink, state
from integration_java import FETCH_S, checked, jars, java_tool

COLUMNS = (
    NewColumn("id", "bigint"),
    NewColumn("note", "varchar(40)", nullable=True),
    NewColumn("amount", "decimal(10,2)"),
)
RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
READER = Path(__file__).parent / "support" / "iceberg" / "ReadTable.java"


def write(upstream: Upstream, table: NamedTable, first: int) -> None:
    """Ten rows, of which some are changed and some deleted, one by its key."""
    tidb = upstream.tidb
    with tidb.begin() as txn:
        for number in range(first, first + 10):
            txn.insert(table, {"id": number, "note": None if number % 3 else f"n{number}", "amount": f"{number}.50"})
    with tidb.begin() as txn:
        txn.update(table, {"id": first, "note": "new"})
        txn.delete(table, first + 1)


def with_ddls(upstream: Upstream, changefeed: Changefeed) -> dict[str, NamedTable]:
    """A history with DDLs; the tables that are left. The changefeed ends behind it."""
    tidb = upstream.tidb
    shop = tidb.create_database("shop")
    items = tidb.create_table("shop", "items", COLUMNS)
    doomed = tidb.create_table("shop", "doomed", COLUMNS)
    emptied = tidb.create_table("shop", "emptied", COLUMNS)
    changefeed.spec["startTs"] = str(tidb.now())
    for table in (items, doomed, emptied):
        write(upstream, table, 0)
    items = tidb.add_column(items, NewColumn("more", "int", nullable=True))
    with tidb.begin() as txn:
        txn.update(items, {"id": 5, "more": 55})
    tidb.drop_table(doomed)
    emptied = tidb.truncate_table(emptied)
    write(upstream, emptied, 20)
    items = tables.rename_table(tidb, items, shop, "things")
    write(upstream, tidb.create_table("shop", "items", COLUMNS), 100)
    changefeed.spec["targetTs"] = str(tidb.now())
    return {"things": items, "emptied": emptied, "items": tidb.tables["shop.items"]}


def rows_of(upstream: Upstream, table: NamedTable) -> dict[Any, dict[str, Any]]:
    names = [column.name for column in table.info.columns]
    rows = upstream.tidb.snapshot(table, upstream.tidb.now()).values()
    return {row["id"]: {name: str(row[name]) for name in names} for row in rows}


def shown(rows: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {key: {name: str(value) for name, value in row.items()} for key, row in rows.items()}


def verified(changefeed: Changefeed, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["verify", "-f", str(changefeed.file), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_changelog_has_each_change_once_through_ddls(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], capsys: pytest.CaptureFixture[str]
) -> None:
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["sink"] = sink(changefeed.folder, "append")
    left = with_ddls(upstream, changefeed)
    assert changefeed.run_here() == 0
    catalog = catalog_of(changefeed.folder)
    assert sorted(name for _, name in catalog.list_tables("shop")) == sorted(left)
    assert shown(replayed(catalog.load_table("shop.things"), "id")) == rows_of(upstream, left["things"])
    emptied = catalog.load_table("shop.emptied")
    truncated_ts = int(emptied.properties["changefeed.truncated-ts"])
    assert [row["_op"] for row in changelog(emptied) if row["_commit_ts"] > truncated_ts] == ["I"] * 10 + ["D", "U"]
    code, verdict = verified(changefeed, capsys)
    assert (code, verdict["tables"], verdict["rows"], verdict["notes"]) == (0, 3, 27, []), verdict

    things = catalog.load_table("shop.things")
    things.append(things.scan(row_filter="id == 5").to_arrow())
    code, verdict = verified(changefeed, capsys)
    assert (code, "2 changes appear twice" in verdict["first_problem"]) == (4, True), verdict


def test_a_state_is_the_upstreams_through_ddls(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], capsys: pytest.CaptureFixture[str]
) -> None:
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["sink"] = sink(changefeed.folder, "upsert")
    left = with_ddls(upstream, changefeed)
    assert changefeed.run_here() == 0
    catalog = catalog_of(changefeed.folder)
    for name in ("emptied", "items"):
        assert shown(state(catalog.load_table(f"shop.{name}"), "id")) == rows_of(upstream, left[name])
    code, verdict = verified(changefeed, capsys)
    assert (code, verdict["tables"], verdict["rows"], verdict["notes"]) == (0, 3, 27, []), verdict

    table = catalog.load_table("shop.items")
    again = {"id": 102, "note": "twice", "amount": Decimal("1.00")}
    table.append(pa.Table.from_pylist([again], schema=table.schema().as_arrow()))
    code, verdict = verified(changefeed, capsys)
    assert (code, verdict["surplus"], verdict["missing"]) == (4, 1, 0), verdict


def read_in_java(metadata: str) -> list[dict[str, str]]:
    """By Iceberg's own library, which knows nothing of pyiceberg. Hadoop, which it reads files with, is Spark's."""
    libraries = f"{jars('iceberg-1.12.0', RUNTIME)}/*{os.pathsep}{Path(pyspark.__file__).parent}/jars/*"
    out = checked([java_tool("java"), "-cp", libraries, str(READER), metadata], "reading a table", 150.0).decode()
    rows = [line.split("\x1e")[1:] for line in out.split("\n") if line.startswith("ROW")]
    return [dict(cell.split("\x1f") for cell in row) for row in rows]


@pytest.mark.timeout(FETCH_S + 180)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_icebergs_own_library_reads_the_tables(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], mode: str
) -> None:
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["sink"] = sink(changefeed.folder, mode)
    left = with_ddls(upstream, changefeed)
    assert changefeed.run_here() == 0
    catalog = catalog_of(changefeed.folder)
    for name in ("things", "items"):
        rows = read_in_java(catalog.load_table(("shop", name)).metadata_location)
        if mode == "append":
            rows.sort(key=lambda row: (int(row["_commit_ts"]), row["_op"] != "D"))
            last = {row["id"]: row for row in rows}
            rows = [
                {key: value for key, value in row.items() if key[0] != "_"}
                for row in last.values()
                if row["_op"] != "D"
            ]
        found = {int(row["id"]): {key: as_python(value) for key, value in row.items()} for row in rows}
        assert found == rows_of(upstream, left[name])


def as_python(shown: str) -> str:
    return "None" if shown == "null" else shown
