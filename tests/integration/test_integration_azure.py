"""Azure's blob storage keeps the contract of object stores, as far as Azurite is like it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from changefeed.errors import NeedsHuman, OutcomeUnknown, Refused, Transient
from changefeed.objectstore.open import Store, open_store
from changefeed.objectstore.remote.store import BucketStore
from integration_azure_server import AzureServer, running, write_key
from integration_s3_proxy import FaultyProxy, before
from integration_store_rules import (  # noqa: F401 - its tests are collected here
    attempts,
    test_a_conditional_write_is_sent_once,
    test_an_object_is_created_once,
    test_lists_are_sorted_and_paged,
    test_names_of_tables_are_kept,
    test_rule_7_files_of_ticdc_are_refused,
    test_rule_7_one_of_many_claims_wins,
    test_rule_8_a_late_zombie_does_not_shrink_metadata,
    test_rule_8_a_swap_goes_by_what_was_read,
    test_rule_8_index_and_metadata_only_grow,
    test_rule_8_metadata_ends_well_whatever_becomes_of_the_answer,
    test_rule_8_one_of_many_swaps_wins,
    test_rule_16_a_big_body_has_one_outcome,
    test_rule_16_a_create_ends_well_whatever_becomes_of_its_answer,
    test_rule_16_a_record_ends_well_whatever_becomes_of_its_answer,
    test_rule_28_a_good_store_passes_and_nothing_is_left,
)

pytestmark = pytest.mark.timeout(1200)  # the first run gets the server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with running(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_key(tmp_path_factory.mktemp("secrets") / "lake-writer")


@pytest.fixture(scope="module")
def new_store(server: AzureServer, secret: Path) -> Callable[[str], Store]:
    return lambda name: open_store(server.uri(name), secret=secret)


@pytest.fixture
def store(new_store: Callable[[str], Store], request: pytest.FixtureRequest) -> Store:
    return new_store(f"of {request.node.originalname}")


@pytest.fixture
def faulty(server: AzureServer, secret: Path, tmp_path: Path) -> Iterator[tuple[FaultyProxy, Store]]:
    with before(server) as (proxy, seen):
        yield proxy, open_store(seen.uri(tmp_path.name), secret=secret)


def test_many_are_deleted_at_once_whether_they_are_there_or_not(store: Store) -> None:
    assert isinstance(store, BucketStore)
    names = [f"f/50% ü {n}" for n in range(300)]  # more than one request takes
    for name in names[::2]:
        store.create(name, b"x")
    store.delete_all(names)
    assert store.list() == []


def test_a_missing_container_is_named(server: AzureServer, secret: Path) -> None:
    gone = open_store(server.uri("x", bucket="nolake"), secret=secret)
    for call, error in attempts(gone, but=["delete"]).items():  # which finds it gone
        assert isinstance(error, NeedsHuman), call
        assert "there is no container nolake" in error.message
        assert "Create it" in error.next_step


def test_a_wrong_key_is_refused_without_showing_it(
    server: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", (write_key(tmp_path / "right") / "account-key").read_text().strip())
    folder = write_key(tmp_path / "wrong", "aHVudGVyMmh1bnRlcjI=")
    for call, error in attempts(open_store(server.uri("x"), secret=folder)).items():
        assert isinstance(error, Refused), call
        assert "the store refuses the credentials" in error.message
        assert "aHVudGVyM" not in str(error)
    open_store(server.uri("environment")).create("a", b"1")


def test_a_storage_class_is_the_blobs_tier(server: AzureServer, secret: Path) -> None:
    open_store(f"{server.uri('x')}&storage-class=Cool", secret=secret).create("cool", b"1")
    with pytest.raises(NeedsHuman, match="400 InvalidHeaderValue"):
        open_store(f"{server.uri('x')}&storage-class=Chilly", secret=secret).create("chilly", b"1")


def test_a_server_that_dies_leaves_the_outcome_unknown(tmp_path: Path, secret: Path) -> None:
    with running(tmp_path) as server:
        store = open_store(server.uri("x"), secret=secret)
        etag = store.swap("there", b"1", None)
    with pytest.raises((OutcomeUnknown, Transient)):
        store.create("there", b"1")
    with pytest.raises((OutcomeUnknown, Transient)):
        store.swap("there", b"1", etag)
