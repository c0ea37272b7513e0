"""The shape of the driver's `/status`: what it knows at one moment, for people and pages.

Nothing is decided from it. A reader takes what it knows of an older or newer driver's: all but the name has a default,
and unknown members are passed over. All times are PD's clock, in milliseconds since 1970; 0: not known.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

from changefeed.spec.field.section import DNS_LABEL

#: Bounds of what one answer holds, whoever made it.
TABLES_MAX = 1_000
SAMPLES_MAX = 720
TRANSACTIONS_MAX = 256
FINDINGS_MAX = 32

#: A ts does not fit a double: it is text in JSON.
_Ts = Annotated[int, PlainSerializer(str, return_type=str), Field(ge=0, lt=1 << 64)]
_Name = Annotated[str, Field(pattern=rf"^{DNS_LABEL}(?:\.{DNS_LABEL})*$", max_length=253)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _StatusModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class LagSample(_StatusModel):
    """The checkpoint's lag at one moment, shared out among the stages."""

    at_ms: int
    pull: _Seconds = 0.0  # PD's clock less the resolved-ts: the upstream and the pullers
    plan: _Seconds = 0.0  # the resolved-ts less what is planned: rows that wait for a full file or the interval
    write: _Seconds = 0.0  # what is planned less the checkpoint: the pipeline, the sink, the commit record

    @property
    def total(self) -> float:
        return self.pull + self.plan + self.write


class StageRate(_StatusModel):
    """What went through a stage since the driver started, and lately."""

    name: str
    rows: int = 0
    rows_per_second: _Seconds = 0.0
    bytes: int = 0
    bytes_per_second: _Seconds = 0.0


class TableStatus(_StatusModel):
    """One physical table: a partition counts as one."""

    name: str
    dispatcher: int = 0  # its physical id
    written_ts: _Ts = 0  # every row up to it is in the sink
    resolved_ts: _Ts = 0  # every row up to it has been pulled
    held: bool = False  # not pulled for now: the event store is short


class OpenTransaction(_StatusModel):
    """The oldest of those whose locks hold back a table of one puller."""

    table: str
    puller: int = 0
    start_ts: _Ts = 0
    ttl_ms: int = 0  # from its start on; each heartbeat prolongs it


class DriverError(_StatusModel):
    """The newest error that the driver met and goes on from; one that ends it is told by its exit."""

    kind: str  # its class
    message: str
    next_step: str = ""
    at_ms: int = 0
    over: bool = False  # it has gone since


class DriverStatus(_StatusModel):
    v: int = 1
    version: str = ""  # of the product
    namespace: _Name
    name: _Name
    epoch: int = 0
    state: str = ""  # one of spec.status.STATES
    message: str = ""  # one sentence
    at_ms: int = 0
    started_ms: int = 0
    upstream: str = ""
    sink: str = ""
    start_ts: _Ts = 0
    checkpoint_ts: _Ts = 0
    resolved_ts: _Ts = 0
    rows: int = 0  # written since the changefeed was created
    lags: Annotated[tuple[LagSample, ...], Field(max_length=SAMPLES_MAX)] = ()  # the oldest first
    stages: Annotated[tuple[StageRate, ...], Field(max_length=16)] = ()
    table_count: int = 0
    tables: Annotated[tuple[TableStatus, ...], Field(max_length=TABLES_MAX)] = ()  # the furthest behind first
    transactions: Annotated[tuple[OpenTransaction, ...], Field(max_length=TRANSACTIONS_MAX)] = ()
    last_error: DriverError | None = None
    findings: Annotated[tuple[str, ...], Field(max_length=FINDINGS_MAX)] = ()  # what the spec says to no effect
