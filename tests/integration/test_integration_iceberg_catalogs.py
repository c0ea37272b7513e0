"""Whole runs into Iceberg tables of catalogs that are servers: a REST catalog, and a database with a bucket.

The REST catalog is the servlet that Iceberg tests its own clients with, before a catalog in its memory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from changefeed.cli.main import main
from conftest import Changefeed, Upstream
from integration_catalogs import PASSWORD, USER, mariadb, postgresql, write_account
from integration_iceberg import replayed, sink, state
from integration_java import COMPILE_S, FETCH_S, compiled, jars, java_tool, leaves_in
from integration_s3_servers import KEY, KEY_ID, S3Server, write_secret
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as IcebergTable
from sqlalchemy import make_url
from test_integration_iceberg import rows_of, shown, with_ddls

SERVER = Path(__file__).parent / "support" / "iceberg" / "RestCatalog.java"
LIBRARIES = (
    "org.apache.iceberg:iceberg-core:1.10.0",
    "org.apache.iceberg:iceberg-core:1.10.0:tests",
    "org.eclipse.jetty:jetty-servlet:11.0.26",
)

pytestmark = pytest.mark.timeout(FETCH_S + COMPILE_S + 240)


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """The address of one, whose tables stand in the folder; Hadoop's classes are Spark's."""
    classes = folder / "classes"
    classes.mkdir()
    spark = Path(pyspark.__file__).parent / "jars"
    path = compiled(SERVER, classes, jars("iceberg-rest-1.10.0", *LIBRARIES), spark)
    command = [java_tool("java"), leaves_in(folder), "-cp", path, "RestCatalog", (folder / "warehouse").as_uri()]
    with (folder / "rest.log").open("wb") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as java:
        try:
            assert java.stdout is not None
            port = java.stdout.readline().decode().strip()
            assert port.isdigit(), (folder / "rest.log").read_text()[-4000:]
            yield f"http://127.0.0.1:{port}"
        finally:
            java.kill()


Rows = Callable[[IcebergTable, str], dict[Any, dict[str, Any]]]


def holds(upstream: Upstream, changefeed: Changefeed, catalog: Catalog, rows: Rows, names: Sequence[str]) -> None:
    """It runs through DDLs, the tables of these names have the upstream's rows, and verify agrees."""
    left = with_ddls(upstream, changefeed)
    assert changefeed.run_here() == 0
    assert sorted(name for _, name in catalog.list_tables("shop")) == sorted(left)
    for name in names:
        assert shown(rows(catalog.load_table(("shop", name)), "id")) == rows_of(upstream, left[name])
    assert main(["verify", "-f", str(changefeed.file), *changefeed.options]) == 0


def test_tables_of_a_rest_catalog(upstream: Upstream, new_changefeed: Callable[..., Changefeed]) -> None:
    changefeed = new_changefeed(["shop.*"])
    with rest_catalog(changefeed.folder) as address:
        changefeed.spec["sink"] = sink(changefeed.folder, "upsert")
        changefeed.spec["sink"]["iceberg"]["catalog"] = {"uri": address}
        holds(upstream, changefeed, RestCatalog("mine", uri=address), state, ("emptied", "items"))


@pytest.mark.parametrize(("catalog", "driver"), [(mariadb, "mysql+pymysql"), (postgresql, "postgresql+pg8000")])
def test_tables_of_a_database_and_a_bucket(
    catalog: Callable[[Path], AbstractContextManager[str]],
    driver: str,
    upstream: Upstream,
    new_changefeed: Callable[..., Changefeed],
    server: S3Server,
    tmp_path: Path,
) -> None:
    changefeed = new_changefeed(["shop.*"])
    secrets = changefeed.folder / "secrets"
    write_secret(secrets, "bucket")
    write_account(secrets / "catalog")
    with catalog(tmp_path) as address:
        changefeed.spec["sink"] = sink(changefeed.folder, "append")
        changefeed.spec["sink"]["iceberg"] |= {
            "warehouse": server.uri("warehouse"),
            "credentials": {"secretRef": {"name": "bucket"}},
            "catalog": {"uri": address, "credentials": {"secretRef": {"name": "catalog"}}},
        }
        changefeed.options = ["--secrets-dir", str(secrets)]
        s3 = {"s3.endpoint": server.endpoint, "s3.access-key-id": KEY_ID, "s3.secret-access-key": KEY}
        url = make_url(address).set(drivername=driver, username=USER, password=PASSWORD)
        with closing(SqlCatalog("changefeed", uri=url.render_as_string(hide_password=False), **s3)) as reader:
            holds(upstream, changefeed, reader, replayed, ("things", "items"))
