"""A file becomes one object, once, whatever the store answers, and wherever its bytes were kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from changefeed.errors import (
    AlreadyExists,
    ChangefeedError,
    NotFound,
    OutcomeUnknown,
    OutputConflict,
    Transient,
    Unavailable,
)
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.once import create_bytes, create_once
from changefeed.objectstore.patience import LATE_WRITES, Patience, Tally
from changefeed.sink import spool as spool_module
from changefeed.sink.spool import Spool
from sink_stores import FaultyStore

PATH = "shop/t/1/CDC00000000000000000001.csv"


def no_pause(seconds: float) -> None:
    assert seconds > 0


@pytest.fixture(params=["in memory", "on disk"])
def spool(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spool]:
    """A spool of a file of two lines."""
    if request.param == "on disk":
        monkeypatch.setattr(spool_module, "IN_MEMORY_BYTES", 0)
    made = Spool(tmp_path / "spool")
    for line in (b"one\n", b"two\n"):
        made.append(pa.py_buffer(line))
    assert (tmp_path / "spool").exists() == (request.param == "on disk")
    yield made
    made.discard()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "sink")


def put(store: LocalStore | FaultyStore, spool: Spool) -> None:
    create_once(store, PATH, spool.body(), spool.hash, Patience(sleep=no_pause))


def test_a_file_becomes_an_object_that_outlives_its_spool(store: LocalStore, spool: Spool) -> None:
    put(store, spool)
    spool.discard()
    assert store.list() == [(PATH, 8)]
    assert store.get(PATH).body == b"one\ntwo\n"


def test_rule_13_no_rows_are_an_empty_object(store: LocalStore, tmp_path: Path) -> None:
    put(store, Spool(tmp_path / "spool"))
    assert store.list() == [(PATH, 0)]


def test_rule_16_the_same_bytes_that_stand_there_are_success(store: LocalStore, spool: Spool) -> None:
    store.create(PATH, b"one\ntwo\n")
    put(store, spool)
    assert store.list() == [(PATH, 8)]


@pytest.mark.parametrize("other", [b"another\n", b"one\ntwo", b""])
def test_rule_16_other_bytes_that_stand_there_are_a_conflict(store: LocalStore, spool: Spool, other: bytes) -> None:
    store.create(PATH, other)
    with pytest.raises(OutputConflict, match="CDC00000000000000000001"):
        put(store, spool)
    assert store.get(PATH).body == other


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [OutcomeUnknown("?"), Unavailable("down"), Transient("again")])
def test_rule_16_after_an_unknown_outcome_the_same_bytes_are_tried_again(
    store: LocalStore, spool: Spool, when: str, error: ChangefeedError
) -> None:
    faulty = FaultyStore(store, (when, error))
    put(faulty, spool)
    assert faulty.creates == 2
    assert store.get(PATH).body == b"one\ntwo\n"


def taken_by_itself() -> AlreadyExists:
    """As a bucket says it that has looked after a lost answer."""
    error = AlreadyExists("It exists.")
    error.__cause__ = OutcomeUnknown("no answer")
    return error


@pytest.mark.parametrize(
    ("script", "late"),
    [
        ([], 0),
        ([("before", OutcomeUnknown("?"))], 0),
        ([("before", Transient("x"))], 0),
        ([("after", OutcomeUnknown("?"))], 1),
        ([("after", OutcomeUnknown("?")), ("before", Transient("x"))], 1),
        ([("after", taken_by_itself())], 1),
        ([("after", AlreadyExists("Another attempt of the task was first."))], 0),
    ],
)
def test_a_write_of_unknown_outcome_that_is_found_done_counts_as_late(
    store: LocalStore, script: list[tuple[str, Exception]], late: int
) -> None:
    tally, again = Tally(), []
    patience = Patience(sleep=no_pause, count=tally.add)
    create_bytes(FaultyStore(store, *script), PATH, b"one\n", patience, lambda: again.append(1))
    assert store.get(PATH).body == b"one\n"
    assert tally.take()[LATE_WRITES, ""] == late
    assert len(again) == sum(not isinstance(error, AlreadyExists) for _, error in script)


def test_another_ones_bytes_are_no_late_write(store: LocalStore) -> None:
    tally = Tally()
    store.create(PATH, b"another\n")
    faulty = FaultyStore(store, ("before", OutcomeUnknown("?")))
    with pytest.raises(OutputConflict):
        create_bytes(faulty, PATH, b"one\n", Patience(sleep=no_pause, count=tally.add))
    assert not tally.take()[LATE_WRITES, ""]


def test_rule_16_a_store_that_stays_away_is_given_up_and_nothing_is_cleaned(store: LocalStore, spool: Spool) -> None:
    faulty = FaultyStore(store, ("after", OutcomeUnknown("?")), *[("before", Unavailable("x"))] * 99)
    with pytest.raises(Unavailable):
        put(faulty, spool)
    assert store.get(PATH).body == b"one\ntwo\n"


def test_what_stood_there_a_moment_ago_and_is_gone_is_tried_again(store: LocalStore, spool: Spool) -> None:
    faulty = FaultyStore(store, ("before", AlreadyExists("a moment ago")))
    put(faulty, spool)
    assert store.get(PATH).body == b"one\ntwo\n"


def test_rule_3_a_spool_file_that_is_gone_is_no_object(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it was found whole: somebody clears the machine's temporary files."""
    monkeypatch.setattr(spool_module, "IN_MEMORY_BYTES", 0)
    spool = Spool(tmp_path / "spool")
    spool.append(pa.py_buffer(b"one\n"))
    body = spool.body()
    (tmp_path / "spool").unlink()
    with pytest.raises(NotFound, match="its task must run again"):
        create_once(store, PATH, body, spool.hash, Patience(sleep=no_pause))
    assert store.list() == []
    spool.discard()
