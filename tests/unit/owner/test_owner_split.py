"""Spans that are pulled in parts: which are, where they are split, and what ends a split."""

from __future__ import annotations

import owner_segments as s
import pytest
from changefeed.model.table_copy import TableCopy
from changefeed.owner.pulling.load import RECENT_S, SPLIT_BYTES, borders
from changefeed.owner.pulling.spans import Orders, Spans
from changefeed.wire import owner_pb2 as pb

BOUNDS = (b"a", b"c", b"e", b"g", b"z")


def brought(spans: Spans, puller: int, seq: int, sub_id: int, size: int, span_id: int = 7) -> None:
    """A segment of `size` bytes of one assignment."""
    share = s.share(span_id, sub_id, [105], row_bytes=size)
    spans.on_report(puller, pb.Report(segments=[s.meta(seq, share, attempt=str(puller))]))


def started(pullers: int, copy: TableCopy | None = None) -> tuple[Spans, int]:
    """Span 7, which puller 0 pulls as its sub_id says; the others have nothing to do."""
    spans = Spans(pullers)
    spans.add_span(7, b"", b"", 100, copy)
    commands = [spans.puller_joined(0.0, puller).commands for puller in range(pullers)]
    ((_, command),) = commands[0]
    spans.arrange(0.0)
    return spans, command.subscribe.sub_id


def parts(orders: Orders) -> list[tuple[int, bytes, bytes]]:
    """(puller, start, end) of each part that is to be pulled."""
    asked = [(puller, command.subscribe) for puller, command in orders.commands if command.HasField("subscribe")]
    return [(puller, each.start_key, each.end_key) for puller, each in asked]


def test_a_span_that_is_too_much_for_its_puller_is_split_among_those_with_nothing_to_do() -> None:
    spans, sub_id = started(3)
    brought(spans, 0, 1, sub_id, SPLIT_BYTES - 1)
    assert spans.too_large(1.0) is None
    brought(spans, 0, 2, sub_id, SPLIT_BYTES // 2 + 1)
    assert spans.too_large(1.0) == (7, 3), "a part is to have half of what is too much"
    orders = spans.split(1.0, 7, (b"c", b"e"))
    assert parts(orders) == [(0, b"", b"c"), (1, b"c", b"e"), (2, b"e", b"")]
    spans.check()
    assert spans.complete


def test_no_more_parts_than_pullers_and_none_without_another_puller() -> None:
    spans, sub_id = started(2)
    brought(spans, 0, 1, sub_id, 40 * SPLIT_BYTES)
    assert spans.too_large(0.0) == (7, 2)
    spans.puller_left(0.0, 1)
    assert spans.too_large(0.0) is None


def test_where_all_pullers_are_as_busy_nothing_is_gained() -> None:
    spans, sub_id = started(2)
    spans.add_span(8, b"", b"", 100)
    brought(spans, 0, 1, sub_id, 2 * SPLIT_BYTES)
    brought(spans, 1, 1, sub_id + 1, 2 * SPLIT_BYTES, span_id=8)
    assert spans.too_large(0.0) is None


def test_it_is_looked_at_again_after_a_while_and_made_whole_when_little_comes() -> None:
    spans, sub_id = started(2)
    brought(spans, 0, 1, sub_id, 2 * SPLIT_BYTES)
    spans.split(10.0, 7, ())  # all rows come between two borders: it can't be split now
    assert spans.too_large(9.0 + RECENT_S) is None
    assert spans.too_large(10.0 + RECENT_S) == (7, 2)
    spans.split(10.0 + RECENT_S, 7, (b"c",))
    now = 10.0 + RECENT_S
    while not (found := parts(spans.arrange(now := now + RECENT_S))):
        spans.check()
    assert found == [(0, b"", b"")]
    assert now >= 10.0 + 4 * RECENT_S, "2 * SPLIT_BYTES is to have faded to an eighth of one"
    spans.check()


def test_a_table_is_not_split_while_it_is_copied() -> None:
    spans, sub_id = started(2, TableCopy(100, (b"a", b"c", b"z")))
    brought(spans, 0, 1, sub_id, 3 * SPLIT_BYTES)
    assert spans.too_large(0.0) is None
    assert spans.split(0.0, 7, (b"c",)) == Orders()


def test_a_part_of_a_puller_that_stays_away_is_pulled_by_another_and_the_span_goes_on_with_it() -> None:
    spans, _ = started(2)
    spans.split(0.0, 7, (b"c",))
    spans.puller_left(1.0, 1)
    assert not spans.complete
    assert parts(spans.arrange(10.0)) == [(0, b"", b"c"), (0, b"c", b"")]
    assert spans.complete
    spans.check()


def test_rule_21_a_split_goes_back_to_what_is_flushed_if_only_a_pullers_machine_can_read_the_rest() -> None:
    """As a move does: whoever pulls the parts may be elsewhere, and that machine gone unnoticed."""
    spans, sub_id = started(2)
    meta = s.meta(1, s.share(7, sub_id, [105]))
    meta.host = "another"
    spans.on_report(0, pb.Report(segments=[meta], resolved=[s.resolved(sub_id, 150, 1)]))
    assert spans.resolved_ts(7) == 150
    orders = spans.split(0.0, 7, (b"c",))
    assert orders.ended == {7: 100}
    assert spans.segments(7) == ()
    spans.check()


@pytest.mark.parametrize(
    ("keys", "parts", "found"),
    [
        ([b"b", b"d", b"f", b"h"], 2, (b"e",)),
        ([b"b", b"b1", b"b2", b"d"], 2, (b"c",)),  # most rows stand in front
        ([b"b", b"d", b"f", b"h"], 4, (b"c", b"e", b"g")),
        ([b"h", b"h1", b"h2"], 2, ()),  # behind the last border
        ([], 2, (b"e",)),  # nothing is known: by size
    ],
)
def test_a_span_is_split_where_its_rows_come(keys: list[bytes], parts: int, found: tuple[bytes, ...]) -> None:
    assert borders(BOUNDS, keys, parts) == found


def test_a_table_of_one_region_has_no_border() -> None:
    assert borders((b"a", b"z"), [b"b", b"c"], 4) == ()
