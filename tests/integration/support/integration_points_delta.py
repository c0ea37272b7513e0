"""The points of the Delta Lake sink (integration_points): what its driver does to tables."""

from __future__ import annotations

from changefeed.sink.delta import driver, event_sink
from changefeed.sink.delta.driver import DeltaDriver
from changefeed.sink.delta.tables import DeltaTables
from integration_points import Points, wrap

#: What a point's name begins with that is of the driver or a task at a Delta Lake sink.
DELTA = (
    "encode an entry's files",
    "create file of rows",
    "delete file of rows",
    "create a table",
    "commit rows",
    "follow a DDL in a table",
    "publish a plan",
    "execute a DDL on tables",
)


def install(points: Points) -> None:
    """From now on this process passes points."""
    for where, method, name in (
        (event_sink, "encode_files", "encode an entry's files"),
        (DeltaTables, "_create", "create a table"),
        (driver, "added", "commit rows"),
        (driver, "merged", "commit rows"),
        (driver, "evolved", "follow a DDL in a table"),
        (driver, "emptied", "follow a DDL in a table"),
        (DeltaDriver, "publish", "publish a plan"),
        (DeltaDriver, "execute", "execute a DDL on tables"),
    ):
        wrap(points, where, method, name)
