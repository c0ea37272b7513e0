"""Whole runs into Delta tables: with DDLs, with verify, on a disk and on S3, read by Spark with Delta's own library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from conftest import Changefeed, Upstream
from deltalake import DeltaTable
from integration_delta import LEFT, by_delta_rs, by_polars, sink
from test_integration_iceberg import rows_of, shown, with_ddls

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
        again(table, changefeed.folder / "again.parquet", one)
        code, verdict = verified(changefeed, capsys)
        assert (code, "1 changes appear twice" in verdict["first_problem"]) == (4, True), verdict
    else:
        table.delete("id = 105")
        code, verdict = verified(changefeed, capsys)
        assert (code, verdict["surplus"], verdict["missing"]) == (4, 0, 1), verdict


def again(table: DeltaTable, _: Path, row: dict[str, Any]) -> None:
    """The row a second time, as somebody else's."""
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(table, pa.Table.from_pylist([row], schema=pa.schema(table.schema())), mode="append")
