"""The matcher: scripts, a row-wise model over random histories, rule 18, and what others got wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl
import puller_script
import pytest
from changefeed.puller.matching import matcher as module
from changefeed.puller.matching import spilled
from changefeed.puller.matching.matcher import COMMITTED_ROWS, ROWS, Matched, Matcher
from hypothesis import given, settings
from hypothesis import strategies as st
from puller_memory_scratch import MemoryFile

TYPES = {"PREWRITE": 1, "COMMIT": 2, "ROLLBACK": 3, "COMMITTED": 4, "INITIALIZED": 5}
PUT, DELETE = 1, 2


class Row(NamedTuple):
    type: str
    start: int = 0
    commit: int = 0
    key: str = ""
    op: int = PUT
    value: str = ""
    old: str = ""
    generation: int = 0


def frame(rows: list[tuple[int, Row]]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            (
                r.start,
                r.commit,
                TYPES[r.type],
                r.op,
                r.key.encode(),
                r.value.encode(),
                r.old.encode(),
                0,
                r.generation,
                reg,
            )
            for reg, r in rows
        ],
        schema=ROWS,
        orient="row",
    )


def emitted(matched: Matched) -> list[tuple[int, int, int, int, str, str, str | None]]:
    """(reg, commit_ts, start_ts, op, key, value, old_value), sorted."""
    parts = [matched.rows, *matched.more]
    assert all(part.schema == COMMITTED_ROWS for part in parts)
    rows = pl.concat(parts)
    return sorted(
        (reg, commit, start, op, key.decode(), value.decode(), None if old is None else old.decode())
        for reg, commit, start, op, key, value, old, _ in rows.rows()
    )


def parse(line: str) -> tuple[int, Row]:
    """`<reg> TYPE [start=..] [commit=..] [key=..] [del] [value=..] [old=..] [generation=..]`"""
    reg, kind, *words = line.split()
    fields: dict[str, int | str] = {}
    for word in words:
        name, _, value = word.partition("=")
        fields[name] = int(value) if name in ("start", "commit", "generation") else value
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


@pytest.mark.parametrize("script", puller_script.scripts("matcher"), ids=lambda path: path.stem)
def test_script(script: Path) -> None:
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
        ops = ("delete", "update", "insert")
        out = [
            f"{reg} {ops[op]} commit={commit} start={start} key={key} value={value} old={old}"
            for reg, commit, start, op, key, value, old in emitted(matched)
        ]
        out += [f"{reg} initialized" for reg in matched.initialized]
        out += [f"{reg} violation: {what}" for reg, what in sorted(matched.violations.items())]
        return [*out, f"uncommitted {matcher.uncommitted_rows}"]

    puller_script.run(script, command)


class Model:
    """What the matcher does, one row at a time."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.initialized = False
        self.early: list[Row] = []
        self.pending: dict[tuple[int, str], Row] = {}
        self.moved: set[tuple[int, str]] = set()
        self.fates: dict[int, int] = {}
        self.out: list[tuple[int, int, int, str, str, str | None]] = []

    def feed(self, row: Row) -> None:
        if row.type == "COMMITTED":
            self.emit(row, row.commit)
            self.decide(row.start, row.commit)
        elif row.type == "INITIALIZED":
            self.initialized = True
            order = {"PREWRITE": 0, "ROLLBACK": 1, "COMMIT": 2}
            for early in sorted(self.early, key=lambda r: order[r.type]):
                self.match(early, early=True)
            for start, commit in list(self.fates.items()):
                self.decide(start, commit)
        elif row.type == "PREWRITE" and row.op == PUT and not row.value:
            return
        elif self.initialized:
            self.match(row, early=False)
        else:
            self.early.append(row)

    def match(self, row: Row, early: bool) -> None:
        slot = (row.start, row.key)
        if row.type == "PREWRITE" and slot not in self.moved:
            before = self.pending.get(slot, row)
            newer = row if row.generation >= before.generation else before
            self.pending[slot] = newer._replace(old=before.old or row.old)
            if not early and row.start in self.fates:
                self.decide(row.start, self.fates[row.start])
        elif row.type == "ROLLBACK":
            self.pending.pop(slot, None)
        elif row.type == "COMMIT":
            assert early or slot in self.pending or slot in self.moved, "violation"
            self.fates[row.start] = row.commit
            if not early:
                self.decide(row.start, row.commit)

    def decide(self, start: int, commit: int) -> None:
        self.fates[start] = commit
        if self.initialized:
            for slot in [slot for slot in self.pending if slot[0] == start]:
                self.moved.add(slot)
                self.emit(self.pending.pop(slot), commit)

    def emit(self, row: Row, commit: int) -> None:
        if commit > self.floor and not (row.op == DELETE and not row.old):
            op = 0 if row.op == DELETE else 1 if row.old else 2
            self.out.append((commit, row.start, op, row.key, row.value, row.old or None))


def uncommitted(early: list[Row]) -> int:
    """Rows of an unfinished scan that are kept: of a repeated prewrite one."""
    return len({(row.start, row.key) if row.type == "PREWRITE" else number for number, row in enumerate(early)})


class Region:
    """A region of a tiny TiKV: makes one registration's rows, in an order that TiKV may send."""

    def __init__(self, rng: random.Random, checkpoint: int) -> None:
        self.rng = rng
        self.checkpoint = checkpoint
        self.ts = 10
        self.locks: dict[str, Row] = {}
        self.versions: dict[str, list[Row]] = {key: [] for key in "abcd"}  # oldest first
        self.deciding: list[Row] = []  # rows to be sent for transactions that are decided
        self.log: list[Row] = []

    def tick(self) -> int:
        self.ts += 1
        return self.ts

    def write(self, start: int, key: str) -> Row:
        old = self.versions[key][-1] if self.versions[key] else None
        before = old.value if old is not None and old.op == PUT else ""
        deletes = self.rng.random() < 0.3
        value = "" if deletes else f"{key}{start}.{self.tick()}"
        return Row("PREWRITE", start, 0, key, DELETE if deletes else PUT, value, before)

    def step(self) -> None:
        free = [key for key in self.versions if key not in self.locks]
        open_starts = sorted({lock.start for lock in self.locks.values()} - {row.start for row in self.deciding})
        dice = self.rng.random()
        if dice < 0.35 and free:
            keys = self.rng.sample(free, self.rng.randint(1, len(free)))
            start = self.tick()
            for key in keys:
                self.locks[key] = self.write(start, key)
                self.log.append(self.locks[key])
        elif dice < 0.45 and free:
            key, start = self.rng.choice(free), self.tick()
            row = self.write(start, key)._replace(type="COMMITTED", commit=self.tick())
            self.versions[key].append(row)
            self.log.append(row)
        elif dice < 0.60 and open_starts:
            start, commit = self.rng.choice(open_starts), self.tick()
            outcome = "COMMIT" if self.rng.random() < 0.8 else "ROLLBACK"
            rows = [lock._replace(type=outcome) for lock in self.locks.values() if lock.start == start]
            self.deciding += [row._replace(commit=commit if outcome == "COMMIT" else 0) for row in rows]
        elif dice < 0.90 and self.deciding:
            row = self.deciding.pop(self.rng.randrange(len(self.deciding)))
            del self.locks[row.key]
            if row.type == "COMMIT":
                self.versions[row.key].append(row._replace(type="COMMITTED"))
            self.log.append(row._replace(value="", old=""))
        elif self.locks:  # a heartbeat rewrites a lock, with or without its value
            lock = self.rng.choice(list(self.locks.values()))
            fake = self.rng.random() < 0.5
            self.log.append(lock._replace(value="", old="") if fake else lock)

    def scan(self) -> list[Row]:
        rows: list[Row] = []
        for key, versions in self.versions.items():
            rows += [self.locks[key]] if key in self.locks else []
            rows += [row for row in reversed(versions) if row.commit > self.checkpoint]
        return [*rows, Row("INITIALIZED")]


def registration(seed: int) -> tuple[int, list[Row]]:
    """Its checkpoint and its rows."""
    rng = random.Random(seed)
    region = Region(rng, rng.randint(5, 30))
    for _ in range(rng.randint(0, 15)):
        region.step()
    scan = region.scan()
    region.log.clear()
    for _ in range(rng.randint(0, 30)):
        region.step()
    rows: list[Row] = []
    live = list(region.log)
    while scan or live:
        source = scan if scan and (not live or rng.random() < 0.5) else live
        rows.append(source.pop(0))
    return region.checkpoint, rows


def safe_ts(rest: list[Row], fates: dict[int, int]) -> int:
    """The highest resolved-ts that rule 18 allows: what is known to be committed does not hold it back."""
    return min((row.commit for row in rest if row.commit and row.start not in fates), default=10_000) - 1


@given(st.integers(0, 2**32), st.integers(0, 2**32), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_any_chunks_of_any_history_match_as_row_by_row(one: int, two: int, rng: random.Random) -> None:
    matcher = Matcher(MemoryFile)
    histories = [registration(one), registration(two)]
    models = [Model(checkpoint) for checkpoint, _ in histories]
    regs = [matcher.open(checkpoint) for checkpoint, _ in histories]
    rest = [list(rows) for _, rows in histories]
    got: list[tuple[int, int, int, int, str, str, str | None]] = []
    while any(rest):
        chunk = []
        for _ in range(rng.randint(1, 12)):
            which = rng.choice([i for i in (0, 1) if rest[i]] or [0])
            if rest[which]:
                row = rest[which].pop(0)
                models[which].feed(row)
                chunk.append((regs[which], row))
        matched = matcher.feed(frame(chunk))
        assert matched.violations == {}
        got += emitted(matched)
        expected = [(reg, *row) for reg, model in zip(regs, models, strict=True) for row in model.out]
        assert sorted(got, key=str) == sorted(expected, key=str)
        assert matcher.uncommitted_rows == sum(
            len(model.pending) if model.initialized else uncommitted(model.early) for model in models
        )
        for reg, model, left in zip(regs, models, rest, strict=True):
            if model.initialized and rng.random() < 0.5:
                matcher.advance(reg, safe_ts(left, model.fates))


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


def flush(start: int, key: str, generation: int, value: str = "v") -> Row:
    return prewrite(start, key, value)._replace(generation=generation)


def test_rule_18_a_large_transaction_outlives_a_resolved_ts_above_its_start() -> None:
    """It has promised to commit above it; it flushes on, some keys again."""
    matcher = initialized()
    feed(matcher, flush(10, "a", 1, "old"), flush(10, "b", 1))
    assert matcher.advance(0, 50)
    feed(matcher, flush(10, "a", 2, "new"), flush(10, "c", 2))
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
    feed(matcher, flush(10, "a", 1), flush(10, "b", 1))
    feed(matcher, Row("ROLLBACK", 10, 0, "a"))
    assert matcher.advance(0, 200)
    assert feed(matcher, Row("ROLLBACK", 10, 0, "b"), Row("ROLLBACK", 10, 0, "never seen")) == ([], {})
    assert matcher.uncommitted_rows == 0


def test_rule_18_who_registers_in_the_middle_of_a_commit_is_told_again_what_was_handed_on() -> None:
    """1. The first commit of a large transaction, at 100, has let the resolved-ts pass it. 2. The stream breaks. 3. The
    next registration begins at 150: its scan shows the locks that are left, and their commits come."""
    matcher = Matcher(MemoryFile)
    matcher.open(150)
    assert feed(matcher, flush(10, "b", 1), flush(10, "c", 2), flush(160, "d", 1), Row("INITIALIZED")) == ([], {})
    assert feed(matcher, Row("COMMIT", 10, 100, "b")) == ([], {})
    assert matcher.advance(0, 165)
    assert feed(matcher, Row("COMMIT", 10, 100, "c"), Row("COMMIT", 160, 170, "d")) == ([(170, 2, "d")], {})
    assert matcher.uncommitted_rows == 0


def test_a_flush_that_the_scan_shows_late_does_not_undo_a_newer_one() -> None:
    """tiflow 11185: before INITIALIZED live rows and the scan's mix."""
    matcher = Matcher(MemoryFile)
    matcher.open(0)
    feed(matcher, flush(10, "a", 2, "new"), Row("COMMIT", 10, 20, "a"))
    matched = matcher.feed(frame([(0, flush(10, "a", 1, "old")), (0, Row("INITIALIZED"))]))
    assert [(row[1], row[5]) for row in emitted(matched)] == [(20, "new")]


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
    monkeypatch.setattr(module, "_SLOT", pl.lit(7, pl.UInt64).alias("slot"))
    matcher = initialized()
    feed(matcher, prewrite(10, "a"), prewrite(11, "b"))
    assert feed(matcher, Row("COMMIT", 10, 20, "a")) == ([(20, 2, "a")], {})
    assert list(feed(matcher, Row("COMMIT", 11, 21, "x"))[1]) == [0]


def test_memory_of_decided_transactions_is_given_up() -> None:
    matcher = initialized()
    for start in range(100, 1100, 10):
        feed(matcher, prewrite(start, "a"), Row("COMMIT", start, start + 5, "a"))
        matcher.advance(0, start + 5)
    feed(matcher)
    assert len(matcher._fates) <= 1
    assert matcher._moved.height == 0
