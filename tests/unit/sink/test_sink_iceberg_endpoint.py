"""Where tables and files are, and what a library's failure becomes."""

from __future__ import annotations

import gc
import socket
from pathlib import Path

import pytest
from changefeed.errors import ChangefeedError, OutcomeUnknown, Refused, Transient
from changefeed.objectstore import Location
from changefeed.sink.iceberg import endpoint
from changefeed.sink.iceberg.endpoint import IcebergEndpoint, told
from changefeed.sink.iceberg.layout import FileNames, folder_of
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ServerError, UnauthorizedError
from sink_iceberg_lake import table_of
from sqlalchemy.exc import OperationalError

S3 = "s3://bucket/lake/house?endpoint=http://minio:9000&region=eu-west-1"


def secret(folder: Path, **keys: str) -> Path:
    folder.mkdir()
    for name, value in keys.items():
        (folder / name.replace("_", "-")).write_text(value)
    return folder


def test_objects_of_a_warehouse_have_the_names_that_readers_take(tmp_path: Path) -> None:
    assert IcebergEndpoint(Location(S3), "").location("a/b.parquet") == "s3://bucket/lake/house/a/b.parquet"
    assert IcebergEndpoint(Location("s3://bucket"), "").location("a") == "s3://bucket/a"
    local = IcebergEndpoint(Location((tmp_path / "a lake").as_uri()), "")
    assert local.location("t/1") == f"file://{tmp_path}/a lake/t/1"


def test_a_table_has_a_folder_that_no_other_ever_has() -> None:
    odd = table_of(7, "sales #1/ü")
    assert folder_of(odd) == "shop/sales__1__-7"
    assert IcebergEndpoint(Location(S3), "", prefix="tidb_").name(odd) == ("tidb_shop", "sales #1/ü")
    names = FileNames("a1")
    series = names.series(odd, 9, 5)
    first = names.next(series, 0, {"directory": "another", "index": 7})
    assert first["path"] == "shop/sales__1__-7/data/a1/5/9/0000000001.parquet"
    assert names.next(series, 0, first)["path"] == "shop/sales__1__-7/data/a1/5/9/0000000002.parquet"


def test_an_s3_warehouse_is_reached_as_its_uri_says(tmp_path: Path) -> None:
    keys = secret(tmp_path / "s", access_key_id="id", secret_access_key="key")
    assert IcebergEndpoint(Location(S3, keys), "")._store() == {
        "s3.region": "eu-west-1",
        "s3.endpoint": "http://minio:9000",
        "s3.access-key-id": "id",
        "s3.secret-access-key": "key",
    }
    bare = IcebergEndpoint(Location("s3://bucket/x?force-path-style=false"), "")
    assert bare._store() == {"s3.region": "us-east-1", "s3.force-virtual-addressing": "true"}


def test_a_database_is_reached_by_a_driver_that_is_there(tmp_path: Path) -> None:
    keys = secret(tmp_path / "s", username="me", password="p@ss/word")

    def sql(uri: str, secret: Path | None = None) -> str:
        return IcebergEndpoint(Location(S3), uri, catalog_secret=secret)._sql()

    assert sql("mysql://db:3306/lake", keys) == "mysql+pymysql://me:p%40ss%2Fword@db:3306/lake"
    assert sql("postgresql://db:5432/lake", keys) == "postgresql+pg8000://me:p%40ss%2Fword@db:5432/lake"
    with pytest.raises(Refused, match=r"postgresql://db:5432/lake needs a user\. Set .*\.credentials\."):
        sql("postgresql://db:5432/lake")
    assert sql("sqlite:////tmp/catalog.db") == "sqlite:////tmp/catalog.db"


@pytest.mark.parametrize(
    "address", ["https://127.0.0.1:1", "mysql://127.0.0.1:1/lake", "postgresql://127.0.0.1:1/lake"]
)
def test_files_that_are_no_certificates_are_refused(tmp_path: Path, address: str) -> None:
    keys, tls = secret(tmp_path / "s", username="me", password="word"), tmp_path / "ca"
    tls.mkdir()
    for files, problem in (((), "Secret ca has no ca.crt"), (("ca.crt",), "Secret ca at .* can't be used for TLS")):
        for name in files:
            (tls / name).write_text("secret")
        with pytest.raises(Refused, match=problem) as raised:
            IcebergEndpoint(Location(S3), address, catalog_secret=keys, catalog_tls=tls).open()
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "ours", "answered"),
    [
        (CommitFailedException("branch main has changed"), Transient, True),
        (CommitStateUnknownException("secret"), OutcomeUnknown, None),
        (ServerError("secret"), OutcomeUnknown, True),
        (UnauthorizedError("secret"), Refused, True),
        (OperationalError("SELECT secret", {}, Exception("secret")), OutcomeUnknown, None),
        (OSError("secret"), OutcomeUnknown, False),
    ],
)
def test_failures_of_libraries_are_told_without_their_words(
    error: Exception, ours: type[ChangefeedError], answered: bool | None
) -> None:
    with pytest.raises(ours) as raised, told("https://catalog"):
        raise error
    assert raised.value.answered is answered
    assert "secret" not in str(raised.value)
    assert "https://catalog" in str(raised.value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pg8000 leaves the socket to the GC
@pytest.mark.parametrize("scheme", ["http", "mysql", "postgresql"])
def test_a_catalog_that_never_answers_is_away(monkeypatch: pytest.MonkeyPatch, scheme: str, tmp_path: Path) -> None:
    monkeypatch.setattr(endpoint, "ANSWER_S", 1)
    keys = secret(tmp_path / "s", username="me", password="word")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/lake"
        with pytest.raises(OutcomeUnknown, match=f"{scheme}://127.0.0.1:"):
            IcebergEndpoint(Location(S3), address, catalog_secret=keys).open().list_namespaces()
    gc.collect()  # here, not in some other test
