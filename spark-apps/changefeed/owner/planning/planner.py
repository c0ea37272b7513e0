"""Cuts what has been pulled into plan entries (DESIGN.md 3.3, source design 4).

Pure. It decides where files end, never what is in them: an entry is all rows of a dispatcher between two ts. It never
cuts above a dispatcher's limit and never leaves a gap between two cuts.

A segment says how its raw bytes lie over its ts range by a curve, one point a MiB. Between two points there is a
*piece*: so many bytes, a row at its last ts, rows anywhere between. Pieces estimate size, never content:

1. *Two segments overlap, or a transaction has several points.* A cut is `Position.end_of` of a whole ts, so a row of a
   piece that straddles it is in the entry or after it by its own ts; only the estimate is shared out.
2. *A piece straddles the limit.* Whether rows of it are <= the limit is not known. By interval it waits for a row that
   is known to be there; at a barrier, at a shutdown and when the store is short it is cut, even if the file may turn
   out empty (rule 13).
3. *TiKV sends rows again.* What is <= the planned ts is dropped on arrival and starts no timer (rule 4).
4. *A thousand dispatchers are idle.* One without pieces is in no set: a pass over those that are due costs by their
   number.

The interval is one for all dispatchers, as TiCDC's is: it begins with the first unplanned row of any, and when it is
over all that can be planned is, in one plan. If each had its own, they would come apart and make plan after plan of a
few files each, which costs two log records every time. So a file may come sooner than its first row's interval is
over. What is not resolved yet then comes with the others the next time, unless it has waited for a whole interval: then
it comes as soon as it is. What a full file has left over has an interval of its own: a busy dispatcher makes no files
but full ones.

A plan may be made while others are open. A dispatcher whose files are being written gets no further one but a full
one, or a slow sink would be given ever more and ever smaller files; and only so many bytes are open at a time.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple

from changefeed.errors import NeedsHuman
from changefeed.model.position import Position
from changefeed.model.record import PlanEntry
from changefeed.owner.planning.lowest import Lowest
from changefeed.owner.pulling.segments import Segment
from changefeed.owner.transaction_log.state import State

MIB = 1 << 20
_NEWEST_SHARE = 0.3  # of a file in its table's learnt ratio

Reason = Literal["size", "interval", "barrier", "quota", "shutdown"]


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


@dataclass
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
        self.planned_ts = ts
        self.pieces = _above(self.pieces, ts)
        self.raw = sum(piece.bytes for piece in self.pieces)


def _last_ts(piece: _Piece) -> int:
    return piece.last_ts


class Planner:
    """What is not yet planned, for all dispatchers of a changefeed. Seconds are monotonic, sizes bytes."""

    def __init__(
        self, file_size: int, flush_interval_s: float, plan_bytes: int = 512 * MIB, entry_raw_cap: int = 256 * MIB
    ) -> None:
        self._file_size = file_size
        self._flush_interval_s = flush_interval_s
        self._plan_bytes = plan_bytes
        self._entry_raw_cap = entry_raw_cap
        self._dispatchers: dict[int, _Dispatcher] = {}
        self._first_unplanned = Lowest(self.first_unplanned_ts)
        self._checkpoint_ts = 0
        self._dirty: set[int] = set()  # has pieces
        self._full: set[int] = set()  # has pieces for a file
        self._ripe: set[int] = set()  # has pieces, and the interval is over
        self._ripe_together: set[int] = set()  # in this, or the last, call of `due`: with the others
        self._left_over: set[int] = set()  # has pieces that the last full file has left over
        self._interval_ends: float | None = (
            None  # for those that are dirty and in neither of the two; None: there is none
        )

    @property
    def dirty(self) -> int:
        """How many dispatchers have unplanned rows."""
        return len(self._dirty)

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
        if self._interval_ends is not None and self._interval_ends <= now:
            self._ripe |= self._dirty - self._left_over
            self._ripe_together = self._ripe.copy()
            self._interval_ends = None
        self._ripe |= {d for d in self._left_over if self._own_interval_ends(d) <= now}
        candidates = self._dirty if all_for else self._ripe
        if all_for != "shutdown":
            candidates = candidates.difference(under_way.dispatchers)  # but for what is full, see `_cuts`
        candidates = candidates | self._full | (self._dirty & frozenset(stopped))
        plan: list[Cut] = []
        budget = self._plan_bytes - under_way.bytes
        for dispatcher in sorted(candidates, key=lambda d: (self._dispatchers[d].since, d)):
            is_open = dispatcher in under_way.dispatchers
            for cut in self._cuts(dispatcher, limit(dispatcher), dispatcher in stopped, all_for, is_open):
                if (plan or under_way.bytes) and cut.estimate > budget:
                    return plan
                budget -= cut.estimate
                plan.append(cut)
                self._planned(now, cut)
        self._ripe -= {d for d in self._ripe_together if self._own_interval_ends(d) > now}
        self._ripe_together = set()
        if self._interval_ends is None and self._dirty - self._ripe - self._left_over:
            self._interval_ends = now + self._flush_interval_s
        return plan

    def next_deadline(self) -> float | None:
        """When to ask `due` again if nothing else happens; what waits for a limit is due when the limit moves."""
        ends = [self._own_interval_ends(d) for d in self._left_over - self._ripe]
        if self._interval_ends is not None and self._dirty - self._ripe - self._left_over:
            ends.append(self._interval_ends)
        return min(ends, default=None)

    def first_unplanned_ts(self, dispatcher: int) -> int | None:
        """No unplanned row is below it; None when there are none."""
        return min((piece.first_ts for piece in self._dispatchers[dispatcher].pieces), default=None)

    def lowest_unplanned_ts(self) -> int | None:
        """No unplanned row of any dispatcher is below it; None when there are none."""
        return self._first_unplanned.get()

    def _planned_ts(self, known: _Dispatcher) -> int:
        return max(known.planned_ts, self._checkpoint_ts)

    def _cuts(self, dispatcher: int, limit: int, is_stopped: bool, all_for: Reason | None, is_open: bool) -> list[Cut]:
        known = self._dispatchers[dispatcher]
        known.pass_over(self._planned_ts(known))
        start = known.planned_ts
        cuts = []
        below = known.pieces[: bisect.bisect_right(known.pieces, limit, key=_last_ts)]
        for to, estimate in self._full_groups(below, known.ratio):
            cuts.append(Cut(dispatcher, Position.end_of(start), Position.end_of(to), estimate, "size"))
            start = to
        rest = [piece for piece in _above(known.pieces, start) if piece.first_ts <= limit]
        reason = self._reason_for_rest(dispatcher, rest, limit, is_stopped, all_for)
        if reason is not None and not (is_open and reason in ("interval", "quota")):
            estimate = sum(piece.bytes for piece in rest) - sum(piece.bytes for piece in _above(rest, limit))
            cuts.append(Cut(dispatcher, Position.end_of(start), Position.end_of(limit), estimate, reason))
        return cuts

    def _full_groups(self, pieces: Sequence[_Piece], ratio: float) -> Iterator[tuple[int, int]]:
        """(ts, raw bytes) of consecutive runs of whole ts that make a file each; what is left over makes none."""
        raw = end = 0
        for ts, group in groupby(pieces, key=_last_ts):
            size = sum(piece.bytes for piece in group)
            if raw and raw + size > self._entry_raw_cap:
                yield end, raw
                raw = 0
            raw, end = raw + size, ts
            if raw * ratio >= self._file_size or raw >= self._entry_raw_cap:
                yield end, raw
                raw = 0

    def _reason_for_rest(
        self, dispatcher: int, rest: Sequence[_Piece], limit: int, is_stopped: bool, all_for: Reason | None
    ) -> Reason | None:
        if not rest:
            return None
        if is_stopped:
            return "barrier"
        if all_for:
            return all_for
        has_rows = any(piece.last_ts <= limit or piece.row_at_first for piece in rest)
        return "interval" if has_rows and dispatcher in self._ripe else None

    def _planned(self, now: float, cut: Cut) -> None:
        known = self._dispatchers[cut.dispatcher]
        known.pass_over(cut.to.commit_ts)
        self._unmark(cut.dispatcher)
        if known.pieces:
            self._mark(now, cut.dispatcher)
            if cut.reason == "size":
                self._left_over.add(cut.dispatcher)

    def _mark(self, now: float, dispatcher: int) -> None:
        if dispatcher not in self._dirty:
            if not self._dirty or self._interval_ends is None:
                self._interval_ends = now + self._flush_interval_s
            self._dirty.add(dispatcher)
            self._dispatchers[dispatcher].since = now
        self._mark_full(dispatcher)

    def _own_interval_ends(self, dispatcher: int) -> float:
        return self._dispatchers[dispatcher].since + self._flush_interval_s

    def _mark_full(self, dispatcher: int) -> None:
        known = self._dispatchers[dispatcher]
        if known.raw * known.ratio >= self._file_size or known.raw >= self._entry_raw_cap:
            self._full.add(dispatcher)

    def _unmark(self, dispatcher: int) -> None:
        for marked in (self._dirty, self._full, self._ripe, self._ripe_together, self._left_over):
            marked.discard(dispatcher)


def _pieces(segment: Segment) -> list[_Piece]:
    pieces = []
    first_ts, before, row_at_first = segment.min.commit_ts, 0, True
    for position, total in [*segment.curve, (segment.max, segment.bytes)]:
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


@dataclass(frozen=True)
class Table:
    """What decodes and names a dispatcher's rows from now on."""

    table_id: int  # physical
    table_info: str  # hash
    table_version: int
    place: str  # its directory but for the date


def make_plan(
    state: State,
    cuts: Iterable[Cut],
    tables: Mapping[int, Table],
    date: str,
    directory: Callable[[str, str], str],
    data_file: Callable[[str, int], str],
    schema_files: Container[tuple[int, int]],
) -> tuple[PlanEntry, ...]:
    """The entries of a plan record: names and indexes come from the log (rule 15).

    `date` is the sink's date of the plan's pd_ms ("" when directories have none); a dispatcher whose newest directory
    has a later one stays there, so `directory(place, date)` must go by the date it is given. It and
    `data_file(directory, index)` give paths below the sink's root. `schema_files` holds
    (dispatcher, table_version) of the schema files known to exist. Raises NeedsHuman when one is missing (rule 26) or
    when a cut does not go on from the log.
    """
    entries: list[PlanEntry] = []
    reached: dict[int, tuple[Position, str, int]] = {}
    for number, cut in enumerate(cuts):
        table = tables[cut.dispatcher]
        if (cut.dispatcher, table.table_version) not in schema_files:
            raise NeedsHuman(
                f"The schema file of dispatcher {cut.dispatcher}, version {table.table_version}, has not been written.",
                "Report this as a bug, with the log.",
            )
        last = state.dispatchers.get(cut.dispatcher)
        day = max(date, last.date) if last else date
        place = directory(table.place, day)
        start, before, index = reached.get(cut.dispatcher) or (
            state.position(cut.dispatcher),
            last.directory if last else "",
            last.next_index if last else 1,
        )
        if not cut.from_ <= start < cut.to:
            raise NeedsHuman(
                f"Dispatcher {cut.dispatcher} is planned up to {cut.from_.commit_ts}, "
                f"in the log up to {start.commit_ts}.",
                "Report this as a bug, with the log.",
            )
        index = index if place == before else 1
        entries.append(
            PlanEntry.model_validate(
                {
                    "entry": number,
                    "dispatcher": cut.dispatcher,
                    "table_id": table.table_id,
                    "from": start,
                    "to": cut.to,
                    "path": data_file(place, index),
                    "directory": place,
                    "index": index,
                    "date": day,
                    "table_version": table.table_version,
                    "table_info": table.table_info,
                    "estimate": cut.estimate,
                    "reason": cut.reason,
                }
            )
        )
        reached[cut.dispatcher] = (cut.to, place, index + 1)
    return tuple(entries)
