"""Entries of a small table, for tests of what is between a pipeline task and a downstream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from changefeed.model.position import OP_INSERT
from changefeed.sink.contract import Claim, Entry, EntryId
from changefeed.sink.records import Records
from sink_mysql_changes import ITEMS


def entry_of(dispatcher: int = 7, number: int = 0, upto: int = 10, writer: int = 1) -> Entry:
    claim = Claim("shop/feed", dispatcher, 1, "run", writer)
    return Entry(claim, EntryId(3, number), upto, {}, ITEMS, 1, ITEMS.output_columns, 0, "UTC", {})


def records(*commit_ts: int) -> Records:
    """A row of each."""
    ts: Sequence[int] = commit_ts
    stamps, rows = pa.array(ts, pa.uint64()), len(ts)
    columns = [pa.array(ts, pa.int64()), pa.nulls(rows, pa.string()), pa.nulls(rows, pa.int64())]
    ops = np.full(rows, OP_INSERT, np.uint8)
    return Records(ITEMS, ops, np.zeros(rows, np.bool_), stamps, columns, columns, None, stamps)
