"""Segments in a puller's memory: where tasks are told to read them, when it is let go of, what its end takes along."""

from __future__ import annotations

import owner_records as made
import owner_segments as s
import pytest
from changefeed.owner.owner import Owner
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.writing.open_entries import EntryKey
from changefeed.pipeline.work import Work
from changefeed.wire import owner_pb2 as pb
from owner_run import BEGAN_TS, began, plan, publish

Told = tuple[int, pb.Command]
FILE = EntryKey(3, 0)


def in_memory(seq: int, *shares: pb.SegmentSpan, attempt: str = "a") -> pb.SegmentMeta:
    meta = s.meta(seq, *shares, attempt=attempt)
    slot = pb.Slot(pid=1, file=5, token="t", index=seq, generation=seq, offset=100 * seq, host="h", address="h:9")
    meta.slot.CopyFrom(slot)
    return meta


def archived(seq: int, attempt: str = "a") -> pb.Report:
    return pb.Report(archived=[pb.Archived(segment=seq, uri=f"{attempt}/{seq}.arrow")])


def freed(told: list[Told]) -> list[tuple[int, list[int]]]:
    return [(puller, list(command.free.segments)) for puller, command in told if command.HasField("free")]


def with_one_file() -> Owner:
    """Plan 3 has a file, whose rows are in the memory of puller 0; task 0 is there."""
    owner = began()
    meta = in_memory(1, s.share(1, 1, [BEGAN_TS]))
    owner.report(0.0, 0, pb.Report(segments=[meta], resolved=[s.resolved(1, BEGAN_TS, 1)]))
    owner.barrier.on_resolved(BEGAN_TS)
    assert plan(owner).record.n == FILE.plan
    owner.task_joined(0)
    return owner


def slots(given: list[tuple[int, Work]]) -> list[int | None]:
    """Return the slots of the segments of what was handed out."""
    pieces = [piece for _, work in given for entry in work.entries for piece in entry.segments]
    return [piece.slot.index if piece.slot else None for piece in pieces]


def test_a_task_reads_in_memory_and_that_is_free_when_the_file_is_committed() -> None:
    owner = with_one_file()
    ((_, work),) = given = owner.hand_out()
    assert slots(given) == [1]
    assert work.entries[0].segments[0].slot is not None
    assert work.entries[0].segments[0].slot.model_dump() == {
        "pid": 1,
        "file": 5,
        "token": "t",
        "index": 1,
        "generation": 1,
        "offset": 100,
        "size": 1000,
        "host": "h",
        "address": "h:9",
    }
    assert freed(owner.tend(0.0)) == []
    owner.file_done(0, made.file(*FILE))
    publish(owner)
    assert freed(owner.tend(0.0)) == [(0, [1])]
    assert freed(owner.tend(0.0)) == []
    assert owner.unneeded_segments() == [], "it never was a file"
    assert owner.spans.files.bytes == 0


def test_what_is_archived_is_read_there_and_its_memory_is_free_after_the_last_reader() -> None:
    owner = with_one_file()
    assert slots(owner.hand_out()) == [1]
    owner.report(0.0, 0, archived(1))
    assert freed(owner.tend(0.0)) == [], "a task reads it"
    owner.task_joined(0)
    assert slots(owner.hand_out()) == [None]
    assert freed(owner.tend(0.0)) == [(0, [1])]
    owner.file_done(0, made.file(*FILE))
    publish(owner)
    assert owner.unneeded_segments() == ["a/1.arrow"]


def test_a_file_that_a_task_gives_back_waits_until_its_segment_is_archived() -> None:
    owner = with_one_file()
    owner.hand_out()
    owner.given_back(0, FILE, "a/1.arrow")
    told = owner.tend(0.0)
    assert [list(command.archive.segments) for _, command in told if command.HasField("archive")] == [[1]]
    assert owner.hand_out() == []
    owner.report(0.0, 0, archived(1))
    assert slots(owner.hand_out()) == [None]


def test_a_file_that_is_given_back_by_one_who_does_not_have_it_stays_where_it_is() -> None:
    owner = with_one_file()
    owner.hand_out()
    owner.task_joined(1)
    owner.given_back(1, FILE, "gone")
    assert owner.hand_out() == []


@pytest.mark.parametrize("when", ["before the file is handed out", "after that"])
def test_rule_3_what_a_puller_takes_along_is_pulled_again_before_its_file_is_written(when: str) -> None:
    owner = with_one_file()
    if when == "after that":
        assert slots(owner.hand_out()) == [1]
    owner.puller_left(0.0, 0)
    owner.given_back(0, FILE, "a/1.arrow")
    assert owner.hand_out() == []
    (again,) = owner.puller_joined(0.0, 0)
    assert again.subscribe.start_ts < BEGAN_TS
    meta = in_memory(1, s.share(1, again.subscribe.sub_id, [BEGAN_TS]), attempt="b")
    owner.report(0.0, 0, pb.Report(segments=[meta], resolved=[s.resolved(again.subscribe.sub_id, BEGAN_TS, 1)]))
    assert slots(owner.hand_out()) == [1]


def two_pullers() -> tuple[Spans, pb.Subscribe]:
    """Span 7 was pulled by puller 0, which has its rows at 105 and 120 in memory, and is pulled by puller 1 now."""
    spans = Spans(2)
    for span_id in (6, 7, 8, 9):
        spans.add_span(span_id, b"a", b"b", 100)
    for span_id in (6, 8):
        spans.remove_span(span_id)
    joined = [command.subscribe for _, command in spans.puller_joined(0.0, 1).commands]
    mine, other = sorted(joined, key=lambda each: each.span_id)
    assert (mine.span_id, other.span_id) == (7, 9)
    file = s.meta(1, s.share(7, mine.sub_id, [105]))
    memory = in_memory(2, s.share(7, mine.sub_id, [120, 130]))
    spans.on_report(1, pb.Report(segments=[file, memory], resolved=[s.resolved(mine.sub_id, 150, 2)]))
    more = s.share(9, other.sub_id, [110, 120, 130])
    spans.on_report(1, pb.Report(segments=[s.meta(3, more)], resolved=[s.resolved(other.sub_id, 150, 3)]))
    spans.puller_joined(0.0, 0)
    ((_, release), (puller, command)) = spans.arrange(0.0).commands
    assert release.release.sub_id == mine.sub_id
    assert (puller, command.subscribe.span_id, command.subscribe.start_ts) == (0, 7, 150)
    return spans, command.subscribe


def test_rule_21_another_puller_begins_again_below_what_the_lost_one_took_along() -> None:
    spans, before = two_pullers()
    orders = spans.puller_left(0.0, 1)
    told = [(puller, command) for puller, command in orders.commands if puller == 0]
    assert [command.release.sub_id for _, command in told if command.HasField("release")] == [before.sub_id]
    (again,) = [command.subscribe for _, command in told if command.HasField("subscribe")]
    assert (again.span_id, again.start_ts) == (7, 119), "what is in a file, up to 105, is still there"
    assert [segment.uri for segment in spans.segments(7)] == ["a/1.arrow"]
    assert spans.resolved_ts(7) == 119
    assert orders.ended[7] == 119


def test_what_a_lost_puller_has_archived_is_not_pulled_again() -> None:
    spans, _ = two_pullers()
    spans.on_report(1, archived(2))
    assert [command for puller, command in spans.puller_left(0.0, 1).commands if puller == 0] == []
    assert spans.resolved_ts(7) == 150


def test_an_archived_segment_may_be_told_before_itself_and_after_it_is_forgotten() -> None:
    spans = Spans(1)
    spans.add_span(7, b"a", b"b", 100)
    ((_, command),) = spans.puller_joined(0.0, 0).commands
    sub_id = command.subscribe.sub_id
    spans.on_report(0, archived(1))
    assert spans.files.take_unneeded() == []
    spans.on_report(0, pb.Report(segments=[in_memory(1, s.share(7, sub_id, [105]))]))
    assert spans.files.address("a/1.arrow") is None, "it is read in its file"
    spans.on_report(0, pb.Report(segments=[in_memory(2, s.share(7, sub_id, [110]))]))
    spans.release_below(7, 110)
    assert freed(spans.free([])) == [(0, [1, 2])]
    assert spans.files.take_unneeded() == ["a/1.arrow"]
    spans.files.deleted("a/1.arrow")
    spans.on_report(0, archived(2))
    assert spans.files.take_unneeded() == ["a/2.arrow"], "its file came too late"


def test_a_reader_is_in_the_archive_from_an_overflow_until_all_of_that_is_released() -> None:
    spans = Spans(1)
    spans.add_span(7, b"a", b"b", 100)
    ((_, command),) = spans.puller_joined(0.0, 0).commands
    sub_id = command.subscribe.sub_id
    files = spans.files
    spans.on_report(0, pb.Report(segments=[in_memory(1, s.share(7, sub_id, [105]))]))
    assert files.take_switches() == [(0, True)], "it began in the archive, which was empty"
    spans.on_report(0, archived(1))
    assert files.take_switches() == [], "it was old"
    spans.on_report(0, pb.Report(segments=[s.meta(2, s.share(7, sub_id, [110]))]))
    assert files.take_switches() == [(0, False)], "an overflow"
    spans.on_report(0, pb.Report(segments=[in_memory(3, s.share(7, sub_id, [120]))]))
    spans.release_below(7, 105)
    assert files.take_switches() == []
    spans.release_below(7, 110)
    assert files.take_switches() == [(0, True)]
    assert files.readers[0].in_buffer


def test_a_puller_without_a_buffer_is_read_in_the_archive_and_that_is_no_news() -> None:
    spans = Spans(1)
    spans.add_span(7, b"a", b"b", 100)
    ((_, command),) = spans.puller_joined(0.0, 0).commands
    spans.on_report(0, pb.Report(segments=[s.meta(1, s.share(7, command.subscribe.sub_id, [105]))]))
    assert (spans.files.take_switches(), spans.files.readers[0].in_buffer) == ([], False)
