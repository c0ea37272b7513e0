"""The points of the Iceberg sink (integration_points): what its driver does to tables, and to their catalog.

In a commit *metadata written* is when the file with the table's new metadata stands, and no catalog knows of it.
"""

from __future__ import annotations

from typing import Any

from changefeed.sink.iceberg import driver, event_sink
from changefeed.sink.iceberg.driver import IcebergDriver
from changefeed.sink.iceberg.endpoint import IcebergEndpoint
from changefeed.sink.iceberg.marks import VERSION
from integration_points import Points, wrap
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import AssertCreate, SetPropertiesUpdate

#: What a point's name begins with that is of the driver or a task at an Iceberg sink.
ICEBERG = (
    "encode an entry's files",
    "create file of rows",
    "create file of deletes",
    "create a namespace",
    "create a table",
    "write a snapshot's manifests",
    "commit a snapshot",
    "follow a DDL in a table",
    "publish a plan",
    "execute a DDL on tables",
)


def install(points: Points) -> None:
    """From now on this process passes points."""
    commit, write_metadata = SqlCatalog.commit_table, SqlCatalog._write_metadata

    def commit_(self: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        with points.around(_kind(requirements, updates)), points.swapping:
            return commit(self, table, requirements, updates)

    def write_metadata_(**named: Any) -> None:
        write_metadata(**named)
        points.inside("metadata written")

    for cls, method in ((IcebergEndpoint, "open"), (SqlCatalog, "load_table"), (SqlCatalog, "create_namespace")):
        _lock(points, cls, method)
    SqlCatalog.commit_table = commit_  # type: ignore[method-assign]
    SqlCatalog._write_metadata = staticmethod(write_metadata_)  # type: ignore[method-assign]
    for where, method, name in (
        (event_sink, "encode_files", "encode an entry's files"),
        (driver, "add_snapshots", "write a snapshot's manifests"),
        (SqlCatalog, "create_namespace", "create a namespace"),
        (IcebergDriver, "publish", "publish a plan"),
        (IcebergDriver, "execute", "execute a DDL on tables"),
    ):
        wrap(points, where, method, name)


def _lock(points: Points, cls: Any, method: str) -> None:
    """Who stops while another of its threads has SQLite's lock keeps all others out."""
    real = getattr(cls, method)

    def locked(*arguments: Any) -> Any:
        with points.swapping:
            return real(*arguments)

    setattr(cls, method, locked)


def _kind(requirements: Any, updates: Any) -> str:
    if any(isinstance(each, AssertCreate) for each in requirements):
        return "create a table"
    properties = [each.updates for each in updates if isinstance(each, SetPropertiesUpdate)]
    return "follow a DDL in a table" if any(VERSION in each for each in properties) else "commit a snapshot"
