"""Large transactions: what the matcher keeps in memory, what it reads back, and when it gives up its scratch."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from changefeed.errors import Unavailable
from changefeed.upstream.scratch import LocalFile
from changefeed.upstream.tikv.matching import matcher as matcher_module
from changefeed.upstream.tikv.matching import slot_index, spilled
from changefeed.upstream.tikv.matching.matcher import Matched, Matcher
from changefeed.upstream.tikv.matching.rows import ROWS
from changefeed.upstream.tikv.matching.slot_index import SlotIndex
from puller_memory_scratch import MemoryFile

PREWRITE, COMMIT, ROLLBACK, INITIALIZED = 1, 2, 3, 5
VALUE = 1_000


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_module, "SPILL_BYTES", 200 * VALUE)
    monkeypatch.setattr(spilled, "BATCH_BYTES", 50 * VALUE)


def rows(
    kind: int, handles: range, reg: int = 0, start_ts: int = 10, commit_ts: int = 0, old: bytes = b""
) -> pl.DataFrame:
    value = os.urandom(VALUE) if kind == PREWRITE else b""
    return pl.DataFrame(
        [(start_ts, commit_ts, kind, 1, b"%06d" % handle, value, old, 0, reg, False) for handle in handles],
        schema=ROWS,
        orient="row",
    )


class Files:
    """Scratch that knows its files."""

    def __init__(self) -> None:
        self.made: list[MemoryFile] = []

    def __call__(self) -> MemoryFile:
        self.made.append(MemoryFile())
        return self.made[-1]


def initialized(files: Files, registrations: int = 1) -> Matcher:
    matcher = Matcher(files)
    for reg in range(registrations):
        matcher.open(0)
        matcher.feed(rows(INITIALIZED, range(1), reg))
    return matcher


def keys(matched: Matched) -> list[int]:
    return [int(key) for part in (matched.rows, *matched.more) for key in part["key"].to_list()]


def fed(matcher: Matcher, kind: int, count: int, **columns: Any) -> int:
    """Feeds rows of one transaction, a chunk of 100 at a time; the most bytes that stood in memory after one."""
    most = 0
    for first in range(0, count, 100):
        assert keys(matcher.feed(rows(kind, range(first, min(first + 100, count)), **columns))) == []
        most = max(most, matcher.resident_bytes)
    return most


def test_memory_does_not_grow_with_a_transaction() -> None:
    files = Files()
    matcher = initialized(files)
    assert fed(matcher, PREWRITE, 3_000) <= 2 * matcher_module.SPILL_BYTES
    assert matcher.uncommitted_rows == 3_000
    matched = matcher.feed(rows(COMMIT, range(1), commit_ts=20))
    parts = [matched.rows, *matched.more]
    assert sorted(int(key) for part in parts for key in part["key"].to_list()) == list(range(3_000))
    assert max(part.estimated_size() for part in parts[1:]) <= 2 * spilled.BATCH_BYTES
    assert matcher.resident_bytes < matcher_module.SPILL_BYTES
    assert sum(len(file.content) for file in files.made) < 3_000 * 200, "values are given up"


def test_what_is_spilled_is_given_up_row_by_row_as_its_commits_come() -> None:
    matcher = initialized(Files())
    fed(matcher, PREWRITE, 1_000)
    assert len(keys(matcher.feed(rows(COMMIT, range(100), commit_ts=20)))) == 1_000
    for first in range(100, 1_000, 100):
        matched = matcher.feed(rows(COMMIT, range(first, first + 100), commit_ts=20))
        assert (keys(matched), matched.violations) == ([], {})
    assert matcher.is_empty
    assert list(matcher.feed(rows(COMMIT, range(5, 6), commit_ts=20)).violations) == [0], "it was committed before"


@pytest.mark.parametrize("initialized_first", [True, False])
def test_a_rollback_frees_what_is_spilled(initialized_first: bool) -> None:
    matcher = initialized(Files()) if initialized_first else Matcher(Files())
    if not initialized_first:
        matcher.open(0)
    fed(matcher, PREWRITE, 1_000)
    fed(matcher, ROLLBACK, 999)
    if not initialized_first:
        assert keys(matcher.feed(rows(INITIALIZED, range(1)))) == []
    assert matcher.uncommitted_rows == 1
    assert keys(matcher.feed(rows(COMMIT, range(999, 1_000), commit_ts=20))) == [999]


def test_a_closed_registration_gives_up_its_part_also_between_two_batches() -> None:
    files = Files()
    matcher = initialized(files, registrations=2)
    fed(matcher, PREWRITE, 500, reg=0)
    fed(matcher, PREWRITE, 500, reg=1, start_ts=11)
    matcher.close(0)
    assert matcher.uncommitted_rows == 500
    matched = matcher.feed(rows(COMMIT, range(1), reg=1, start_ts=11, commit_ts=20))
    got = len(next(matched.more))
    matcher.close(1)
    assert (0 < got < 200, list(matched.more)) == (True, [])
    matcher.feed(rows(INITIALIZED, range(0)))
    assert matcher.is_empty


def test_a_repeated_prewrite_of_a_spilled_row_is_merged_with_it() -> None:
    matcher = initialized(Files())
    fed(matcher, PREWRITE, 500, old=b"before")
    again = rows(PREWRITE, range(500))
    matcher.feed(again)
    assert matcher.uncommitted_rows == 500
    matched = matcher.feed(rows(COMMIT, range(1), commit_ts=20))
    got = pl.concat([matched.rows, *matched.more]).sort("key")
    assert got["value"].to_list() == again["value"].to_list(), "the newest"
    assert set(got["old_value"].to_list()) == {b"before"}, "which the newest has not"


def test_rule_18_a_spilled_transaction_at_or_below_the_resolved_ts_is_a_violation_and_none_of_it_comes() -> None:
    matcher = initialized(Files())
    fed(matcher, PREWRITE, 500)
    assert matcher.advance(0, 20)
    matched = matcher.feed(rows(COMMIT, range(1), commit_ts=20))
    assert (keys(matched), list(matched.violations)) == ([], [0])


def test_rows_that_are_not_taken_are_not_forgotten_silently() -> None:
    matcher = initialized(Files())
    fed(matcher, PREWRITE, 500)
    next(matcher.feed(rows(COMMIT, range(1), commit_ts=20)).more)
    with pytest.raises(ValueError, match="still to be given out"):
        matcher.feed(rows(COMMIT, range(1, 2), commit_ts=20))


def test_rows_that_are_kept_do_not_keep_their_chunks_in_memory() -> None:
    """Each chunk has one row of a transaction that stays open."""
    matcher = initialized(Files())
    before = pa.total_allocated_bytes()
    for number in range(30):
        parts = [
            rows(PREWRITE, range(100), start_ts=100 + number),
            rows(PREWRITE, range(1_000 + number, 1_001 + number)),
            rows(COMMIT, range(100), start_ts=100 + number, commit_ts=500),
        ]
        wire: Any = pl.from_arrow(pa.concat_tables([part.to_arrow() for part in parts]).combine_chunks())
        assert len(keys(matcher.feed(wire))) == 100
        del wire
        assert pa.total_allocated_bytes() - before < 3 * matcher_module.SPILL_BYTES
    assert matcher.uncommitted_rows == 30


def test_slots_are_found_in_all_runs_also_equal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_index, "RUN_ROWS", 100)
    rng = np.random.default_rng(7)
    index, slots, first = SlotIndex(), rng.integers(0, 300, 1_000, np.uint64), 0
    for size in (30, 90, 1, 500, 379):
        index.add(first, slots[first : first + size])
        first += size
    gone = np.zeros(1_000, bool)
    for begin, end in ((0, 0), (40, 100), (700, 1_000)):
        index.drop(begin, end)
        gone[begin:end] = True
        wanted = rng.integers(0, 400, 200, np.uint64)
        i, found = index.find(wanted)
        pairs = [(a, b) for a in range(200) for b in range(1_000) if wanted[a] == slots[b] and not gone[b]]
        assert sorted(zip(i.tolist(), found.tolist(), strict=True)) == pairs


# The files themselves.


def test_a_scratch_file_has_no_name_and_keeps_what_is_not_cut_off(tmp_path: Path) -> None:
    file = LocalFile(tmp_path / "not" / "there")
    blocks = [file.append(pa.py_buffer(part)) for part in (b"one", b"two" * 1_000, b"three")]
    assert list((tmp_path / "not" / "there").iterdir()) == []
    assert [file.read(block).to_pybytes() for block in blocks] == [b"one", b"two" * 1_000, b"three"]
    file.cut(blocks[0].end)
    assert file.read(blocks[0]).to_pybytes() == b"one"
    with pytest.raises(Unavailable, match="other bytes"):
        file.read(blocks[1])


def test_other_bytes_than_were_written_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, pwrite = LocalFile(tmp_path), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda number, _, at: pwrite(number, b"wrong", at))
    block = file.append(pa.py_buffer(b"right"))
    with pytest.raises(Unavailable, match=f"{tmp_path} has other bytes"):
        file.read(block)


def test_a_full_disk_loses_no_row_but_fails_and_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    matcher = Matcher(lambda: LocalFile(tmp_path))
    matcher.open(0)
    with pytest.raises(Unavailable, match=f"can't be written in {tmp_path}: No space left"):
        fed(matcher, PREWRITE, 1_000)
