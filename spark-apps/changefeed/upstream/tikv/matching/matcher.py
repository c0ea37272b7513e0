"""Turns prewrites and commits into committed rows, by transaction (docs/design/tikv.md, Matching; rule 18).

The matcher treats a chunk of rows as a set: what the chunk does not settle by itself (`committed_rows`) is matched with
a few joins, never row by row. This is correct because of what TiKV guarantees: all prewrites of a transaction in a
region come before its first commit there, and a `(start_ts, key)` is prewritten, then committed or rolled back, once.
Order within a chunk matters in only three places, where row numbers are compared: what came before INITIALIZED, a
rollback with a later prewrite of the same key, and which of several prewrites is the newest.

A large transaction prewrites a key again with each flush that changes it, and no row says which flush it is of. Which
prewrite of a (start_ts, key) is the newest:

1. After INITIALIZED all rows are live, and live rows come in order: the last one.
2. The scan has a key's lock once, as it was when the scan began; what came live is newer, also when it came first. But
   only the Event that ends in INITIALIZED shows that its rows are of the scan. One that has the key is the oldest.
3. Two before INITIALIZED that differ (op or value), none of them in that Event: nobody can tell. The slot is *unclear*.
4. A live prewrite comes after INITIALIZED: clear again, by 1. That Event has the key: clear, by 2. A rollback: over.
5. An older server tells of a heartbeat's rewritten lock without its value, which looks like an empty value: a put
   without a value that follows something else makes a slot unclear, whenever it comes. Alone, it is an empty value.
6. The transaction is decided, and has an unclear slot in the region: its registration is closed and made again from its
   resolved-ts. None of its rows in the chunk are handed out. A commit that came before the scan's prewrite waits for
   INITIALIZED as all do, and then the same holds. When what it committed is not wanted (commit_ts <= checkpoint),
   nothing happens.

6 ends: nothing is prewritten by a transaction that is decided, so the next scan has its newest locks, or its committed
rows, and live copies say the same. A region is therefore scanned once more at most for each transaction that rewrote
keys of it during a scan. Meanwhile its resolved-ts stays where that transaction's locks hold it anyway. A key's own
COMMIT has the op, and values up to 255 bytes; to wait for it would save this scan for such values only, and each row
would need a state of its own, in memory and in the scratch.

Undecided rows stay in memory up to SPILL_BYTES. Beyond that they go into scratch files, whatever their transactions;
once decided they are read back a batch at a time.

A pure object except for the scratch files, without locks: one thread at a time. It must never return a row twice in one
registration, a row that may still be rolled back, one that may not be the newest, or any row of a registration that
broke the protocol in the same chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from changefeed.upstream.scratch import Scratch
from changefeed.upstream.tikv.matching.committed_rows import couples
from changefeed.upstream.tikv.matching.decode import COMMIT, COMMITTED, INITIALIZED, PREWRITE, ROLLBACK, U64
from changefeed.upstream.tikv.matching.fates import Fates
from changefeed.upstream.tikv.matching.rows import ROWS, changes, shape
from changefeed.upstream.tikv.matching.slots import SLOT, Flags, copied, newest, only, same_slots, without
from changefeed.upstream.tikv.matching.spilled import Spilled, Stretch

#: Of chunks in which undecided rows stand in memory, of all streams of a process. Few upstreams ever have as much
#: undecided but in a large transaction.
SPILL_BYTES = 32 << 20

_KEPT = pl.Schema({name: ROWS[name] for name in ROWS if name != "scanned"} | {"slot": pl.UInt64()})
_MOVED = pl.Schema({name: _KEPT[name] for name in ("reg", "start_ts", "key", "slot")})
_NONE_KEPT = pl.DataFrame(schema=_KEPT)
_NONE_MOVED = pl.DataFrame(schema=_MOVED)
#: For rows that have none: else a few of them keep a whole chunk's values in memory.
_NO_VALUES = [pl.lit(b"").alias(name) for name in ("value", "old_value")]


@dataclass(frozen=True)
class Matched:
    """`more`: the rest of the rows, a batch at a time; all of it is to be taken before the next chunk is fed."""

    rows: pl.DataFrame  # COMMITTED_ROWS
    initialized: list[int]  # registrations whose scan ended in this chunk
    violations: dict[int, str]  # registration -> what it did; it is closed
    unclear: dict[int, str] = field(default_factory=dict)  # registration -> what nobody can tell; it is closed
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
        self._unclear = _NONE_MOVED  # slots, wherever their rows are
        self._held = 0  # bytes of the chunks that rows of these may be in

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

    def settle(self, rows: pa.RecordBatch, regs: npt.NDArray[np.int64]) -> tuple[Flags, Flags, U64]:
        """(rows that the chunk itself commits, rows that are to be fed, commit_ts of the first).

        The first are wanted and not late, nothing else is known of their slots, and what they tell is known from now
        on. They count only once `feed` has found nothing wrong with their registrations in the same chunk; it is to be
        called if there are rows for it, or some wait. `regs`: of open registrations; -1: none, the row is dropped.
        """
        self._forget_closed()
        types, start_ts, commit_ts = (rows[name].to_numpy() for name in ("type", "start_ts", "commit_ts"))
        wanted = (regs >= 0) & (commit_ts > np.maximum(self._floor, self._resolved)[regs])
        settled = wanted & (types == COMMITTED)
        left = (regs >= 0) & ~settled
        prewrites, commits = couples(rows, regs)
        if len(prewrites):
            kept = [frame["start_ts"].to_numpy() for frame in (self._pending, self._moved)]
            apart = ~np.isin(start_ts[commits], np.unique(np.concatenate([self._spilled.start_ts, *kept])))
            whole = wanted[commits] & self._initialized[regs[commits]] & apart
            prewrites, commits = prewrites[whole], commits[whole]
            commit_ts = commit_ts.copy()
            commit_ts[prewrites] = commit_ts[commits]
            settled[prewrites], left[prewrites], left[commits] = True, False, False
        told = slice(None) if settled.all() else settled
        self._forget_fates()
        self._fates.learn(regs[told], start_ts[told], commit_ts[told])
        return settled, left, commit_ts

    @property
    def waits(self) -> bool:
        """Whether rows wait to be decided, or to be given out."""
        return bool(self._pending.height or self._spilled.pending_rows or self._spilled.is_owing)

    @property
    def uncommitted_rows(self) -> int:
        self._forget_closed()
        return self._pending.height + self._spilled.pending_rows + sum(frame.height for frame in self._early)

    @property
    def resident_bytes(self) -> int:
        """The bytes of rows in memory."""
        return sum(int(frame.estimated_size()) for frame in (self._pending, self._moved, *self._early))

    @property
    def is_empty(self) -> bool:
        """Whether no row is kept, in memory or spilled."""
        return self._spilled.is_empty and not (
            self._pending.height or self._moved.height or self._unclear.height or self._early
        )

    @property
    def decided_transactions(self) -> int:
        """Whose fate is remembered, per registration."""
        return len(self._fates)

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        pending, moved, unclear = map(self._of_open, (self._pending, self._moved, self._unclear))
        for what, frame in (("waits", pending), ("is handed out", moved), ("is unclear", unclear)):
            assert frame["slot"].n_unique() == frame.height, f"a slot {what} twice"
        assert not same_slots(pending, moved)[0].size, "a row waits that is handed out"
        regs = pending["reg"].to_numpy()
        fate = self._fates.of(regs, pending["start_ts"].to_numpy())
        assert not ((fate > 0) & self._initialized[regs]).any(), "a row waits whose transaction is decided"
        early = [frame["reg"].to_numpy() for frame in self._early]
        assert not any(self._initialized[each].any() for each in early), "a commit waits for a scan that is over"

    def feed(self, rows: pl.DataFrame, streams: int = 1) -> Matched:
        """Rows (ROWS) of open registrations, in the order of the wire. Raises Unavailable when the scratch fails.

        `streams`: so many share SPILL_BYTES.
        """
        self._forget_closed()
        if self._spilled.is_owing:
            raise ValueError("rows of the chunk before are still to be given out")
        initialized, current = self._admit(rows)
        committed = only(rows, rows["type"].to_numpy() == COMMITTED)
        moved, decided, unmatched = self._match(current, committed)
        out = shape(moved).vstack(shape(committed))
        regs = out["reg"].to_numpy()
        commit_ts = out["commit_ts"].to_numpy()
        wanted = commit_ts > self._floor[regs]
        late = wanted & (commit_ts <= self._resolved[regs])
        violations = _late_rows(only(out, late)) | self._late_stretches(decided) | _missing_prewrites(unmatched)
        unclear = {reg: what for reg, what in self._unclear_and_decided().items() if reg not in violations}
        for reg in (*violations, *unclear):
            self.close(reg)
        out = changes(only(out, wanted & self._open[regs]))
        self._make_room(int(rows.estimated_size()), SPILL_BYTES // streams)
        initialized = [reg for reg in initialized if self._open[reg]]
        return Matched(out, initialized, violations, unclear, self._more(), bool(decided))

    def _more(self) -> Iterator[pl.DataFrame]:
        for rows in self._spilled.due(self._open):
            yield changes(shape(rows))

    def _make_room(self, fed: int, most: int) -> None:
        """A row that is kept holds the memory of its whole chunk until it is copied, or spilled."""
        if not (self._pending.height or self._moved.height or self._unclear.height or self._early):
            self._held = 0
            return
        self._held += fed
        if self._held <= most:
            return
        if self._may_spill and self._pending.height and self._pending.estimated_size() > most // 2:
            self._spilled.put(self._pending)
            self._pending = _NONE_KEPT
        self._pending, self._moved = copied(self._pending), copied(self._moved)
        self._unclear = copied(self._unclear)
        self._early = [copied(pl.concat(self._early))] if self._early else []
        kept = (self._pending, self._moved, self._unclear, *self._early)
        self._held = sum(int(frame.estimated_size()) for frame in kept)

    def _forget_closed(self) -> None:
        if not self._closed_any:
            return
        self._closed_any = False
        self._early = [frame for frame in map(self._of_open, self._early) if frame.height]
        self._pending, self._moved, self._unclear = map(self._of_open, (self._pending, self._moved, self._unclear))
        self._spilled.forget_closed(self._open)

    def _of_open(self, frame: pl.DataFrame) -> pl.DataFrame:
        return only(frame, self._open[frame["reg"].to_numpy()])

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
        matchable = np.isin(types, [PREWRITE, COMMIT, ROLLBACK])  # commits of keys that were only locked have no type
        rows = only(rows, matchable)
        rows = rows.with_columns(SLOT).hstack([pl.Series("late", late[matchable])])
        now = self._initialized[regs[matchable]] | (types[matchable] == PREWRITE)
        if not ended and now.all():
            return ended, rows
        if not now.all():
            self._early.append(only(rows, ~now).with_columns(*_NO_VALUES))
        current = only(rows, now)
        if ended and self._early:
            early = pl.concat(self._early)
            ready = self._initialized[early["reg"].to_numpy()]
            self._early = [] if ready.all() else [only(early, ~ready)]
            current = only(early, ready).vstack(current)
        return ended, current

    def _match(
        self, current: pl.DataFrame, committed: pl.DataFrame
    ) -> tuple[pl.DataFrame, list[Stretch], pl.DataFrame]:
        """The prewrites that are decided, with their commit_ts, those of them that are spilled, and the commits that
        had none though they must."""
        current = current.with_row_index("at")
        types = current["type"].to_numpy()
        prewrites, commits, rollbacks = (only(current, types == t) for t in (PREWRITE, COMMIT, ROLLBACK))
        slots = self._slots(prewrites, rollbacks)
        self._learn(commits, committed)
        moved, self._pending = self._decide(slots)
        decided = self._spilled.decide(self._fates, self._initialized, self._floor)
        now_committed, now_moved = same_slots(commits, moved)
        rest = without(commits, now_committed)
        late_committed, before_moved = same_slots(rest, self._moved)
        self._moved = without(self._moved, before_moved).vstack(without(moved, now_moved)[_MOVED.names()])
        rest = without(rest, late_committed)
        unmatched = without(rest, self._spilled.confirm(rest))
        return moved, decided, only(unmatched, unmatched["late"].to_numpy())

    def _decide(self, slots: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Those of decided transactions, with their commit_ts, and the others."""
        regs = slots["reg"].to_numpy()
        fate = self._fates.of(regs, slots["start_ts"].to_numpy())
        decided = (fate > 0) & self._initialized[regs]
        moved = only(slots, decided).clone()
        moved.replace_column(moved.get_column_index("commit_ts"), pl.Series("commit_ts", fate[decided]))
        return moved, only(slots, ~decided)

    def _slots(self, prewrites: pl.DataFrame, rollbacks: pl.DataFrame) -> pl.DataFrame:
        """One row for each (reg, start_ts, key) that is prewritten, not rolled back and not handed out before.

        Spilled ones only if a prewrite repeats them.
        """
        prewrites = without(prewrites, same_slots(prewrites, self._moved)[0])
        repeats, taken = self._spilled.take_back(prewrites)
        prewrites = without(prewrites, repeats)
        if taken:
            self._pending = pl.concat([*(rows[_KEPT.names()] for rows in taken), self._pending])
        if rollbacks.height:
            prewrites = self._roll_back(prewrites, rollbacks)
        slots = self._pending.vstack(prewrites[_KEPT.names()])
        if prewrites.height and slots["slot"].n_unique() < slots.height:
            return self._merged(prewrites, slots["slot"].is_duplicated().to_numpy())
        return slots

    def _roll_back(self, prewrites: pl.DataFrame, rollbacks: pl.DataFrame) -> pl.DataFrame:
        """These prewrites, less those that are rolled back; the pending ones go, too.

        For a rollback, having no slot is normal.
        """
        self._spilled.roll_back(rollbacks)
        self._pending = without(self._pending, same_slots(self._pending, rollbacks)[0])
        self._unclear = without(self._unclear, same_slots(self._unclear, rollbacks)[0])
        left, right = same_slots(prewrites, rollbacks)
        earlier = prewrites["at"].to_numpy()[left] < rollbacks["at"].to_numpy()[right]
        # Live rows and the scan's mix before INITIALIZED: there the rollback counts wherever it stands.
        live = prewrites["late"].to_numpy()[left] | rollbacks["late"].to_numpy()[right]
        return without(prewrites, left[earlier | ~live])

    def _merged(self, prewrites: pl.DataFrame, repeated: Flags) -> pl.DataFrame:
        """Returns the pending rows and these prewrites, with one row a slot: the newest of repeated ones.

        Slots of which nobody can tell the newest are noted in `_unclear`.
        """
        before, now = repeated[: self._pending.height], repeated[self._pending.height :]
        flags = [pl.Series(name, [False]).new_from_index(0, int(before.sum())) for name in ("late", "scanned")]
        copies = only(self._pending, before).hstack(flags)
        merged = newest(copies.vstack(only(prewrites, now)[copies.columns]))
        sure, differs = merged["sure"].to_numpy(), merged["differs"].to_numpy()
        judged = only(merged, sure | differs)
        self._unclear = without(self._unclear, same_slots(self._unclear, judged)[0])
        self._unclear = self._unclear.vstack(only(merged, differs & ~sure)[_MOVED.names()])
        singles = only(self._pending, ~before).vstack(only(prewrites, ~now)[_KEPT.names()])
        return singles.vstack(merged[_KEPT.names()])

    def _unclear_and_decided(self) -> dict[int, str]:
        """Registrations that must be made again, and why."""
        if not self._unclear.height:
            return {}
        regs = self._unclear["reg"].to_numpy()
        fate = self._fates.of(regs, self._unclear["start_ts"].to_numpy())
        decided = (fate > 0) & self._initialized[regs]
        wanted = only(self._unclear, decided & (fate > self._floor[regs]))
        self._unclear = only(self._unclear, ~decided)
        return {
            reg: f"sent different rows of transaction {start_ts} for one key, and which is the newest can't be told"
            for reg, start_ts in wanted.unique("reg", keep="first", maintain_order=True)["reg", "start_ts"].rows()
        }

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
