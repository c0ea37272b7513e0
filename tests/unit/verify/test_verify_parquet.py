"""Verify of parquet and of compressed text: a right sink holds, and what is wrong with one is found and named."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from changefeed.reading.failures import Break
from changefeed.reading.rows import contents, parquet
from changefeed.reading.rows.formats import Format
from changefeed.reading.rows.lines import LineShape
from changefeed.verify.storage.report import verify
from verify_harm import ITEMS
from verify_sink import Shop, parquet_of, write_sink, zstd

PARQUET = {"protocol": "parquet"}


@pytest.mark.parametrize(
    "options",
    [
        PARQUET,
        PARQUET | {"parquet": {"oldValues": True}},
        PARQUET | {"outputRawChangeEvent": True},
        {"compression": "gzip"},
        {"compression": "zstd", "csv": {"outputFieldHeader": True}},
        {"protocol": "canal-json", "compression": "gzip"},
        {"protocol": "canal-json", "compression": "zstd"},
    ],
    ids=str,
)
async def test_a_right_sink_holds(shop: Shop, tmp_path: Path, options: dict[str, Any]) -> None:
    result = await verify(write_sink(tmp_path, shop, **options).uri, shop.pd, "amount")
    assert result.first_problem is None
    assert result.ok
    assert (result.tables, result.files, result.transactions) == (2, 8, 4)
    assert result.rows == 15 - 1 * options.get("outputRawChangeEvent", False)
    assert result.replayed == 8 + 3
    assert result.conserved == "107.5"
    assert result.notes == []


def replaced(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values)


#: What is done to a file's rows, and what is said of it.
HARMS: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "a row is missing": (lambda rows: rows.slice(1), "A change of shop.items is in no file"),
    "a row is there twice": (lambda rows: pa.concat_tables([rows, rows.slice(len(rows) - 1)]), "appears again"),
    "another value": (
        lambda rows: replaced(rows, "note", pc.replace_substring(rows["note"], "say", "said")),
        "the upstream has no such change to shop.items",
    ),
    "another commit ts": (
        lambda rows: replaced(rows, "_commit_ts", pc.add(rows["_commit_ts"], 1)),
        "the upstream has no such change to shop.items",
    ),
    "an op that is none": (lambda rows: replaced(rows, "_op", pa.array(["X"] * len(rows))), "_op is none of I, U, D"),
    "no op": (lambda rows: replaced(rows, "_op", pa.nulls(len(rows), pa.string())), "_op is none of I, U, D"),
    "another type": (
        lambda rows: replaced(rows, "code", rows["code"].cast(pa.string())),
        "column code: it has type string",
    ),
    "a column is missing": (lambda rows: rows.drop_columns(["note"]), "does not have the columns of its table"),
    "columns in another order": (
        lambda rows: rows.select(["_op", "_commit_ts", "code", "id", "note", "amount", "_old"]),
        "does not have the columns of its table",
    ),
    "an old row of an insert": (
        lambda rows: replaced(
            rows,
            "_old",
            pa.array([{"id": 1, "code": 1, "note": None, "amount": None}] * len(rows), rows.schema.field("_old").type),
        ),
        "_old is not where updates are",
    ),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
async def test_harm_is_found_and_named(
    shop: Shop, tmp_path: Path, harm: tuple[Callable[[pa.Table], pa.Table], str]
) -> None:
    sink = write_sink(tmp_path, shop, **PARQUET, parquet={"oldValues": True})
    change, said = harm
    file = sink.file(ITEMS, 0)
    file.write_bytes(parquet_of(change(pq.read_table(io.BytesIO(file.read_bytes())))))
    result = await verify(sink.uri, shop.pd)
    assert result.first_problem is not None
    assert said in result.first_problem


@pytest.mark.parametrize("options", [PARQUET, {"compression": "gzip"}, {"compression": "zstd"}], ids=str)
async def test_a_file_that_is_cut_off_is_named(shop: Shop, tmp_path: Path, options: dict[str, Any]) -> None:
    sink = write_sink(tmp_path, shop, **options)
    file = sink.file(ITEMS, 0)
    file.write_bytes(file.read_bytes()[:-20])
    result = await verify(sink.uri, shop.pd)
    assert result.first_problem is not None
    assert sink.name(file) in result.first_problem


def test_typed_cells_are_what_text_files_have() -> None:
    given = {
        "d": pa.array([Decimal("-0.0000000001"), Decimal("1.5"), None], pa.decimal128(38, 10)),
        "u": pa.array([(1 << 64) - 1, 0, None], pa.uint64()).cast(pa.decimal128(20, 0)),
        "day": pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
        "at": pa.array([datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 120000), None], pa.timestamp("us")),
        "ts": pa.array([datetime(2038, 1, 19, 3, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
        "b": pa.array([b"\xff", b"", None]),
    }
    shape = LineShape(
        list(given), [pa.string(), pa.uint64(), pa.string(), pa.string(), pa.string(), pa.binary()], [10, 0, 0, 2, 0, 0]
    )
    meta = {"_op": pa.array(["I"] * 3), "_commit_ts": pa.array([7, 7, 8])}
    body = parquet_of(pa.table(meta | given))
    (piece,) = parquet.read_rows(body, "s/t/1/CDC1.parquet", shape)
    assert [list(row.values()) for row in piece.to_pylist()] == [
        ["I", "t", "s", 7, "-0.0000000001", (1 << 64) - 1, "0001-01-01", "0001-01-01 00:00:00.00",
         "2038-01-19 03:00:00", b"\xff"],
        ["I", "t", "s", 7, "1.5000000000", 0, "9999-12-31", "9999-12-31 23:59:59.12", None, b""],
        ["I", "t", "s", 8, None, None, None, None, None, None],
    ]  # fmt: skip
    assert parquet.lowest_ts(body, "f") == 7
    wrong = LineShape(shape.names, shape.types, [10, 0, 0, 1, 0, 0])
    with pytest.raises(Break, match="column at: a time has more than 1 digits"):
        list(parquet.read_rows(body, "s/t/1/CDC1.parquet", wrong))


def test_what_parquet_shows_is_not_what_text_does() -> None:
    """Names of ENUM and SET, and TIMESTAMP in UTC."""
    csv = {"delimiter": ",", "quote": '"', "null": "", "outputFieldHeader": False, "binaryEncodingMethod": "hex"}
    storage = {"protocol": "parquet", "csv": csv, "terminator": "\n", "outputRawChangeEvent": False}
    found = Format.of({"timeZone": "Asia/Shanghai", "sink": {"storage": storage}})
    assert (found.choice, found.time_zone, found.compression) == ("text", "UTC", "none")


def test_the_lowest_ts_of_compressed_text(shop: Shop, tmp_path: Path) -> None:
    sink = write_sink(tmp_path, shop)
    file = sink.file(ITEMS, 0)
    text = file.read_bytes()
    fmt = Format("csv", ",", '"', "\\N", "\r\n", False, "base64", True, "UTC", compression="zstd")
    assert contents.lowest_ts(zstd(text), "f", fmt) == int(text.split(b",")[3])
