"""Who gets which rows of a slot's one stream, however subscriptions come, rest and go."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.errors import ProtocolViolation
from changefeed.model.table_copy import TableCopy
from changefeed.upstream.postgresql.slot.subscriptions import SlotSubscriptions
from hypothesis import given
from hypothesis import strategies as st

A, B = 11, 12


def made(*subscriptions: tuple[int, int, int]) -> SlotSubscriptions:
    found = SlotSubscriptions()
    for sub_id, table, start_ts in subscriptions:
        found.subscribe(sub_id, table, start_ts)
    found.begin()
    return found


def test_1_all_join_a_stream_that_begins() -> None:
    found = made((1, A, 10))
    found.subscribe(2, B, 5)
    assert not found.settle()
    assert found.tables() == {A, B}


def test_2_who_comes_at_the_position_joins() -> None:
    found = made((1, A, 10))
    found.position = 20
    found.subscribe(2, B, 20)
    assert not found.settle()
    assert found.takers(B) == [2]


def test_3_who_comes_from_below_makes_the_stream_begin_anew() -> None:
    found = made((1, A, 10))
    found.position = 20
    assert found.sent(1, 20)
    found.subscribe(2, B, 19)
    found.hold(1)
    found.resume(1)
    assert found.settle()
    assert found.takers(A) == [1]
    found.begin()
    assert not found.settle()
    assert (found.sent_ts(1), found.sent_ts(2)) == (20, 19)


def test_4_who_is_held_leaves_at_once() -> None:
    found = made((1, A, 10), (2, B, 10))
    found.hold(1)
    assert found.takers(A) == []
    assert not found.sent(1, 20)
    assert found.sent(2, 20)
    assert found.behind(30) == [2]
    found.position = 20
    found.resume(1)
    assert found.settle()


def test_5_the_stream_rests_while_all_are_held() -> None:
    found = made((1, A, 10))
    assert not found.all_rest
    found.sent(1, 20)
    found.position = 20
    found.hold(1)
    assert found.all_rest
    found.resume(1)
    assert not found.settle()
    assert found.takers(A) == [1]
    found.release(1)
    assert not found.all_rest


def test_6_who_wants_what_is_before_the_first_anchor_is_told() -> None:
    found = made((1, A, 10), (2, B, 20))
    assert found.below(20) == [1]
    found.hold(1)
    assert found.below(20) == []


def test_7_who_comes_while_bytes_are_looked_at_waits() -> None:
    found = made((1, A, 10))
    found.subscribe(2, A, 20)
    assert found.takers(A) == [1]
    assert not found.sent(2, 30)


def test_8_what_was_read_of_tables_that_nobody_pulls_now_counts() -> None:
    found = made((1, A, 10), (2, B, 20))
    assert found.reached_ts == 20
    found.release(2)
    assert found.reached_ts == 20
    found.subscribe(3, B, 15, reached_ts=30)
    assert found.reached_ts == 30
    found.handing_on(40)
    assert found.reached_ts == 40
    found.release(1)
    found.release(3)
    assert found.reached_ts is None, "nobody is there to be told of anything"


def test_9_who_is_copied_looks_at_what_is_above_the_copy_and_begins_anew_with_all_others_that_are() -> None:
    copies = TableCopy(5, (b"", b"a", b"b")), TableCopy(5, (b"", b"b"))
    found = SlotSubscriptions()
    found.subscribe(1, A, 5, copies[0])
    found.subscribe(2, B, 6, copies[1])
    found.begin()
    assert found.tables() == {A, B}
    assert (found.takers(A), found.behind(copies[0].ts + 9)) == ([], [])
    assert [each.sub_id for each in found.copiers(A)] == [1]
    assert found.below(copies[0].ts) == []
    assert found.next_copy() is None  # all up to their ts is to be read first
    found.position = copies[0].ts + 9
    first = found.next_copy()
    assert first is not None
    assert (first.sub_id, first.sent_ts, found.needed_ts(is_crossed=True)) == (1, 5, 5)
    assert found.sent(1, copies[0].ts)
    found.copied(1)
    assert not found.is_copying(first)
    assert not found.settle()  # it waits for the other
    second = found.next_copy()
    assert second is not None
    found.hold(2)
    assert not found.is_copying(second)
    assert found.settle()  # and not for who is held
    found.begin()
    assert (found.takers(A), found.sent_ts(1)) == ([1], copies[0].ts)
    found.resume(2)
    assert not found.settle()
    assert found.copiers(B) != [second], "what it has looked at is not all"


def test_a_sub_id_is_used_once() -> None:
    found = made((1, A, 10))
    with pytest.raises(ProtocolViolation):
        found.subscribe(1, B, 10)


def test_the_unknown_changes_nothing() -> None:
    found = made()
    for change in (found.hold, found.resume, found.release):
        change(7)
    assert found.ids() == []
    assert found.sent_ts(7) is None


@given(st.data())
def test_no_row_is_left_out(data: Any) -> None:
    """Promise: in any order of events, a subscription that hears of a ts has got each row of its table up to it."""
    commits = sorted(data.draw(st.sets(st.integers(101, 140), min_size=1)))  # each with a row of both tables
    found = SlotSubscriptions()
    got: dict[int, set[int]] = {}
    starts: dict[int, int] = {}
    heard: dict[int, int] = {}

    def disturb() -> None:
        change = data.draw(st.sampled_from(("nothing", "nothing", "subscribe", "hold", "resume", "release")))
        if change == "subscribe":
            sub_id = len(starts)
            starts[sub_id] = heard[sub_id] = data.draw(st.integers(100, 140))
            got[sub_id] = set()
            found.subscribe(sub_id, (A, B)[sub_id % 2], starts[sub_id])
        elif change != "nothing":
            getattr(found, change)(data.draw(st.integers(0, 3)))
        found.check()

    for _ in range(data.draw(st.integers(1, 4))):
        disturb()
        found.begin()
        at = 0
        while at < len(commits) and not found.settle():
            disturb()
            if found.all_rest:
                break
            tables = found.tables()
            disturb()  # while the thread reads
            arrived = commits[at : at + data.draw(st.integers(1, 4))]
            at += len(arrived)
            for sub_id in [*found.takers(A), *found.takers(B)]:
                assert (A, B)[sub_id % 2] in tables
                got[sub_id] |= {ts for ts in arrived if ts > (found.sent_ts(sub_id) or 0)}
            disturb()  # while rows are handed on
            found.position = arrived[-1]
            for sub_id in found.behind(arrived[-1]):
                assert found.sent(sub_id, arrived[-1])
                heard[sub_id] = arrived[-1]
            for sub_id, ts in heard.items():
                assert {each for each in commits if starts[sub_id] < each <= ts} <= got[sub_id]


def test_what_the_lowest_needs_is_needed_also_while_it_is_held() -> None:
    subscriptions = SlotSubscriptions()
    assert subscriptions.needed_ts(is_crossed=True) is None
    subscriptions.subscribe(1, 7, 30)
    subscriptions.subscribe(2, 7, 20)
    subscriptions.hold(2)
    assert subscriptions.needed_ts(is_crossed=True) == 20
    subscriptions.release(2)
    assert subscriptions.needed_ts(is_crossed=True) == 30
    assert subscriptions.needed_ts(is_crossed=False) == 0
