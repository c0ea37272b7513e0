"""A database that speaks MySQL's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from changefeed.spec.field.fields import Flag, Seconds, duration, one_of, server, text, whole
from changefeed.spec.field.kind import fixed
from changefeed.spec.field.section import FROM_CREATION, Credentials, SinkTls
from changefeed.spec.sink.section import InClearText, SinkSection
from changefeed.spec.sink.staying import STAYS

_DATABASE = "the name of a database, of letters, digits, _ and $"


class Mysql(SinkSection):
    """A MySQL, MariaDB or TiDB server to apply changes to. Its tables must exist as they were at startTs."""

    uri: Annotated[str, server("mysql", "mysql://host:port"), STAYS, fixed(FROM_CREATION)]
    """Address of the server."""
    worker_count: Annotated[int, whole(1, 256)] = 16
    """Connections that each task writes rows through concurrently."""
    max_txn_row: Annotated[int, whole(1, 16_384)] = 1024
    """Rows per downstream transaction, unless upstream transactions must stay whole."""
    transaction_atomicity: Annotated[str, one_of("none", "table")] = "none"
    """table: everything that an upstream transaction changed in one table is committed together."""
    safe_mode: Flag = False
    """
    Write rows with REPLACE and DELETE only: a row that is there under the same primary or unique key is overwritten
    without a word, also if only the downstream's collation takes the keys for equal.
    """
    progress_database: Annotated[str, text(r"[A-Za-z0-9_$]{0,64}", _DATABASE, 64)] = "changefeed"
    """
    Database for the bookkeeping tables that make writes exactly-once and fence off replaced drivers. Empty: no such
    tables; after a failure rows are written again with REPLACE and DELETE, and a replaced driver that is still alive is
    not fenced.
    """
    enable_sync_point: Flag = False
    """
    Periodically bring all tables to the same ts and record it in tidb_cdc.syncpoint_v1, as TiCDC does. At that moment
    the downstream equals the upstream as of that ts.
    """
    sync_point_interval: Annotated[Seconds, duration("1s", "24h")] = 600.0
    """Time between syncpoints. All tables wait for each one."""
    sync_point_retention: Annotated[Seconds, duration("1h", "8760h")] = 86_400.0
    """How long rows in tidb_cdc.syncpoint_v1 are kept."""
    tls: SinkTls | None = None
    """TLS to the server."""
    credentials: Credentials | None = None
    """Credentials to write with."""

    def servers(self) -> tuple[str, ...]:
        return (self.uri,)

    def in_clear_text(self) -> Iterator[InClearText]:
        if self.credentials is not None and self.tls is None:
            host = urlsplit(self.uri).hostname or ""
            yield InClearText("spec.sink.mysql.credentials", host, True, "Set spec.sink.mysql.tls.")
