"""The actions that the owner hands out, one at a time. Each carries the log record that it results in."""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.log.records import CommitRecord, DdlRecord, ExpireRecord, PlanEntry, PlanRecord
from changefeed.sink.contract import Ddl


@dataclass(frozen=True)
class AppendPlan:
    """Append the record; its effects start when it is in the log (rule 16)."""

    record: PlanRecord


@dataclass(frozen=True)
class Publish:
    """Entries of open plans are written: publish them, then append the record. `entries`: of its files, in order."""

    entries: tuple[PlanEntry, ...]
    record: CommitRecord


@dataclass(frozen=True)
class AppendCheckpoint:
    """Append a commit record without files."""

    record: CommitRecord


@dataclass(frozen=True)
class WriteDdl:
    """Every row before a DDL is written: execute it, then append the record."""

    ddl: Ddl
    record: DdlRecord


@dataclass(frozen=True)
class WriteSyncpoint:
    """Every row and DDL up to a syncpoint is written, and none above: say so downstream, then append the record."""

    ts: int
    record: CommitRecord


@dataclass(frozen=True)
class AppendExpiry:
    """Append the record; the files that it gives up are deleted afterwards."""

    record: ExpireRecord


@dataclass(frozen=True)
class Stop:
    """There is nothing more to do: drained or finished."""


Recorded = AppendPlan | Publish | AppendCheckpoint | WriteDdl | WriteSyncpoint | AppendExpiry
Action = Recorded | Stop
