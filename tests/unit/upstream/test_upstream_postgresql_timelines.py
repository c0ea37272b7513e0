"""A server that has taken over, and what of the one before it is known to be there."""

from __future__ import annotations

from changefeed.upstream.postgresql.slot.anchors import Said
from changefeed.upstream.postgresql.slot.timelines import Crossing, Switch, switches

SECOND, THIRD = Switch(2, 200), Switch(3, 300)
HISTORY = """\
1\t0/3000148\tno recovery target specified

# by hand
4\tA/F0\tat restore point "x"
"""


def test_a_history_gives_where_each_timeline_begins() -> None:
    assert switches(HISTORY, 6) == [Switch(4, 0x3000148), Switch(6, 0xA_0000_00F0)]
    assert switches("1\t0/10\twhy\n", 2) == [Switch(2, 16)]


def test_1_what_is_common_is_the_last_commit_before_the_point() -> None:
    crossing = Crossing("s", [SECOND])
    assert crossing.common_ts == 0, "nothing is known to be there"
    crossing.commit(90, None, None)
    assert crossing.common_ts == 0, "what has no ts has been read by nobody"
    for lsn, ts in ((100, 10), (199, 20), (200, 30), (250, 40)):
        crossing.commit(lsn, ts, None)
    assert crossing.common_ts == 20


def test_3_a_reader_that_has_crossed_says_so_for_its_own_slot() -> None:
    crossing = Crossing("s", [SECOND])
    crossing.commit(100, 10, None)
    crossing.commit(210, 30, Said(30, slot="other", crossed=2))
    crossing.commit(215, 31, Said(31, held=25, slot="s"))
    assert crossing.common_ts == 10
    crossing.commit(220, 32, Said(32, slot="s", crossed=2))
    assert crossing.common_ts is None


def test_4_of_two_points_the_first_that_nobody_has_crossed_counts() -> None:
    crossing = Crossing("s", [SECOND, THIRD])
    for lsn, ts in ((100, 10), (220, 30), (320, 50)):
        crossing.commit(lsn, ts, None)
    assert crossing.common_ts == 10
    crossing.commit(330, 60, Said(60, slot="s", crossed=2))
    assert crossing.common_ts == 30
    crossing.commit(340, 70, Said(70, slot="s", crossed=3))
    assert crossing.common_ts is None
