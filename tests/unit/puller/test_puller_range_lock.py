"""The range lock by script: locks, holes, splits, merges, and a resolved-ts that is a minimum."""

from __future__ import annotations

from pathlib import Path

import datadriven
import pytest
from changefeed.upstream.tikv.feed.range_lock import LockPart, RangeLock
from hypothesis import given, settings
from hypothesis import strategies as st

STORIES = sorted((Path(__file__).parent / "testdata" / "range_lock").glob("*.txt"))


def show(ranges: RangeLock) -> list[str]:
    out = []
    for piece in ranges.pieces:
        state = "locked" if piece.locked else f"hole due={piece.due:g} failures={piece.failures}"
        out.append(f"[{piece.start.decode()}, {piece.end.decode()}) ts={piece.resolved_ts} {state}")
    return [*out, f"resolved {ranges.resolved_ts}"]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path, rewrite: bool) -> None:
    ranges = RangeLock(b"a", b"z", 10)

    def at(start: str) -> LockPart:
        return next(piece for piece in ranges.pieces if piece.start == start.encode())

    def command(line: str, _: list[str]) -> list[str]:
        match line.split():
            case ["lock", start, end]:
                taken = ranges.lock(start.encode(), end.encode())
                return [f"took [{p.start.decode()}, {p.end.decode()}) ts={p.resolved_ts}" for p in taken] + show(ranges)
            case ["unlock", start, due]:
                ranges.unlock(at(start), float(due))
            case ["postpone", start, end, due]:
                ranges.postpone(start.encode(), end.encode(), float(due))
            case ["advance", start, ts]:
                ranges.advance(at(start), int(ts))
            case ["holes", now]:
                holes = [f"[{start.decode()}, {end.decode()})" for start, end in ranges.holes(float(now))]
                return [*holes, f"next due {ranges.next_due()}"]
            case ["take"]:
                return [f"resolved {ranges.take_resolved()}"]
            case _:
                raise AssertionError(line)
        ranges.check()
        return show(ranges)

    datadriven.play(story, lambda lines: command(lines[0], lines[1:]), rewrite)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_pieces_cover_the_span_and_its_resolved_ts_never_goes_back(data: st.DataObject) -> None:
    ranges = RangeLock(b"\x00", b"\xff", 5)
    keys = st.integers(0, 255).map(lambda n: bytes([n]))
    told = 5
    for _ in range(data.draw(st.integers(1, 40))):
        locked = [piece for piece in ranges.pieces if piece.locked]
        action = data.draw(st.sampled_from(["lock", "unlock", "advance"]))
        if action == "lock":
            start, end = sorted((data.draw(keys), data.draw(keys)))
            if start == end:
                continue
            for piece in ranges.lock(start, end):
                assert not any(piece is other for other in locked)
        elif locked:
            piece = data.draw(st.sampled_from(locked))
            if action == "unlock":
                ranges.unlock(piece, 0.0)
            else:
                ranges.advance(piece, data.draw(st.integers(0, 100)))
        assert ranges.pieces[0].start == b"\x00"
        assert ranges.pieces[-1].end == b"\xff"
        assert all(one.end == two.start for one, two in zip(ranges.pieces, ranges.pieces[1:], strict=False))
        assert ranges.resolved_ts == min(piece.resolved_ts for piece in ranges.pieces)
        resolved = ranges.take_resolved()
        assert resolved is None or resolved > told
        told = resolved or told


@pytest.mark.parametrize(("start", "end"), [(b"b", b"a"), (b"a", b"a"), (b"a", b"")])
def test_span_without_a_bound_is_refused(start: bytes, end: bytes) -> None:
    with pytest.raises(ValueError, match="empty or unbounded"):
        RangeLock(start, end, 1)
