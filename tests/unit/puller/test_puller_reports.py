"""What a puller tells the owner, and when (docs/design/rules.md, Rule 2)."""

from __future__ import annotations

from changefeed.puller.reports import Reports
from changefeed.wire import owner_pb2


def meta(seq: int, *sub_ids: int) -> owner_pb2.SegmentMeta:
    return owner_pb2.SegmentMeta(seq=seq, spans=[owner_pb2.SegmentSpan(sub_id=sub_id) for sub_id in sub_ids])


def told(report: owner_pb2.Report | None) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    if report is None:
        return [], []
    return [m.seq for m in report.segments], [
        (r.sub_id, r.ts, r.first_segment, r.last_segment) for r in report.resolved
    ]


def test_rule_2_resolved_ts_waits_for_lower_segments_of_other_subscriptions_too() -> None:
    reports = Reports(puller=1)
    reports.subscribed(1)
    reports.subscribed(2)
    reports.advanced(1, 10)
    assert told(reports.take()) == ([], [(1, 10, 0, 0)])
    reports.written(meta(2, 1))
    reports.advanced(1, 20)
    reports.advanced(2, 5)
    assert told(reports.take()) == ([], [(2, 5, 0, 0)])
    reports.written(meta(1, 2))
    reports.advanced(1, 19)
    assert told(reports.take()) == ([1, 2], [(1, 20, 2, 2)])
    assert reports.take() is None
    reports.released(1)
    reports.written(meta(3, 1))
    reports.advanced(1, 30)
    assert told(reports.take()) == ([3], [])


def test_a_trouble_says_whether_the_store_has_answered() -> None:
    reports = Reports(puller=1)
    said = []
    for why, answered in (("503", True), ("no connection", False), ("disk", None), ("", None)):
        reports.troubled(why, answered)
        report = reports.take()
        assert report is not None
        said.append((report.trouble, report.answered if report.HasField("answered") else None))
    assert said == [("503", True), ("no connection", False), ("disk", None), ("", None)]


def test_who_holds_a_resolved_ts_back_is_said_until_it_does_not() -> None:
    reports = Reports(0)
    blocked = owner_pb2.Blocked(span_id=5, start_ts=300, ttl_ms=20_000)
    reports.blocked(blocked)
    report = reports.take()
    assert report is not None
    assert report.blocked == blocked
    assert reports.take() is None
    reports.blocked(None)
    report = reports.take()
    assert report is not None
    assert not report.HasField("blocked")


def test_news_of_the_schema_are_told_in_their_order_and_silence_once() -> None:
    reports = Reports(0)
    for ts, content in ((5, b""), (7, b""), (8, b"a"), (8, b"b"), (9, b""), (12, b"")):
        reports.news(ts, content)
    report = reports.take()
    assert report is not None
    assert [(news.ts, news.content) for news in report.news] == [(7, b""), (8, b"a"), (8, b"b"), (12, b"")]
    assert reports.take() is None
