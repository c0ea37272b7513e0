"""What readers of a Delta table leave out files by is never narrower than a file's values."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changefeed.sink.delta.stats import file_stats


def stats_of(kind: pa.DataType, *values: Any) -> tuple[Any, Any, int]:
    """The bounds and the nulls of a file with these values, a row group for each."""
    out = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array(values, kind)}), out, row_group_size=1)
    said = json.loads(file_stats(pq.read_metadata(out)))
    assert said["numRecords"] == len(values)
    return said["minValues"].get("a"), said["maxValues"].get("a"), said["nullCount"]["a"]


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (pa.int64(), (3, None, -(2**63)), (-(2**63), 3, 1)),
        (pa.int32(), (None,), (None, None, 1)),
        (pa.string(), ("b", "a"), ("a", "b", 0)),
        (pa.string(), ("b", "a" * 33), (None, None, 0)),
        (pa.date32(), (date(2026, 1, 2), date(1, 1, 1)), ("0001-01-01", "2026-01-02", 0)),
        (
            pa.timestamp("us"),
            (datetime(2026, 1, 2, 3, 4, 5, 999_999), datetime(2026, 1, 2)),
            ("2026-01-02T00:00:00.000", "2026-01-02T03:04:06.000", 0),
        ),
        (
            pa.timestamp("us", "UTC"),
            (datetime(2026, 1, 2, 3, 4, 5, 1, tzinfo=UTC),),
            ("2026-01-02T03:04:05.000Z", "2026-01-02T03:04:05.001Z", 0),
        ),
        (pa.timestamp("us"), (datetime(9999, 12, 31, 23, 59, 59, 999_999),), (None, None, 0)),
        (pa.float64(), (1.5,), (None, None, 0)),
        (pa.decimal128(20, 0), (Decimal(2**64 - 1),), (None, None, 0)),
        (pa.binary(), (b"x",), (None, None, 0)),
    ],
)
def test_bounds_are_those_of_all_row_groups(kind: pa.DataType, values: tuple[Any, ...], said: tuple[Any, ...]) -> None:
    assert stats_of(kind, *values) == said
