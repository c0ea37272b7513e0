"""The matcher: scripts, rule 18, and what others got wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import datadriven
import polars as pl
import pytest
from changefeed.upstream.tikv.matching import matcher as module
from changefeed.upstream.tikv.matching import spilled
from changefeed.upstream.tikv.matching.matcher import Matcher
from puller_matcher_rows import DELETE, PUT, Row, emitted, frame
from puller_memory_scratch import MemoryFile

STORIES = sorted((Path(__file__).parent / "testdata" / "matcher").glob("*.txt"))


def parse(line: str) -> tuple[int, Row]:
    """`<reg> TYPE [start=..] [commit=..] [key=..] [del] [value=..] [old=..] [scanned]`"""
    reg, kind, *words = line.split()
    fields: dict[str, int | str | bool] = {"scanned": words[-1:] == ["scanned"]}
    for word in words[:-1] if fields["scanned"] else words:
        name, _, value = word.partition("=")
        fields[name] = int(value) if name in ("start", "commit") else value
    if fields.pop("del", None) is not None:
        fields["op"] = DELETE
    return int(reg), Row(kind, **fields)  # type: ignore[arg-type]


@pytest.fixture(params=[module.SPILL_BYTES, 0], ids=["in memory", "spilled"], autouse=True)
def spill_bytes(request: pytest.FixtureRequest) -> Iterator[int]:
    """All that is said of the matcher here holds wherever its rows are."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(module, "SPILL_BYTES", request.param)
        monkeypatch.setattr(spilled, "BATCH_BYTES", 200)
        yield request.param


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path, rewrite: bool) -> None:
    matcher = Matcher(MemoryFile)

    def command(line: str, rows: list[str]) -> list[str]:
        name, *arguments = line.split()
        numbers = dict(word.split("=") for word in arguments)
        if name == "open":
            return [f"reg {matcher.open(int(numbers['checkpoint']))}"]
        if name == "close":
            matcher.close(int(numbers["reg"]))
            return [f"uncommitted {matcher.uncommitted_rows}"]
        if name == "resolved":
            return [f"advanced {matcher.advance(int(numbers['reg']), int(numbers['ts']))}"]
        assert name == "feed"
        matched = matcher.feed(frame([parse(row) for row in rows]))
        matcher.check()
        ops = ("delete", "update", "insert")
        out = [
            f"{reg} {ops[op]} commit={commit} start={start} key={key} value={value} old={old}"
            for reg, commit, start, op, key, value, old in emitted(matched)
        ]
        out += [f"{reg} initialized" for reg in matched.initialized]
        out += [f"{reg} violation: {what}" for reg, what in sorted(matched.violations.items())]
        out += [f"{reg} unclear: {what}" for reg, what in sorted(matched.unclear.items())]
        return [*out, f"uncommitted {matcher.uncommitted_rows}"]

    datadriven.play(story, lambda lines: command(lines[0], lines[1:]), rewrite)


def feed(matcher: Matcher, *rows: Row) -> tuple[list[tuple[int, int, str]], dict[int, str]]:
    """(commit_ts, op, key) that came out, and violations, of registration 0."""
    matched = matcher.feed(frame([(0, row) for row in rows]))
    return [(commit, op, key) for _, commit, _, op, key, _, _ in emitted(matched)], matched.violations


def initialized() -> Matcher:
    matcher = Matcher(MemoryFile)
    matcher.open(0)
    feed(matcher, Row("INITIALIZED"))
    return matcher


def prewrite(start: int, key: str, value: str = "v") -> Row:
    return Row("PREWRITE", start, 0, key, PUT, value)


def test_rule_18_first_commit_moves_the_whole_transaction_in_the_region() -> None:
    matcher = initialized()
    assert feed(matcher, prewrite(10, "a"), prewrite(10, "b"), prewrite(11, "c")) == ([], {})
    assert feed(matcher, Row("COMMIT", 10, 20, "b")) == ([(20, 2, "a"), (20, 2, "b")], {})
    assert feed(matcher, prewrite(10, "d")) == ([(20, 2, "d")], {})


def test_rule_18_committed_row_of_the_scan_moves_the_prewrites_of_its_transaction() -> None:
    matcher = Matcher(MemoryFile)
    matcher.open(0)
    assert feed(matcher, prewrite(10, "k0"), Row("COMMITTED", 10, 20, "k1", PUT, "v")) == ([(20, 2, "k1")], {})
    assert feed(matcher, Row("INITIALIZED")) == ([(20, 2, "k0")], {})
    assert matcher.advance(0, 25)
    feed(matcher, prewrite(30, "x"))  # another chunk, in which memory of what is over is given up
    assert feed(matcher, Row("COMMIT", 10, 20, "k0")) == ([], {})


def test_rule_18_late_commit_of_an_unknown_row_is_a_violation() -> None:
    matcher = initialized()
    feed(matcher, prewrite(10, "a"))
    assert matcher.advance(0, 25)
    rows, violations = feed(matcher, Row("COMMIT", 10, 20, "a"), prewrite(30, "b"), Row("COMMIT", 30, 40, "b"))
    assert rows == []
    assert list(violations) == [0]
    assert "start_ts 10, commit_ts 20" in violations[0]


def test_rule_18_a_large_transaction_outlives_a_resolved_ts_above_its_start() -> None:
    """It has promised to commit above it; it flushes on, some keys again."""
    matcher = initialized()
    feed(matcher, prewrite(10, "a", "old"), prewrite(10, "b"))
    assert matcher.advance(0, 50)
    feed(matcher, prewrite(10, "a", "new"), prewrite(10, "c"))
    assert matcher.advance(0, 99)
    matched = matcher.feed(frame([(0, Row("COMMIT", 10, 100, "b"))]))
    assert [(row[1], row[4], row[5]) for row in emitted(matched)] == [
        (100, "a", "new"),
        (100, "b", "v"),
        (100, "c", "v"),
    ]
    assert matcher.advance(0, 200)  # the others come late
    feed(matcher)
    assert feed(matcher, Row("COMMIT", 10, 100, "a"), Row("COMMIT", 10, 100, "c")) == ([], {})
    assert matcher.uncommitted_rows == 0


def test_rule_18_of_a_large_transaction_that_is_rolled_back_half_sent_nothing_comes() -> None:
    matcher = initialized()
    feed(matcher, prewrite(10, "a"), prewrite(10, "b"))
    feed(matcher, Row("ROLLBACK", 10, 0, "a"))
    assert matcher.advance(0, 200)
    assert feed(matcher, Row("ROLLBACK", 10, 0, "b"), Row("ROLLBACK", 10, 0, "never seen")) == ([], {})
    assert matcher.uncommitted_rows == 0


def test_rule_18_who_registers_in_the_middle_of_a_commit_is_told_again_what_was_handed_on() -> None:
    """1. The first commit of a large transaction, at 100, has let the resolved-ts pass it. 2. The stream breaks. 3. The
    next registration begins at 150: its scan shows the locks that are left, and their commits come."""
    matcher = Matcher(MemoryFile)
    matcher.open(150)
    assert feed(matcher, prewrite(10, "b"), prewrite(10, "c"), prewrite(160, "d"), Row("INITIALIZED")) == ([], {})
    assert feed(matcher, Row("COMMIT", 10, 100, "b")) == ([], {})
    assert matcher.advance(0, 165)
    assert feed(matcher, Row("COMMIT", 10, 100, "c"), Row("COMMIT", 160, 170, "d")) == ([(170, 2, "d")], {})
    assert matcher.uncommitted_rows == 0


def test_rule_18_before_initialized_nothing_moves_by_transaction() -> None:
    matcher = Matcher(MemoryFile)
    matcher.open(0)
    assert feed(matcher, prewrite(10, "a"), prewrite(10, "b"), Row("COMMIT", 10, 20, "a")) == ([], {})
    assert feed(matcher, Row("ROLLBACK", 11, 0, "c"), prewrite(11, "c"), Row("INITIALIZED")) == (
        [(20, 2, "a"), (20, 2, "b")],
        {},
    )
    assert matcher.uncommitted_rows == 0


def test_commit_seen_before_its_prewrite_is_not_lost() -> None:
    """SeaTunnel 11013: the live commit overtakes the scan's prewrite."""
    matcher = Matcher(MemoryFile)
    matcher.open(0)
    assert feed(matcher, Row("COMMIT", 10, 20, "a")) == ([], {})
    assert not matcher.advance(0, 30)  # no resolved-ts counts before the scan's end
    assert feed(matcher, prewrite(10, "a"), Row("INITIALIZED")) == ([(20, 2, "a")], {})


def test_keys_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOT", pl.lit(7, pl.UInt64).alias("slot"))
    matcher = initialized()
    feed(matcher, prewrite(10, "a"), prewrite(11, "b"))
    assert feed(matcher, Row("COMMIT", 10, 20, "a")) == ([(20, 2, "a")], {})
    assert list(feed(matcher, Row("COMMIT", 11, 21, "x"))[1]) == [0]


def test_of_keys_with_one_hash_the_unclear_one_is_told_from_the_clear_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOT", pl.lit(7, pl.UInt64).alias("slot"))
    matcher = Matcher(MemoryFile)
    matcher.open(0)
    feed(matcher, prewrite(10, "a", "one"), prewrite(11, "b", "1"), prewrite(10, "a", "two"), Row("INITIALIZED"))
    feed(matcher, prewrite(11, "b", "2"), Row("ROLLBACK", 12, 0, "a"))
    assert feed(matcher, Row("COMMIT", 11, 20, "b")) == ([(20, 2, "b")], {})
    assert list(matcher.feed(frame([(0, Row("COMMIT", 10, 20, "a"))])).unclear) == [0]


def test_unclear_rows_are_forgotten_with_their_registration_and_do_not_keep_their_chunks(spill_bytes: int) -> None:
    matcher = Matcher(MemoryFile)
    for reg in (0, 1):
        matcher.open(0)
        matcher.feed(frame([(reg, prewrite(10, "a", value)) for value in ("one", "two")]))
    matcher.close(0)
    matched = matcher.feed(frame([(1, Row("INITIALIZED")), (1, Row("ROLLBACK", 10, 0, "a"))]))
    assert (matched.initialized, matched.unclear) == ([1], {})
    assert matcher.is_empty


def test_memory_of_decided_transactions_is_given_up() -> None:
    matcher = initialized()
    for start in range(100, 1100, 10):
        feed(matcher, prewrite(start, "a"), Row("COMMIT", start, start + 5, "a"))
        matcher.advance(0, start + 5)
    feed(matcher)
    assert matcher.decided_transactions <= 1
    assert matcher.is_empty
