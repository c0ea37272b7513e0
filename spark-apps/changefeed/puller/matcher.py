"""From prewrites and commits to committed rows, by transaction (source design 2, tikv-wire 2.6, 2.7, rule 18).

The matcher sees a chunk of rows as a set: what a chunk holds is matched by a few joins, never row by row. This is right
because of what TiKV promises: all prewrites of a transaction in a region stand before its first commit there, and a
`(start_ts, key)` is prewritten, then committed or rolled back, once. Order inside a chunk matters in two places only,
where row numbers are compared: what came before INITIALIZED, and a rollback with a later prewrite of the same key.

A pure object, without lock: one thread at a time. It must never hand out a row twice in one registration, a row that
may still be rolled back, or any row of a registration that has broken the protocol in the same chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.puller.decode import COMMIT, COMMITTED, DELETE, INITIALIZED, PREWRITE, PUT, ROLLBACK

#: What `feed` takes: the rows of decode.Decoded with the registration that each belongs to.
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
        "generation": pl.UInt64,
        "reg": pl.Int64,
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
_KEPT = pl.Schema([*ROWS.items(), ("slot", pl.UInt64())])
_MOVED = pl.Schema({name: _KEPT[name] for name in ("reg", "start_ts", "key", "slot")})
_FATES = pl.Schema({"reg": pl.Int64, "start_ts": pl.UInt64, "commit_ts": pl.UInt64})


@dataclass(frozen=True)
class Matched:
    rows: pl.DataFrame  # COMMITTED_ROWS
    initialized: list[int]  # registrations whose scan ended in this chunk
    violations: dict[int, str]  # registration -> what it did; it is closed


class Matcher:
    """The uncommitted rows of all registrations of one stream. A registration is a small number, given once."""

    def __init__(self) -> None:
        self._floor = np.zeros(64, np.uint64)
        self._resolved = np.zeros(64, np.uint64)
        self._initialized = np.zeros(64, bool)
        self._open = np.zeros(64, bool)
        self._next = 0
        self._closed_any = False
        self._early: list[pl.DataFrame] = []  # rows of registrations that are not initialized
        self._pending = pl.DataFrame(schema=_KEPT)  # prewrites whose transaction is undecided
        self._fates = pl.DataFrame(
            schema=_FATES
        )  # transactions whose commit ts is known, above the region's resolved-ts
        self._moved = pl.DataFrame(schema=_MOVED)  # handed out before their own COMMIT was seen

    def open(self, floor_ts: int, resolved_ts: int) -> int:
        """A new registration. Rows with commit_ts <= floor_ts are none of its subscription's and are dropped."""
        reg, self._next = self._next, self._next + 1
        if reg == len(self._open):
            for name in ("_floor", "_resolved", "_initialized", "_open"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self._floor[reg], self._resolved[reg], self._open[reg] = floor_ts, resolved_ts, True
        return reg

    def close(self, reg: int) -> None:
        """Forget a registration with all its rows."""
        self._open[reg] = False
        self._closed_any = True

    def advance(self, reg: int, resolved_ts: int) -> bool:
        """Whether the region's resolved-ts went up; one that is late, repeated or before INITIALIZED does not count."""
        if not (self._open[reg] and self._initialized[reg]) or resolved_ts <= int(self._resolved[reg]):
            return False
        self._resolved[reg] = resolved_ts
        return True

    @property
    def uncommitted_rows(self) -> int:
        self._forget_closed()
        return self._pending.height + sum(frame.height for frame in self._early)

    def feed(self, rows: pl.DataFrame) -> Matched:
        """Rows (ROWS) of open registrations, in the order of the wire."""
        self._forget_closed()
        if rows.is_empty():
            return Matched(pl.DataFrame(schema=COMMITTED_ROWS), [], {})
        initialized, current = self._admit(rows)
        committed = rows.filter(pl.col("type") == COMMITTED)
        moved, unmatched = self._match(current, committed)
        out = pl.concat([_shape(rows) for rows in (moved, committed) if rows.height] or [_shape(moved)])
        regs = out["reg"].to_numpy()
        commit_ts = out["commit_ts"].to_numpy()
        wanted = commit_ts > self._floor[regs]
        late = wanted & (commit_ts <= self._resolved[regs])
        violations = _late_rows(out.filter(late)) | _missing_prewrites(unmatched)
        for reg in violations:
            self.close(reg)
        # A delete of what did not exist changes nothing (tikv-wire 2.5).
        real = (pl.col("op") != OP_DELETE) | pl.col("old_value").is_not_null()
        out = out.filter(pl.Series(wanted & self._open[regs]), real)
        return Matched(out, [reg for reg in initialized if reg not in violations], violations)

    def _forget_closed(self) -> None:
        if not self._closed_any:
            return
        self._closed_any = False
        self._early = [frame.filter(_where(self._open, frame)) for frame in self._early]
        for name in ("_pending", "_fates", "_moved"):
            frame = getattr(self, name)
            setattr(self, name, frame.filter(_where(self._open, frame)))

    def _admit(self, rows: pl.DataFrame) -> tuple[list[int], pl.DataFrame]:
        """The registrations that end their scan here, and the PREWRITE, COMMIT, ROLLBACK rows to be matched now.

        Column `late`: the row came after its registration's INITIALIZED. Rows of unfinished scans are kept for later.
        """
        # A put without value is a lock rewritten by a heartbeat: never the row, and never what frees or fills a slot.
        fake = (pl.col("type") == PREWRITE) & (pl.col("op_type") == PUT) & (pl.col("value").bin.size() == 0)
        matchable = pl.col("type").is_in([PREWRITE, COMMIT, ROLLBACK]) & ~fake
        slot = pl.col("key").hash() ^ pl.col("start_ts").hash(1) ^ pl.col("reg").hash(2)
        before = self._initialized.copy()
        numbered = rows.with_row_index("at")
        ends = (
            numbered.filter(pl.col("type") == INITIALIZED)
            .select("reg", "at")
            .unique("reg", keep="first", maintain_order=True)
        )
        ended = [reg for reg in ends["reg"].to_list() if not before[reg]]
        self._initialized[ended] = True
        rows = numbered.filter(matchable).with_columns(slot.alias("slot"))
        if not ended and before[rows["reg"].to_numpy()].all():
            return ended, rows.drop("at").with_columns(late=pl.lit(value=True))
        late = pl.Series("late", before[rows["reg"].to_numpy()])
        rows = rows.with_columns(late).join(ends.rename({"at": "end"}), on="reg", how="left", maintain_order="left")
        rows = rows.with_columns(late=pl.col("late") | (pl.col("at") > pl.col("end")).fill_null(value=False)).drop(
            "at", "end"
        )
        ready = pl.Series(self._initialized[rows["reg"].to_numpy()])
        self._early.append(rows.filter(~ready).drop("late"))
        current = rows.filter(ready)
        if ended:
            early = pl.concat(self._early)
            ready = pl.Series(self._initialized[early["reg"].to_numpy()])
            self._early = [early.filter(~ready)]
            current = pl.concat([early.filter(ready).with_columns(late=pl.lit(value=False)), current])
        return ended, current

    def _match(self, current: pl.DataFrame, committed: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The prewrites that are decided, with their commit_ts, and the commits that had none though they must."""
        current = current.with_row_index("at")
        types = current["type"].to_numpy()
        prewrites, commits, rollbacks = (current.filter(pl.Series(types == t)) for t in (PREWRITE, COMMIT, ROLLBACK))
        slots = self._slots(prewrites, rollbacks)
        self._learn(commits, committed)
        slots = slots.drop("commit_ts").join(self._fates, on=["reg", "start_ts"], how="left", maintain_order="left")
        decided = pl.col("commit_ts").is_not_null()
        moved, self._pending = slots.filter(decided), slots.filter(~decided).select(_KEPT.names())
        now = _pairs(commits, moved)
        rest = _without(commits, now["left"])
        before = _pairs(rest, self._moved)
        self._moved = pl.concat(
            [_without(self._moved, before["right"]), _without(moved, now["right"]).select(_MOVED.names())]
        )
        return moved, _without(rest, before["left"]).filter("late")

    def _slots(self, prewrites: pl.DataFrame, rollbacks: pl.DataFrame) -> pl.DataFrame:
        """One row for each (reg, start_ts, key) that is prewritten, not rolled back and not handed out before."""
        prewrites = _without(prewrites, _pairs(prewrites, self._moved)["left"])
        if not rollbacks.height:
            slots = pl.concat([self._pending, prewrites.select(_KEPT.names())])
        else:
            slots = self._roll_back(prewrites, rollbacks)
        if slots["slot"].n_unique() < slots.height:
            slots = slots.sort("generation", maintain_order=True)
            slots = slots.unique(["reg", "start_ts", "key"], keep="last", maintain_order=True)
        return slots

    def _roll_back(self, prewrites: pl.DataFrame, rollbacks: pl.DataFrame) -> pl.DataFrame:
        """The pending rows and these prewrites, less what is rolled back; having no slot is normal for a rollback."""
        kept = _without(self._pending, _pairs(self._pending, rollbacks)["left"])
        pairs = _pairs(prewrites, rollbacks)
        slot, rollback = prewrites[pairs["left"]], rollbacks[pairs["right"]]
        # Live rows and the scan's mix before INITIALIZED: there the rollback counts wherever it stands.
        dead = (slot["at"] < rollback["at"]) | ~(slot["late"] | rollback["late"])
        return pl.concat([kept, _without(prewrites, pairs["left"].filter(dead)).select(_KEPT.names())])

    def _learn(self, commits: pl.DataFrame, committed: pl.DataFrame) -> None:
        """Any COMMIT or COMMITTED fixes its transaction's commit ts; once resolved-ts has passed that, nobody asks."""
        fates = pl.concat([self._fates, commits.select(_FATES.names()), committed.select(_FATES.names())])
        open_yet = fates["commit_ts"].to_numpy() > self._resolved[fates["reg"].to_numpy()]
        new = np.arange(len(open_yet)) >= self._fates.height
        self._fates = fates.filter(pl.Series(open_yet | new)).unique(["reg", "start_ts"], keep="any")


def _where(flags: npt.NDArray[np.bool_], frame: pl.DataFrame) -> pl.Series:
    return pl.Series(flags[frame["reg"].to_numpy()], dtype=pl.Boolean)


def _pairs(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Row numbers of equal (reg, start_ts, key): joined by hash, then compared: collisions are safe."""
    names = ["reg", "start_ts", "key", "slot"]
    if not left.height or not right.height:
        return pl.DataFrame(schema={"left": pl.UInt32, "right": pl.UInt32})
    pairs = left.select(names).with_row_index("left").join(right.select(names).with_row_index("right"), on="slot")
    equal = [pl.col(name) == pl.col(f"{name}_right") for name in ("start_ts", "key", "reg")]
    return pairs.filter(equal).select("left", "right")


def _without(frame: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """The frame less the rows of these numbers."""
    if not len(rows):
        return frame
    kept = np.ones(frame.height, bool)
    kept[rows.to_numpy()] = False
    return frame.filter(pl.Series(kept))


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    empty_old = pl.col("old_value").bin.size() == 0
    op = pl.when(pl.col("op_type") == DELETE).then(OP_DELETE).when(empty_old).then(OP_INSERT).otherwise(OP_UPDATE)
    old_value = pl.when(empty_old).then(None).otherwise(pl.col("old_value"))
    return rows.select(
        "reg",
        "commit_ts",
        "start_ts",
        op.cast(pl.UInt8).alias("op"),
        "key",
        "value",
        old_value.alias("old_value"),
        "txn_source",
    )


def _late_rows(rows: pl.DataFrame) -> dict[int, str]:
    return _first_of_each(rows, "brought a row at or below its resolved-ts")


def _missing_prewrites(commits: pl.DataFrame) -> dict[int, str]:
    return _first_of_each(commits, "committed a row that was never prewritten")


def _first_of_each(rows: pl.DataFrame, what: str) -> dict[int, str]:
    if not rows.height:
        return {}
    first = rows.unique("reg", keep="first", maintain_order=True).select("reg", "start_ts", "commit_ts")
    return {reg: f"{what} (start_ts {start}, commit_ts {commit})" for reg, start, commit in first.rows()}
