"""Object stores as they are: one contract for files and three S3 servers; a store that breaks it is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from changefeed.errors import NeedsHuman, OutcomeUnknown, Refused, Transient, Unavailable
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.open import Store, open_store, probe_store
from changefeed_devcluster.certificates import Certificates
from integration_s3_proxy import FaultyProxy, before
from integration_s3_servers import BUCKET, S3Server, running, write_secret
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

pytestmark = pytest.mark.timeout(1800)  # the first run builds the servers


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_secret(tmp_path_factory.mktemp("secrets"), "lake-writer")


@pytest.fixture(scope="module", params=["versitygw", "minio"])  # MiniStack takes any key
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(request.param, tmp_path_factory.mktemp(request.param) / "data") as server:
        yield server


@pytest.fixture(scope="module")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running("ministack", tmp_path_factory.mktemp("only-ministack") / "data") as server:
        yield server


@pytest.fixture(scope="module", params=["file", "ministack", "versitygw", "minio"])
def new_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, secret: Path
) -> Iterator[Callable[[str], Store]]:
    """Opens a folder, empty at first, by its name."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "file":
        yield lambda name: LocalStore(folder / name)
        return
    with running(request.param, folder / "data") as server:
        yield lambda name: open_store(server.uri(name), secret=secret)


@pytest.fixture
def store(new_store: Callable[[str], Store], request: pytest.FixtureRequest) -> Store:
    return new_store(f"of {request.node.originalname}")


def test_a_store_of_a_private_ca_is_reached_by_a_secret_that_has_it(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    for folder in (ours, others):
        Certificates(folder, ["127.0.0.1"])
    secret = write_secret(tmp_path, "lake-writer")
    with running("versitygw", tmp_path / "server" / "data", ours) as server:

        def opened() -> Store:
            return open_store(server.uri("private"), secret=secret)

        with pytest.raises(Refused, match=r"certificate is not trusted \(UnknownIssuer\).* ca\.crt"):
            opened().create("a", b"1")
        shutil.copy(others / "ca.crt", secret)
        with pytest.raises(Refused, match="UnknownIssuer"):
            opened().list()
        shutil.copy(ours / "ca.crt", secret)
        probe_store(opened())
        (secret / "ca.crt").write_text("no certificate")
        with pytest.raises(NeedsHuman, match=r"ca\.crt"):
            opened()


def test_headers_of_the_uri_are_in_each_request(ministack: S3Server, secret: Path) -> None:
    with before(ministack) as (proxy, seen):
        heard: set[tuple[str, str | None]] = set()
        proxy.look = lambda method, headers: heard.add((method, headers["x-tenant"]))
        store = open_store(f"{seen.uri('headers')}&header-x-tenant=shop%3B+a", secret=secret)
        store.create("a", b"1")
        assert store.swap("a", b"2", store.get("a").etag)
        assert [*store.chunks("a")] == [b"2"]
        assert store.list() == [("a", 1)]
        store.delete("a")
        assert heard == {(method, "shop; a") for method in ("PUT", "GET", "HEAD", "POST")}


def test_rule_28_a_store_without_an_atomic_create_is_refused(tmp_path: Path, secret: Path) -> None:
    with running("s3proxy", tmp_path / "data") as server:
        store = open_store(server.uri("cdc"), secret=secret)
        with pytest.raises(NeedsHuman, match=r"does not keep create-if-absent .* of 20 writers were told") as caught:
            probe_store(store)
        assert "versitygw" in caught.value.next_step
        assert store.list() == []


def test_a_missing_bucket_is_named(server: S3Server, secret: Path) -> None:
    for call, error in attempts(open_store(server.uri("x", bucket="nolake"), secret=secret)).items():
        assert isinstance(error, NeedsHuman), call
        assert "there is no bucket nolake" in error.message
        assert "Create it" in error.next_step


@pytest.mark.parametrize(("key_id", "key"), [("nobody", "testsecret"), ("testkey", "hunter2hunter2")])
def test_wrong_credentials_are_refused_without_showing_them(
    server: S3Server, tmp_path: Path, key_id: str, key: str
) -> None:
    folder = write_secret(tmp_path, "wrong", key_id, key)
    for call, error in attempts(open_store(server.uri("x"), secret=folder)).items():
        assert isinstance(error, NeedsHuman), call
        assert "the store refuses the credentials" in error.message
        assert "--secrets-dir" in error.next_step
        for secret in (key_id, key, "Signature="):
            assert secret not in str(error).replace("testkey", "") or secret == "testkey"


def test_an_endpoint_that_is_down_is_unavailable(secret: Path) -> None:
    store = open_store("s3://lake/x?endpoint=http://127.0.0.1:1", secret=secret)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: no connection") as caught:
        probe_store(store)
    assert caught.value.exit_code == 69
    with pytest.raises(Transient):
        store.create("x", b"1")


def test_a_server_that_dies_leaves_the_outcome_unknown(tmp_path: Path, secret: Path) -> None:
    with running("ministack", tmp_path / "data") as server:
        store = open_store(server.uri("x"), secret=secret)
        store.create("there", b"1")
    with pytest.raises((OutcomeUnknown, Transient)):
        store.create("there", b"1")
    with pytest.raises((OutcomeUnknown, Transient)):
        store.swap("there", b"1", "e")
    (there,) = (tmp_path / "data").rglob(f"{BUCKET}/x/there")
    assert there.read_bytes() == b"1"


@pytest.fixture
def faulty(ministack: S3Server, secret: Path, tmp_path: Path) -> Iterator[tuple[FaultyProxy, Store]]:
    with before(ministack) as (proxy, seen):
        yield proxy, open_store(seen.uri(tmp_path.name), secret=secret)
