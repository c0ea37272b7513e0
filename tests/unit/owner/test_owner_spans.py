from __future__ import annotations

import owner_records as made
import owner_segments as s
import pytest
from changefeed.errors import NeedsHuman
from changefeed.owner.pulling.spans import AWAY_S, Orders, ReportOutcome, Spans
from changefeed.owner.pulling.stored_rows import StoredRows
from changefeed.wire import owner_pb2 as pb
from owner_segments import report

SPAN = 7


def one_span(start_ts: int = 100) -> tuple[Spans, int]:
    """A span pulled by puller 0; its sub_id."""
    spans = Spans(1)
    spans.add_span(SPAN, b"a", b"b", start_ts)
    (subscribe,) = join(spans, 0)
    return spans, subscribe.sub_id


def subscribed(orders: Orders, puller: int | None = None) -> list[pb.Subscribe]:
    """What was subscribed, at `puller` (None: at any)."""
    commands = [command for to, command in orders.commands if puller in (None, to)]
    return [command.subscribe for command in commands if command.HasField("subscribe")]


def join(spans: Spans, puller: int, now: float = 0.0) -> list[pb.Subscribe]:
    orders = spans.puller_joined(now, puller)
    assert all(to == puller for to, _ in orders.commands)
    return subscribed(orders)


def test_spans_are_balanced_and_told_when_their_puller_joins() -> None:
    spans = Spans(2)
    assert all(spans.add_span(i, b"", b"", 100) == Orders() for i in range(5))
    assert [c.span_id for c in join(spans, 1)] == [1, 3]
    assert not spans.complete
    assert [c.span_id for c in join(spans, 0)] == [0, 2, 4]
    assert spans.complete
    (subscribe,) = subscribed(spans.add_span(5, b"x", b"y", 200), puller=1)
    assert (subscribe.span_id, subscribe.start_key, subscribe.end_key, subscribe.start_ts) == (5, b"x", b"y", 200)


def test_an_unknown_puller_and_a_second_span_are_refused() -> None:
    spans, _ = one_span()
    with pytest.raises(NeedsHuman, match="Puller 1 reports"):
        join(spans, 1)
    with pytest.raises(NeedsHuman, match="added twice"):
        spans.add_span(SPAN, b"", b"", 100)


def test_what_a_report_has_brought() -> None:
    spans, sub = one_span()
    changes = spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [105, 130])), s.resolved(sub, 120, 1)))
    assert [segment.rows for segment in changes.segments] == [2]
    assert changes.resolved == {SPAN: 120}
    assert spans.on_report(0, report(s.resolved(sub, 120, 1))) == ReportOutcome()
    assert spans.segments(SPAN) == changes.segments


def test_rule_2_a_resolved_ts_waits_for_all_lower_segments() -> None:
    spans, sub = one_span()
    spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [105])), s.resolved(sub, 106, 1)))
    lost = s.meta(2, s.share(SPAN, sub, [110]))
    spans.on_report(0, report(s.meta(3, s.share(SPAN, sub, [140])), s.resolved(sub, 150, 3, first=3)))
    assert spans.resolved_ts(SPAN) == 106
    assert spans.on_report(0, report(lost)).resolved == {SPAN: 150}


def test_rule_2_reports_of_another_assignment_are_dropped() -> None:
    spans, old = one_span()
    spans.puller_left(0.0, 0)
    (subscribe,) = join(spans, 0)
    assert subscribe.sub_id != old
    late = report(s.meta(1, s.share(SPAN, old, [110])), s.resolved(old, 150, 1))
    assert spans.on_report(0, late) == ReportOutcome()
    assert (spans.resolved_ts(SPAN), spans.segments(SPAN)) == (100, ())


@pytest.mark.parametrize("wanted", [True, False])
def test_rule_2_a_late_segment_of_an_earlier_stream_is_not_this_streams(wanted: bool) -> None:
    spans, old = one_span()
    (subscribe,) = join(spans, 0)
    late = s.meta(1, s.share(SPAN, old, [110])) if wanted else s.unwanted(1, old)
    mine = s.meta(1, s.share(SPAN, subscribe.sub_id, [110]), attempt="b")
    spans.on_report(0, report(late, s.resolved(subscribe.sub_id, 150, 1)))
    assert spans.resolved_ts(SPAN) == 100
    assert spans.on_report(0, report(mine)).resolved == {SPAN: 150}


def test_rule_2_a_puller_can_not_speak_for_anothers_assignment() -> None:
    spans = Spans(2)
    spans.add_span(SPAN, b"", b"", 100)
    join(spans, 1)
    (subscribe,) = join(spans, 0)
    foreign = report(s.meta(1, s.share(SPAN, subscribe.sub_id, [110])), s.resolved(subscribe.sub_id, 150, 1))
    assert spans.on_report(1, foreign) == ReportOutcome()
    spans.on_report(0, report(s.unwanted(1, subscribe.sub_id)))
    assert (spans.resolved_ts(SPAN), spans.segments(SPAN)) == (100, ())


def test_rule_2_what_waited_when_the_stream_was_lost_never_counts() -> None:
    spans, sub = one_span()
    spans.on_report(0, report(s.resolved(sub, 150, 1)))
    (subscribe,) = join(spans, 0)
    assert spans.on_report(0, report(s.unwanted(1, subscribe.sub_id))) == ReportOutcome()
    assert spans.resolved_ts(SPAN) == 100
    assert spans.on_report(0, report(s.resolved(subscribe.sub_id, 110, 0))).resolved == {SPAN: 110}


def test_rule_2_the_highest_of_late_words_about_the_same_segments_counts() -> None:
    spans, sub = one_span()
    spans.on_report(0, report(s.resolved(sub, 150, 1), s.resolved(sub, 140, 1), s.resolved(sub, 160, 2)))
    assert spans.on_report(0, report(s.unwanted(1, sub))).resolved == {SPAN: 150}
    assert spans.on_report(0, report(s.unwanted(2, sub))).resolved == {SPAN: 160}


def test_rule_21_a_lost_span_goes_on_where_it_was_whole() -> None:
    spans, sub = one_span()
    shares = s.share(SPAN, sub, [105, 130]), s.share(SPAN, sub, [120, 160]), s.share(SPAN, sub, [141])
    spans.on_report(0, report(*(s.meta(seq, share) for seq, share in enumerate(shares, 1)), s.resolved(sub, 140, 3)))
    spans.release_below(SPAN, 110)
    assert spans.puller_left(0.0, 0).ended == {SPAN: 140}
    assert (spans.resolved_ts(SPAN), [segment.seq for segment in spans.segments(SPAN)]) == (140, [1, 2])
    assert spans.puller_left(0.0, 0) == Orders()
    (subscribe,) = join(spans, 0)
    assert subscribe.start_ts == 140
    entry = made.entry(made.begun(), 150, dispatcher=SPAN)
    assert not StoredRows(spans).is_whole([entry])
    spans.on_report(0, report(s.meta(1, s.share(SPAN, subscribe.sub_id, [141]), attempt="b")))
    spans.on_report(0, report(s.resolved(subscribe.sub_id, 150, 1)))
    assert StoredRows(spans).is_whole([entry])
    assert [piece.uri for piece in StoredRows(spans).manifest(entry, "4-a")] == ["a/1.arrow", "a/2.arrow", "b/1.arrow"]


def test_rule_21_a_lost_span_whose_segments_can_not_be_read_starts_again_at_its_flushed_ts() -> None:
    for host, ts in (("here", 140), ("there", 120)):
        spans = Spans(1, "here")
        spans.add_span(SPAN, b"a", b"b", 100)
        (subscribe,) = join(spans, 0)
        meta = s.meta(1, s.share(SPAN, subscribe.sub_id, [105, 130]))
        meta.host = host
        spans.on_report(0, report(meta, s.resolved(subscribe.sub_id, 140, 1)))
        spans.release_below(SPAN, 120)
        assert spans.puller_left(0.0, 0).ended == {SPAN: ts}
        assert (spans.resolved_ts(SPAN), len(spans.segments(SPAN))) == (ts, ts > 120)
        assert [again.start_ts for again in join(spans, 0)] == [ts]


def test_rule_21_a_held_span_keeps_what_only_its_pullers_machine_can_read_for_as_long_as_that_is_here() -> None:
    for held in (True, False):
        spans = Spans(2, "here")
        spans.add_span(SPAN, b"a", b"b", 100)
        (subscribe,) = join(spans, 0)
        meta = s.meta(1, s.share(SPAN, subscribe.sub_id, [110]))
        meta.host = "there"
        spans.on_report(0, report(meta, s.resolved(subscribe.sub_id, 120, 1)))
        assert spans.hold([SPAN]).ended == {SPAN: 120}
        if not held:
            (again,) = subscribed(spans.resume([SPAN]))
            assert again.start_ts == 120
        assert spans.puller_left(2.0, 0).ended == {SPAN: 100}
        assert (spans.resolved_ts(SPAN), spans.segments(SPAN)) == (100, ())


def test_rule_2_a_move_leaves_no_hole_and_the_old_pullers_words_count_no_more() -> None:
    spans, old = one_span_of_two()
    spans.on_report(0, report(s.meta(1, s.share(SPAN, old, [110, 130])), s.resolved(old, 120, 1)))
    spans.on_report(0, report(s.resolved(old, 140, 2)))  # waits for segment 2
    join(spans, 1, now=1.0)
    spans.puller_left(2.0, 0)
    assert spans.arrange(2.0 + AWAY_S - 0.1) == Orders()
    (subscribe,) = subscribed(spans.arrange(2.0 + AWAY_S), puller=1)
    assert (subscribe.start_ts, subscribe.sub_id > old, spans.moves) == (120, True, 1)
    join(spans, 0, now=9.0)
    late = report(s.meta(2, s.share(SPAN, old, [135])), s.resolved(old, 140, 2), s.resolved(old, 300, 0))
    assert spans.on_report(0, late) == ReportOutcome()
    assert spans.on_report(1, late) == ReportOutcome()
    assert spans.resolved_ts(SPAN) == 120
    again = report(s.meta(1, s.share(SPAN, subscribe.sub_id, [130, 135]), attempt="b"))
    assert len(spans.on_report(1, again).segments) == 1
    assert spans.on_report(1, report(s.resolved(subscribe.sub_id, 150, 1))).resolved == {SPAN: 150}
    entry = made.entry(made.begun(), 150, dispatcher=SPAN)
    assert [piece.uri for piece in StoredRows(spans).manifest(entry, "4-a")] == ["a/1.arrow", "b/1.arrow"]


def test_rule_4_what_a_new_assignment_repeats_below_its_start_is_not_kept() -> None:
    spans, sub = one_span()
    spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [110, 130])), s.resolved(sub, 120, 1)))
    (subscribe,) = join(spans, 0)
    shares = s.share(SPAN, subscribe.sub_id, [110, 120]), s.share(SPAN, subscribe.sub_id, [110, 130])
    brought = [spans.on_report(0, report(s.meta(n, share, attempt="b"))) for n, share in enumerate(shares, 1)]
    assert [len(changes.segments) for changes in brought] == [0, 1]


def one_span_of_two() -> tuple[Spans, int]:
    """A span at the first of two pullers; only that is here."""
    spans = Spans(2)
    spans.add_span(SPAN, b"a", b"b", 100)
    (subscribe,) = join(spans, 0)
    return spans, subscribe.sub_id


def test_spans_of_a_puller_that_stays_away_go_to_the_others_and_come_back() -> None:
    spans = Spans(3)
    for span_id in range(6):
        spans.add_span(span_id, b"", b"", 100)
    join(spans, 0, now=10.0)
    join(spans, 1, now=12.0)
    assert spans.arrange(14.9) == Orders()  # the third has time from the first one's coming on
    assert not spans.complete
    moved = spans.arrange(15.0)
    assert [(to, command.subscribe.span_id) for to, command in moved.commands] == [(0, 2), (1, 5)]
    assert spans.complete
    assert join(spans, 2, now=20.0) == []
    back = spans.arrange(20.0)
    assert [(to, command.WhichOneof("command")) for to, command in back.commands] == [
        (0, "release"),
        (2, "subscribe"),
        (1, "release"),
        (2, "subscribe"),
    ]
    assert spans.arrange(20.1) == Orders()


def test_a_puller_that_is_back_in_time_keeps_its_spans() -> None:
    spans = Spans(2)
    for span_id in range(4):
        spans.add_span(span_id, b"", b"", 100)
    join(spans, 0)
    join(spans, 1)
    spans.puller_left(10.0, 1)
    assert spans.arrange(14.9) == Orders()
    assert [c.span_id for c in join(spans, 1, now=14.9)] == [1, 3]
    assert spans.arrange(30.0) == Orders()


def test_rule_2_a_move_told_to_no_one_is_made_good_by_the_next_stream() -> None:
    spans, old = one_span_of_two()
    join(spans, 1)
    spans.puller_left(0.0, 0)
    (lost,) = subscribed(spans.arrange(9.0), puller=1)
    (told,) = join(spans, 1, now=9.0)  # its stream had ended before the command could be sent
    assert old < lost.sub_id < told.sub_id
    assert spans.on_report(1, report(s.resolved(lost.sub_id, 150, 0))) == ReportOutcome()


def test_load_is_what_spans_bring_lately() -> None:
    spans = Spans(2)
    for span_id in range(4):
        spans.add_span(span_id, b"", b"", 100)
    subs = {c.span_id: c.sub_id for c in join(spans, 0)}
    busy = s.share(0, subs[0], [105], row_bytes=100 << 20)
    spans.on_report(0, report(s.meta(1, busy)))
    join(spans, 1, now=1.0)
    assert subscribed(spans.arrange(1.0), puller=1)[0].span_id == 2
    for minute in range(2, 40):
        spans.arrange(minute * 60.0)
    join(spans, 1, now=2400.0)
    assert [c.span_id for c in subscribed(spans.arrange(2400.0), puller=0)] == [1]


def test_rule_17_a_held_span_stands_where_it_is_and_goes_on_from_there() -> None:
    spans, sub = one_span()
    shares = s.share(SPAN, sub, [110, 150]), s.share(SPAN, sub, [160])
    spans.on_report(0, report(*(s.meta(n, share) for n, share in enumerate(shares, 1)), s.resolved(sub, 155, 2)))
    held = spans.hold([SPAN])
    assert [command.release.sub_id for _, command in held.commands] == [sub]
    assert (held.ended, list(spans.held), spans.complete) == ({SPAN: 155}, [SPAN], True)
    assert spans.files.take_unneeded() == ["a/2.arrow"]
    assert spans.files.bytes == 2000, "it may be that it can't be deleted"
    spans.files.deleted("a/2.arrow")
    assert (spans.files.bytes, join(spans, 0)) == (1000, [])
    assert spans.cut_back(SPAN, 120).ended == {SPAN: 120}
    assert len(spans.segments(SPAN)) == 1  # has rows on both sides
    spans.release_below(SPAN, 120)
    assert spans.cut_back(SPAN, 110).ended == {SPAN: 120}
    assert (spans.segments(SPAN), spans.files.take_unneeded()) == ((), ["a/1.arrow"])
    assert [c.start_ts for c in subscribed(spans.resume([SPAN]))] == [120]


def test_who_pulls_is_told_how_far_any_span_was_read_also_one_that_is_held() -> None:
    spans, sub = one_span()
    spans.add_span(SPAN + 1, b"b", b"c", 90)
    assert [each.reached_ts for each in subscribed(spans.add_span(SPAN + 2, b"c", b"d", 90))] == [100]
    spans.on_report(0, report(s.resolved(sub, 155, 0)))
    spans.hold([SPAN])
    assert {each.span_id: each.reached_ts for each in join(spans, 0)} == {SPAN + 1: 155, SPAN + 2: 155}


def test_rule_17_held_spans_and_those_that_run_again_are_in_the_minimum() -> None:
    spans = Spans(1)
    for span_id in (1, 2):
        spans.add_span(span_id, b"", b"", 100)
    _, second = join(spans, 0)
    assert (spans.lowest_ts(), spans.reached()) == (100, {1: 100})
    spans.hold([1])
    assert (spans.lowest_ts(), spans.reached()) == (100, {1: 100, 2: 100})
    spans.on_report(0, report(s.resolved(second.sub_id, 200, 0)))
    assert (spans.lowest_ts(), spans.reached()) == (100, {1: 100, 2: 200})
    spans.resume([1])
    assert (spans.lowest_ts(), spans.reached()) == (100, {1: 100})
    spans.puller_left(0.0, 0)
    assert spans.reached() == {1: 100}
    spans.hold([1])
    assert spans.reached() == {1: 100, 2: 200}


def test_rule_2_a_retried_task_counts_its_segments_from_1() -> None:
    spans, _ = one_span()
    for seq in (1, 2, 3):
        spans.on_report(0, report(s.meta(seq)))
    (subscribe,) = join(spans, 0)
    spans.on_report(0, report(s.resolved(subscribe.sub_id, 150, 2)))
    assert spans.resolved_ts(SPAN) == 100


def test_rule_3_an_entry_waits_for_the_re_pull() -> None:
    state = made.begun()
    entry = made.entry(state, 150, dispatcher=SPAN)
    spans, sub = one_span()
    spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [105])), s.resolved(sub, 120, 1)))
    assert not StoredRows(spans).is_whole([entry])
    spans.on_report(0, report(s.meta(2, s.share(SPAN, sub, [140, 180])), s.resolved(sub, 150, 2)))
    assert StoredRows(spans).is_whole([entry])
    assert not StoredRows(spans).is_whole([entry, made.entry(state, 150, dispatcher=8)])


def test_rule_3_a_manifest_names_the_segments_of_the_current_assignment() -> None:
    spans, sub = one_span(start_ts=0)
    for seq, rows in enumerate(([90, 100], [100, 101], [150], [151]), start=1):
        spans.on_report(0, report(s.meta(seq, s.share(SPAN, sub, rows))))
    entry = made.entry(made.begun(), 150, dispatcher=SPAN)  # (100, 150]
    assert [(piece.seq, piece.run, piece.size) for piece in StoredRows(spans).manifest(entry, "4-a")] == [
        (2, "4-a", 1000),
        (3, "4-a", 1000),
    ]


def test_rule_4_what_is_flushed_already_is_not_kept() -> None:
    spans, sub = one_span()
    assert spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [90, 100])))) == ReportOutcome()
    again = report(s.meta(2, s.share(SPAN, sub, [110])))
    assert len(spans.on_report(0, again).segments) == 1
    assert spans.on_report(0, again) == ReportOutcome()


def test_a_file_is_unneeded_once_its_last_span_releases_it() -> None:
    spans = Spans(1)
    for span_id in (1, 2):
        spans.add_span(span_id, b"", b"", 100)
    subs = {c.span_id: c.sub_id for c in join(spans, 0)}
    spans.on_report(0, report(s.meta(1, s.share(1, subs[1], [110]), s.share(2, subs[2], [120, 130]))))
    assert [segment.span_id for segment in spans.release_below(1, 110)] == [1]
    assert spans.files.take_unneeded() == []
    assert spans.release_below(2, 129) == []
    assert [segment.span_id for segment in spans.release_below(2, 130)] == [2]
    assert spans.files.take_unneeded() == ["a/1.arrow"]
    assert spans.files.take_unneeded() == []


def test_files_above_what_a_lost_assignment_has_resolved_are_unneeded() -> None:
    spans, sub = one_span()
    spans.on_report(0, report(s.meta(1, s.share(SPAN, sub, [110]))))
    spans.on_report(0, report(s.meta(2, s.share(SPAN, sub + 5, [110]))))
    spans.puller_left(0.0, 0)
    assert sorted(spans.files.take_unneeded(in_use=["a/1.arrow"])) == ["a/2.arrow"]
    assert sorted(spans.files.take_unneeded()) == ["a/1.arrow"]
    for uri in ("a/1.arrow", "a/2.arrow"):
        spans.files.deleted(uri)
    assert spans.files.bytes == 0


def test_rule_11_no_span_goes_back_below_the_checkpoint() -> None:
    spans = Spans(1, "here")
    spans.add_span(SPAN, b"a", b"b", 100)
    (subscribe,) = join(spans, 0)
    meta = s.meta(1, s.share(SPAN, subscribe.sub_id, [130]))
    meta.host = "there"
    spans.on_report(0, report(s.resolved(subscribe.sub_id, 120, 0)))
    spans.on_checkpoint(120)
    spans.on_report(0, report(meta, s.resolved(subscribe.sub_id, 140, 1)))
    assert spans.puller_left(0.0, 0).ended == {SPAN: 120}
    assert spans.lowest_ts() == 120


def test_rule_11_a_span_that_fell_back_while_the_checkpoint_was_being_recorded_goes_on_from_it() -> None:
    spans, sub_id = one_span()
    spans.on_report(0, report(s.resolved(sub_id, 150, 0)))
    spans.hold([SPAN])
    spans.cut_back(SPAN, 100)
    spans.on_checkpoint(150)
    assert (spans.resolved_ts(SPAN), spans.lowest_ts()) == (150, 150)
    assert [again.start_ts for again in subscribed(spans.resume([SPAN]))] == [150]


def test_segments_that_the_checkpoint_has_passed_are_not_needed() -> None:
    spans, sub_id = one_span()
    spans.on_report(
        0, report(*(s.meta(n, s.share(SPAN, sub_id, [100 + n])) for n in (1, 2)), s.resolved(sub_id, 110, 2))
    )
    spans.on_checkpoint(101)
    assert spans.files.take_unneeded() == ["a/1.arrow"]
    spans.on_checkpoint(102)
    assert spans.files.take_unneeded() == ["a/2.arrow"]
    assert not spans.stored()


def test_rule_9_a_span_that_a_ddl_ends_is_pulled_no_more_and_leaves_nothing() -> None:
    spans, sub_id = one_span()
    spans.add_span(8, b"c", b"d", 100)
    spans.on_report(0, report(s.meta(1, s.share(SPAN, sub_id, [105])), s.resolved(sub_id, 110, 2)))
    orders = spans.remove_span(SPAN)
    assert [command.release.sub_id for _, command in orders.commands] == [sub_id]
    assert orders.ended == {}, "nothing of it is planned again"
    assert len(spans.files.take_unneeded(set())) == 1
    assert spans.on_report(0, report(s.meta(2, s.share(SPAN, sub_id, [120])))) == ReportOutcome(), "it comes too late"
    assert spans.reached([SPAN, 8]).keys() == {8}
    assert [c.span_id for c in subscribed(spans.add_span(SPAN, b"a", b"b", 200))] == [SPAN], "renamed back"


def test_a_held_span_can_be_ended() -> None:
    spans, _ = one_span()
    spans.hold([SPAN])
    assert spans.remove_span(SPAN) == Orders()
    assert spans.complete
    assert not spans.held
