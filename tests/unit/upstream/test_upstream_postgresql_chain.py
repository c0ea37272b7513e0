"""The ts of PostgreSQL's commits: the same for whoever reads them, from whatever was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from changefeed.errors import NeedsHuman, ProtocolViolation, SnapshotLostByGC
from changefeed.model.tso import compose
from changefeed.upstream.postgresql.chain import PREFIX, Anchor, Chain, Origin, check_start, lsn_of, lsn_text
from hypothesis import given
from hypothesis import strategies as st

FIRST = Anchor(compose(1000), 100)
ORIGIN = Origin("7", 1)


def ms(number: int) -> int:
    return number * 1000


def test_1_a_commit_is_behind_the_one_before_it_whatever_the_clock_says() -> None:
    chain = Chain(FIRST)
    assert chain.commit(110, ms(2000)) == compose(2000)
    assert chain.commit(120, ms(1999)) == compose(2000, 1)
    assert chain.commit(130, ms(2000) + 999) == compose(2000, 2)
    assert chain.commit(140, ms(2001)) == compose(2001)
    assert Chain(Anchor(compose(5000), 100)).commit(110, ms(2000)) == compose(5000, 1)


def test_2_what_is_before_the_anchor_has_a_ts_already() -> None:
    chain = Chain(FIRST)
    chain.commit(110, ms(2000))
    chain.commit(120, ms(2000))
    again = Chain(chain.anchor(compose(2000, 1)))
    assert [again.commit(lsn, ms(2000)) for lsn in (110, 120, 130)] == [None, None, chain.commit(130, ms(2000))]


def test_3_a_message_moves_an_idle_database_on() -> None:
    chain = Chain(FIRST)
    assert chain.message(110, PREFIX, b"3000000") == compose(3000)
    assert chain.resolved_ts == compose(3000)


@pytest.mark.parametrize(
    ("prefix", "content"),
    [("other", b"3000000"), (PREFIX, b""), (PREFIX, b"-3"), (PREFIX, b"3e9"), (PREFIX, b"9" * 18)],
)
def test_3_what_others_put_into_the_wal_moves_nothing(prefix: str, content: bytes) -> None:
    """Unhappy path: everybody may write a message, of any prefix and content."""
    chain = Chain(FIRST)
    assert chain.message(110, prefix, content) is None
    assert chain.resolved_ts == FIRST.ts


def test_4_a_keep_alive_moves_the_position_and_no_ts() -> None:
    chain = Chain(FIRST)
    chain.commit(110, ms(2000))
    chain.keep_alive(150)
    assert chain.resolved_ts == compose(2000)
    assert chain.anchor(compose(2000) - 1) == FIRST
    anchor = chain.anchor(compose(2000))
    assert anchor == Anchor(compose(2000), 150)
    assert chain.recorded(anchor) == 150
    chain.keep_alive(140)  # as in the middle of a transaction that is being sent
    assert chain.recorded(chain.anchor(compose(9000))) == 150
    assert Chain(anchor).commit(160, ms(1)) == chain.commit(160, ms(1)) == compose(2000, 1)


def test_5_what_somebody_else_has_confirmed_is_lost() -> None:
    check_start("s", FIRST, ORIGIN, 100, ORIGIN)
    with pytest.raises(SnapshotLostByGC, match=r"Slot s has let go all before 0/65, .* recorded ts \d+ at 0/64: "):
        check_start("s", FIRST, ORIGIN, 101, ORIGIN)


def test_6_what_a_crash_has_made_the_server_forget_is_skipped() -> None:
    chain = Chain(FIRST)
    chain.commit(110, ms(2000))
    recorded = chain.anchor(compose(2000))
    check_start("s", recorded, ORIGIN, 50, ORIGIN)
    again = Chain(recorded)
    assert [again.commit(110, ms(2000)), again.commit(120, ms(2000))] == [None, compose(2000, 1)]


@pytest.mark.parametrize("found", [Origin("8", 1), Origin("7", 2)])
def test_7_another_history_is_refused(found: Origin) -> None:
    with pytest.raises(NeedsHuman, match=f"{found.system_id}; .* 7|is 2; .* timeline 1"):
        check_start("s", FIRST, ORIGIN, 100, found)


def test_commits_that_come_out_of_their_order_are_refused() -> None:
    """Unhappy path: what stands behind the last position would get a ts that a later reader does not give it."""
    chain = Chain(FIRST)
    chain.keep_alive(150)
    for lsn in (150, 140):
        with pytest.raises(ProtocolViolation, match="0/96"):
            chain.commit(lsn, ms(2000))


def test_a_busy_database_does_not_fill_the_memory() -> None:
    """Promise: of a million commits that nothing is durable of, there are marks for each tenth of a second."""
    chain = Chain(FIRST)
    for number in range(20_000):
        chain.commit(101 + number, ms(2000) + number * 100)  # two seconds of them
    chain.check()
    assert len(chain._marks) < 25
    durable = chain.anchor(compose(3000))
    assert compose(2890) < durable.ts <= compose(3000)


@pytest.mark.parametrize("text", ["0/0", "0/64", "16/B374D848", "FFFFFFFF/FFFFFFFF"])
def test_positions_are_written_as_postgresql_does(text: str) -> None:
    assert lsn_text(lsn_of(text)) == text


@dataclass(frozen=True)
class Event:
    """One thing in the WAL: a commit, a message, or somebody else's bytes, for which the server has a keep-alive."""

    kind: str
    end_lsn: int
    time_us: int

    def told(self, chain: Chain) -> int | None:
        if self.kind == "commit":
            return chain.commit(self.end_lsn, self.time_us)
        if self.kind == "message":
            return chain.message(self.end_lsn, PREFIX, b"%d" % self.time_us)
        chain.keep_alive(self.end_lsn)
        return None


def slowly(wal: list[Event]) -> dict[int, int]:
    """The ts by LSN, of one reader that lives for ever and keeps all."""
    found, last = {}, FIRST.ts
    for event in wal:
        if event.kind != "foreign":
            last = max(compose(event.time_us // 1000), last + 1)
            found[event.end_lsn] = last
    return found


@st.composite
def histories(draw: Any) -> list[Event]:
    lsn, events = FIRST.lsn, []
    for _ in range(draw(st.integers(1, 12))):
        lsn += draw(st.integers(1, 50))
        kind = draw(st.sampled_from(("commit", "commit", "message", "foreign")))
        events.append(Event(kind, lsn, ms(1000) + draw(st.integers(-2_000, 400_000))))
    return events


@given(histories(), st.data())
def test_any_cut_into_lives_gives_the_same_ts(wal: list[Event], data: Any) -> None:
    """Promise: however often a reader dies, and whatever it has recorded by then, a commit has one ts, none is left
    out, and nothing is confirmed that would be needed again.
    """
    expected = slowly(wal)
    found: dict[int, int] = {}
    recorded, confirmed = FIRST, 0
    is_done = False
    while not is_done:
        is_last_life = data.draw(st.integers(0, 2)) == 0
        check_start("s", recorded, ORIGIN, confirmed, ORIGIN)
        chain = Chain(recorded)
        sent = [event for event in wal if event.end_lsn > confirmed]
        for event in sent if is_last_life else sent[: data.draw(st.integers(0, len(sent)))]:
            if (ts := event.told(chain)) is not None:
                assert found.setdefault(event.end_lsn, ts) == ts
                assert event.end_lsn > recorded.lsn
            chain.check()
            if data.draw(st.booleans()):
                durable = data.draw(
                    st.sampled_from([ts for ts in (FIRST.ts, *found.values()) if ts <= chain.resolved_ts])
                )
                anchor = chain.anchor(durable)
                assert anchor.ts <= max(durable, recorded.ts)
                recorded = max(recorded, anchor)
                position = chain.recorded(anchor)
                assert position == recorded.lsn
                if data.draw(st.booleans()):  # else the server never hears of it, or forgets it in a crash
                    confirmed = max(confirmed, position)
        if is_last_life:
            assert chain.resolved_ts == max(expected.values(), default=FIRST.ts)
            assert chain.anchor(chain.resolved_ts).lsn == wal[-1].end_lsn
        is_done = is_last_life
    assert found == expected
