"""What every object store keeps, as tests for whoever has the fixtures `new_store` and `faulty`: the one contract."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from changefeed.errors import (
    AlreadyExists,
    ChangefeedError,
    Conflict,
    NeedsHuman,
    NotFound,
    OutcomeUnknown,
    OutputConflict,
)
from changefeed.log.log import Log
from changefeed.log.records import EpochRecord, StartRecord
from changefeed.log.state import State
from changefeed.objectstore import FileRange
from changefeed.objectstore.once import create_bytes
from changefeed.objectstore.open import Store, probe_store
from changefeed.objectstore.patience import Patience
from changefeed.sink.storage.claim_object import claim
from changefeed.sink.storage.driver import StorageDriver, write_index
from changefeed.sink.storage.metadata import write_metadata
from integration_s3_proxy import LOST, REFUSED, REPEATED, FaultyProxy

WRITERS = 20
ODD_NAME = "50% ü#?/订 单+&'*|~^/CDC00000000000000000001.csv"
BIG = 16 << 20


def race(write: Callable[[int], object]) -> list[int]:
    """The writers that were not told that another had been first."""
    start = threading.Barrier(WRITERS)

    def one(writer: int) -> bool:
        start.wait()
        try:
            write(writer)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        return [writer for writer, won in enumerate(pool.map(one, range(WRITERS))) if won]


def test_an_object_is_created_once(store: Store) -> None:
    store.create("a/1", b"one")
    with pytest.raises(AlreadyExists):
        store.create("a/1", b"two")
    assert store.get("a/1").body == b"one"
    assert store.get("a/1").modified is not None
    store.create("empty", b"")
    assert store.get("empty").body == b""
    assert list(store.chunks("empty")) == []
    for missing in ("a", "a/2", "b"):
        with pytest.raises(NotFound):
            store.get(missing)
        with pytest.raises(NotFound):
            list(store.chunks(missing))


def test_names_of_tables_are_kept(store: Store) -> None:
    store.create(ODD_NAME, b"rows")
    assert store.list() == [(ODD_NAME, 4)]
    assert store.get(ODD_NAME).body == b"rows"
    store.delete(ODD_NAME)
    assert store.list() == []
    for bad in ("a//b", "/a", "a/../b", ".", ""):
        with pytest.raises(NeedsHuman, match="does not name an object"):
            store.create(bad, b"")


def test_rule_16_a_big_body_has_one_outcome(store: Store, tmp_path: Path) -> None:
    """A server may answer a big body before it has read it, and close: the client can't know what became of it."""
    spool = tmp_path / "spool"
    spool.write_bytes(b"header" + b"z" * BIG)
    ranges = (FileRange(spool, 0, 6), FileRange(spool, 6, BIG))
    store.create("big", ranges)
    assert b"".join(store.chunks("big")) == spool.read_bytes()
    assert [len(piece) for piece in store.chunks("big", 5 << 20)] == [5 << 20, 5 << 20, 5 << 20, (1 << 20) + 6]
    for _ in range(10):
        with pytest.raises(AlreadyExists):
            store.create("big", ranges)
    with pytest.raises(OutputConflict, match="exists with other bytes"):
        create_bytes(store, "big", b"y" * BIG)
    store.create("parts", (FileRange(spool, BIG, 6), FileRange(spool, 0, 7)))
    assert store.get("parts").body == b"zzzzzzheaderz"
    with pytest.raises(NotFound, match="must run again"):
        store.create("short", (FileRange(spool, 0, BIG + 7),))
    with pytest.raises(NotFound):
        store.get("short")


def test_rule_8_a_swap_goes_by_what_was_read(store: Store) -> None:
    first = store.swap("meta", b"1", None)
    assert first == store.get("meta").etag
    second = store.swap("meta", b"2", first)
    assert store.get("meta").etag == second != first
    for stale in (first, None):
        with pytest.raises(Conflict):
            store.swap("meta", b"3", stale)
    with pytest.raises(Conflict):
        store.swap("gone", b"3", first)
    assert store.get("meta").body == b"2"


def test_rule_8_one_of_many_swaps_wins(store: Store) -> None:
    etag = store.swap("n", b"start", None)
    (winner,) = race(lambda writer: store.swap("n", b"%d" % writer, etag))
    assert store.get("n").body == b"%d" % winner


def test_rule_7_one_of_many_claims_wins(store: Store) -> None:
    def mine(writer: int) -> None:
        try:
            claim(store, f"uid-{writer}", "s3://state")
        except NeedsHuman as error:
            assert "SinkOwned" in error.message  # noqa: PT017 - one of twenty must not see it
            raise Conflict(error.message) from None

    (winner,) = race(mine)
    claim(store, f"uid-{winner}", "s3://state")
    with pytest.raises(NeedsHuman, match=f"SinkOwned: .* belongs to changefeed uid-{winner}"):
        claim(store, "uid-x", "s3://state")


def test_rule_7_files_of_ticdc_are_refused(store: Store) -> None:
    store.create("shop/orders/449/CDC00000000000000000001.csv", b"1")
    with pytest.raises(NeedsHuman, match=r"SinkOwned: .*TiCDC") as caught:
        claim(store, "uid", "s3://state")
    assert "empty folder" in caught.value.next_step
    assert [path for path, _ in store.list()] == ["shop/orders/449/CDC00000000000000000001.csv"]


def test_rule_8_index_and_metadata_only_grow(store: Store) -> None:
    for index in (1, 12, 7):
        write_index(store, "d", index, f"d/CDC{index:020}.csv")
    assert store.get("d/meta/CDC.index").body == b"CDC00000000000000000012.csv\n"
    for ts in (100, 200, 150):
        write_metadata(store, ts)
    assert store.get("metadata").body == b'{"checkpoint-ts":200}'


def test_lists_are_sorted_and_paged(store: Store) -> None:
    names = sorted(f"f/{n % 3}/{n:05}" for n in range(1200))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.create(name, b"x"), names))
    store.create("f0", b"")
    store.create("f/1-0", b"")
    assert [path for path, _ in store.list("f")] == sorted([*names, "f/1-0"])
    assert [path for path, _ in store.list("f/1")] == [name for name in names if name.startswith("f/1/")]
    assert store.list("nothing") == []
    store.delete("f0")
    store.delete("f0")
    assert ("f0", 0) not in store.list()


def test_rule_28_a_good_store_passes_and_nothing_is_left(store: Store) -> None:
    probe_store(store)
    assert store.list() == []


def attempts(store: Store, but: Sequence[str] = ()) -> dict[str, ChangefeedError]:
    """What each call fails with."""
    calls: dict[str, Callable[[], object]] = {
        "probe": lambda: probe_store(store),
        "get": lambda: store.get("x"),
        "list": store.list,
        "create": lambda: store.create("x", b"1"),
        "swap": lambda: store.swap("x", b"1", "e"),
        "delete": lambda: store.delete("x"),
    }
    found = {}
    for name in calls.keys() - set(but):
        with pytest.raises(ChangefeedError) as caught:
            calls[name]()
        found[name] = caught.value
    return found


def test_a_conditional_write_is_sent_once(faulty: tuple[FaultyProxy, Store]) -> None:
    proxy, store = faulty
    proxy.faults = [REFUSED]
    with pytest.raises(OutcomeUnknown, match="503 SlowDown"):
        store.create("x", b"1")
    assert proxy.puts == 1
    store.create("x", b"1")
    etag = store.get("x").etag
    proxy.faults = [REFUSED]
    with pytest.raises(OutcomeUnknown):
        store.swap("x", b"2", etag)
    proxy.faults = [LOST]
    with pytest.raises(OutcomeUnknown):
        store.swap("x", b"2", etag)
    assert store.get("x").body == b"2"
    assert proxy.puts == 4
    proxy.faults = [LOST]
    with pytest.raises(AlreadyExists):  # what stands there is for the caller to compare
        store.create("y", b"1")


@pytest.mark.parametrize("fault", [LOST, REFUSED, REPEATED])
def test_rule_16_a_create_ends_well_whatever_becomes_of_its_answer(
    faulty: tuple[FaultyProxy, Store], fault: str
) -> None:
    proxy, store = faulty
    proxy.faults = [fault]
    create_bytes(store, "x", b"mine", patience=Patience(sleep=lambda _: None))
    assert store.get("x").body == b"mine"
    proxy.faults = [fault]
    with pytest.raises(OutputConflict):
        create_bytes(store, "x", b"other", patience=Patience(sleep=lambda _: None))
    assert store.get("x").body == b"mine"


@pytest.mark.parametrize("fault", [LOST, REFUSED, REPEATED])
def test_rule_8_metadata_ends_well_whatever_becomes_of_the_answer(
    faulty: tuple[FaultyProxy, Store], fault: str
) -> None:
    proxy, store = faulty
    log = Log(store, lambda _: None)
    publication = StorageDriver(store, log.poll_fence, Patience(sleep=lambda _: None))
    for ts in (100, 200, 150):
        proxy.faults = [fault, fault]
        publication.write_checkpoint(ts)
    assert store.get("metadata").body == b'{"checkpoint-ts":200}'


def test_rule_8_a_late_zombie_does_not_shrink_metadata(faulty: tuple[FaultyProxy, Store]) -> None:
    """Its swap was sent before the newer driver wrote, and lands after it."""
    _, store = faulty
    write_metadata(store, 100)
    read_by_zombie = store.get("metadata").etag
    write_metadata(store, 300)
    with pytest.raises(Conflict):
        store.swap("metadata", b'{"checkpoint-ts":200}', read_by_zombie)
    assert store.get("metadata").body == b'{"checkpoint-ts":300}'


def test_rule_16_a_record_ends_well_whatever_becomes_of_its_answer(faulty: tuple[FaultyProxy, Store]) -> None:
    proxy, store = faulty
    log = Log(store, lambda _: None)
    for n, fault in enumerate((LOST, REFUSED, REPEATED), start=1):
        proxy.faults = [fault]
        if n == 1:
            log.append(StartRecord(n=1, epoch=0, nonce="a", start_ts=5, cluster_id=1, uid="local"))
        else:
            log.claim_epoch(lambda state: epoch_record(state))
    assert [path for path, _ in store.list("log")] == [f"log/{n:020}.json" for n in (1, 2, 3)]
    assert Log(store).read() == log.state


def epoch_record(state: State) -> EpochRecord:
    return EpochRecord(
        n=state.n + 1,
        epoch=state.epoch.number + 1,
        nonce=f"run-{state.n}",
        attempt=0,
        host="h",
        pid=1,
        config={},
        versions={},
    )
