"""What goes into the matcher and what comes out of it: the columns of both, and the way from the one to the other."""

from __future__ import annotations

import numpy as np
import polars as pl

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.upstream.tikv.matching.decode import DELETE
from changefeed.upstream.tikv.matching.slots import Flags, only

#: What the matcher takes: the rows of decode.Decoded with the registration that each belongs to. `scanned`: it came in
#: the Event that ends in INITIALIZED, which brings nothing but rows of the scan.
ROWS = pl.Schema(
    {
        "start_ts": pl.UInt64,
        "commit_ts": pl.UInt64,
        "type": pl.Int32,
        "op_type": pl.Int32,
        "key": pl.Binary,
        "value": pl.Binary,
        "old_value": pl.Binary,
        "txn_source": pl.UInt64,
        "reg": pl.Int64,
        "scanned": pl.Boolean,
    }
)
#: What it gives: `model.rows.RAW_SCHEMA` with the registration in the place of the span.
COMMITTED_ROWS = pl.Schema(
    {
        "reg": pl.Int64,
        "commit_ts": pl.UInt64,
        "start_ts": pl.UInt64,
        "op": pl.UInt8,
        "key": pl.Binary,
        "value": pl.Binary,
        "old_value": pl.Binary,
        "txn_source": pl.UInt64,
    }
)
NO_COMMITTED_ROWS = pl.DataFrame(schema=COMMITTED_ROWS)
_NO_VALUE, _EMPTY = pl.Series([None], dtype=pl.Binary), pl.Series([b""])


def shape(rows: pl.DataFrame) -> pl.DataFrame:
    """COMMITTED_ROWS of rows with their commit_ts. An empty old value says that there was no row before."""
    if not rows.height:
        return NO_COMMITTED_ROWS
    old_value = rows["old_value"]
    inserted = (old_value == _EMPTY).to_numpy()
    op = np.where(rows["op_type"].to_numpy() == DELETE, OP_DELETE, np.where(inserted, OP_INSERT, OP_UPDATE))
    return rows[COMMITTED_ROWS.names()[:3]].hstack(
        [
            pl.Series("op", op, pl.UInt8),
            *rows[["key", "value"]],
            old_value.zip_with(pl.Series(~inserted), _NO_VALUE),
            rows["txn_source"],
        ]
    )


def changes(rows: pl.DataFrame) -> pl.DataFrame:
    """A delete of what did not exist changes nothing (docs/design/tikv.md, Rows)."""
    deletes: Flags = rows["op"].to_numpy() == OP_DELETE
    return only(rows, ~deletes | rows["old_value"].is_not_null().to_numpy()) if deletes.any() else rows
