"""Tables of Delta Lake."""

from __future__ import annotations

from typing import Annotated

from changefeed.spec.field.fields import Bytes, Seconds, Warehouse, duration, one_of, size
from changefeed.spec.field.kind import fixed
from changefeed.spec.field.section import FROM_CREATION, Credentials, ruled
from changefeed.spec.sink.section import SinkSection
from changefeed.spec.sink.staying import STAYS, as_created


class Delta(SinkSection):
    """Tables of Delta Lake, one for each table of the upstream."""

    model_config = ruled(as_created("mode", "'append'"))

    uri: Annotated[Warehouse, STAYS, fixed(FROM_CREATION)]
    """Root folder of the tables. Each is in the folder <database>/<table> below it."""
    mode: Annotated[str, one_of("append", "upsert"), fixed(FROM_CREATION)] = "append"
    """append: each table is a changelog of all changes. upsert: each table mirrors the upstream's current rows."""
    flush_interval: Annotated[Seconds, duration("100ms", "1h")] = 60.0
    """Longest time a change waits before it is committed. Every commit adds a version and a file."""
    file_size: Annotated[Bytes, size("1Mi", "512Mi")] = 64 << 20
    """Approximate size at which a file is written. Transactions are never split."""
    credentials: Credentials | None = None
    """Credentials to write with."""

    def stores(self) -> tuple[str, ...]:
        return (self.uri,)

    def folders(self) -> tuple[tuple[str, str], ...]:
        return (("spec.sink.delta.uri", self.uri),)
