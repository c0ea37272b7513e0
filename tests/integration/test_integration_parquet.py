"""Parquet from TiKV's events to files, and what readers of other makes find in them: DuckDB and Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from changefeed.errors import NeedsHuman
from integration_inprocess import World, new_world

DEADLINE_S = 300.0
#: Prints Spark's types and rows of the files below a folder.
SPARK = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
found = spark.read.parquet(sys.argv[1])
rows = [row.asDict(recursive=True) for row in found.orderBy("_commit_ts", "id").collect()]
print(json.dumps([found.dtypes, rows]))
spark.stop()
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


async def written(world: World, target: int, **storage: Any) -> Path:
    """The folder of the only version's data."""
    sink = {"storage": {"uri": world.lake.as_uri(), "flushInterval": "100ms", "dateSeparator": "none"} | storage}
    outcome = await world.run(targetTs=str(target), sink=sink).outcome()
    assert (outcome.state, outcome.checkpoint_ts) == ("finished", target)
    folder = world.lake / "shop" / "orders" / str(world.start_ts)
    names = sorted(path.name for path in folder.glob("CDC0*"))
    assert (folder / "meta" / "CDC.index").read_text() == f"{names[-1]}\n"
    return folder


def read_by_spark(folder: Path) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """(names and types, rows)."""
    done = subprocess.run(
        [sys.executable, "-c", SPARK, str(folder / "*.parquet")],
        capture_output=True, text=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip
    types, rows = json.loads(done.stdout)
    return types, rows


async def test_duckdb_and_spark_read_the_changes(world: World) -> None:
    world.insert(range(1, 3))
    with world.tidb.begin() as txn:
        txn.update(world.orders, {"id": 1, "name": "né"})
    with world.tidb.begin() as txn:
        txn.delete(world.orders, 2)
    folder = await written(world, txn.commit_ts, protocol="parquet", parquet={"oldValues": True})
    order_1, order_2 = {"id": 1, "name": "order 1"}, {"id": 2, "name": "order 2"}
    wanted = [
        {"_op": "I", **order_1, "_old": None},
        {"_op": "I", **order_2, "_old": None},
        {"_op": "U", "id": 1, "name": "né", "_old": order_1},
        {"_op": "D", **order_2, "_old": None},
    ]
    by_duckdb = duckdb.sql(f"SELECT * FROM '{folder}/*.parquet' ORDER BY _commit_ts, id").to_arrow_table().to_pylist()
    assert by_duckdb[-1]["_commit_ts"] == txn.commit_ts
    types, by_spark = read_by_spark(folder)
    row = "struct<id:bigint,name:string>"
    assert types == [["_op", "string"], ["_commit_ts", "bigint"], ["id", "bigint"], ["name", "string"], ["_old", row]]
    assert by_spark == by_duckdb
    assert [{name: row[name] for name in row if name != "_commit_ts"} for row in by_duckdb] == wanted
    assert all(record["codec"].startswith("parquet-2 ") for record in world.records("plan"))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_duckdb_reads_compressed_csv(world: World, compression: str) -> None:
    target = world.insert(range(1, 2000))
    folder = await written(world, target, protocol="csv", compression=compression)
    suffix = {"gzip": "gz", "zstd": "zst"}[compression]
    found = duckdb.sql(f"SELECT column3, column4 FROM read_csv('{folder}/CDC*.csv.{suffix}', header=false)").fetchall()
    assert sorted(found) == [(n, f"order {n}") for n in range(1, 2000)]


async def test_text_that_is_not_utf8_stops_the_changefeed(world: World) -> None:
    with world.tidb.begin() as txn:
        txn.insert(world.orders, {"id": 1, "name": "a\udcff"})
    sink = {"storage": {"uri": world.lake.as_uri(), "flushInterval": "100ms", "protocol": "parquet"}}
    with pytest.raises(NeedsHuman, match=r"table shop\.orders, column name: the value b'a\\xff'.*columnSelectors"):
        await world.run(targetTs=str(txn.commit_ts), sink=sink).outcome()
    assert not list(world.lake.rglob("CDC0*"))
