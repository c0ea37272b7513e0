"""Whole runs into Delta tables: with DDLs, with verify, on a disk and on S3, read by Spark with Delta's own library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed.cli.main import main
from conftest import Changefeed, Upstream
from deltalake import DeltaTable, write_deltalake
from integration_delta import LEFT, Rows, by_delta_rs, by_polars, sink
from integration_java import FETCH_S
from integration_s3_servers import KEY, KEY_ID, S3Server, write_secret
from integration_spark_sql import START_S, SparkSql, delta_running
from test_integration_iceberg import rows_of, shown, with_ddls, write

MODES = pytest.mark.parametrize("mode", ["append", "upsert"])


def verified(changefeed: Changefeed, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["verify", "-f", str(changefeed.file), "--json"])
    return code, json.loads(capsys.readouterr().out)


@MODES
def test_tables_are_the_upstreams_through_ddls(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["sink"] = sink(changefeed.folder, mode)
    left = with_ddls(upstream, changefeed)
    assert changefeed.run_here() == 0
    for name in ("things", "items") if mode == "append" else left:  # a changelog keeps rows from before TRUNCATE
        for read in (by_delta_rs, by_polars):
            rows = read(changefeed.folder, f"shop/{name}")
            assert shown(LEFT[mode](rows, "id")) == rows_of(upstream, left[name])
    code, verdict = verified(changefeed, capsys)
    assert (code, verdict["tables"], verdict["rows"], verdict["notes"]) == (0, 3, 27, []), verdict

    table = DeltaTable(str(changefeed.folder / "lake" / "shop" / "items"))
    if mode == "append":
        one = by_delta_rs(changefeed.folder, "shop/items")[0]
        again(table, one)
        code, verdict = verified(changefeed, capsys)
        assert (code, "1 changes appear twice" in verdict["first_problem"]) == (4, True), verdict
    else:
        table.delete("id = 105")
        code, verdict = verified(changefeed, capsys)
        assert (code, verdict["surplus"], verdict["missing"]) == (4, 0, 1), verdict


def again(table: DeltaTable, row: dict[str, Any]) -> None:
    """The row a second time, as somebody else's."""
    write_deltalake(table, pa.Table.from_pylist([row], schema=pa.schema(table.schema())), mode="append")


def by_spark(spark: SparkSql, folder: Path, table: str) -> Rows:
    """By Delta's own library. Rows of text, as both sides are shown."""
    path = f"delta.`{folder / 'lake' / table}`"
    names = [name for name, *_ in spark(f"DESCRIBE {path}") if name and not name.startswith("#")]
    rows = [dict(zip(names, row, strict=True)) for row in spark(f"SELECT * FROM {path}")]
    return [{name: str(value) if name != "_commit_ts" else value for name, value in row.items()} for row in rows]


@pytest.mark.timeout(FETCH_S + START_S + 240)
@MODES
def test_deltas_own_library_reads_and_maintains_the_tables(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    """What it does between two runs is survived: OPTIMIZE, VACUUM, a checkpoint of the log, a table of its own."""
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["sink"] = sink(changefeed.folder, mode)
    left = with_ddls(upstream, changefeed)
    assert changefeed.run_here() == 0
    lake = changefeed.folder / "lake" / "shop"
    with delta_running(changefeed.folder) as spark:
        for name in ("things", "items"):
            rows = by_spark(spark, changefeed.folder, f"shop/{name}")
            assert shown(LEFT[mode](rows, "id")) == {
                str(key): row for key, row in rows_of(upstream, left[name]).items()
            }
            spark(f"OPTIMIZE delta.`{lake / name}`")
            spark(f"VACUUM delta.`{lake / name}` RETAIN 0 HOURS")
        spark(f"CREATE TABLE delta.`{lake / 'mine'}` USING delta AS SELECT 1 AS id")
        write(upstream, left["items"], 200)
        changefeed.spec["targetTs"] = str(upstream.tidb.now())
        assert changefeed.run_here() == 0
        rows = by_spark(spark, changefeed.folder, "shop/items")
        assert len(LEFT[mode](rows, "id")) == len(rows_of(upstream, left["items"]))
    code, verdict = verified(changefeed, capsys)
    assert (code, verdict["tables"], verdict["rows"]) == (0, 3, 36), verdict


@pytest.mark.timeout(FETCH_S + 120)
@MODES
def test_tables_in_a_bucket(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], server: S3Server, mode: str
) -> None:
    """Commits are conditional PUTs. A wrong key is told apart from a server that is away."""
    changefeed = new_changefeed(["shop.*"])
    secrets = changefeed.folder / "secrets"
    write_secret(secrets, "bucket")
    changefeed.spec["sink"] = sink(changefeed.folder, mode)
    changefeed.spec["sink"]["delta"] |= {
        "uri": server.uri("tables"),
        "credentials": {"secretRef": {"name": "bucket"}},
    }
    changefeed.options = ["--secrets-dir", str(secrets)]
    left = with_ddls(upstream, changefeed)
    assert changefeed.run_here() == 0
    options = {
        "aws_endpoint": server.endpoint,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": KEY,
    }
    for name in ("things", "items"):
        found = DeltaTable(f"s3://lake/tables/shop/{name}", storage_options=options)
        rows = pa.table(pa.RecordBatchReader.from_stream(found.scan())).to_pylist()
        assert shown(LEFT[mode](rows, "id")) == rows_of(upstream, left[name])
    assert main(["verify", "-f", str(changefeed.file), *changefeed.options]) == 0
