"""The matcher on random histories of a tiny TiKV: it does what a model does row by row, and what it gives is the truth.

The tiny TiKV has small and large transactions, heartbeats with and without the value, empty values, and scans that mix
with live rows in any way that TiKV may send. It knows what was committed; the model knows only what was sent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from changefeed.upstream.tikv.matching import matcher as module
from changefeed.upstream.tikv.matching import spilled
from changefeed.upstream.tikv.matching.matcher import Matcher
from hypothesis import given, settings
from hypothesis import strategies as st
from puller_matcher_rows import DELETE, PUT, Row, emitted, frame
from puller_memory_scratch import MemoryFile

#: commit_ts, start_ts, op, key, value, old value
Out = tuple[int, int, int, str, str, str | None]


def out(row: Row, commit: int) -> Out:
    op = 0 if row.op == DELETE else 1 if row.old else 2
    return commit, row.start, op, row.key, row.value, row.old or None


class Unclear(Exception):
    pass


@dataclass
class Slot:
    """The prewrites of a key by a transaction, in the order in which they came, and which of them came late."""

    copies: list[tuple[Row, bool]] = field(default_factory=list)

    def newest(self) -> Row:
        """Raises Unclear."""
        live = [copy for copy in self.copies if not copy[0].scanned]
        told = len(live) < len(self.copies)  # which of them is the scan's
        kept = [copy for copy in self.copies if copy[0].scanned] + live
        unclear, (newest, _) = False, kept[0]
        for row, late in kept[1:]:
            may_be_a_heartbeat = row.op == PUT and not row.value
            if (told or late) and not may_be_a_heartbeat:
                unclear = False
            elif row[4:6] != newest[4:6]:
                unclear = True
            newest = row
        if unclear:
            raise Unclear
        old = next((row.old for row, _ in self.copies if row.old), "")
        return newest._replace(old=old)


class Model:
    """What the matcher does with one registration, one row at a time."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.initialized = False
        self.early: list[Row] = []
        self.pending: dict[tuple[int, str], Slot] = {}
        self.moved: set[tuple[int, str]] = set()
        self.fates: dict[int, int] = {}
        self.out: list[Out] = []

    def feed(self, row: Row) -> None:
        """Raises Unclear: the registration is to be made again."""
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
        elif row.type == "LOCKED":
            return
        elif self.initialized:
            self.match(row, early=False)
        else:
            self.early.append(row)

    def match(self, row: Row, early: bool) -> None:
        slot = (row.start, row.key)
        if row.type == "PREWRITE" and slot not in self.moved:
            self.pending.setdefault(slot, Slot()).copies.append((row, not early))
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
                prewritten = self.pending.pop(slot)
                if commit > self.floor:
                    self.emit(prewritten.newest(), commit)

    def emit(self, row: Row, commit: int) -> None:
        if commit > self.floor and not (row.op == DELETE and not row.old):
            self.out.append(out(row, commit))

    def uncommitted(self) -> int:
        """Rows that are kept; of a repeated prewrite one."""
        early = {(row.start, row.key) if row.type == "PREWRITE" else n for n, row in enumerate(self.early)}
        return len(self.pending) if self.initialized else len(early)


class Region:
    """A region of a tiny TiKV: makes one registration's rows, in an order that TiKV may send."""

    def __init__(self, rng: random.Random, checkpoint: int) -> None:
        self.rng = rng
        self.checkpoint = checkpoint
        self.is_old = rng.random() < 0.2  # heartbeats are told of without the value
        self.ts = 10
        self.locks: dict[str, Row] = {}
        self.versions: dict[str, list[Row]] = {key: [] for key in "abcd"}  # oldest first
        self.large: set[int] = set()  # transactions that may write a key again
        self.deciding: list[Row] = []  # rows to be sent for transactions that are decided
        self.log: list[Row] = []

    def tick(self) -> int:
        self.ts += 1
        return self.ts

    def write(self, start: int, key: str) -> Row:
        old = self.versions[key][-1] if self.versions[key] else None
        before = old.value if old is not None and old.op == PUT else ""
        deletes = self.rng.random() < 0.3
        value = "" if deletes or self.rng.random() < 0.1 else f"{key}{start}.{self.tick()}"
        return Row("PREWRITE", start, 0, key, DELETE if deletes else PUT, value, before)

    def lock(self, start: int, key: str) -> None:
        self.locks[key] = self.write(start, key)
        self.log.append(self.locks[key])

    def step(self) -> None:
        free = [key for key in self.versions if key not in self.locks]
        open_locks = [lock for lock in self.locks.values() if lock not in self.deciding]
        open_locks = [lock for lock in open_locks if lock.start not in {row.start for row in self.deciding}]
        rewritten = [lock for lock in open_locks if lock.start in self.large]
        dice = self.rng.random()
        if dice < 0.30 and free:
            start = self.tick()
            for key in self.rng.sample(free, self.rng.randint(1, len(free))):
                self.lock(start, key)
            if self.rng.random() < 0.5:
                self.large.add(start)
        elif dice < 0.40 and free:
            key, start = self.rng.choice(free), self.tick()
            row = self.write(start, key)._replace(type="COMMITTED", commit=self.tick())
            self.versions[key].append(row)
            self.log += [row, Row("LOCKED")]
        elif dice < 0.55 and rewritten:
            lock = self.rng.choice(rewritten)
            self.lock(lock.start, lock.key)
        elif dice < 0.65 and open_locks:
            start, commit = self.rng.choice(open_locks).start, self.tick()
            outcome = "COMMIT" if self.rng.random() < 0.8 else "ROLLBACK"
            rows = [lock._replace(type=outcome) for lock in self.locks.values() if lock.start == start]
            self.deciding += [row._replace(commit=commit if outcome == "COMMIT" else 0) for row in rows]
        elif dice < 0.90 and self.deciding:
            row = self.deciding.pop(self.rng.randrange(len(self.deciding)))
            del self.locks[row.key]
            if row.type == "COMMIT":
                self.versions[row.key].append(row._replace(type="COMMITTED"))
            self.log.append(row._replace(old="", value="p" if row.type == "ROLLBACK" else row.value))
        elif open_locks:  # a heartbeat rewrites a lock
            lock = self.rng.choice(open_locks)
            self.log.append(lock._replace(value="", old="") if self.is_old else lock)

    def scan(self) -> list[list[Row]]:
        """Its Events, of which the last one ends in INITIALIZED."""
        rows: list[Row] = []
        for key, versions in self.versions.items():
            rows += [self.locks[key]] if key in self.locks else []
            rows += [row for row in reversed(versions) if row.commit > self.checkpoint]
        cuts = sorted({0, *(cut for cut in range(1, len(rows) + 1) if self.rng.random() < 0.4), len(rows) + 1})
        rows.append(Row("INITIALIZED"))
        events = [rows[begin:end] for begin, end in pairwise(cuts)]
        return [*events[:-1], [row._replace(scanned=True) for row in events[-1]]]

    def truth(self) -> list[Out]:
        """What a registration must bring in the end, of what is decided."""
        committed = [row for versions in self.versions.values() for row in versions]
        committed += [row for row in self.deciding if row.type == "COMMIT"]
        wanted = [row for row in committed if row.commit > self.checkpoint]
        return [out(row, row.commit) for row in wanted if row.op == PUT or row.old]


def registration(seed: int) -> tuple[Region, list[Row]]:
    """A region and what one registration of it is sent."""
    rng = random.Random(seed)
    region = Region(rng, rng.randint(5, 30))
    for _ in range(rng.randint(0, 15)):
        region.step()
    scan = region.scan()
    region.log.clear()
    for _ in range(rng.randint(0, 40)):
        region.step()
    rows: list[Row] = []
    live = [[row] for row in region.log]
    slow = rng.choice((0.1, 0.5))  # then most live rows overtake the scan
    while scan or live:
        source = scan if scan and (not live or rng.random() < slow) else live
        rows += source.pop(0)
    return region, rows


def safe_ts(rest: list[Row], fates: dict[int, int]) -> int:
    """The highest resolved-ts that rule 18 allows: what is known to be committed does not hold it back."""
    return min((row.commit for row in rest if row.commit and row.start not in fates), default=10_000) - 1


@pytest.mark.parametrize("spill_bytes", [module.SPILL_BYTES, 0], ids=["in memory", "spilled"])
@given(st.integers(0, 2**32), st.integers(0, 2**32), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_any_chunks_of_any_history_match_as_row_by_row_and_are_the_truth(
    spill_bytes: int, one: int, two: int, rng: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(module, "SPILL_BYTES", spill_bytes)
        monkeypatch.setattr(spilled, "BATCH_BYTES", 200)
        matcher = Matcher(MemoryFile)
        histories = [registration(seed) for seed in (one, two)]
        models = [Model(region.checkpoint) for region, _ in histories]
        regs = [matcher.open(region.checkpoint) for region, _ in histories]
        rest = [list(rows) for _, rows in histories]
        unclear: set[int] = set()
        got: list[tuple[int, int, int, int, str, str, str | None]] = []
        while any(rest):
            chunk: list[tuple[int, Row]] = []
            before = [list(model.out) for model in models]
            asked: set[int] = set()
            for _ in range(rng.randint(1, 12)):
                which = rng.choice([i for i in (0, 1) if rest[i]] or [0])
                if not rest[which]:
                    continue
                row = rest[which].pop(0)
                chunk.append((regs[which], row))
                try:
                    if which not in asked:
                        models[which].feed(row)
                except Unclear:
                    asked.add(which)
            matched = matcher.feed(frame(chunk))
            for which in asked:  # nothing of the chunk comes, and nothing more
                models[which].out = before[which]
                rest[which].clear()
            unclear |= asked
            assert (matched.violations, set(matched.unclear)) == ({}, {regs[which] for which in asked})
            got += emitted(matched)
            expected = [(reg, *row) for reg, model in zip(regs, models, strict=True) for row in model.out]
            assert sorted(got, key=str) == sorted(expected, key=str)
            waiting = [model.uncommitted() for which, model in enumerate(models) if which not in unclear]
            assert matcher.uncommitted_rows == sum(waiting)
            for which, (reg, model, left) in enumerate(zip(regs, models, rest, strict=True)):
                if which not in unclear and model.initialized and rng.random() < 0.5:
                    matcher.advance(reg, safe_ts(left, model.fates))
        for which, (region, rows) in enumerate(histories):
            brought = {row[1:] for row in got if row[0] == regs[which]}
            truth = set(region.truth())
            assert brought <= truth
            sent = {row.commit for row in rows if row.commit}
            assert which in unclear or {row for row in truth if row[0] in sent} == brought
