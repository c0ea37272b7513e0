"""The kinds of sinks there are, and the one that a resource names."""

from __future__ import annotations

from pathlib import Path

from changefeed.sink.claim import SinkClaim
from changefeed.spec.model import Changefeed


def claim_on(changefeed: Changefeed, secrets_dir: Path | None = None) -> SinkClaim:
    """Opens nothing. Raises InvalidSpec."""
    # Each kind loads a client library that the others have no use for.
    match kind := changefeed.spec.sink.kind:
        case "storage":
            from changefeed.sink.storage.claim import StorageClaim

            return StorageClaim(changefeed, secrets_dir)
        case "iceberg":
            from changefeed.sink.iceberg.claim import IcebergClaim

            return IcebergClaim(changefeed, secrets_dir)
        case "delta":
            from changefeed.sink.delta.claim import DeltaClaim

            return DeltaClaim(changefeed, secrets_dir)
        case "mysql":
            from changefeed.sink.mysql.claim import MysqlClaim

            return MysqlClaim(changefeed, secrets_dir)
        case "kafka":
            from changefeed.sink.kafka.claim import KafkaClaim

            return KafkaClaim(changefeed, secrets_dir)
        case "blackhole":
            from changefeed.sink.blackhole import BlackholeClaim

            return BlackholeClaim()
        case _:
            raise AssertionError(f"no claim is listed for sink.{kind}")
