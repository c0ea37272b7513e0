"""Three honest pullers in any order of events: no resolved-ts counts early (rule 2)."""

from __future__ import annotations

import owner_segments as s
from changefeed.owner.pulling.spans import AWAY_S, Orders, Spans
from changefeed.wire import owner_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st
from owner_segments import report


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """What happens to pullers: rows written, progress said, messages lost or late, streams cut, spans moved, held."""
    events = ["rows", "rows", "resolve", "resolve", "deliver", "deliver", "deliver", "cut", "wait", "hold"]
    events += ["flush", "checkpoint", "split"]
    event = st.tuples(st.sampled_from(events), st.integers(0, 2), st.integers(0, 5))
    return draw(st.lists(event, min_size=5, max_size=80))


_KEYS = 4  # of each span; a row has the one that its ts says
_BORDERS = ([], [b"\1"], [b"\3"], [b"\1", b"\2"], [b"\1", b"\3"], [b"\1", b"\2", b"\3"])


class Pullers:
    """Three pullers that are honest, whose messages come late, get lost or are for nobody any more."""

    def __init__(self) -> None:
        self.spans = Spans(3)
        self.now = 0.0
        self.checkpoint_ts = 0
        self.rows: dict[int, list[int]] = {span_id: [] for span_id in range(1, 7)}  # of the upstream
        self.owned: dict[int, tuple[int, int, range]] = {}  # sub_id -> span_id, puller, keys
        self.resolved: dict[int, int] = {}  # by sub_id
        self.mail: dict[int, list[pb.Report]] = {0: [], 1: [], 2: []}
        self.seqs = {0: 0, 1: 0, 2: 0}
        self.attempts = {0: 0, 1: 0, 2: 0}
        self.flushed = dict.fromkeys(self.rows, 0)
        self.stored: dict[tuple[str, int], set[int]] = {}  # by segment and sub_id
        for span_id in self.rows:
            self.obey(self.spans.add_span(span_id, b"", b"", 100))
        for puller in self.mail:
            self.join(puller)

    def obey(self, orders: Orders) -> None:
        for puller, command in orders.commands:
            if command.HasField("release"):
                del self.owned[command.release.sub_id]
                continue
            asked = command.subscribe
            assert asked.sub_id not in self.resolved, "used again"
            assert asked.start_ts == self.spans.resolved_ts(asked.span_id), "a hole"
            first, end = asked.start_key or b"\0", asked.end_key or bytes([_KEYS])
            self.owned[asked.sub_id] = asked.span_id, puller, range(first[0], end[0])
            self.resolved[asked.sub_id] = asked.start_ts

    def leave(self, puller: int) -> None:
        self.owned = {sub: known for sub, known in self.owned.items() if known[1] != puller}
        self.obey(self.spans.puller_left(self.now, puller))

    def join(self, puller: int) -> None:
        self.owned = {sub: known for sub, known in self.owned.items() if known[1] != puller}
        self.mail[puller] = self.mail[puller][-2:]  # some late reports of the old stream
        self.seqs[puller] = 0
        self.attempts[puller] += 1
        self.obey(self.spans.puller_joined(self.now, puller))

    def write(self, puller: int, count: int) -> None:
        """All that is above what each subscription has said, and `count` new rows."""
        shares = []
        self.seqs[puller] += 1
        attempt = f"{puller}-{self.attempts[puller]}"
        for sub_id, (span_id, owner, keys) in self.owned.items():
            if owner == puller:
                last = self.last_ts(span_id)
                self.rows[span_id] += range(last + 1, last + 1 + count)
                if new := [ts for ts in self.rows[span_id] if ts > self.resolved[sub_id] and ts % _KEYS in keys]:
                    shares.append(s.share(span_id, sub_id, new))
                    self.stored[f"{attempt}/{self.seqs[puller]}.arrow", sub_id] = set(new)
        self.mail[puller].append(report(s.meta(self.seqs[puller], *shares, attempt=attempt)))

    def last_ts(self, span_id: int) -> int:
        """Nothing new of a span may come at or below it: some part of it may have said that it is resolved."""
        said = [self.resolved[sub_id] for sub_id, (owned, _, _) in self.owned.items() if owned == span_id]
        return max(*said, *self.rows[span_id], 100)

    def resolve(self, puller: int, choice: int) -> None:
        self.write(puller, 0)
        for sub_id, (span_id, owner, _) in self.owned.items():
            if owner == puller:
                ts = self.last_ts(span_id)
                self.rows[span_id].append(ts + 1)  # the next row is above it
                self.resolved[sub_id] = ts
                first = max(self.seqs[puller] - choice, 1)
                self.mail[puller].append(report(s.resolved(sub_id, ts, self.seqs[puller], first)))

    def hold(self, span_id: int, choice: int) -> None:
        if span_id not in self.spans.held:
            self.obey(self.spans.hold([span_id]))
        elif choice < 3:
            self.obey(self.spans.resume([span_id]))
        else:
            self.obey(self.spans.cut_back(span_id, 100 + 3 * choice))

    def check(self) -> None:
        for span_id, rows in self.rows.items():
            kept = self.spans.segments(span_id)
            have = set().union(*(self.stored[segment.uri, segment.sub_id] for segment in kept))
            flushed = max(self.flushed[span_id], self.checkpoint_ts)
            assert self.spans.resolved_ts(span_id) >= self.checkpoint_ts
            assert {ts for ts in rows if flushed < ts <= self.spans.resolved_ts(span_id)} <= have
        reached = {span_id: self.spans.resolved_ts(span_id) for span_id in self.rows}
        assert self.spans.lowest_ts() == min(reached.values())
        known, running = self.spans.reached(), reached.keys() - set(self.spans.held)
        assert known == {span_id: reached[span_id] for span_id in known}
        assert known.keys() >= {*self.spans.held, *self.spans.stored()}
        lowest = min((reached[span_id] for span_id in running), default=None)
        assert min((known[span_id] for span_id in known.keys() & running), default=None) == lowest
        assert set(self.spans.stored()) == {span_id for span_id in self.rows if self.spans.segments(span_id)}


@s.STEADY
@given(streams())
def test_rule_2_no_order_of_events_makes_a_resolved_ts_count_early(events: list[tuple[str, int, int]]) -> None:
    world = Pullers()
    spans = world.spans
    for event, puller, choice in events:
        span_id = 1 + puller + 3 * (choice % 2)
        world.now += 1.0
        if event == "rows":
            world.write(puller, choice)
        elif event == "resolve":
            world.resolve(puller, choice)
        elif event == "deliver" and world.mail[puller]:
            spans.on_report(puller, world.mail[puller].pop(choice % len(world.mail[puller])))
        elif event == "cut":
            world.leave(puller)
            if choice < 4:
                world.join(puller)
        elif event == "flush":
            world.flushed[span_id] = max(world.flushed[span_id], spans.resolved_ts(span_id) - choice)
            spans.release_below(span_id, world.flushed[span_id])
        elif event == "checkpoint":
            world.checkpoint_ts = max(world.checkpoint_ts, min(map(spans.resolved_ts, world.rows)) - choice)
            spans.on_checkpoint(world.checkpoint_ts)
        elif event == "wait":
            world.now += AWAY_S
            world.obey(spans.arrange(world.now))
        elif event == "split":
            world.obey(spans.split(world.now, span_id, _BORDERS[choice]))
        elif event == "hold":
            world.hold(span_id, choice)
        spans.check()
        world.check()
