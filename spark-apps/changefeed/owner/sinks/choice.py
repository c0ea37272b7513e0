"""The sink that a resource names."""

from __future__ import annotations

from pathlib import Path

from changefeed.owner.sinks.blackhole import DrivenBlackhole
from changefeed.owner.sinks.driven import DrivenSink
from changefeed.spec.model import Changefeed


def sink_of(changefeed: Changefeed, secrets_dir: Path | None = None) -> DrivenSink:
    """Opens nothing. Raises InvalidSpec."""
    # Each kind loads a client library that the others have no use for.
    match changefeed.spec.sink.kind:
        case "storage":
            from changefeed.owner.sinks.storage import DrivenStorage

            return DrivenStorage(changefeed, secrets_dir)
        case "iceberg":
            from changefeed.owner.sinks.iceberg import DrivenIceberg

            return DrivenIceberg(changefeed, secrets_dir)
        case "mysql":
            from changefeed.owner.sinks.mysql import DrivenMysql

            return DrivenMysql(changefeed, secrets_dir)
        case "kafka":
            from changefeed.owner.sinks.kafka import DrivenKafka

            return DrivenKafka(changefeed, secrets_dir)
        case _:
            return DrivenBlackhole()
