"""The shape of a Changefeed's status, for the CRD: nothing here reads it (rule 22), the log is the truth.

The driver writes `checkpointTs` to `rows`, `clusterId`, `startTs`, `version`, `appliedSettings` and, while it runs,
`hold`; the operator writes the rest.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from changefeed.spec.field.kind import FieldKind
from changefeed.spec.field.section import Section

STATES = ("Pending", "Normal", "Warning", "Failed", "Stopped", "Finished")


def _shape(**schema: Any) -> FieldKind:
    return FieldKind(None, schema)


_Time = Annotated[str, _shape(format="date-time", maxLength=64)]
_Ts = Annotated[str, _shape(pattern="^[0-9]{1,20}$", maxLength=20)]
_Count = Annotated[int, _shape(format="int64", minimum=0)]
_Message = Annotated[str, _shape(maxLength=32768)]


class StatusCondition(Section):
    """One condition of the changefeed, as kstatus and `kubectl wait` read it."""

    type: Annotated[str, _shape(maxLength=316, minLength=1)]
    """Ready, Reconciling, Stalled, HistoryHeld, CredentialsInClearText, ReconcilePaused, SinkAvailable,
    UpstreamAvailable, WithinLag or RulesMatch."""
    status: Annotated[str, _shape(enum=["True", "False", "Unknown"], maxLength=7)]
    """True, False or Unknown."""
    observed_generation: _Count | None = None
    """The generation of the spec that this condition refers to."""
    last_transition_time: _Time
    """When status last changed."""
    reason: Annotated[str, _shape(maxLength=1024, minLength=1, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Machine-readable reason."""
    message: _Message
    """One sentence, with what to do next."""


_Conditions = Annotated[
    tuple[StatusCondition, ...],
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
    """Class of the error, as in the driver's log."""
    message: _Message | None = None
    """What failed, and what to do next."""
    time: _Time | None = None
    """When it happened."""
    next_retry_time: _Time | None = None
    """When the next attempt starts. Unset: it requires manual intervention."""


_Settings = Annotated[
    dict[str, str],
    _shape(maxProperties=32, additionalProperties={"type": "string", "maxLength": 64}),
]


_Failures = Annotated[
    dict[str, int],
    _shape(maxProperties=32, additionalProperties={"type": "integer", "format": "int64", "minimum": 0}),
]


class Restarts(Section):
    """Counts of failed attempts."""

    total: _Count | None = None
    """Since the changefeed was created."""
    failures: _Failures | None = None
    """
    Consecutive failures by class (docs/reference/events.md), reset when the changefeed is healthy, edited or paused.
    """


class HoldError(Section):
    """Why the upstream's history could not be held last time."""

    class_: Annotated[str, _shape(maxLength=128)] | None = Field(default=None, alias="class")
    """Class of the error."""
    message: _Message | None = None
    """What failed, and what to do next."""
    time: _Time | None = None
    """When it happened."""


class LastDdl(Section):
    """The latest DDL published to readers of the sink."""

    ts: _Ts | None = None
    """Version of the table for rows after it."""
    time: _Time | None = None
    """The same, as a time."""
    statement: Annotated[str, _shape(maxLength=512)] | None = None
    """The beginning of the statement."""


class HistoryHold(Section):
    """The changefeed's hold on the upstream's history: what is after `ts` can be read at least until `until`."""

    ts: _Ts | None = None
    """The upstream keeps every change after this ts."""
    until: _Time | None = None
    """When the hold expires unless it is renewed, by the upstream's clock."""
    kept_bytes: Annotated[int, _shape(format="int64")] | None = None
    """Bytes of its WAL that PostgreSQL keeps for the slot."""
    most_bytes: _Count | None = None
    """How many it would keep before it lets the history go (max_slot_wal_keep_size). 0: without a bound."""
    wal_status: Annotated[str, _shape(maxLength=64)] | None = None
    """PostgreSQL's word for that: reserved, extended, unreserved or lost."""
    gone_at: Annotated[str, _shape(maxLength=64)] | None = None
    """When the history would be lost if WAL keeps growing as it has since `ts`, or the slot stays idle. Or empty."""
    warning: _Message | None = None
    """What is about to be lost, and what to do. Or empty."""
    last_error: HoldError | None = None
    """Why it could not be renewed. Unset once a renewal succeeds."""


class ChangefeedStatus(Section):
    """What is known about the changefeed. This is a copy: the changefeed's log is the source of truth."""

    conditions: _Conditions | None = None
    """Ready, Reconciling, Stalled (kstatus), HistoryHeld, SinkAvailable, UpstreamAvailable, WithinLag, RulesMatch."""
    observed_generation: Annotated[int, _shape(format="int64", minimum=-1)] | None = None
    """The latest generation of the spec that the operator has seen."""
    state: Annotated[str, _shape(enum=list(STATES), maxLength=16)] | None = None
    """One word, in TiCDC's terms."""
    message: _Message | None = None
    """One sentence, with what to do next."""
    sink: Annotated[str, _shape(maxLength=16)] | None = None
    """The kind of sink."""
    cluster_id: _Ts | None = None
    """The upstream's cluster id, as PD gives it; of PostgreSQL, the number of its database."""
    start_ts: _Ts | None = None
    """The ts that the changefeed started from."""
    sink_uri: Annotated[str, _shape(maxLength=2048)] | None = None
    """Where files are written: the sink, or after a rewind the newest folder next to it."""
    checkpoint_ts: _Ts | None = None
    """Everything up to this ts is in the sink."""
    checkpoint_time: _Time | None = None
    """The same, as a time."""
    resolved_ts: _Ts | None = None
    """Everything up to this ts has been pulled."""
    lag_seconds: Annotated[int, _shape(format="int64")] | None = None
    """How far the checkpoint is behind the upstream."""
    epoch: _Count | None = None
    """Fencing number of the driver: rises with every takeover."""
    tables: _Count | None = None
    """Number of tables captured."""
    rows: _Count | None = None
    """Rows written since the changefeed was created."""
    initial_copy: Annotated[str, _shape(maxLength=64)] | None = None
    """Progress of initial copies and the time left. Unset while nothing is copied."""
    event_store_mode: Annotated[str, _shape(enum=["Buffer", "Archive"], maxLength=16)] | None = None
    """Where new segments are read from: the pullers' memory, or the archive after a buffer overflow."""
    last_ddl: LastDdl | None = None
    """The latest DDL written to the sink."""
    hold: HistoryHold | None = None
    """The hold on the upstream's history; the driver renews it, or a Job while no driver runs."""
    attempt: _Count | None = None
    """Number of the SparkApplication: rises with every start."""
    image: Annotated[str, _shape(maxLength=1024)] | None = None
    """The image that this attempt runs."""
    version: Annotated[str, _shape(maxLength=64)] | None = None
    """The version of the data plane in that image, as reported by the driver."""
    attempt_phase: Annotated[str, _shape(enum=["Claimed", "Created", "Ended"], maxLength=16)] | None = None
    """Phase of that attempt, recorded before the operator acts on it."""
    attempt_outcome: Annotated[str, _shape(enum=["Stopped", "Finished", "Failed", "Stalled"], maxLength=16)] | None = (
        None
    )
    """How it ended. Unset while it is running."""
    effective_spec_hash: Annotated[str, _shape(maxLength=128)] | None = None
    """Hash of the spec that the attempt runs."""
    config_digest: Annotated[str, _shape(maxLength=128)] | None = None
    """Digest of the last accepted spec. It names the ConfigMap that drivers read and verifies its content."""
    live_settings: _Settings | None = None
    """Settings of the last accepted spec that a running driver applies without a restart, by path."""
    applied_settings: _Settings | None = None
    """The same settings as the driver runs with."""
    children: _Names | None = None
    """Children that existed when the operator last looked. One that is missing was deleted by someone else."""
    state_uri: Annotated[str, _shape(maxLength=2048)] | None = None
    """Where the log is kept. Fixed by the first attempt."""
    restarts: Restarts | None = None
    """How often attempts have failed."""
    last_error: LastError | None = None
    """The error that ended the latest failed attempt."""
