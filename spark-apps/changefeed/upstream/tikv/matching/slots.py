"""Frames with a row for each slot, which is what a transaction does to a key in a registration: (reg, start_ts, key).

Slots are found by a hash of the three and then compared, so collisions are safe.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from changefeed.upstream.tikv.matching.decode import PUT
from changefeed.upstream.tikv.matching.pairs import Numbers, pairs

Flags = npt.NDArray[np.bool_]

SLOT = (pl.col("key").hash() ^ pl.col("start_ts").hash(1) ^ pl.col("reg").hash(2)).alias("slot")
_SLOT_COLUMNS = ["reg", "start_ts", "key"]

# Chunks of a quiet upstream have a handful of rows: then making a frame costs more than what is in it, and a frame's
# own `filter`, `concat` and `with_columns` (an optimized plan each) ten times as much as the same, column by column.


def only(frame: pl.DataFrame, flags: Flags) -> pl.DataFrame:
    """The rows whose flag is set; in a small chunk it is often all or none."""
    if flags.all():
        return frame
    if not flags.any():
        return frame.clear()
    mask = pl.Series(flags)
    return pl.DataFrame([column.filter(mask) for column in frame])


def without(frame: pl.DataFrame, rows: Numbers) -> pl.DataFrame:
    """The frame less the rows of these numbers."""
    kept = np.ones(frame.height, bool)
    kept[rows] = False
    return only(frame, kept)


def copied(frame: pl.DataFrame) -> pl.DataFrame:
    """The same rows, that hold no memory but their own."""
    return pl.DataFrame(frame.rechunk().to_arrow())


def same_slots(left: pl.DataFrame, right: pl.DataFrame) -> tuple[Numbers, Numbers]:
    """Row numbers of equal slots in both."""
    i, j = pairs(left["slot"].to_numpy(), right["slot"].to_numpy())
    if not len(i):
        return i, j
    both: Flags = (left["key"].gather(i) == right["key"].gather(j)).to_numpy()
    for name in ("start_ts", "reg"):
        both = both & (left[name].to_numpy()[i] == right[name].to_numpy()[j])
    return i[both], j[both]


def newest(copies: pl.DataFrame) -> pl.DataFrame:
    """One row for each slot of these prewrites, which stand in the order in which they came.

    `late`: it came after INITIALIZED. `scanned`: see rows.ROWS. Neither: it came before INITIALIZED, nobody can tell
    whether from the scan. The row that is given is the newest of its slot when `sure` says so, or `differs` does not
    say that two of them are not the same.

    A server may repeat a lock without its old value (docs/design/tikv.md, Matching). The row before the transaction is
    the same for all copies, so one without it has only left it out: taken at its word, it would turn a delete into a
    delete of nothing.
    """
    op, value, old_value = pl.col("op_type"), pl.col("value"), pl.col("old_value")
    is_told = pl.col("late").last() | pl.col("scanned").any()
    may_be_a_heartbeat = (op.last() == PUT) & (value.last() == b"")
    return (
        copies.sort(~pl.col("scanned"), maintain_order=True)  # what came live is newer than the scan's
        .group_by(_SLOT_COLUMNS, maintain_order=True)
        .agg(
            pl.exclude(*_SLOT_COLUMNS, "old_value").last(),
            old_value.filter(old_value != b"").first().fill_null(b""),
            sure=is_told & ~may_be_a_heartbeat,
            differs=((op != op.last()) | (value != value.last())).any(),
        )
    )
