"""Cuts what has been pulled into plan entries.

Pure. It decides where files end, never what is in them: an entry is all rows of a dispatcher between two ts. It never
cuts above a dispatcher's limit and never leaves a gap between two cuts.

A segment says how its raw bytes lie over its ts range by a curve, one point each 256 KiB. Between two points there is a
*piece*: so many bytes, a row at its last ts, rows anywhere between. Pieces estimate size, never content:

1. *Two segments overlap, or a transaction has several points.* A cut is `Position.end_of` of a whole ts, so a row of a
   piece that straddles it is in the entry or after it by its own ts; only the estimate is shared out.
2. *A piece straddles the limit.* Whether rows of it are <= the limit is not known. By interval it waits for a row that
   is known to be there; at a barrier, at a shutdown and when the store is short it is cut, even if the file may turn
   out empty (rule 13).
3. *TiKV sends rows again.* What is <= the planned ts is dropped on arrival and starts no timer (rule 4). When a
   record is under way that will say a higher one, it is dropped once that is in the log.
4. *A thousand dispatchers are idle.* One without pieces is in no set: a pass over those that are due costs by their
   number.

Each dispatcher has an interval of its own, which begins with its first unplanned row, or with its last cut. A plan
costs two log records however few files it has, so whoever is cut for its interval takes along those that have waited
for half of theirs and will not fill a file by its end. So an interval sees two such plans, not one for each table, and
a busy dispatcher makes full files. One whose rows are not resolved when its interval is over is cut as soon as they
are.

A plan of a thousand files keeps two cores busy for seconds, which makes its last file that late. So when many
dispatchers have rows they take turns: the interval is divided into up to eight parts, and at the end of each part those
that have waited longest are cut.

A plan may be made while others are open. A dispatcher whose files are being written gets no further one but a full
one, or a slow sink would be given ever more and ever smaller files; and only so many bytes are open at a time.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, takewhile
from typing import Literal, NamedTuple

from changefeed.model.position import Position
from changefeed.owner.planning.lowest import Lowest
from changefeed.owner.pulling.segments import Segment

MIB = 1 << 20
_NEWEST_SHARE = 0.3  # of a file in its table's learnt ratio
TURN_FILES = 128  # what two cores write in some 0.3 s
_MOST_TURNS = 8  # in an interval

Reason = Literal["size", "oversized", "interval", "barrier", "quota", "shutdown"]
"""oversized: a transaction, which is never cut, is larger than a file."""


@dataclass(frozen=True)
class UnderWay:
    """What is planned and not committed. `bytes`: raw, of those files that can be written now."""

    dispatchers: Collection[int] = ()
    bytes: int = 0


NOTHING = UnderWay()


@dataclass(frozen=True)
class Cut:
    """One file to write: the dispatcher's rows in `(from_, to]`."""

    dispatcher: int
    from_: Position
    to: Position
    estimate: int  # raw bytes
    reason: Reason


class _Piece(NamedTuple):
    last_ts: int  # of a row
    first_ts: int  # no row is below it
    bytes: int
    row_at_first: bool


@dataclass(slots=True)
class _Dispatcher:
    planned_ts: int
    ratio: float = 1.0  # encoded bytes a raw byte
    learnt: bool = False
    since: float = 0.0  # when its first unplanned row came, or its last cut was made
    pieces: list[_Piece] = field(default_factory=list)  # by last_ts; all above planned_ts
    raw: int = 0  # of the pieces

    def add(self, piece: _Piece) -> None:
        bisect.insort(self.pieces, piece, key=_last_ts)
        self.raw += piece.bytes

    def pass_over(self, ts: int) -> None:
        """Everything <= ts is planned."""
        if ts == self.planned_ts:
            return
        self.planned_ts = ts
        self.pieces = _above(self.pieces, ts)
        self.raw = sum(piece.bytes for piece in self.pieces)


def _last_ts(piece: _Piece) -> int:
    return piece.last_ts


class Planner:
    """What is not yet planned, for all dispatchers of a changefeed. Seconds are monotonic, sizes bytes."""

    def __init__(
        self,
        file_size: int,
        flush_interval_s: float,
        plan_bytes: int = 512 * MIB,
        entry_raw_cap: int = 256 * MIB,
        turn_files: int = TURN_FILES,
    ) -> None:
        self._file_size = file_size
        self._flush_interval_s = flush_interval_s
        self._plan_bytes = plan_bytes
        self._entry_raw_cap = entry_raw_cap
        self._turn_files = turn_files
        self._dispatchers: dict[int, _Dispatcher] = {}
        self._first_unplanned = Lowest(self.first_unplanned_ts)
        self._checkpoint_ts = 0
        self._waiting: dict[int, None] = {}  # has pieces; whose interval is over first comes first
        self._ripe: set[int] = set()  # has pieces, and its interval is over
        self._full: set[int] = set()  # has pieces for a file
        self._next_turn = 0.0

    @property
    def dirty(self) -> int:
        """How many dispatchers have unplanned rows."""
        return len(self._waiting) + len(self._ripe)

    def add(self, dispatcher: int, planned_ts: int) -> None:
        """A dispatcher whose rows <= planned_ts are planned or written (State.planned_ts)."""
        self._dispatchers[dispatcher] = _Dispatcher(planned_ts)

    def remove(self, dispatcher: int) -> None:
        """A DDL has ended it."""
        self._unmark(dispatcher)
        self._first_unplanned.forget(dispatcher)
        del self._dispatchers[dispatcher]

    def on_rows(self, now: float, segment: Segment) -> None:
        """The span's assignment brought a segment."""
        known = self._dispatchers[segment.span_id]
        for piece in _above(_pieces(segment), self._planned_ts(known)):
            known.add(piece)
            self._first_unplanned.may_be(segment.span_id, piece.first_ts)
        if known.pieces:
            self._mark(now, segment.span_id)

    def forget_above(self, dispatcher: int, ts: int) -> None:
        """The span's assignment has ended: what is above ts will be pulled again.

        A piece on both sides of it stays: rows above ts that it counts come twice, which misleads an estimate only.
        """
        known = self._dispatchers[dispatcher]
        known.pieces = [piece for piece in known.pieces if piece.first_ts <= ts]
        known.raw = sum(piece.bytes for piece in known.pieces)
        if not known.pieces:
            self._unmark(dispatcher)

    def on_checkpoint(self, ts: int) -> None:
        """A commit record says `ts`: every dispatcher resumes at or above it (rule 11)."""
        self._checkpoint_ts = max(self._checkpoint_ts, ts)

    def learn(self, dispatcher: int, raw_bytes: int, encoded_bytes: int) -> None:
        """A file's sizes: files of the dispatcher will be cut by their ratio."""
        if raw_bytes <= 0:
            return
        known = self._dispatchers[dispatcher]
        ratio = encoded_bytes / raw_bytes
        known.ratio = known.ratio + _NEWEST_SHARE * (ratio - known.ratio) if known.learnt else ratio
        known.learnt = True
        if known.pieces:
            self._mark_full(dispatcher)

    def due(
        self,
        now: float,
        limit: Callable[[int], int],
        stopped: Collection[int] = (),
        all_for: Reason | None = None,
        under_way: UnderWay = NOTHING,
    ) -> list[Cut]:
        """The files of the next plan; they count as planned from now on, so ask only when it can be recorded.

        `limit(dispatcher)`: the lower of its span's resolved-ts and Barrier.limit. `stopped`: those dispatchers whose
        span has reached that limit and which a DDL, or the end, waits for. `all_for`: "shutdown" or "quota", why
        everything that can be planned is to be, however little it is. Cuts of one dispatcher are in order and
        consecutive. With what is under way no more than plan_bytes, but at least one cut when nothing is; full files
        that are left are due at once.
        """
        for dispatcher in list(takewhile(lambda d: self._ends(d) <= now, self._waiting)):
            self._ripe.add(dispatcher)
            del self._waiting[dispatcher]
        stopped = {dispatcher for dispatcher in stopped if self._is_dirty(dispatcher)}
        company: set[int] = set()
        plan: list[Cut] = []
        budget = self._plan_bytes - under_way.bytes

        def reason(dispatcher: int) -> Reason | None:
            if dispatcher in stopped:
                return "barrier"
            return all_for or ("interval" if dispatcher in self._ripe or dispatcher in company else None)

        def cut(dispatchers: Iterable[int]) -> bool:
            """False: the plan is full."""
            nonlocal budget
            for dispatcher in sorted(dispatchers, key=lambda d: (self._dispatchers[d].since, d)):
                is_open = dispatcher in under_way.dispatchers
                for file in self._cuts(dispatcher, limit(dispatcher), reason(dispatcher), is_open):
                    if (plan or under_way.bytes) and file.estimate > budget:
                        return False
                    budget -= file.estimate
                    plan.append(file)
                    self._planned(now, file)
            return True

        candidates = self._ripe.union(self._waiting) if all_for else self._ripe
        if all_for != "shutdown":
            candidates = candidates.difference(under_way.dispatchers)  # but for what is full, see `_cuts`
        has_room, turns = cut(candidates | self._full | stopped), self._turns
        is_turn = turns > 1 and now >= self._next_turn
        if is_turn or any(file.reason == "interval" for file in plan):
            self._next_turn = now + self._flush_interval_s / turns
            company = self._company(now, turns).difference(under_way.dispatchers) if has_room else set()
            cut(company)
        return plan

    def next_deadline(self) -> float | None:
        """When to ask `due` again if nothing else happens; what waits for a limit is due when the limit moves."""
        first = next(iter(self._waiting), None)
        if first is None:
            return None
        if self._turns == 1:
            return self._ends(first)
        return min(self._ends(first), max(self._next_turn, self._dispatchers[first].since + self._flush_interval_s / 2))

    def _ends(self, dispatcher: int) -> float:
        """When its interval is over."""
        return self._dispatchers[dispatcher].since + self._flush_interval_s

    @property
    def _turns(self) -> int:
        """How many parts an interval has."""
        return min(_MOST_TURNS, 1 + self.dirty // self._turn_files)

    def first_unplanned_ts(self, dispatcher: int) -> int | None:
        """No unplanned row is below it; None when there are none."""
        pieces = self._dispatchers[dispatcher].pieces
        return max(min(piece.first_ts for piece in pieces), self._checkpoint_ts + 1) if pieces else None

    def lowest_unplanned_ts(self) -> int | None:
        """No unplanned row of any dispatcher is below it; None when there are none."""
        return self._first_unplanned.get()

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        for dispatcher, known in self._dispatchers.items():
            where = f"dispatcher {dispatcher}"
            lasts = [piece.last_ts for piece in known.pieces]
            assert lasts == sorted(lasts), f"{where}: pieces are out of order"
            assert all(known.planned_ts < piece.first_ts <= piece.last_ts for piece in known.pieces), (
                f"{where}: a piece begins at or below what is planned"
            )
            assert known.raw == sum(piece.bytes for piece in known.pieces), f"{where}: its bytes are not its pieces'"
            full = bool(known.pieces) and self.is_full(known.raw, known.ratio)
            assert not full or dispatcher in self._full, f"{where} has a full file that nobody looks for"
        with_pieces = {dispatcher for dispatcher, known in self._dispatchers.items() if known.pieces}
        assert not self._ripe & self._waiting.keys(), "one waits whose interval is over"
        assert self._ripe | self._waiting.keys() == with_pieces, "others are due than those that have rows"
        assert self._full <= with_pieces, "a full file has no rows"
        since = [self._dispatchers[dispatcher].since for dispatcher in self._waiting]
        assert since == sorted(since), "whose interval is over first does not come first"
        firsts = (self.first_unplanned_ts(dispatcher) for dispatcher in with_pieces)
        assert self.lowest_unplanned_ts() == min(filter(None, firsts), default=None), "another row is the lowest"

    def _planned_ts(self, known: _Dispatcher) -> int:
        return max(known.planned_ts, self._checkpoint_ts)

    def _cuts(self, dispatcher: int, limit: int, for_rest: Reason | None, is_open: bool) -> Iterator[Cut]:
        """`for_rest`: why what makes no full file is to be cut, too.

        Each is found when it is asked for: a large scan has pieces for hundreds, a plan room for a few.
        """
        known = self._dispatchers[dispatcher]
        known.pass_over(self._planned_ts(known))
        start = known.planned_ts
        below = known.pieces[: bisect.bisect_right(known.pieces, limit, key=_last_ts)]
        for to, estimate, reason in self._full_groups(below, known.ratio):
            yield Cut(dispatcher, Position.end_of(start), Position.end_of(to), estimate, reason)
            start = to
        rest = [piece for piece in _above(known.pieces, start) if piece.first_ts <= limit]
        if for_rest is None or not rest or (is_open and for_rest in ("interval", "quota")):
            return
        has_rows = any(piece.last_ts <= limit or piece.row_at_first for piece in rest)
        if has_rows or for_rest != "interval":
            estimate = sum(piece.bytes for piece in rest) - sum(piece.bytes for piece in _above(rest, limit))
            yield Cut(dispatcher, Position.end_of(start), Position.end_of(limit), estimate, for_rest)

    def _full_groups(self, pieces: Sequence[_Piece], ratio: float) -> Iterator[tuple[int, int, Reason]]:
        """(ts, raw bytes, why) of consecutive runs of whole ts that make a file each; what is left over makes none."""
        raw = end = 0
        for ts, group in groupby(pieces, key=_last_ts):
            same_end = list(group)
            size = sum(piece.bytes for piece in same_end)
            if raw and raw + size > self._entry_raw_cap:
                yield end, raw, "size"
                raw = 0
            raw, end = raw + size, ts
            if self.is_full(raw, ratio):
                at_ts = sum(piece.bytes for piece in same_end if piece.first_ts == ts)
                yield end, raw, "oversized" if self.is_full(at_ts, ratio) else "size"
                raw = 0

    def is_full(self, raw: int, ratio: float) -> bool:
        return raw * ratio >= self._file_size or raw >= self._entry_raw_cap

    def _planned(self, now: float, cut: Cut) -> None:
        known = self._dispatchers[cut.dispatcher]
        known.pass_over(cut.to.commit_ts)
        self._unmark(cut.dispatcher)
        if known.pieces:
            self._mark(now, cut.dispatcher)

    def _company(self, now: float, turns: int) -> set[int]:
        """Who is cut before its interval is over: a turn's share of those that have waited for half of it."""
        half_ago = now - self._flush_interval_s / 2
        old = takewhile(lambda d: self._dispatchers[d].since <= half_ago, self._waiting)
        slow = (d for d in old if not self.is_full(2 * self._dispatchers[d].raw, self._dispatchers[d].ratio))
        return set(islice(slow, math.ceil(self.dirty / turns)))

    def _is_dirty(self, dispatcher: int) -> bool:
        return dispatcher in self._waiting or dispatcher in self._ripe

    def _mark(self, now: float, dispatcher: int) -> None:
        if not self._is_dirty(dispatcher):
            self._waiting[dispatcher] = None
            self._dispatchers[dispatcher].since = now
        self._mark_full(dispatcher)

    def _mark_full(self, dispatcher: int) -> None:
        known = self._dispatchers[dispatcher]
        if self.is_full(known.raw, known.ratio):
            self._full.add(dispatcher)

    def _unmark(self, dispatcher: int) -> None:
        self._waiting.pop(dispatcher, None)
        self._ripe.discard(dispatcher)
        self._full.discard(dispatcher)


def _pieces(segment: Segment) -> list[_Piece]:
    pieces = []
    first_ts, before, row_at_first = segment.min.commit_ts, 0, True
    for position, total in segment.curve:
        if total > before:
            pieces.append(_Piece(position.commit_ts, first_ts, total - before, row_at_first))
        first_ts, before, row_at_first = position.commit_ts, total, False
    return pieces


def _above(pieces: Iterable[_Piece], ts: int) -> list[_Piece]:
    """What of the pieces lies above ts; the bytes of one that straddles it are shared out evenly over its ts."""
    return [_rest(piece, ts) for piece in pieces if piece.last_ts > ts]


def _rest(piece: _Piece, ts: int) -> _Piece:
    if piece.first_ts > ts:
        return piece
    # After a curve point most rows are above its ts, so that a cut at a point shares nothing out.
    width = piece.last_ts - piece.first_ts + piece.row_at_first
    share = piece.bytes * (piece.last_ts - ts) // width
    return _Piece(piece.last_ts, ts + 1, share, False)
