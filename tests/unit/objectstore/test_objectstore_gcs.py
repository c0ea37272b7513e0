"""A bucket of Google's as the contract wants it, against a stub that takes what obstore sends and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from changefeed.errors import AlreadyExists, Conflict, NeedsHuman, NotFound, OutcomeUnknown, OutputConflict, Refused
from changefeed.objectstore import FileRange
from changefeed.objectstore.once import create_bytes
from changefeed.objectstore.open import Store, open_store, probe_store
from changefeed.objectstore.patience import Patience
from changefeed.objectstore.remote.store import BucketStore
from objectstore_gcs_stub import LOST, REFUSED, GcsStub, running_gcs, write_service_account

ODD_NAME = "50% ü#?/订 单+&'*|~^/CDC00000000000000000001.csv"


@pytest.fixture
def stub() -> Iterator[GcsStub]:
    with running_gcs() as stub:
        yield stub


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return write_service_account(tmp_path / "lake-writer")


@pytest.fixture
def store(stub: GcsStub, secret: Path) -> Store:
    return open_store(stub.uri("orders"), secret=secret)


def test_an_object_is_created_once_and_read(store: Store, tmp_path: Path) -> None:
    store.create("a/1", b"one")
    with pytest.raises(AlreadyExists):
        store.create("a/1", b"two")
    assert store.get("a/1").body == b"one"
    assert store.get("a/1").modified is not None
    spool = tmp_path / "spool"
    spool.write_bytes(b"header" + b"z" * (9 << 20))
    store.create("big", (FileRange(spool, 0, 6), FileRange(spool, 6, 9 << 20)))
    assert b"".join(store.chunks("big", 4 << 20)) == spool.read_bytes()
    store.create(ODD_NAME, b"")
    assert [path for path, _ in store.list()] == sorted([ODD_NAME, "a/1", "big"])
    for missing in ("a", "b"):
        with pytest.raises(NotFound):
            store.get(missing)


def test_rule_8_a_swap_goes_by_the_generation(store: Store) -> None:
    first = store.swap("meta", b"1", None)
    assert first == store.get("meta").etag
    assert store.swap("meta", b"2", first) == store.get("meta").etag != first
    for stale in (first, None):
        with pytest.raises(Conflict):
            store.swap("meta", b"3", stale)
    with pytest.raises(Conflict):
        store.swap("gone", b"3", first)
    assert store.get("meta").body == b"2"


def test_lists_are_paged_and_deletes_take_what_is_there(store: Store) -> None:
    names = [f"f/{n:04}" for n in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.create(name, b"x"), names))
    assert [path for path, _ in store.list("f")] == names
    store.delete("f/0000")
    store.delete("f/0000")
    assert isinstance(store, BucketStore)
    store.delete_all(names)
    assert store.list() == []


def test_rule_28_the_probe_passes_and_leaves_nothing(store: Store) -> None:
    probe_store(store)
    assert store.list() == []


def test_rule_28_a_store_that_takes_no_notice_of_conditions_is_refused(store: Store, stub: GcsStub) -> None:
    stub.without_conditions = True
    with pytest.raises(NeedsHuman, match=r"does not keep create-if-absent .* 20 of 20 writers were told"):
        probe_store(store)


def test_a_conditional_write_is_sent_once(store: Store, stub: GcsStub) -> None:
    stub.faults = [REFUSED]
    with pytest.raises(OutcomeUnknown, match="503 ServiceUnavailable"):
        store.create("x", b"1")
    assert stub.puts == 1


@pytest.mark.parametrize("fault", [LOST, REFUSED])
def test_rule_16_a_create_ends_well_whatever_becomes_of_its_answer(store: Store, stub: GcsStub, fault: str) -> None:
    patience = Patience(sleep=lambda _: None)
    stub.faults = [fault]
    create_bytes(store, "x", b"mine", patience=patience)
    stub.faults = [fault]
    with pytest.raises(OutputConflict):
        create_bytes(store, "x", b"other", patience=patience)
    assert store.get("x").body == b"mine"


def test_what_is_refused_is_named_without_the_key(stub: GcsStub, secret: Path) -> None:
    with pytest.raises(Refused, match="there is no bucket nolake") as missing:
        open_store(stub.uri("x", bucket="nolake"), secret=secret).create("a", b"")
    stub.forbidden = True
    with pytest.raises(Refused, match="refuses the credentials") as forbidden:
        open_store(stub.uri("x"), secret=secret).create("a", b"")
    assert "Storage Object User" in forbidden.value.next_step
    (secret / "service-account.json").write_text('{"private_key": "hunter2"')
    with pytest.raises(NeedsHuman, match="can't be used") as broken:
        open_store(stub.uri("x"), secret=secret)
    assert "hunter2" not in f"{missing.value}{forbidden.value}{broken.value}"


def test_objects_have_the_storage_class_of_the_uri(stub: GcsStub, secret: Path) -> None:
    open_store(stub.uri("x", more="&storage-class=NEARLINE"), secret=secret).create("a", b"")
    assert stub.classes == {"x/a": "NEARLINE"}
