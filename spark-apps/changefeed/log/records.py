"""The transaction log's records (docs/design/layouts.md, Log records).

Every ts is a string in JSON. A record is immutable and its JSON is canonical: the same record always gives the same
bytes, because after an unknown outcome only the same bytes may be tried again (rule 16).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, TypeAdapter, model_validator

from changefeed.model.frozen import Frozen
from changefeed.model.position import JsonPosition


def _ts(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


Ts = Annotated[int, BeforeValidator(_ts), PlainSerializer(str, return_type=str), Field(ge=0, lt=1 << 64)]


_FILE = ("path", "directory", "index", "date")


def _without(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name not in names}


class PlanEntry(Frozen):
    """The rows of one dispatcher in `(from, to]`, which are written together."""

    entry: int  # number inside the plan, from 0
    dispatcher: int  # span_id
    table_id: int  # physical table id
    from_: JsonPosition = Field(alias="from")
    to: JsonPosition
    output: dict[str, Any] = Field(default={})  # what they are written to, as the sink names it (sink.contract.Outputs)
    table_version: Ts  # the ts of the DDL that made the definition
    table_info: str  # hash of the TableInfo that decodes every row of the entry
    estimate: int  # raw bytes
    reason: Literal["size", "oversized", "interval", "barrier", "quota", "shutdown"]

    @model_validator(mode="before")
    @classmethod
    def _as_0_1_0_wrote_it(cls, value: object) -> object:
        """Its sinks, databases too, all had the names of a file."""
        if not isinstance(value, dict) or "path" not in value:
            return value
        return {**_without(value, *_FILE), "output": {name: value[name] for name in _FILE if name in value}}


class FileCommitted(Frozen):
    """What became of one plan entry."""

    plan: int  # number of the plan's record
    entry: int
    rows: int  # written
    raw_rows: int  # read, repeats removed
    filtered_rows: int
    bytes: int
    hash: str  # xxh3/blake2 of the file's bytes, hex


class _Record(Frozen):
    v: Literal[1] = 1
    n: int = Field(ge=1)
    epoch: int = Field(ge=0)  # 0 in record 1, which comes before any epoch
    nonce: str  # of the driver's run


class StartRecord(_Record):
    """Record 1: fixes startTs, after the safepoint is confirmed (rule 24)."""

    kind: Literal["start"] = "start"
    start_ts: Ts
    cluster_id: Ts
    uid: str  # of the resource, or its spec.state.id
    restart_nonce: int | None = None  # of spec.restart: nothing is there yet that could be rewound
    adopted: bool = False  # the sink has files of TiCDC's, all of table versions below start_ts
    initial_copy: bool = False  # tables are copied before their changes; start_ts is where the first copy begins


class EpochRecord(_Record):
    """A driver took over, with this effective config (rule 10)."""

    kind: Literal["epoch"] = "epoch"
    attempt: int
    host: str
    pid: int
    config: dict[str, Any]  # the effective resource, JSON
    versions: dict[str, str]

    @property
    def uid(self) -> str:
        return uid_of(self.config)


def uid_of(config: Mapping[str, Any]) -> str:
    """The uid of the resource whose effective config this is."""
    return str(config.get("metadata", {}).get("uid", ""))


class PlanRecord(_Record):
    """What will be written next, decided once."""

    kind: Literal["plan"] = "plan"
    pd_ms: int  # PD's clock at planning: every "now" in a file
    resolved_ts: Ts  # the barrier's ts the plan was cut under
    codec: str  # fingerprint
    entries: tuple[PlanEntry, ...]
    table_infos: dict[str, dict[str, Any]] = Field(default={})  # by hash: those which no earlier record holds


class CommitRecord(_Record):
    """Files of open plans are in the sink, or the checkpoint moved without any."""

    kind: Literal["commit"] = "commit"
    checkpoint_ts: Ts
    files: tuple[FileCommitted, ...] = ()
    finished: bool = False


class DdlRecord(_Record):
    """A DDL was executed: every row <= `ts` of the involved dispatchers is written, and readers are told."""

    kind: Literal["ddl"] = "ddl"
    ts: Ts  # finish ts
    job_id: int
    query: str
    involved: tuple[int, ...] = ()  # dispatchers that were there before
    dispatchers: tuple[int, ...] = ()  # whose rows > ts have table version ts: those that stay, and those that join
    table_infos: tuple[str, ...] = ()  # hash of the TableInfo of each of `dispatchers`
    definitions: dict[str, dict[str, Any]] = Field(default={})  # of these, by hash: those which no earlier record holds
    left: tuple[int, ...] = ()  # that end here

    @model_validator(mode="before")
    @classmethod
    def _as_0_1_0_wrote_it(cls, value: object) -> object:
        """It named the schema files, whatever the sink."""
        return _without(value, "schema_files") if isinstance(value, dict) else value


class DefinitionsRecord(_Record):
    """How tables are defined that no plan and no DDL has told of: an upstream may not know it any more one day."""

    kind: Literal["definitions"] = "definitions"
    dispatchers: tuple[int, ...] = Field(min_length=1)
    table_infos: tuple[str, ...]  # hash of the TableInfo of each of `dispatchers`
    definitions: dict[str, dict[str, Any]]  # of these, by hash: those which no earlier record holds


class CopiedTable(Frozen):
    """A physical table and its chunks: raw keys in hex, see model.table_copy."""

    dispatcher: int
    bounds: tuple[str, ...] = Field(min_length=2)


class CopyRecord(_Record):
    """These tables are copied before their changes are pulled: what that means, model.table_copy says."""

    kind: Literal["copy"] = "copy"
    from_ts: Ts
    tables: tuple[CopiedTable, ...]


class RewindRecord(_Record):
    """Everything after `from_ts` is written again, into the folder of the next generation."""

    kind: Literal["rewind"] = "rewind"
    restart_nonce: int  # of spec.restart, which is done once
    from_ts: Ts


class ExpireRecord(_Record):
    """Files of a storage sink's days before `before` (YYYY-MM-DD) are given up: they are deleted from now on."""

    kind: Literal["expire"] = "expire"
    before: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


class ClosedRecord(_Record):
    """The resource was deleted: none of its drivers may follow. One of another resource may, see history.py."""

    kind: Literal["closed"] = "closed"
    superseded: tuple[str, ...] | None = None  # by `changefeed adopt`: who can't come back; None: as before


AnyRecord = (
    StartRecord
    | EpochRecord
    | PlanRecord
    | CommitRecord
    | DdlRecord
    | DefinitionsRecord
    | CopyRecord
    | RewindRecord
    | ExpireRecord
    | ClosedRecord
)
Record = Annotated[AnyRecord, Field(discriminator="kind")]
_RECORD: TypeAdapter[Any] = TypeAdapter(Record)


def encode_record(record: BaseModel) -> bytes:
    """Canonical JSON of a record."""
    return record.model_dump_json(by_alias=True).encode()


def decode_record(body: bytes) -> AnyRecord:
    """The record in `body`.

    Raises pydantic.ValidationError when it has an unknown `v`, `kind` or member.
    """
    record: AnyRecord = _RECORD.validate_json(body)
    return record
