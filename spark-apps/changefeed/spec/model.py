"""The Changefeed resource: what `kubectl apply` and `changefeed run -f` take (docs/reference/configuration.md).

It alone defines the fields, their defaults, what is allowed and what they mean; the operator, the data plane, the CRD
and the reference share it. Does no I/O. A field comes here with the code that obeys it, and not before: nothing is
accepted and then ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.config import JsonDict

from changefeed.spec.field.fields import (
    Bytes,
    Flag,
    Location,
    Seconds,
    Ts,
    duration,
    later_than,
    many,
    one_of,
    size,
    text,
    whole,
)
from changefeed.spec.field.kind import FieldKind, cel_at, fixed, live, rule, wrong
from changefeed.spec.field.section import DNS_LABEL, FROM_CREATION, Credentials, Section, ruled
from changefeed.spec.filter.columns import ColumnAction
from changefeed.spec.filter.filters import Filter
from changefeed.spec.filter.routes import MERGES, Route, apart, check_apart, merges_where_it_can
from changefeed.spec.names import API_VERSION, KIND
from changefeed.spec.sink.choice import SinkSpec
from changefeed.spec.sink.storage import Storage
from changefeed.spec.upstream import UpstreamSpec

LONGEST_NAME = 45

DNS_1035 = "[a-z](?:[-a-z0-9]*[a-z0-9])?"
STATE_ID = "1 to 63 characters: lower-case letters, digits, - inside"
NAME_ALLOWED = f"1 to {LONGEST_NAME} characters: lower-case letters, digits, - inside; a letter first"


class Metadata(Section):
    """Kubernetes' own fields; those we don't need are left to it."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, text(DNS_1035, NAME_ALLOWED, LONGEST_NAME)]
    namespace: Annotated[str, text(DNS_LABEL, "a Kubernetes namespace", 63)] = "default"
    uid: Annotated[str, text("[-0-9a-zA-Z]+", "the uid that Kubernetes gave", 63)] = "local"


class Integrity(Section):
    level: Annotated[str, one_of("None", "Correctness")] = "None"
    """Correctness: verify the checksum that TiDB stores with each row. Not possible with PostgreSQL."""
    on_corruption: Annotated[str, one_of("Warn", "Error")] = "Warn"
    """What to do about a row whose checksum does not match: log a warning, or stop the changefeed."""


class StateSpec(Section):
    uri: Annotated[Location | None, fixed(FROM_CREATION)] = None  # None: the operator's, or a laptop's own
    """
    Where the log and the event archive are kept. Unset: the operator's default, or the user's data folder on a laptop.
    """
    id: Annotated[Annotated[str, text(DNS_LABEL, STATE_ID, 63)] | None, fixed(FROM_CREATION)] = None
    """
    Identity of the state. A Changefeed with the same id resumes from the same log and sink, so it can be deleted and
    recreated, moved to another namespace or cluster, or restored from a backup without losing anything. Only one may
    run at a time. Unset: the resource's uid.
    """
    credentials: Credentials | None = None
    """Credentials to write with."""


class EventStore(Section):
    quota: Annotated[Bytes, size("64Mi", "16Ti")] = 20 << 30
    """Disk space for events between puller and sink. When it is full, tables are held back and pulled again later."""
    buffer_size: Annotated[Bytes, size("16Mi", "1Ti")] = 640 << 20
    """
    Memory for the newest events, across all pullers, on top of their memoryQuota. Events that do not fit, or that are
    needed for more than five seconds, are written to the archive under the state's uri.
    """


class Pullers(Section):
    count: Annotated[int, whole(1, 64)] = 2
    """Spark tasks that pull changes. Each occupies a task slot permanently. With PostgreSQL: 1."""
    memory_quota: Annotated[Bytes, size("64Mi", "1Ti")] = 1 << 30
    """Memory for changes in flight within one puller."""


_TEMPLATE = FieldKind(None, {"additionalProperties": None, "x-kubernetes-preserve-unknown-fields": True})
_Template = Annotated[dict[str, Any], _TEMPLATE]


_ANNOTATIONS = FieldKind(None, {"maxProperties": 32})
_ACCOUNT = "[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?"


class ServiceAccount(Section):
    """
    The identity of the changefeed's pods, for clouds that grant access by it (IRSA, GKE and Azure workload identity).
    """

    model_config = ruled(
        rule(
            "!has(self.name) || !has(self.annotations) || size(self.annotations) == 0",
            "annotations for the account that the operator makes, or the name of one of yours",
        )
    )

    name: Annotated[str, text(_ACCOUNT, "the name of a ServiceAccount", 253)] | None = None
    """
    An existing ServiceAccount. The operator binds the driver's role to it and leaves it unchanged. Unset: the operator
    creates one.
    """
    annotations: Annotated[dict[str, str], _ANNOTATIONS] = Field(default={})
    """Annotations for the ServiceAccount that the operator creates, such as eks.amazonaws.com/role-arn."""

    @field_validator("annotations")
    @classmethod
    def _of_our_own(cls, annotations: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if annotations and info.data.get("name"):
            raise wrong("annotations for the account that the operator makes, or the name of one of yours")
        return annotations


class DriverSpec(Section):
    cores: Annotated[int, whole(1, 64)] = 1
    """CPU of the container."""
    memory: Annotated[Bytes, size("512Mi", "1Ti")] = 2 << 30
    """Memory limit of the container; the heap size follows from it."""
    template: _Template = Field(default={})
    """A PodTemplateSpec for everything else the pods need: node selectors, tolerations, labels, volumes."""


class Executor(Section):
    instances: Annotated[int, whole(1, 1000)] = 2
    """Number of executor pods."""
    cores: Annotated[int, whole(1, 64)] = 2
    """CPU of each container, and how many tasks it runs at a time."""
    memory: Annotated[Bytes, size("512Mi", "1Ti")] = 4 << 30
    """Memory limit of each container; the heap size follows from it."""
    template: _Template = Field(default={})
    """A PodTemplateSpec for everything else the pods need: node selectors, tolerations, labels, volumes."""

    @property
    def slots(self) -> int:
        """Tasks that can run at the same time."""
        return self.instances * self.cores


class RestartSpec(Section):
    nonce: Annotated[int, whole(0, (1 << 31) - 1)]
    """Change this number to rewind once. Leaving it in the spec afterwards has no effect."""
    from_ts: Ts
    """The ts to rewind to, at or below the checkpoint. The upstream must still have the history since then."""


def _or_default(section: str, field: str, default: int) -> str:
    """CEL: the field's value as we read it."""
    return f"(has(self.{section}) && has(self.{section}.{field}) ? self.{section}.{field} : {default})"


class Spark(Section):
    """The SparkApplication; on a laptop `executor` says how many local cores are taken, and the rest nothing."""

    model_config = ruled(
        rule(
            f"{_or_default('executor', 'instances', Executor().instances)} * "
            f"{_or_default('executor', 'cores', Executor().cores)} > "
            f"{_or_default('pullers', 'count', Pullers().count)}",
            "executor.instances x executor.cores above pullers.count: each puller occupies one permanently",
        )
    )

    image: Annotated[str, text("[!-~]*", "an image such as registry/changefeed-spark:1.0", 1024)] = ""
    """Image of the data plane. Empty: the operator's default."""
    pullers: Pullers = Pullers()
    """The tasks that pull changes from the upstream."""
    driver: DriverSpec = DriverSpec()
    """The driver's pod."""
    executor: Annotated[Executor, Field(validate_default=True)] = Executor()
    """The executors' pods."""
    service_account: ServiceAccount = ServiceAccount()
    """The ServiceAccount that the changefeed's pods run as."""

    @field_validator("executor")
    @classmethod
    def _slots_beside_the_pullers(cls, executor: Executor, info: ValidationInfo) -> Executor:
        pullers: Pullers | None = info.data.get("pullers")
        if pullers and executor.slots <= pullers.count:
            raise wrong(
                f"instances x cores above pullers.count ({pullers.count}): each puller occupies one permanently"
            )
        return executor


_NO_START = "none with upstream.postgresql: its history begins with the slot, which the first start makes"
_ONE_PULLER = "pullers.count 1 with upstream.postgresql: a slot has one reader"
_NO_CHECKSUMS = "integrity.level None with upstream.postgresql: its rows carry no checksums"


def _spec_rules() -> Iterator[JsonDict]:
    yield apart()
    yield merges_where_it_can()
    copied = [f"(has({root}.initialCopy) && {root}.initialCopy)" for root in ("self", "oldSelf")]
    yield rule(
        f"{copied[0]} == {copied[1]}",
        "the initialCopy that it was created with; to copy tables, or not to, create another Changefeed",
    )
    both = "has(self.targetTs) && has(self.startTs)"
    rewound = "has(self.targetTs) && has(self.restart)"
    yield rule(
        f"!({rewound}) || {later_than('self.targetTs', 'self.restart.fromTs')}", "a targetTs above restart.fromTs"
    )
    yield rule(f"!({both}) || {later_than('self.targetTs', 'self.startTs')}", "a targetTs above startTs")
    fixed_paths = (("startTs", "start elsewhere"), ("state.uri", "keep it elsewhere"), ("state.id", "use another"))
    for path, where in fixed_paths:
        now, before = cel_at("self", path), cel_at("oldSelf", path)
        yield rule(
            f"{now} == {before}",
            f"the {path} that it was created with, or none as then; to {where}, create another Changefeed",
        )
    counted = "has(self.spark) && has(self.spark.pullers) && has(self.spark.pullers.count)"
    for refused, allowed in (
        ("has(self.startTs)", _NO_START),
        (f"{counted} && self.spark.pullers.count != 1", _ONE_PULLER),
        (f"{cel_at('self', 'integrity.level')} == 'Correctness'", _NO_CHECKSUMS),
    ):
        yield rule(f"!has(self.upstream.postgresql) || !({refused})", allowed)


class Spec(Section):
    model_config = ruled(*_spec_rules())

    paused: Flag = False
    """Drain, then run nothing until this is set to false."""
    restart_nonce: Annotated[int, whole(0, (1 << 31) - 1)] = 0
    """Change this number to drain and restart once, from the checkpoint."""
    restart: RestartSpec | None = None
    """
    Rewind: drain, go back to a ts, and write everything after it again. Files go to a new folder next to the sink:
    `<uri>-gen-2`, then `-gen-3` and so on. Earlier folders are left unchanged.
    """
    mode: Annotated[str, one_of("Throughput", "LowLatency")] = "Throughput"
    """LowLatency writes smaller files sooner: `flushInterval` is capped at 100ms."""
    upstream: UpstreamSpec
    """The TiKV/TiDB cluster or PostgreSQL database to capture changes from."""
    start_ts: Annotated[Ts | None, fixed(FROM_CREATION)] = None
    """Capture changes after this ts. Unset: from the moment the changefeed first starts, as always with PostgreSQL."""
    initial_copy: Annotated[Flag, fixed(FROM_CREATION)] = False
    """
    Write the rows that exist at startTs as inserts before any changes. A table that `filter` selects later is copied as
    of that moment. A rewind starts with a copy as well.
    """
    target_ts: Ts | None = None
    """Finish once everything up to this ts is written."""
    time_zone: Annotated[str, text(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*", "a time zone such as UTC", 64)] = "UTC"
    """Time zone in which TIMESTAMP values are written."""
    filter: Filter = Filter()
    """Which tables to capture, and which of their changes."""
    routes: Annotated[
        tuple[Route, ...], many(0, 32, "at most 32 routes"), Field(exclude_if=lambda given: not given)
    ] = ()
    """
    Under which names tables are written; the first route that fits a table decides (docs/routes.md). Once a table is
    written, its name stays.
    """
    columns: Annotated[
        tuple[ColumnAction, ...], many(0, 32, "at most 32 entries"), Field(exclude_if=lambda given: not given)
    ] = ()
    """
    Which columns are dropped, renamed and masked before anything leaves the changefeed (docs/columns.md). Of the
    entries for a column the first that renames it gives its name, and the first of the others what is in it. Once a
    table is written, its columns stay so.
    """
    integrity: Integrity = Integrity()
    """Verification of TiDB's row checksums."""
    state: StateSpec = StateSpec()
    """Where the changefeed keeps its own state."""
    event_store: EventStore = EventStore()
    """The event store between puller and sink."""
    sink: SinkSpec
    """Where changes are written: exactly one kind of sink."""
    lag_threshold: Annotated[Seconds, duration("1s", "24h"), live("the driver")] = 60.0
    """The condition WithinLag is False while the checkpoint lags by more than this."""
    drain_timeout: Annotated[Seconds, duration("1s", "1h"), live("the driver")] = 60.0
    """How long a pause, an edit or a shutdown waits for planned files to be written."""
    deletion_policy: Annotated[str, one_of("Close", "Retain"), live("the operator")] = "Close"
    """
    What deleting the resource does. Close: end the log, release the hold on the upstream's history and delete stored
    events; deletion waits for this, for up to an hour. Retain: leave everything outside the cluster untouched.
    """
    spark: Annotated[Spark, Field(validate_default=True)] = Spark()
    """The SparkApplication: image, tasks, pods. On a laptop, `executor` sets how many local cores are used."""

    @property
    def matchers(self) -> dict[str, tuple[str, ...]]:
        """Return by field the rules by which an option is for some of the selected tables."""
        of_filters = {
            f"spec.filter.eventFilters[{n}].matcher": e.matcher for n, e in enumerate(self.filter.event_filters)
        }
        of_routes = {f"spec.routes[{n}].match": route.match for n, route in enumerate(self.routes)}
        of_columns = {f"spec.columns[{n}].match": action.match for n, action in enumerate(self.columns)}
        return (
            of_filters
            | of_routes
            | of_columns
            | {f"spec.sink.{field}": rules for field, rules in self.sink.section.matchers().items()}
        )

    @field_validator("routes")
    @classmethod
    def _to_different_tables(cls, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        check_apart(routes)
        return routes

    @model_validator(mode="after")
    def _merges_where_it_can(self) -> Spec:
        mysql = self.sink.mysql
        if any(route.merge for route in self.routes) and (mysql is None or mysql.safe_mode):
            raise wrong(MERGES)
        return self

    @field_validator("start_ts")
    @classmethod
    def _from_where_history_begins(cls, start_ts: int | None, info: ValidationInfo) -> int | None:
        if start_ts is not None and _is_read_by_slot(info):
            raise wrong(_NO_START)
        return start_ts

    @field_validator("integrity")
    @classmethod
    def _where_rows_carry_checksums(cls, integrity: Integrity, info: ValidationInfo) -> Integrity:
        if integrity.level == "Correctness" and _is_read_by_slot(info):
            raise wrong(_NO_CHECKSUMS)
        return integrity

    @field_validator("spark")
    @classmethod
    def _one_reader_of_a_slot(cls, spark: Spark, info: ValidationInfo) -> Spark:
        if not _is_read_by_slot(info):
            return spark
        if "count" not in spark.pullers.model_fields_set:
            return spark.model_copy(update={"pullers": spark.pullers.model_copy(update={"count": 1})})
        if spark.pullers.count != 1:
            raise wrong(_ONE_PULLER)
        return spark

    @field_validator("target_ts")
    @classmethod
    def _after_start(cls, target_ts: int | None, info: ValidationInfo) -> int | None:
        start_ts: int | None = info.data.get("start_ts")
        if target_ts is not None and start_ts is not None and target_ts <= start_ts:
            raise wrong(f'a ts above startTs ("{start_ts}")')
        restart: RestartSpec | None = info.data.get("restart")
        if target_ts is not None and restart is not None and target_ts <= restart.from_ts:
            raise wrong(f'a ts above restart.fromTs ("{restart.from_ts}")')
        return target_ts


def _is_read_by_slot(info: ValidationInfo) -> bool:
    upstream: UpstreamSpec | None = info.data.get("upstream")
    return upstream is not None and upstream.postgresql is not None


class Changefeed(Section):
    """The whole resource; `status` is Kubernetes' copy and never read (rule 22)."""

    api_version: Annotated[str, one_of(API_VERSION)] = API_VERSION
    kind: Annotated[str, one_of(KIND)] = KIND
    metadata: Metadata
    spec: Spec
    status: Any = Field(default=None, exclude=True)

    @property
    def name(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def identity(self) -> str:
        """Name the owner of log, sink and hold on the upstream's history: spec.state.id, or the resource's uid."""
        return self.spec.state.id or self.metadata.uid

    @property
    def storage(self) -> Storage:
        """The sink, where it is files."""
        storage = self.spec.sink.storage
        assert storage is not None, f"the sink is {self.spec.sink.kind}"
        return storage
