"""The kinds of sinks that can be verified, and the verifier for a changefeed's.

Files and topics have each change, and are held against the upstream's history; without one they are replayed, and held
against its tables as they stand. Tables of rows are compared in one way, whichever oracle there is (verify.tables).
"""

from __future__ import annotations

from pathlib import Path

from changefeed.errors import InvalidSpec
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.progress import ReadingProgress
from changefeed.spec.model import Changefeed
from changefeed.upstream.choice import access_of
from changefeed.verify.result import Verdict


async def verify_sink(
    changefeed: Changefeed, secrets_dir: Path | None, conserved: str | None, progress: ReadingProgress
) -> Verdict:
    """`conserved`: of files alone. Raises NotVerifiable, InvalidSpec."""
    kind = changefeed.spec.sink.kind
    has_history = access_of(changefeed, secrets_dir).has_history
    if conserved is not None and kind != "storage":
        raise InvalidSpec("--conserved", f"{conserved!r}; allowed: none for sink.{kind}, only for sink.storage")
    if conserved is not None and not has_history:
        raise InvalidSpec("--conserved", f"{conserved!r}; allowed: none for PostgreSQL, which has no earlier rows")
    # Each kind loads a client library that the others have no use for.
    match kind:
        case "storage" if not has_history:
            from changefeed.verify.snapshot import report as snapshot

            return await snapshot.verify(changefeed, secrets_dir, progress)
        case "storage":
            from changefeed.verify.storage import report as storage

            return await storage.verify_changefeed(changefeed, secrets_dir, conserved, progress)
        case "iceberg":
            from changefeed.verify.iceberg import report as iceberg

            return await iceberg.verify(changefeed, secrets_dir, progress)
        case "delta":
            from changefeed.verify.delta import report as delta

            return await delta.verify(changefeed, secrets_dir, progress)
        case "mysql":
            from changefeed.verify.mysql import report as mysql

            return await mysql.verify(changefeed, secrets_dir, progress)
        case "kafka" if changefeed.spec.sink.kafka is not None and changefeed.spec.sink.kafka.protocol == "avro":
            from changefeed.verify.kafka import avro_report as avro

            return await avro.verify(changefeed, secrets_dir, progress)
        case "kafka" if not has_history:
            from changefeed.verify.kafka import replayed_report as replayed

            return await replayed.verify(changefeed, secrets_dir, progress)
        case "kafka":
            from changefeed.verify.kafka import report as kafka

            return await kafka.verify(changefeed, secrets_dir, progress)
        case _:
            raise NotVerifiable(
                f"sink.{kind} keeps nothing that could be verified.", "Verify a changefeed with another sink."
            )
