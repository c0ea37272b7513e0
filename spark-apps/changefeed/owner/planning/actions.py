"""What the owner hands out: the one thing to do next. What it leaves in the log is in it already."""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.model.record import CommitRecord, DdlRecord, PlanRecord
from changefeed.sink.storage.schema_file import SchemaFile


@dataclass(frozen=True)
class AppendPlan:
    """Append the record; its effects start when it is in the log (rule 16)."""

    record: PlanRecord


@dataclass(frozen=True)
class Publish:
    """Files of open plans exist: write the indexes (directory, index, last file), then append the record."""

    indexes: tuple[tuple[str, int, str], ...]
    record: CommitRecord


@dataclass(frozen=True)
class AppendCheckpoint:
    """Append a commit record without files."""

    record: CommitRecord


@dataclass(frozen=True)
class WriteDdl:
    """Every row before a DDL is written: write the schema files, then append the record."""

    schema_files: tuple[SchemaFile, ...]
    record: DdlRecord


@dataclass(frozen=True)
class Stop:
    """There is nothing more to do: drained or finished."""


Recorded = AppendPlan | Publish | AppendCheckpoint | WriteDdl
Action = Recorded | Stop
