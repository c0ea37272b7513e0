"""Turns prewrites and commits into committed rows, by transaction (source design 2, tikv-wire 2.6, 2.7, rule 18).

The matcher treats a chunk of rows as a set: it is matched with a few joins, never row by row. This is correct because
of what TiKV guarantees: all prewrites of a transaction in a region come before its first commit there, and a
`(start_ts, key)` is prewritten, then committed or rolled back, once. Order within a chunk matters in only two places,
where row numbers are compared: what came before INITIALIZED, and a rollback with a later prewrite of the same key.

Undecided rows stay in memory up to SPILL_BYTES. Beyond that they go into scratch files, whatever their transactions;
once decided they are read back a batch at a time.

A pure object except for the scratch files, without locks: one thread at a time. It must never return a row twice in one
registration, a row that may still be rolled back, or any row of a registration that broke the protocol in the same
chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.puller.matching.decode import COMMIT, COMMITTED, DELETE, INITIALIZED, PREWRITE, PUT, ROLLBACK, U64
from changefeed.puller.matching.fates import Fates
from changefeed.puller.matching.pairs import Numbers, pairs
from changefeed.puller.matching.scratch import Scratch
from changefeed.puller.matching.spilled import Flags, Spilled, Stretch

#: Of chunks in which undecided rows stand in memory, of all streams of a process. Few upstreams ever have as much
#: undecided but in a large transaction.
SPILL_BYTES = 32 << 20

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
_SLOT = (pl.col("key").hash() ^ pl.col("start_ts").hash(1) ^ pl.col("reg").hash(2)).alias("slot")
# Chunks of a quiet upstream have a handful of rows: then making a frame costs more than what is in it, and a frame's
# own `filter`, `concat` and `with_columns` (an optimized plan each) ten times as much as the same, column by column.
_NO_COMMITTED_ROWS = pl.DataFrame(schema=COMMITTED_ROWS)
_NONE_KEPT = pl.DataFrame(schema=_KEPT)
_NONE_MOVED = pl.DataFrame(schema=_MOVED)
_NO_VALUE, _EMPTY = pl.Series([None], dtype=pl.Binary), pl.Series([b""])
#: For rows that have none: else a few of them keep a whole chunk's values in memory.
_NO_VALUES = [pl.lit(b"").alias(name) for name in ("value", "old_value")]


@dataclass(frozen=True)
class Matched:
    """`more`: the rest of the rows, a batch at a time; all of it is to be taken before the next chunk is fed."""

    rows: pl.DataFrame  # COMMITTED_ROWS
    initialized: list[int]  # registrations whose scan ended in this chunk
    violations: dict[int, str]  # registration -> what it did; it is closed
    more: Iterator[pl.DataFrame] = field(default_factory=lambda: iter(()), compare=False)  # COMMITTED_ROWS
    has_more: bool = False


class Matcher:
    """The uncommitted rows of all registrations of one stream. A registration is a small number, given once."""

    def __init__(self, scratch: Scratch | None = None) -> None:
        """Without scratch all rows stay in memory."""
        self._may_spill = scratch is not None
        self._spilled = Spilled(scratch)
        self._floor = np.zeros(64, np.uint64)
        self._resolved = np.zeros(64, np.uint64)
        self._initialized = np.zeros(64, bool)
        self._open = np.zeros(64, bool)
        self._next = 0
        self._closed_any = False
        self._early: list[pl.DataFrame] = []  # commits and rollbacks of registrations that are not initialized
        self._pending = _NONE_KEPT  # prewrites whose transaction is undecided, less those that are spilled
        self._fates = Fates()
        self._has_risen = False  # a resolved-ts, or a registration was closed: fates may be forgotten
        self._moved = _NONE_MOVED  # handed out before their own COMMIT was seen; spilled ones stay there
        self._held = 0  # bytes of the chunks that rows of these three may be in

    def open(self, checkpoint_ts: int) -> int:
        """A new registration. Rows with commit_ts <= checkpoint_ts are dropped: unwanted, or handed on before.

        They do come: of a large transaction that was passed with its first commit, the last ones come to later
        registrations.
        """
        reg, self._next = self._next, self._next + 1
        if reg == len(self._open):
            for name in ("_floor", "_resolved", "_initialized", "_open"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self._floor[reg], self._resolved[reg], self._open[reg] = checkpoint_ts, checkpoint_ts, True
        return reg

    def close(self, reg: int) -> None:
        """Forget a registration with all its rows."""
        self._open[reg] = False
        self._closed_any = self._has_risen = True

    def advance(self, reg: int, resolved_ts: int) -> bool:
        """Whether the region's resolved-ts went up; one that is late, repeated or before INITIALIZED does not count."""
        if not (self._open[reg] and self._initialized[reg]) or resolved_ts <= int(self._resolved[reg]):
            return False
        self._resolved[reg] = resolved_ts
        self._has_risen = True
        return True

    def passes(self, regs: npt.NDArray[np.int64], start_ts: U64, commit_ts: U64) -> bool:
        """Whether COMMITTED rows alone go by as they are; if so, all that they tell is known, and they are not fed.

        No prewrite waits to be decided by them, all are wanted, and none is late.
        """
        self._forget_closed()
        if self._pending.height or self._spilled.pending_rows or self._spilled.is_owing:
            return False
        low = np.maximum(self._floor[regs], self._resolved[regs])
        if not (self._open[regs] & (commit_ts > low)).all():
            return False
        self._forget_fates()
        self._fates.learn(regs, start_ts, commit_ts)
        return True

    @property
    def uncommitted_rows(self) -> int:
        self._forget_closed()
        return self._pending.height + self._spilled.pending_rows + sum(frame.height for frame in self._early)

    def feed(self, rows: pl.DataFrame, streams: int = 1) -> Matched:
        """Rows (ROWS) of open registrations, in the order of the wire. Raises Unavailable when the scratch fails.

        `streams`: so many share SPILL_BYTES.
        """
        self._forget_closed()
        if self._spilled.is_owing:
            raise ValueError("rows of the chunk before are still to be given out")
        if rows.is_empty():
            return Matched(_NO_COMMITTED_ROWS, [], {})
        initialized, current = self._admit(rows)
        committed = _only(rows, rows["type"].to_numpy() == COMMITTED)
        if not (current.height or committed.height or initialized):
            return Matched(_NO_COMMITTED_ROWS, [], {})
        moved, decided, unmatched = self._match(current, committed)
        out = _shape(moved).vstack(_shape(committed))
        regs = out["reg"].to_numpy()
        commit_ts = out["commit_ts"].to_numpy()
        wanted = commit_ts > self._floor[regs]
        late = wanted & (commit_ts <= self._resolved[regs])
        violations = _late_rows(_only(out, late)) | self._late_stretches(decided) | _missing_prewrites(unmatched)
        for reg in violations:
            self.close(reg)
        out = _changes(_only(out, wanted & self._open[regs]))
        self._make_room(int(rows.estimated_size()), SPILL_BYTES // streams)
        initialized = [reg for reg in initialized if reg not in violations]
        return Matched(out, initialized, violations, self._more(), bool(decided))

    def _more(self) -> Iterator[pl.DataFrame]:
        for rows in self._spilled.due(self._open):
            yield _changes(_shape(rows))

    def _make_room(self, fed: int, most: int) -> None:
        """A row that is kept holds the memory of its whole chunk until it is copied, or spilled."""
        if not (self._pending.height or self._moved.height or self._early):
            self._held = 0
            return
        self._held += fed
        if self._held <= most:
            return
        if self._may_spill and self._pending.height and self._pending.estimated_size() > most // 2:
            self._spilled.put(self._pending)
            self._pending = _NONE_KEPT
        self._pending, self._moved = _copied(self._pending), _copied(self._moved)
        self._early = [_copied(pl.concat(self._early))] if self._early else []
        self._held = sum(int(frame.estimated_size()) for frame in (self._pending, self._moved, *self._early))

    def _forget_closed(self) -> None:
        if not self._closed_any:
            return
        self._closed_any = False
        self._early = [frame for frame in map(self._of_open, self._early) if frame.height]
        self._pending, self._moved = map(self._of_open, (self._pending, self._moved))
        self._spilled.forget_closed(self._open)

    def _of_open(self, frame: pl.DataFrame) -> pl.DataFrame:
        return _only(frame, self._open[frame["reg"].to_numpy()])

    def _admit(self, rows: pl.DataFrame) -> tuple[list[int], pl.DataFrame]:
        """The registrations that end their scan here, and the PREWRITE, COMMIT, ROLLBACK rows to be matched now.

        Column `late`: the row came after its registration's INITIALIZED. Commits and rollbacks of unfinished scans are
        kept for later; prewrites wait with all others, as nothing of such a registration is decided.
        """
        types, regs = rows["type"].to_numpy(), rows["reg"].to_numpy()
        late = self._initialized[regs]
        ends: dict[int, int] = {}  # where in the chunk the scan of a registration ends
        for at in np.flatnonzero((types == INITIALIZED) & ~late).tolist():
            ends.setdefault(int(regs[at]), at)
        ended = list(ends)
        if ended:
            end = np.full(len(self._initialized), rows.height)
            end[ended] = list(ends.values())
            late |= np.arange(rows.height) > end[regs]
            self._initialized[ended] = True
        matchable = np.isin(types, [PREWRITE, COMMIT, ROLLBACK]) & ~_heartbeats(rows, types)
        rows = _only(rows, matchable)
        rows = rows.with_columns(_SLOT).hstack([pl.Series("late", late[matchable])])
        now = self._initialized[regs[matchable]] | (types[matchable] == PREWRITE)
        if not ended and now.all():
            return ended, rows
        if not now.all():
            self._early.append(_only(rows, ~now).with_columns(*_NO_VALUES))
        current = _only(rows, now)
        if ended and self._early:
            early = pl.concat(self._early)
            ready = self._initialized[early["reg"].to_numpy()]
            self._early = [] if ready.all() else [_only(early, ~ready)]
            current = _only(early, ready).vstack(current)
        return ended, current

    def _match(
        self, current: pl.DataFrame, committed: pl.DataFrame
    ) -> tuple[pl.DataFrame, list[Stretch], pl.DataFrame]:
        """The prewrites that are decided, with their commit_ts, those of them that are spilled, and the commits that
        had none though they must."""
        current = current.with_row_index("at")
        types = current["type"].to_numpy()
        prewrites, commits, rollbacks = (_only(current, types == t) for t in (PREWRITE, COMMIT, ROLLBACK))
        slots = self._slots(prewrites, rollbacks)
        self._learn(commits, committed)
        moved, self._pending = self._decide(slots)
        decided = self._spilled.decide(self._fates, self._initialized, self._floor)
        now_committed, now_moved = _pairs(commits, moved)
        rest = _without(commits, now_committed)
        late_committed, before_moved = _pairs(rest, self._moved)
        self._moved = _without(self._moved, before_moved).vstack(_without(moved, now_moved)[_MOVED.names()])
        rest = _without(rest, late_committed)
        unmatched = _without(rest, self._spilled.confirm(rest))
        return moved, decided, _only(unmatched, unmatched["late"].to_numpy())

    def _decide(self, slots: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Those of decided transactions, with their commit_ts, and the others."""
        regs = slots["reg"].to_numpy()
        fate = self._fates.of(regs, slots["start_ts"].to_numpy())
        decided = (fate > 0) & self._initialized[regs]
        moved = _only(slots, decided).clone()
        moved.replace_column(moved.get_column_index("commit_ts"), pl.Series("commit_ts", fate[decided]))
        return moved, _only(slots, ~decided)

    def _slots(self, prewrites: pl.DataFrame, rollbacks: pl.DataFrame) -> pl.DataFrame:
        """One row for each (reg, start_ts, key) that is prewritten, not rolled back and not handed out before.

        Spilled ones only if a prewrite repeats them.
        """
        prewrites = _without(prewrites, _pairs(prewrites, self._moved)[0])
        repeats, taken = self._spilled.take_back(prewrites)
        prewrites = _without(prewrites, repeats)
        if taken:
            self._pending = pl.concat([*(rows[_KEPT.names()] for rows in taken), self._pending])
        if rollbacks.height:
            slots = self._roll_back(prewrites, rollbacks)
        else:
            slots = self._pending.vstack(prewrites[_KEPT.names()])
        return _merged(slots) if prewrites.height and slots["slot"].n_unique() < slots.height else slots

    def _roll_back(self, prewrites: pl.DataFrame, rollbacks: pl.DataFrame) -> pl.DataFrame:
        """The pending rows and these prewrites, less what is rolled back; having no slot is normal for a rollback."""
        self._spilled.roll_back(rollbacks)
        kept = _without(self._pending, _pairs(self._pending, rollbacks)[0])
        left, right = _pairs(prewrites, rollbacks)
        earlier = prewrites["at"].to_numpy()[left] < rollbacks["at"].to_numpy()[right]
        # Live rows and the scan's mix before INITIALIZED: there the rollback counts wherever it stands.
        live = prewrites["late"].to_numpy()[left] | rollbacks["late"].to_numpy()[right]
        return kept.vstack(_without(prewrites, left[earlier | ~live])[_KEPT.names()])

    def _late_stretches(self, decided: list[Stretch]) -> dict[int, str]:
        return {
            reg: _late(start_ts, commit_ts)
            for reg, start_ts, commit_ts in reversed(decided)
            if int(self._floor[reg]) < commit_ts <= int(self._resolved[reg])
        }

    def _learn(self, commits: pl.DataFrame, committed: pl.DataFrame) -> None:
        """Any COMMIT or COMMITTED fixes its transaction's commit ts; once resolved-ts has passed that, nobody asks."""
        self._forget_fates()
        for rows in (commits, committed):
            self._fates.learn(*(rows[name].to_numpy() for name in ("reg", "start_ts", "commit_ts")))

    def _forget_fates(self) -> None:
        if self._has_risen:
            self._has_risen = False
            self._fates.forget(self._resolved, self._open)


def _only(frame: pl.DataFrame, flags: Flags) -> pl.DataFrame:
    """The rows whose flag is set; in a small chunk it is often all or none."""
    if flags.all():
        return frame
    if not flags.any():
        return frame.clear()
    mask = pl.Series(flags)
    return pl.DataFrame([column.filter(mask) for column in frame])


def _copied(frame: pl.DataFrame) -> pl.DataFrame:
    """The same rows, that hold no memory but their own."""
    return pl.DataFrame(frame.rechunk().to_arrow())


def _heartbeats(rows: pl.DataFrame, types: npt.NDArray[np.int32]) -> Flags:
    """A put without value is a lock rewritten by a heartbeat: never the row, and never what frees or fills a slot."""
    puts: Flags = (types == PREWRITE) & (rows["op_type"].to_numpy() == PUT)
    return puts & (rows["value"] == _EMPTY).to_numpy() if puts.any() else puts


def _merged(slots: pl.DataFrame) -> pl.DataFrame:
    """One row for each (reg, start_ts, key): the newest, with the old value that any of them has.

    A server may repeat a lock without its old value (tikv-wire 2.7). The row before the transaction is the same for all
    copies, so one without it has only left it out: taken at its word, it would turn a delete into a delete of nothing.
    """
    slot = ["reg", "start_ts", "key"]
    known = pl.col("old_value").filter(pl.col("old_value") != b"").first()
    slots = slots.sort("generation", maintain_order=True).with_columns(known.over(slot).fill_null(b""))
    return slots.unique(slot, keep="last", maintain_order=True)


def _changes(rows: pl.DataFrame) -> pl.DataFrame:
    """A delete of what did not exist changes nothing (tikv-wire 2.5)."""
    deletes: Flags = rows["op"].to_numpy() == OP_DELETE
    return _only(rows, ~deletes | rows["old_value"].is_not_null().to_numpy()) if deletes.any() else rows


def _pairs(left: pl.DataFrame, right: pl.DataFrame) -> tuple[Numbers, Numbers]:
    """Row numbers of equal (reg, start_ts, key): found by hash, then compared: collisions are safe."""
    i, j = pairs(left["slot"].to_numpy(), right["slot"].to_numpy())
    if not len(i):
        return i, j
    same = [(left[name][i] == right[name][j]).to_numpy() for name in ("start_ts", "key", "reg")]
    both = np.logical_and.reduce(same)
    return i[both], j[both]


def _without(frame: pl.DataFrame, rows: Numbers) -> pl.DataFrame:
    """The frame less the rows of these numbers."""
    kept = np.ones(frame.height, bool)
    kept[rows] = False
    return _only(frame, kept)


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    if not rows.height:
        return _NO_COMMITTED_ROWS
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


def _late(start_ts: int, commit_ts: int) -> str:
    return f"brought a row at or below its resolved-ts (start_ts {start_ts}, commit_ts {commit_ts})"


def _late_rows(rows: pl.DataFrame) -> dict[int, str]:
    return {reg: _late(start_ts, commit_ts) for reg, start_ts, commit_ts in _first_of_each(rows)}


def _missing_prewrites(commits: pl.DataFrame) -> dict[int, str]:
    return {
        reg: f"committed a row that was never prewritten (start_ts {start_ts}, commit_ts {commit_ts})"
        for reg, start_ts, commit_ts in _first_of_each(commits)
    }


def _first_of_each(rows: pl.DataFrame) -> list[tuple[int, int, int]]:
    """(reg, start_ts, commit_ts) of the first row of each registration."""
    if not rows.height:
        return []
    return rows.unique("reg", keep="first", maintain_order=True)["reg", "start_ts", "commit_ts"].rows()
