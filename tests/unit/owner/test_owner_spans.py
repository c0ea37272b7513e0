from __future__ import annotations

import owner_records as made
import owner_segments as s
import pytest
from changefeed.errors import NeedsHuman
from changefeed.owner.spans import Changes, Spans
from changefeed.wire import owner_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

SPAN = 7


def one_span(start_ts: int = 100) -> tuple[Spans, int]:
    """A span pulled by puller 0; its sub_id."""
    spans = Spans(1)
    spans.add_span(SPAN, b"a", b"b", start_ts)
    (subscribe,) = spans.puller_joined(0)
    return spans, subscribe.sub_id


def report(*items: pb.SegmentMeta | pb.Resolved) -> pb.Report:
    return pb.Report(
        segments=[item for item in items if isinstance(item, pb.SegmentMeta)],
        resolved=[item for item in items if isinstance(item, pb.Resolved)],
    )


def test_spans_are_balanced_and_told_when_their_puller_joins() -> None:
    spans = Spans(2)
    homes = [spans.add_span(i, b"", b"", 100) for i in range(5)]
    assert [puller for puller, _ in homes] == [0, 1, 0, 1, 0]
    assert all(subscribe is None for _, subscribe in homes)
    assert [c.span_id for c in spans.puller_joined(1)] == [1, 3]
    assert not spans.complete
    assert [c.span_id for c in spans.puller_joined(0)] == [0, 2, 4]
    assert spans.complete
    puller, subscribe = spans.add_span(5, b"x", b"y", 200)
    assert puller == 1
    assert subscribe is not None
    assert (subscribe.span_id, subscribe.start_key, subscribe.end_key, subscribe.start_ts) == (5, b"x", b"y", 200)


def test_an_unknown_puller_and_a_second_span_are_refused() -> None:
    spans, _ = one_span()
    with pytest.raises(NeedsHuman, match="Puller 1 reports"):
        spans.puller_joined(1)
    with pytest.raises(NeedsHuman, match="added twice"):
        spans.add_span(SPAN, b"", b"", 100)


def test_what_a_report_has_brought() -> None:
    spans, sub = one_span()
    changes = spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [105, 130])), s.resolved(sub, 120, 1)))
    assert [segment.rows for segment in changes.segments] == [2]
    assert changes.resolved == {SPAN: 120}
    assert spans.on_report(0, report(s.resolved(sub, 120, 1))) == Changes()
    assert spans.segments(SPAN) == changes.segments


def test_rule_2_a_resolved_ts_waits_for_all_lower_segments() -> None:
    spans, sub = one_span()
    spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [105])), s.resolved(sub, 106, 1)))
    lost = s.meta(2, s.share(SPAN, sub, [110]))
    spans.on_report(0, report(s.meta(3, s.share(SPAN, sub, [140])), s.resolved(sub, 150, 3, first=3)))
    assert spans.resolved_ts(SPAN) == 106
    assert spans.gap(0) == (2, 3)
    assert spans.on_report(0, report(lost)).resolved == {SPAN: 150}
    assert spans.gap(0) is None


def test_rule_2_reports_of_another_assignment_are_dropped() -> None:
    spans, old = one_span()
    spans.puller_left(0)
    (subscribe,) = spans.puller_joined(0)
    assert subscribe.sub_id != old
    late = report(s.meta(1, s.share(SPAN, old, [110])), s.resolved(old, 150, 1))
    assert spans.on_report(0, late) == Changes()
    assert (spans.resolved_ts(SPAN), spans.segments(SPAN)) == (100, ())


def test_rule_2_a_late_segment_of_an_earlier_stream_is_not_this_streams() -> None:
    spans, old = one_span()
    (subscribe,) = spans.puller_joined(0)
    late, mine = s.meta(1, s.share(SPAN, old, [110])), s.meta(1, s.share(SPAN, subscribe.sub_id, [110]), attempt="b")
    spans.on_report(0, report(late, s.resolved(subscribe.sub_id, 150, 1)))
    assert spans.resolved_ts(SPAN) == 100
    assert spans.on_report(0, report(mine)).resolved == {SPAN: 150}


def test_rule_2_a_puller_can_not_speak_for_anothers_assignment() -> None:
    spans = Spans(2)
    spans.add_span(SPAN, b"", b"", 100)
    spans.puller_joined(1)
    (subscribe,) = spans.puller_joined(0)
    foreign = report(s.meta(1, s.share(SPAN, subscribe.sub_id, [110])), s.resolved(subscribe.sub_id, 150, 1))
    assert spans.on_report(1, foreign) == Changes()
    spans.on_report(0, report(s.meta(1)))
    assert (spans.resolved_ts(SPAN), spans.segments(SPAN)) == (100, ())


def test_rule_2_what_waited_when_the_stream_was_lost_never_counts() -> None:
    spans, sub = one_span()
    spans.on_report(0, report(s.resolved(sub, 150, 1)))
    spans.puller_joined(0)
    assert spans.on_report(0, report(s.meta(1))) == Changes()
    assert spans.resolved_ts(SPAN) == 100


def test_rule_2_the_highest_of_late_words_about_the_same_segments_counts() -> None:
    spans, sub = one_span()
    spans.on_report(0, report(s.resolved(sub, 150, 1), s.resolved(sub, 140, 1), s.resolved(sub, 160, 2)))
    assert spans.on_report(0, report(s.meta(1))).resolved == {SPAN: 150}
    assert spans.on_report(0, report(s.meta(2))).resolved == {SPAN: 160}


def test_rule_2_a_lost_span_starts_again_at_its_flushed_ts() -> None:
    spans, sub = one_span()
    spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [105, 130])), s.resolved(sub, 140, 1)))
    spans.release_below(SPAN, 120)
    assert spans.puller_left(0) == [SPAN]
    assert (spans.resolved_ts(SPAN), spans.segments(SPAN)) == (120, ())
    assert spans.puller_left(0) == []
    (subscribe,) = spans.puller_joined(0)
    assert subscribe.start_ts == 120


def test_rule_2_a_retried_task_counts_its_segments_from_1() -> None:
    spans, _ = one_span()
    for seq in (1, 2, 3):
        spans.on_report(0, report(s.meta(seq)))
    (subscribe,) = spans.puller_joined(0)
    spans.on_report(0, report(s.resolved(subscribe.sub_id, 150, 2)))
    assert spans.resolved_ts(SPAN) == 100


def test_rule_3_an_entry_waits_for_the_re_pull() -> None:
    state = made.begun()
    entry = made.entry(state, 150, dispatcher=SPAN)
    spans, sub = one_span()
    spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [105])), s.resolved(sub, 120, 1)))
    assert not spans.is_whole([entry])
    spans.on_report(0, report(s.meta(2, s.share(SPAN, sub, [140, 180])), s.resolved(sub, 150, 2)))
    assert spans.is_whole([entry])
    assert not spans.is_whole([entry, made.entry(state, 150, dispatcher=8)])


def test_rule_3_a_manifest_names_the_segments_of_the_current_assignment() -> None:
    spans, sub = one_span(start_ts=0)
    for seq, rows in enumerate(([90, 100], [100, 101], [150], [151]), start=1):
        spans.on_report(0, report(s.meta(seq, s.share(SPAN, sub, rows))))
    entry = made.entry(made.begun(), 150, dispatcher=SPAN)  # (100, 150]
    assert [(piece.seq, piece.run, piece.size) for piece in spans.manifest(entry, "4-a")] == [
        (2, "4-a", 1000),
        (3, "4-a", 1000),
    ]


def test_rule_4_what_is_flushed_already_is_not_kept() -> None:
    spans, sub = one_span()
    assert spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [90, 100])))) == Changes()
    again = report(s.meta(2, s.share(SPAN, sub, [110])))
    assert len(spans.on_report(0, again).segments) == 1
    assert spans.on_report(0, again) == Changes()


def test_a_file_is_unneeded_once_its_last_span_releases_it() -> None:
    spans = Spans(1)
    for span_id in (1, 2):
        spans.add_span(span_id, b"", b"", 100)
    subs = {c.span_id: c.sub_id for c in spans.puller_joined(0)}
    spans.on_report(0, report(s.meta(1, s.share(1, subs[1], [110]), s.share(2, subs[2], [120, 130]))))
    assert [segment.span_id for segment in spans.release_below(1, 110)] == [1]
    assert spans.take_unneeded() == []
    assert spans.release_below(2, 129) == []
    assert [segment.span_id for segment in spans.release_below(2, 130)] == [2]
    assert spans.take_unneeded() == ["a/1.arrow"]
    assert spans.take_unneeded() == []


def test_a_lost_assignments_files_are_unneeded() -> None:
    spans, sub = one_span()
    spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [110]))))
    spans.on_report(0, report(s.meta(2, s.share(SPAN, sub + 5, [110]))))
    spans.puller_left(0)
    assert sorted(spans.take_unneeded()) == ["a/1.arrow", "a/2.arrow"]


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """What happens to two pullers: rows written, progress said, messages lost or late, streams cut."""
    puller = st.integers(0, 1)
    events = st.sampled_from(["rows", "rows", "resolve", "resolve", "deliver", "deliver", "deliver", "cut", "flush"])
    return draw(st.lists(st.tuples(events, puller, st.integers(0, 5)), min_size=5, max_size=80))


@s.STEADY
@given(streams())
def test_rule_2_no_order_of_reports_makes_a_resolved_ts_count_early(events: list[tuple[str, int, int]]) -> None:
    spans = Spans(2)
    homes = {span_id: spans.add_span(span_id, b"", b"", 100)[0] for span_id in (1, 2, 3)}
    subs: dict[int, int] = {}
    written: dict[int, list[int]] = {}  # sub_id -> rows its puller has put into segments
    mail: dict[int, list[pb.Report]] = {0: [], 1: []}
    seqs: dict[int, int] = {}
    clock = {1: 100, 2: 100, 3: 100}
    used: set[int] = set()

    def join(puller: int) -> None:
        seqs[puller], mail[puller] = 0, mail[puller][-2:]  # some late reports of the old stream
        for subscribe in spans.puller_joined(puller):
            assert subscribe.sub_id not in used
            used.add(subscribe.sub_id)
            subs[subscribe.span_id] = subscribe.sub_id
            written[subscribe.sub_id] = []
            clock[subscribe.span_id] = subscribe.start_ts

    join(0)
    join(1)
    for event, puller, choice in events:
        mine = [span_id for span_id, home in homes.items() if home == puller]
        span_id = mine[choice % len(mine)]
        if event == "rows":
            clock[span_id] += 1 + choice
            seqs[puller] += 1
            rows = [clock[span_id]]
            written[subs[span_id]] += rows
            mail[puller].append(report(s.meta(seqs[puller], s.share(span_id, subs[span_id], rows))))
        elif event == "resolve":
            clock[span_id] += 1
            first = max(seqs[puller] - choice, 1)
            mail[puller].append(report(s.resolved(subs[span_id], clock[span_id] - 1, seqs[puller], first)))
        elif event == "deliver" and mail[puller]:
            spans.on_report(puller, mail[puller].pop(choice % len(mail[puller])))
        elif event == "cut":
            spans.puller_left(puller)
            join(puller)
        elif event == "flush":
            spans.release_below(span_id, spans.resolved_ts(span_id) - choice)
        for each, sub in subs.items():
            have = {segment.max.commit_ts for segment in spans.segments(each)}
            flushed = spans._spans[each].flushed_ts
            due = {row for row in written[sub] if flushed < row <= spans.resolved_ts(each)}
            assert due <= have
