"""Which puller pulls which span, and how far it is known to be complete (rules 2, 4, 17 and 21).

Pure: commands and reports in, facts and orders out. It never lets a resolved-ts count before every segment that may
hold rows at or below it is known, and never credits a report to an assignment that it was not made for.

The one invariant: every row of a span in (flushed ts, resolved-ts] stands in `segments`, which can be read. An
assignment begins at exactly the span's resolved-ts, so it adds what lies above and can leave no hole below. Why this
holds, and so why a resolved-ts is never early:

1. *A progress message is lost with its stream, the next one says "resolved 150".* A stream's segments are numbered
   1, 2, 3 ...; a resolved-ts waits until every number up to its `last_segment` is known. With the stream all its
   assignments end: what a new one says is about fresh sub_ids, and its numbers start at 1.
2. *A late report of a puller that lost the span arrives.* Its sub_id is no longer anybody's: dropped. A sub_id is never
   used again in a run, and another run's pullers are refused by their epoch. A segment of an earlier stream, known by
   its older sub_ids, does not pass for this stream's segment of that number.
3. *An assignment ends: its puller is lost, the span moves or is held back.* All segments with a row <= the resolved-ts
   are kept, so the invariant still holds; a resolved-ts that was waiting for a missing segment is dropped and never
   counts. The next assignment starts at the current resolved-ts, which stays there until that assignment reports a
   higher one. Rows above it are pulled again: of a segment with rows on both sides, the upper ones arrive twice, and
   the sorter keeps one copy (rule 4).
4. *A segment of the span stands where only its puller's machine can read it, and that may be gone.* When the puller
   has left or the span moves, the invariant holds for nothing that is kept: the span goes back to its flushed ts and
   all its segments are forgotten (rule 21). What was published is the log's and the checkpoint's business.
5. *A held span is cut back to a ts, to free the store.* As 3, with the lower ts for the resolved-ts: the invariant for
   a ts is the invariant for every lower one, if the segments with a row <= it are kept.
6. *The same row comes from the old assignment and, late, from the new one.* The new one's rows <= its start are not
   needed: a segment wholly <= it is not kept. Of a mixed one the sorter keeps one copy.
7. *A recovered plan ends at 150, the re-pull stands at 120.* `StoredRows.is_whole` is false: the plan waits (rule 3).
8. *A puller ends with what stands in its memory alone, for spans that others have by now.* As 4, but the span goes back
   to the ts before the first row that is lost: below that every segment is still there. Who pulls it begins there anew.
9. *A puller joins while the command of a move is on its way to its earlier stream.* Commands are made from streams that
   are open, and a stream's end takes its assignments along: the joined one is told of fresh ones only.
10. *One puller of a span that is pulled in parts is lost, or the span is split anew.* As 3, for all parts at once: each
   of their assignments ends, and the next ones begin at the span's resolved-ts, the lowest of theirs. What a part had
   above it is pulled again like the rest, and no part's word outlives the borders that it was given for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from operator import attrgetter

from changefeed.errors import NeedsHuman
from changefeed.model.table_copy import TableCopy
from changefeed.owner.pulling.assignments import Assignments
from changefeed.owner.pulling.known_files import KnownFiles, Memory
from changefeed.owner.pulling.load import RECENT_S, SPLIT_BYTES, even_out, is_small, loads_of, too_large
from changefeed.owner.pulling.segments import Segment
from changefeed.owner.pulling.shares import Shares
from changefeed.owner.pulling.span import Span, SpanPart
from changefeed.wire import owner_pb2 as pb

AWAY_S = 5.0  # a puller that is not back by then loses its spans


@dataclass(frozen=True)
class ReportOutcome:
    """What a report has brought: segments to plan by, and spans whose resolved-ts has risen."""

    segments: tuple[Segment, ...] = ()
    resolved: dict[int, int] = field(default_factory=dict)  # span_id -> ts


@dataclass
class Orders:
    """What to tell which puller, and which spans' assignments have ended (span_id -> the ts that they stand at)."""

    commands: list[tuple[int, pb.Command]] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)

    def add(self, other: Orders) -> None:
        self.commands += other.commands
        self.ended |= other.ended


_RESOLVED_TS: Callable[[Span], int] = attrgetter("resolved_ts")


class Spans:
    """All tables' spans of a changefeed over pullers `0 .. pullers - 1`. Seconds are monotonic.

    A span has one puller, the one with the fewest when it is added, or is split into parts of which each has one. A
    task that takes a lost one's place has its number and goes on with its parts; if it stays away they go to others.
    """

    def __init__(self, pullers: int, host: str = "", away_s: float = AWAY_S, split_bytes: int = SPLIT_BYTES) -> None:
        """`host`: this machine, whose own segments can be read."""
        self._hosts = ("", host)
        self._away_s = away_s
        self._split_bytes = split_bytes
        self._shares = Shares(pullers)
        self._assignments = Assignments()
        self._away: dict[int, float] = {}  # since when
        self._uneven = False  # somebody joined since parts were last evened out
        self._halve_at: float | None = None
        self._spans: dict[int, Span] = {}
        self._split: dict[int, Span] = {}  # those that have several parts
        self._held: dict[int, Span] = {}
        self._stored: dict[int, Span] = {}  # those that have segments
        self._checkpoint_ts = 0
        self.files = KnownFiles()
        self.moves = 0  # parts that another puller got
        self.splits = 0

    @property
    def complete(self) -> bool:
        """Whether every span is pulled, or held back."""
        more = sum(len(span.parts) - 1 for span in self._split.values() if not span.held)
        return len(self._assignments) + len(self._held) == len(self._spans) + more

    @property
    def held(self) -> Set[int]:
        """The spans that nobody pulls because the store is short."""
        return self._held.keys()

    @property
    def running(self) -> Set[int]:
        """The spans that are not held: each has a puller, or waits for one."""
        return self._spans.keys() - self._held.keys()

    def __contains__(self, span_id: int) -> bool:
        return span_id in self._spans

    def add_span(
        self, span_id: int, start_key: bytes, end_key: bytes, start_ts: int, copy: TableCopy | None = None
    ) -> Orders:
        """Pull `[start_key, end_key)` after start_ts."""
        if span_id in self._spans:
            raise NeedsHuman(f"Span {span_id} was added twice.", "Report this as a bug, with the log.")
        span = Span(span_id, start_key, end_key, start_ts, copy, resolved_ts=start_ts)
        self._spans[span_id] = span
        for part in span.split(()):
            self._shares.give(part, self._shares.idlest(self._shares.pullers))
        orders = Orders()
        self._assign(span, orders)
        return orders

    def remove_span(self, span_id: int) -> Orders:
        """A DDL has ended it: nobody pulls it any more, and nothing of it is needed."""
        orders = Orders()
        span = self._spans[span_id]
        self._release(span, orders)
        self._forget(span, lambda _: True)
        orders.ended.pop(span_id, None)
        self._held.pop(span_id, None)
        self._split.pop(span_id, None)
        for part in span.parts:
            self._shares.take(part)
        del self._spans[span_id]
        return orders

    def puller_joined(self, now: float, puller_id: int) -> Orders:
        """A puller's stream is open: what to tell it. One that was still thought open has ended."""
        pullers = self._shares.pullers
        if puller_id not in pullers:
            raise NeedsHuman(
                f"Puller {puller_id} reports, but this changefeed has {len(pullers)} pullers, counted from 0.",
                "Report this as a bug, with the log.",
            )
        orders = self.puller_left(now, puller_id)
        self._assignments.open(puller_id)
        self._uneven = True
        self._away.pop(puller_id, None)
        for other in set(pullers) - set(self._assignments.pullers):
            self._away.setdefault(other, now)  # those that have never been here are away from the first one's coming on
        for part in self._shares.of(puller_id):
            self._assign(part.span, orders)
        return orders

    def puller_left(self, now: float, puller_id: int) -> Orders:
        """A puller's stream is gone, and its assignments with it; and its memory: others may have to pull again."""
        orders = Orders()
        if not self._assignments.close(puller_id):
            return orders
        self._away[puller_id] = now
        for span in list({part.span.span_id: part.span for part in self._shares.of(puller_id)}.values()):
            self._release(span, orders)
            self._forget_unreadable(span, orders)
            self._assign(span, orders)
        self._forget_lost(self.files.memory_lost(puller_id), orders)
        return orders

    def arrange(self, now: float) -> Orders:
        """Give the spans of pullers that stay away to the others; even out when one has joined."""
        orders = Orders()
        self._fade(now)
        gone = [puller for puller, since in self._away.items() if now - since >= self._away_s]
        left = [part for puller in gone for part in self._shares.of(puller)]
        if self._assignments.pullers and (left or self._uneven):
            self._uneven = False
            for part in left:
                self._move(part, self._shares.idlest(self._assignments.pullers), orders)
            for (span_id, number), puller in even_out(self._weights()):
                self._move(self._spans[span_id].parts[number], puller, orders)
        for span in [span for span in self._split.values() if is_small(span, now, self._split_bytes)]:
            orders.add(self.split(now, span.span_id, ()))
        return orders

    def on_report(self, puller_id: int, report: pb.Report) -> ReportOutcome:
        """Take in a report of the puller's open stream; what is not of a current assignment is dropped."""
        stream = self._assignments.stream(puller_id)
        if stream is None:
            return ReportOutcome()
        segments: list[Segment] = []
        for archived in report.archived:
            self.files.archived(archived.uri, archived.segment in stream.segments)
        for meta in report.segments:
            if stream.take(meta):
                segments += self._take(puller_id, meta)
        self._stored |= {segment.span_id: self._spans[segment.span_id] for segment in segments}
        risen = self._assignments.resolve(puller_id, report.resolved)
        if report.resolved or report.segments:
            self._shares.changed(puller_id)
        return ReportOutcome(tuple(segments), risen)

    def split(self, now: float, span_id: int, borders: Sequence[bytes]) -> Orders:
        """Pull the span in parts, between these keys, by those who have the least to do; () makes it whole again."""
        span = self._spans[span_id]
        orders = Orders()
        span.split_at = now
        if span.is_being_copied or not (borders or span_id in self._split):
            return orders
        self._release(span, orders)
        self._forget_unreadable(span, orders)
        for part in span.parts:
            self._shares.take(part)
        loads = loads_of(self._shared())
        for part in span.split(borders):
            puller = min(loads, key=lambda each: (loads[each], each))
            loads[puller] += part.weight
            self._shares.give(part, puller)
        self._split.pop(span_id, None)
        if borders:
            self._split[span_id] = span
            self.splits += 1
        self._assign(span, orders)
        return orders

    def too_large(self, now: float) -> tuple[int, int] | None:
        """(span_id, parts) of a span that is too much for who pulls it, while others have less to do; see `load`."""
        return too_large(self._shared(), now, self._split_bytes)

    def sampled_keys(self, span_id: int) -> list[bytes]:
        """Some keys of the span's rows that have come lately, in order: first and last ones of so many bytes."""
        segments = self._spans[span_id].segments
        return sorted(each.key for segment in segments for each in (segment.min, *(at for at, _ in segment.curve)))

    def hold(self, span_ids: Iterable[int]) -> Orders:
        """Pull these no more until `resume`: they stand where they are (rule 17)."""
        orders = Orders()
        for span in (self._spans[span_id] for span_id in span_ids):
            self._release(span, orders)
            span.held = True
            self._held[span.span_id] = span
            self._changed(span)
        return orders

    def resume(self, span_ids: Iterable[int]) -> Orders:
        """Pull these again, from where they stand."""
        orders = Orders()
        for span in [self._held.pop(span_id) for span_id in span_ids]:
            span.held = False
            self._changed(span)
            self._assign(span, orders)
        return orders

    def cut_back(self, span_id: int, ts: int) -> Orders:
        """Forget what a held span has above ts: it will be pulled again."""
        orders = Orders()
        self._fall_back(self._held[span_id], ts, orders)
        return orders

    def heard(self) -> list[tuple[int, pb.Command]]:
        """For each puller that does not know it yet: how many of its segments are counted."""
        return self._assignments.heard()

    def resolved_ts(self, span_id: int) -> int:
        """Every row of the span in (flushed ts, it] stands in `segments`."""
        return self._spans[span_id].resolved_ts

    def lowest_ts(self) -> int | None:
        """The lowest resolved-ts of all spans; None when there are none."""
        running = self._shares.lowest()
        lowest = [running[0]] if running else []
        return min([*lowest, *map(_RESOLVED_TS, self._held.values())], default=None)

    def reached(self, needed: Collection[int] = ()) -> dict[int, int]:
        """The resolved-ts of the spans that room goes by: those that have segments, are held or needed, and the lowest.

        Of all that are not held the lowest is among them as well.
        """
        wanted = {**self._stored, **self._held}
        running = self._shares.lowest()
        for span_id in [*needed, *([running[1]] if running else [])]:
            if span_id in self._spans:
                wanted[span_id] = self._spans[span_id]
        return {span_id: span.resolved_ts for span_id, span in wanted.items()}

    def stored(self) -> Collection[int]:
        """The spans that have segments."""
        return self._stored.keys()

    def segments(self, span_id: int) -> tuple[Segment, ...]:
        """What the span's assignments have brought and is neither released nor forgotten."""
        return tuple(self._spans[span_id].segments)

    def unreadable(self, uri: str) -> list[tuple[int, pb.Command]]:
        """A task can't read a segment in memory: its puller, if it is still there, is told to archive it."""
        memory = self.files.unreadable(uri)
        if memory is None:
            return []
        return [(memory.puller, pb.Command(archive=pb.Archive(segments=[memory.seq])))]

    def free(self, in_use: Collection[str]) -> list[tuple[int, pb.Command]]:
        """What pullers may use the memory of again. `in_use`: segments that tasks read in memory."""
        found = self.files.take_free(in_use)
        return [(puller, pb.Command(free=pb.Free(segments=seqs))) for puller, seqs in found.items()]

    def on_checkpoint(self, ts: int) -> None:
        """A commit record says `ts`: every span is flushed to it at least (rule 11)."""
        if ts <= self._checkpoint_ts:
            return
        self._checkpoint_ts = ts
        for span_id in list(self._stored):
            self.release_below(span_id, ts)
        if (lowest_ts := self.lowest_ts()) is not None and lowest_ts < ts:  # one has fallen back since it was reckoned
            for span_id in self._spans:
                self.release_below(span_id, ts)

    def release_below(self, span_id: int, ts: int) -> list[Segment]:
        """The span is flushed to `ts`: its segments wholly <= ts are forgotten and returned.

        All of them, when nobody pulls the span and it has nothing above ts that would not be pulled again.
        """
        span = self._spans[span_id]
        if ts <= span.flushed_ts:
            return []
        span.flushed_ts = ts
        for part in span.parts if ts > span.resolved_ts else ():
            part.rise(ts)
            self._shares.changed(part.puller)
        over = not span.is_pulled and span.resolved_ts == ts
        return self._forget(span, lambda segment: over or segment.max.commit_ts <= ts)

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError.

        Of the one invariant what can be seen here: all segments that are kept exist, each counted by who uses it.
        """
        self.files.check()
        used = Counter(segment.uri for span in self._spans.values() for segment in span.segments)
        assert used == self.files.uses(), "a segment that a span has does not exist, or is counted wrongly"
        parts = [part for span in self._spans.values() for part in span.parts]
        self._assignments.check(parts)
        for name, known, wanted in (
            ("held", self._held, {each for each, span in self._spans.items() if span.held}),
            ("stored", self._stored, {each for each, span in self._spans.items() if span.segments}),
            ("split", self._split, {each for each, span in self._spans.items() if len(span.parts) > 1}),
        ):
            assert known.keys() == wanted, f"other spans are {name} than those noted"
        for span in self._spans.values():
            span.check()
        running = [(part.resolved_ts, part.key) for part in parts if not part.span.held]
        lowest = self._shares.lowest()
        assert (lowest or (None,))[0] == min(running, default=(None,))[0], "another span is the lowest that runs"

    def _assign(self, span: Span, orders: Orders) -> None:
        """Each part that nobody pulls to its puller, from where the span stands, if that puller is here."""
        orders.commands += self._assignments.begin(span)

    def _release(self, span: Span, orders: Orders) -> None:
        """All its assignments are over; what they have said of the whole span and what counts of that stays."""
        if span.is_pulled:
            orders.commands += self._assignments.end(span)
            self._fall_back(span, span.resolved_ts, orders)

    def _move(self, part: SpanPart, puller: int, orders: Orders) -> None:
        self._release(part.span, orders)
        self._forget_unreadable(part.span, orders)
        self._shares.take(part)
        self._shares.give(part, puller)
        self.moves += 1
        self._assign(part.span, orders)

    def _changed(self, span: Span) -> None:
        for part in span.parts:
            self._shares.changed(part.puller)

    def _forget_unreadable(self, span: Span, orders: Orders) -> None:
        """Its puller is lost, or will be another: what only that one's machine can read may be as well (rule 21)."""
        if any(segment.host not in self._hosts for segment in span.segments):
            self._fall_back(span, span.flushed_ts, orders)

    def _forget_lost(self, lost: Collection[str], orders: Orders) -> None:
        """Segments that were in a puller's memory alone: whoever has their spans now pulls from below them again."""
        for span in self._spans.values() if lost else ():
            first = min((each.min.commit_ts for each in span.segments if each.uri in lost), default=None)
            if first is not None:
                self._release(span, orders)
                self._fall_back(span, first - 1, orders)
                self._assign(span, orders)

    def _fall_back(self, span: Span, ts: int, orders: Orders) -> None:
        """To ts, but not below the flushed ts."""
        span.flushed_ts = max(span.flushed_ts, self._checkpoint_ts)
        span.stand_at(max(span.flushed_ts, min(span.resolved_ts, ts)))
        self._changed(span)
        whole = span.resolved_ts if span.resolved_ts > span.flushed_ts else -1
        self._forget(span, lambda segment: segment.min.commit_ts > whole)
        orders.ended[span.span_id] = span.resolved_ts

    def _take(self, puller_id: int, meta: pb.SegmentMeta) -> list[Segment]:
        taken = []
        for share in meta.spans:
            part = self._assignments.part(share.sub_id, puller_id)
            if part is not None and share.rows:
                segment, span = Segment.from_proto(meta, share), part.span
                part.recent += segment.bytes
                if segment.max.commit_ts > max(span.flushed_ts, span.start_ts):
                    span.segments.append(segment)
                    taken.append(segment)
        if meta.uri:
            self.files.add(meta.uri, puller_id, meta.bytes, len(taken), Memory.from_proto(puller_id, meta))
        return taken

    def _forget(self, span: Span, which: Callable[[Segment], bool]) -> list[Segment]:
        forgotten = [segment for segment in span.segments if which(segment)]
        if forgotten:
            span.segments = [segment for segment in span.segments if not which(segment)]
            if not span.segments:
                del self._stored[span.span_id]
            for segment in forgotten:
                self.files.drop(segment)
        return forgotten

    def _shared(self) -> dict[int, list[SpanPart]]:
        """Return the parts of each puller that is here; before any is, of all."""
        return {puller: self._shares.of(puller) for puller in self._assignments.pullers or self._shares.pullers}

    def _weights(self) -> dict[int, dict[tuple[int, int], int]]:
        return {puller: {part.key: part.weight for part in parts} for puller, parts in self._shared().items()}

    def _fade(self, now: float) -> None:
        if self._halve_at is None:
            self._halve_at = now + RECENT_S
        elif now >= self._halve_at:
            self._halve_at = now + RECENT_S
            for span in self._spans.values():
                for part in span.parts:
                    part.recent //= 2
