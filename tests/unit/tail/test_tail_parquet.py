"""Cells of Parquet files as `changefeed tail` prints them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changefeed.reading.failures import Break
from changefeed.tail.parquet import read_rows

CELLS = {
    "whole": (pa.array([7, None], pa.int32()), "7"),
    "float": (pa.array([0.5, None], pa.float64()), "0.5"),
    "small": (pa.array([Decimal("0.0000001"), None], pa.decimal128(20, 7)), "0.0000001"),
    "day": (pa.array([date(2024, 2, 29), None]), "2024-02-29"),
    "clock": (pa.array([datetime(1, 1, 1), None], pa.timestamp("us")), "0001-01-01 00:00:00.000000"),
    "moment": (
        pa.array([datetime(2024, 7, 1, 22, 30, 0, 5000, UTC), None], pa.timestamp("us", "UTC")),
        "2024-07-01 22:30:00.005000",
    ),
    "text": (pa.array(['say "hi"\0', None]), 'say "hi"\0'),
    "bytes": (pa.array([b"\xff\0", None]), "/wA="),
}


def file_of(columns: dict[str, pa.Array]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


def test_each_type_has_a_text() -> None:
    before = pa.array([None, {"whole": 6}], pa.struct({"whole": pa.int32()}))
    body = file_of(
        {"_op": pa.array(["I", "U"]), "_commit_ts": pa.array([5, 6])}
        | {name: values for name, (values, _) in CELLS.items()}
        | {"_old": before}
    )
    texts = {name: text for name, (_, text) in CELLS.items()}
    assert list(read_rows(body, "a/b")) == [(5, "I", texts), (6, "U", dict.fromkeys(CELLS))]


@pytest.mark.parametrize("body", [b"", b"PAR1", file_of({"_op": pa.array(["I"])})])
def test_what_is_no_file_of_rows_is_named(body: bytes) -> None:
    with pytest.raises(Break, match="a/b can't be decoded"):
        list(read_rows(body, "a/b"))
