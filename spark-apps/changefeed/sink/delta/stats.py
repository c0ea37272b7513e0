"""What a table's log says of a data file, from its footer: readers leave out files by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_LONGEST = 32  # characters of a bound: Delta's own writers cut there
_MILLISECOND = timedelta(milliseconds=1)


def file_stats(footer: pq.FileMetaData) -> str:
    """JSON of `numRecords`, `nullCount`, `minValues`, `maxValues`; of columns without bounds that all readers agree on
    (floats, decimals, bytes, long text) no bounds.
    """
    schema = footer.schema.to_arrow_schema()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number, field in enumerate(schema):
        found = [group.column(number).statistics for group in groups]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[field.name] = sum(each.null_count for each in found)
        bounded = [each for each in found if each.num_values]
        if not bounded or not all(each.has_min_max for each in bounded):
            continue
        bounds = _bounds(field.type, [(each.min, each.max) for each in bounded])
        if bounds is not None:
            least[field.name], greatest[field.name] = bounds
    said = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(said)


def _bounds(kind: pa.DataType, found: Iterable[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    lows, highs = zip(*found, strict=True)
    low, high = min(lows), max(highs)
    shown = _SHOWN.get(kind)
    if shown is None or (isinstance(high, str) and max(len(low), len(high)) > _LONGEST):
        return None
    try:
        return shown(low), shown(high + _MILLISECOND if isinstance(high, datetime) else high)
    except OverflowError:  # the last millisecond that there is
        return None


def _moment(value: datetime) -> str:
    """With milliseconds, cut: the upper bound is a millisecond above."""
    zone = "" if value.tzinfo is None else "Z"
    value = value if value.tzinfo is None else value.astimezone(UTC)
    return f"{value.replace(tzinfo=None).isoformat(timespec='milliseconds')}{zone}"


def _day(value: date) -> str:
    return value.isoformat()


def _same(value: Any) -> Any:
    return value


_SHOWN: Mapping[pa.DataType, Callable[[Any], Any]] = {
    pa.int32(): _same,
    pa.int64(): _same,
    pa.string(): _same,
    pa.date32(): _day,
    pa.timestamp("us"): _moment,
    pa.timestamp("us", "UTC"): _moment,
}
