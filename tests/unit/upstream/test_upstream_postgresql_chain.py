"""The ts of PostgreSQL's commits: the same for whoever reads them, from whatever is sent again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from changefeed.errors import ProtocolViolation
from changefeed.model.tso import compose
from changefeed.upstream.postgresql.schema.news import TICKS
from changefeed.upstream.postgresql.slot.anchors import PREFIX, Said, said
from changefeed.upstream.postgresql.slot.chain import Chain, lsn_text
from hypothesis import given
from hypothesis import strategies as st

SLOT = "s"


def ms(number: int) -> int:
    return number * 1000


def begun(ts: int = compose(1000)) -> Chain:
    chain = Chain(SLOT)
    assert chain.commit(100, ms(1000), Said(ts)) == ts
    return chain


def test_1_a_commit_is_behind_the_one_before_it_whatever_the_clock_says() -> None:
    chain = begun()
    assert chain.commit(110, ms(2000)) == compose(2000)
    assert chain.commit(120, ms(1999)) == compose(2000, TICKS)
    assert chain.commit(130, ms(2000) + 999) == compose(2000, 2 * TICKS)
    assert chain.commit(140, ms(2001)) == compose(2001)


def test_2_who_begins_at_a_good_anchor_gives_the_same_ts() -> None:
    chain = begun(compose(1900))
    chain.commit(110, ms(1890))
    assert chain.commit(120, ms(1895), Said(compose(1901))) == compose(1901)
    again = Chain(SLOT)
    assert again.commit(120, ms(1895), Said(compose(1901))) == compose(1901)
    assert again.commit(130, ms(1896)) == chain.commit(130, ms(1896)) == compose(1901, TICKS)
    assert (chain.first_ts, again.first_ts) == (compose(1900), compose(1901))


def test_3_what_is_before_the_first_anchor_has_no_ts() -> None:
    chain = Chain(SLOT)
    assert chain.commit(90, ms(5000)) is None
    assert chain.last_ts is None
    assert chain.commit(100, ms(1000), Said(compose(1000))) == compose(1000)
    assert chain.first_ts == chain.last_ts == compose(1000)


def test_4_an_anchor_moves_an_idle_database_on() -> None:
    chain = begun()
    assert chain.commit(110, ms(3000), Said(compose(3010))) == compose(3010)
    assert chain.last_ts == compose(3010)


def test_5_an_anchor_that_others_have_overtaken_is_nothing_to_begin_with() -> None:
    chain = begun()
    chain.commit(110, ms(2000))
    assert chain.commit(120, ms(2001), Said(compose(1999), compose(1999), SLOT)) == compose(2000, TICKS)
    assert chain.confirmable() == 100
    chain.commit(130, ms(3000), Said(compose(3000), compose(2500), SLOT))
    assert chain.confirmable() == 100


def test_6_a_message_from_the_future_is_not_believed() -> None:
    """Unhappy path: everybody may write one; all that follows would be there, too."""
    chain = begun()
    assert chain.commit(110, ms(2000), Said(compose(3000))) == compose(3000)
    assert chain.commit(120, ms(2500), Said(compose(3501), compose(3001), SLOT)) == compose(3000, TICKS)
    assert chain.confirmable() == 0


def test_7_the_newest_anchor_that_is_held_is_confirmed() -> None:
    chain = begun()
    chain.commit(110, ms(2000), Said(compose(2000)))
    chain.commit(120, ms(3000), Said(compose(3000)))
    assert chain.confirmable() == 0
    chain.commit(130, ms(4000), Said(compose(4000), compose(1000) - 1, SLOT))
    assert chain.confirmable() == 0
    chain.commit(140, ms(5000), Said(compose(5000), compose(2999), SLOT))
    assert chain.confirmable() == 110
    chain.commit(150, ms(6000), Said(compose(6000), compose(1000), SLOT))
    chain.commit(160, ms(7000), Said(compose(7000), compose(6000), "another"))
    assert chain.confirmable() == 110
    chain.commit(170, ms(8000), Said(compose(8000), compose(4000), SLOT))
    assert chain.confirmable() == 130
    chain.check()


def test_8_a_changefeed_that_stands_still_does_not_fill_the_memory() -> None:
    """Promise: of days of anchors that nobody lets go there is a bounded number, and what is held is confirmed soon."""
    chain = begun()
    for number in range(1, 20_000):
        chain.commit(100 + number, ms(1000 + number), Said(compose(1000 + number)))
    chain.check()  # knows the bound
    chain.commit(50_000, ms(21_000), Said(compose(21_000), compose(11_000), SLOT))
    assert 9_000 < chain.confirmable() - 100 <= 10_000
    chain.check()


def test_9_what_somebody_still_reads_is_not_let_go() -> None:
    chain = begun()
    chain.commit(110, ms(2000), Said(compose(2000)))
    chain.commit(120, ms(3000), Said(compose(3000)))
    chain.commit(130, ms(4000), Said(compose(4000), compose(3000), SLOT))
    assert chain.confirmable(compose(999)) == 0
    assert chain.confirmable(compose(2500)) == 110
    assert chain.confirmable(compose(5000)) == 120


def test_commits_that_come_out_of_their_order_are_refused() -> None:
    """Unhappy path: what stands behind the last position would get a ts that a later reader does not give it."""
    chain = begun()
    chain.commit(150, ms(2000))
    for lsn in (150, 140):
        with pytest.raises(ProtocolViolation, match="0/96"):
            chain.commit(lsn, ms(2000))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"ts": "5"}, Said(5)),
        ({"ts": "5", "held": "4", "slot": "s"}, Said(5, 4, "s")),
        ({"ts": "5", "held": "6", "slot": "s"}, Said(5)),
        ({"ts": "5", "held": "4"}, Said(5)),
        ({"ts": "5", "held": "-4", "slot": "s"}, Said(5)),
        ({"ts": 5}, None),
        ({"ts": "-5"}, None),
        ({"ts": "٣"}, None),
        ({"ts": "9" * 30}, None),
        ({"held": "4", "slot": "s"}, None),
        (["5"], None),
    ],
)
def test_a_message_says_what_it_says(content: Any, found: Said | None) -> None:
    assert said(PREFIX, json.dumps(content).encode()) == found
    assert said("other", json.dumps(content).encode()) is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 1000, b" " * 2000 + b'{"ts": "5"}'])
def test_what_others_put_into_the_wal_says_nothing(content: bytes) -> None:
    assert said(PREFIX, content) is None


@pytest.mark.parametrize(("lsn", "text"), [(0, "0/0"), (100, "0/64"), (0x16B374D848, "16/B374D848")])
def test_positions_are_written_as_postgresql_does(lsn: int, text: str) -> None:
    assert lsn_text(lsn) == text


@dataclass(frozen=True)
class Committed:
    """One commit of the WAL; `ts`: by the oracle, of a reader that lives for ever."""

    lsn: int
    time_us: int
    said: Said | None
    is_believed: bool
    ts: int | None


@st.composite
def histories(draw: Any) -> list[Committed]:
    lsn, now_us = 0, ms(10_000)
    last: int | None = None
    wal: list[Committed] = []
    for _ in range(draw(st.integers(1, 14))):
        lsn += draw(st.integers(1, 50))
        now_us += draw(st.integers(0, 6_000))
        time_us = now_us + draw(st.sampled_from((0, 0, 0, -20_000, 20_000)))
        anchor = None
        if draw(st.integers(0, 3)):
            known = [each.ts for each in wal if each.ts is not None]
            ts = compose(
                time_us // 1000 + draw(st.sampled_from((-3, 0, 10, 10, 10, 5000))), draw(st.sampled_from((0, 1, TICKS)))
            )
            held = draw(st.sampled_from(known)) if known and draw(st.integers(0, 3)) else 0
            anchor = Said(ts, held, SLOT) if 0 < held <= ts else Said(ts)
        believed = anchor if anchor and anchor.ts <= compose(time_us // 1000 + 1000) else None
        if last is not None:
            last = max(believed.ts if believed else compose(time_us // 1000), last + TICKS)
        elif believed:
            last = believed.ts
        wal.append(Committed(lsn, time_us, anchor, believed is not None, last))
    return wal


@given(histories(), st.data())
def test_any_cut_into_lives_gives_the_same_ts(wal: list[Committed], data: Any) -> None:
    """Promise: however often a reader dies, and whatever the server remembers of what was confirmed by then, a commit
    has one ts, and nothing above what is held is let go.
    """
    confirmed = [0]
    for _ in range(data.draw(st.integers(1, 6))):
        begin = data.draw(st.sampled_from(confirmed[-4:]))  # the server forgets some
        sent = [each for each in wal if each.lsn >= begin]
        chain = Chain(SLOT)
        held = 0
        for each in sent[: data.draw(st.integers(0, len(sent)))]:
            assert chain.commit(each.lsn, each.time_us, each.said) == each.ts
            chain.check()
            if each.said is not None and each.is_believed:
                held = max(held, each.said.held)
            needed = data.draw(st.sampled_from((None, *(other.ts for other in wal if other.ts))))
            limit = held if needed is None else min(held, needed)
            if position := chain.confirmable(needed):
                assert held
                assert all(other.ts <= limit for other in wal if other.ts and other.lsn <= position)
                confirmed.append(position)
                chain.check()
            elif needed is None:
                assert chain.first_ts is None or chain.first_ts > held
