"""The shape of a Changefeed's status, for the CRD: nothing here reads it (rule 22), the log is the truth.

The driver writes `checkpointTs` to `rows`, `clusterId`, `startTs` and, while it runs, `hold`; the operator writes the
rest.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from changefeed.spec.field.kind import Kind
from changefeed.spec.field.section import Section

STATES = ("Pending", "Normal", "Warning", "Failed", "Stopped", "Finished")


def _shape(**schema: Any) -> Kind:
    return Kind(None, schema)


_Time = Annotated[str, _shape(format="date-time", maxLength=64)]
_Ts = Annotated[str, _shape(pattern="^[0-9]{1,20}$", maxLength=20)]
_Count = Annotated[int, _shape(format="int64", minimum=0)]
_Message = Annotated[str, _shape(maxLength=32768)]


class Condition(Section):
    """One answer about the changefeed, as kstatus and `kubectl wait` read it."""

    type: Annotated[str, _shape(maxLength=316, minLength=1)]
    """Ready, Reconciling, Stalled, HistoryHeld, ReconcilePaused, SinkAvailable, UpstreamAvailable or WithinLag."""
    status: Annotated[str, _shape(enum=["True", "False", "Unknown"], maxLength=7)]
    """True, False or Unknown."""
    observed_generation: _Count | None = None
    """The generation of the spec that it is about."""
    last_transition_time: _Time
    """When status changed last."""
    reason: Annotated[str, _shape(maxLength=1024, minLength=1, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """One word for programs."""
    message: _Message
    """One sentence, with the next step."""


_Conditions = Annotated[
    tuple[Condition, ...],
    _shape(**{"maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
]


_Names = Annotated[
    tuple[str, ...],
    _shape(
        maxItems=32,
        items={"type": "string", "maxLength": 320, "description": "Kind and name, as Role/changefeed-orders."},
        **{"x-kubernetes-list-type": "atomic"},
    ),
]


class LastError(Section):
    """The error that ended the newest attempt."""

    class_: Annotated[str, _shape(maxLength=128)] | None = Field(default=None, alias="class")
    """Its class, as in the driver's log."""
    message: _Message | None = None
    """What failed, and the next step."""
    time: _Time | None = None
    """When."""
    next_retry_time: _Time | None = None
    """When the next attempt starts; unset: never by itself."""


_Failures = Annotated[
    dict[str, int],
    _shape(maxProperties=32, additionalProperties={"type": "integer", "format": "int64", "minimum": 0}),
]


class Restarts(Section):
    """Attempts that failed."""

    total: _Count | None = None
    """Since the creation."""
    failures: _Failures | None = None
    """In a row, by class (docs/reference/events.md): since the changefeed was healthy, edited or paused."""


class HoldError(Section):
    """Why the upstream's history could not be held last time."""

    class_: Annotated[str, _shape(maxLength=128)] | None = Field(default=None, alias="class")
    """Its class."""
    message: _Message | None = None
    """What failed, and the next step."""
    time: _Time | None = None
    """When."""


class LastDdl(Section):
    """The newest DDL that readers of the sink have been told of."""

    ts: _Ts | None = None
    """Rows after it stand under this version."""
    time: _Time | None = None
    """The same as a time."""
    statement: Annotated[str, _shape(maxLength=512)] | None = None
    """Its beginning."""


class Hold(Section):
    """The changefeed's hold on the upstream's history: what is after `ts` can be read at least until `until`."""

    ts: _Ts | None = None
    """GC spares every change after this ts."""
    until: _Time | None = None
    """When the hold ends unless it is renewed, by PD's clock."""
    last_error: HoldError | None = None
    """Why it could not be renewed; unset once it has been."""


class Status(Section):
    """What is known about the changefeed; a copy, the changefeed's log is the truth."""

    conditions: _Conditions | None = None
    """Ready, Reconciling, Stalled (kstatus), HistoryHeld, SinkAvailable, UpstreamAvailable, WithinLag."""
    observed_generation: Annotated[int, _shape(format="int64", minimum=-1)] | None = None
    """The generation of the spec that the operator saw last."""
    state: Annotated[str, _shape(enum=list(STATES), maxLength=16)] | None = None
    """One word, in TiCDC's terms."""
    message: _Message | None = None
    """One sentence, with the next step."""
    sink: Annotated[str, _shape(maxLength=16)] | None = None
    """The kind of sink."""
    cluster_id: _Ts | None = None
    """The upstream's cluster id, as PD gives it."""
    start_ts: _Ts | None = None
    """The ts that the changefeed started from."""
    sink_uri: Annotated[str, _shape(maxLength=2048)] | None = None
    """Where the files go: the sink, or after a rewind the newest folder beside it."""
    checkpoint_ts: _Ts | None = None
    """Everything up to this ts is in the sink."""
    checkpoint_time: _Time | None = None
    """The same as a time."""
    resolved_ts: _Ts | None = None
    """Everything up to this ts has been pulled."""
    lag_seconds: Annotated[int, _shape(format="int64")] | None = None
    """How far the checkpoint is behind the upstream."""
    epoch: _Count | None = None
    """Number of the driver: rises with each one that took over."""
    tables: _Count | None = None
    """Tables that are followed."""
    rows: _Count | None = None
    """Rows written since the changefeed was created."""
    initial_copy: Annotated[str, _shape(maxLength=64)] | None = None
    """How far the copies of tables are, and for how long they will go on; unset while nothing is copied."""
    event_store_mode: Annotated[str, _shape(enum=["Buffer", "Archive"], maxLength=16)] | None = None
    """Where new segments are read: in the pullers' memory, or in the archive since a buffer has overflowed."""
    last_ddl: LastDdl | None = None
    """The newest DDL that is in the sink."""
    hold: Hold | None = None
    """The hold on the upstream's history; the driver renews it, or a Job while no driver runs."""
    attempt: _Count | None = None
    """Number of the SparkApplication: rises with each start."""
    attempt_phase: Annotated[str, _shape(enum=["Claimed", "Created", "Ended"], maxLength=16)] | None = None
    """How far that attempt has got; written before the operator acts on it."""
    attempt_outcome: Annotated[str, _shape(enum=["Stopped", "Finished", "Failed", "Stalled"], maxLength=16)] | None = (
        None
    )
    """How it ended; unset while it is under way."""
    effective_spec_hash: Annotated[str, _shape(maxLength=128)] | None = None
    """Hash of the spec that the attempt runs."""
    config_digest: Annotated[str, _shape(maxLength=128)] | None = None
    """Digest of the last valid spec as drivers read it: names its ConfigMap, and nothing else is believed of one."""
    children: _Names | None = None
    """Children that stood when the operator looked: one that is missing was deleted by somebody else."""
    state_uri: Annotated[str, _shape(maxLength=2048)] | None = None
    """Where the log is kept: fixed by the first attempt."""
    restarts: Restarts | None = None
    """How often attempts failed."""
    last_error: LastError | None = None
    """The error that ended the newest attempt that failed."""
