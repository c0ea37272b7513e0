"""What the driver writes: index files and metadata that only grow, and the claim."""

from __future__ import annotations

import json
import random

import golden
import pytest
from changefeed.errors import Conflict, NeedsHuman, OutcomeUnknown
from changefeed.objectstore import Object
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.patience import LATE_WRITES, REQUESTS, Patience, Tally
from changefeed.sink.storage import grow
from changefeed.sink.storage.claim_object import claim
from changefeed.sink.storage.driver import StorageDriver, write_index
from changefeed.sink.storage.grow import LastWritten
from changefeed.sink.storage.metadata import metadata_body, write_metadata
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_stores import FaultyStore

DIRECTORY = "shop/t/1"
INDEX = "shop/t/1/meta/CDC.index"


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(tmp_path / "sink")


def name(index: int) -> str:
    return f"CDC{index:020}.csv"


def put(store: LocalStore, index: int) -> None:
    write_index(store, DIRECTORY, index, f"{DIRECTORY}/{name(index)}")


def test_rule_8_an_index_only_grows(store):
    for index, expected in ((7, 7), (12, 12), (7, 12), (12, 12), (100, 100), (99, 100)):
        put(store, index)
        assert store.get(INDEX).body == f"{name(expected)}\n".encode()


def test_rule_8_metadata_only_grows(store):
    for ts, expected in ((5, 5), (4, 5), (10, 10), (9, 10)):
        write_metadata(store, ts)
        assert store.get("metadata").body == b'{"checkpoint-ts":%d}' % expected


@golden.each("storage_metadata")
def test_corpus_metadata(vector):
    body = metadata_body(vector["args"]["checkpoint_ts"])
    assert json.loads(body) == vector["expected"]["json"]
    assert not body.endswith(b"\n")


class Overtaken(FaultyStore):
    """Somebody else writes between this driver's read and its swap."""

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        other = b'{"checkpoint-ts":500}' if path == "metadata" else f"{name(500)}\n".encode()
        self.inner.swap(path, other, etag)
        return super().swap(path, body, etag)


@pytest.mark.parametrize("first", [True, False], ids=["create", "replace"])
def test_rule_8_a_swap_that_was_overtaken_is_a_conflict_and_changes_nothing(store, first):
    if not first:
        put(store, 1)
        write_metadata(store, 1)
    with pytest.raises(Conflict):
        put(Overtaken(store), 12)
    with pytest.raises(Conflict):
        write_metadata(Overtaken(store), 12)
    assert store.get(INDEX).body == f"{name(500)}\n".encode()
    assert store.get("metadata").body == b'{"checkpoint-ts":500}'


class Unsure(FaultyStore):
    """The first swap's answer is lost; whether it was done is `when`: "before" it was, or "after"."""

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        when, error = self.script.pop() if self.script else ("", None)
        if when == "before":
            raise error
        written = super().swap(path, body, etag)
        if error:
            raise error
        return written


@pytest.mark.parametrize(("when", "late"), [("before", 0), ("after", 2)])
def test_what_grew_without_an_answer_counts_as_late(store, when, late):
    tally, polled = Tally(), []
    patience = Patience(sleep=lambda _: None, count=tally.add)
    faulty = Unsure(store)
    sink = StorageDriver(faulty, lambda: polled.append(1), patience)
    faulty.script = [(when, OutcomeUnknown("?"))]
    sink.write_checkpoint(5)
    faulty.script = [(when, OutcomeUnknown("?"))]
    sink._grow(lambda: write_index(faulty, DIRECTORY, 7, f"{DIRECTORY}/{name(7)}"))
    sink.write_checkpoint(5)  # it stands there, of which nobody was unsure
    sink.close()
    assert store.get("metadata").body == b'{"checkpoint-ts":5}'
    assert store.get(INDEX).body == f"{name(7)}\n".encode()
    counted = tally.take()
    assert (counted[LATE_WRITES, ""], counted[REQUESTS, "failed"], counted[REQUESTS, "ok"]) == (late, 2, 3)
    assert polled == [1, 1], "before each further attempt"


@settings(deadline=None)  # a busy machine breaks no promise
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers())
def test_rule_8_the_greatest_value_stands_in_the_end(tmp_path_factory, values, seed):
    store = LocalStore(tmp_path_factory.mktemp("sink") / "sink")
    for value in random.Random(seed).sample(values, len(values)):
        write_metadata(store, value)
    assert store.get("metadata").body == metadata_body(max(values))


@pytest.mark.parametrize("body", [b"", b"[]", b'{"checkpoint-ts":"5"}', b'{"checkpoint-ts":true}', b"\xff"])
def test_metadata_of_somebody_else_is_not_overwritten(store, body):
    store.create("metadata", body)
    with pytest.raises(NeedsHuman, match="metadata"):
        write_metadata(store, 5)
    assert store.get("metadata").body == body


def test_an_index_file_of_somebody_else_is_not_overwritten(store):
    store.create(INDEX, b"what?\n")
    with pytest.raises(NeedsHuman, match=r"CDC\.index"):
        put(store, 5)


@pytest.mark.parametrize("path", [f"{DIRECTORY}/{name(6)}", f"shop/u/1/{name(5)}", f"{DIRECTORY}/x.csv"])
def test_an_index_names_its_own_file(store, path):
    with pytest.raises(ValueError, match="is not data file 5"):
        write_index(store, DIRECTORY, 5, path)


def test_rule_7_a_claim_is_made_once_and_found_again(store):
    claim(store, "uid-1", "file:///state")
    claim(store, "uid-1", "file:///state")
    assert json.loads(store.get(".changefeed-owner.json").body) == {"uid": "uid-1", "stateUri": "file:///state"}


@pytest.mark.parametrize(("uid", "state"), [("uid-2", "file:///state"), ("uid-1", "file:///elsewhere")])
def test_rule_7_a_sink_of_another_changefeed_is_refused(store, uid, state):
    claim(store, "uid-1", "file:///state")
    with pytest.raises(NeedsHuman, match=r"SinkOwned.*uid-1.*file:///state") as caught:
        claim(store, uid, state)
    assert caught.value.next_step


@pytest.mark.parametrize("path", ["metadata", "shop/t/meta/schema_1_0123456789.json", INDEX, f"{DIRECTORY}/{name(1)}"])
def test_rule_7_files_without_a_claim_are_refused(store, path):
    store.create(path, b"")
    with pytest.raises(NeedsHuman, match=f"SinkOwned.*{path}"):
        claim(store, "uid-1", "file:///state")
    assert [found for found, _ in store.list()] == [path]


def test_files_of_other_kinds_are_no_obstacle(store):
    store.create("notes/readme.txt", b"")
    claim(store, "uid-1", "file:///state")


def test_a_claim_keeps_its_own_files(store):
    claim(store, "uid-1", "file:///state")
    write_metadata(store, 5)
    claim(store, "uid-1", "file:///state")


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]"])
def test_rule_7_a_claim_that_is_none_is_refused(store, body):
    store.create(".changefeed-owner.json", body)
    with pytest.raises(NeedsHuman, match="is not a claim"):
        claim(store, "uid-1", "file:///state")


@pytest.mark.parametrize("when", ["before", "after"])
def test_rule_16_a_claim_of_unknown_outcome_is_tried_again(store, when):
    faulty = FaultyStore(store, (when, OutcomeUnknown("?")))
    claim(faulty, "uid-1", "file:///state", Patience(sleep=lambda seconds: None))
    assert faulty.creates == 2


class Counted(FaultyStore):
    """Counts what is read."""

    reads = 0

    def get(self, path: str) -> Object:
        self.reads += 1
        return super().get(path)


def test_rule_8_what_this_driver_wrote_last_is_not_read_again(store):
    counted, last = Counted(store), LastWritten()
    for ts in (1, 2, 3, 3, 2):
        write_metadata(counted, ts, last)
    assert counted.reads == 1
    assert store.get("metadata").body == b'{"checkpoint-ts":3}'


def test_rule_8_another_driver_is_noticed_although_this_one_knows_what_it_wrote(store):
    last = LastWritten()
    write_metadata(store, 1, last)
    write_metadata(store, 500)
    with pytest.raises(Conflict):
        write_metadata(store, 12, last)
    write_metadata(store, 12, last)  # it reads it again
    assert store.get("metadata").body == b'{"checkpoint-ts":500}'


def test_of_many_objects_those_that_were_written_last_are_known(monkeypatch):
    monkeypatch.setattr(grow, "KNOWN", 2)
    last = LastWritten()
    for path in ("a", "b", "a", "c"):
        last.take(path)
        last.keep(path, 1, path)
    assert [last.take(path) for path in "abc"] == [(1, "a"), None, (1, "c")]
