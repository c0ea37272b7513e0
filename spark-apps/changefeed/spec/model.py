"""The Changefeed resource: what `kubectl apply` and `changefeed run -f` take (INTERFACES.md, The resource).

The one place of its fields, their defaults, what is allowed and what they mean; the operator, the data plane, the CRD
and the reference share it. Does no I/O. What a later version will take has its place here, and is refused with a word
about it: nothing is accepted and then ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict

from changefeed.spec.field.fields import (
    Bytes,
    ClusterId,
    Flag,
    Location,
    PdAddress,
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
from changefeed.spec.field.kind import Kind, fixed, rule, wrong
from changefeed.spec.field.section import DNS_LABEL, FROM_CREATION, Credentials, Section, Tls, ruled
from changefeed.spec.filter.filters import Filter
from changefeed.spec.names import API_VERSION, KIND
from changefeed.spec.sinks import Sink, Storage

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


_TLS_AND_HTTPS = "upstream.tls and https:// for all of pdAddresses, or neither"


class Upstream(Section):
    model_config = ruled(
        rule(
            "!has(oldSelf.clusterId) || (has(self.clusterId) && self.clusterId == oldSelf.clusterId)",
            "the clusterId that was set first; to follow another cluster, create another Changefeed",
        ),
        rule(
            "self.pdAddresses.all(address, address.startsWith(has(self.tls) ? 'https:' : 'http:'))",
            _TLS_AND_HTTPS,
        ),
    )

    pd_addresses: Annotated[tuple[PdAddress, ...], many(1, 16, "1 to 16 addresses of PD")]
    """PD of the upstream."""
    cluster_id: Annotated[ClusterId | None, fixed("once set")] = None
    """The upstream's cluster id; a PD that serves another one is refused. Unset: the one seen first."""
    tls: Annotated[Tls | None, Field(validate_default=True)] = None
    """TLS towards PD and TiKV, for `https://` addresses of PD. New connections use the files as they are then."""
    scan_rate: Annotated[Bytes | None, size("64Ki", "1Ti")] = None
    """Bytes a second that initial copies read, of all tables together. Unset: as fast as they can be written."""
    safepoint_ttl: Annotated[Seconds, duration("10m", "720h")] = 86_400.0
    """
    How long the upstream keeps history for this changefeed while nothing renews its hold. It is renewed at least three
    times as often; what remains is the time in which an outage costs nothing.
    """

    @field_validator("tls")
    @classmethod
    def _as_the_addresses_say(cls, tls: Tls | None, info: ValidationInfo) -> Tls | None:
        scheme = "https:" if tls else "http:"
        if not all(address.startswith(scheme) for address in info.data.get("pd_addresses", ())):
            raise wrong(_TLS_AND_HTTPS)
        return tls


class Integrity(Section):
    level: Annotated[str, one_of("None", "Correctness")] = "None"
    """Correctness: checks the checksum that TiDB keeps of each row."""
    on_corruption: Annotated[str, one_of("Warn", "Error")] = "Warn"
    """What a row with a wrong checksum does: a warning, or the changefeed stops."""


class State(Section):
    uri: Annotated[Location | None, fixed(FROM_CREATION)] = None  # None: the operator's, or a laptop's own
    """Where the log and the event archive are kept. Unset: the operator's place, or a folder of a laptop's user."""
    id: Annotated[Annotated[str, text(DNS_LABEL, STATE_ID, 63)] | None, fixed(FROM_CREATION)] = None
    """
    Name of the state: whichever Changefeed has it goes on from the same log and sink, so that one that was deleted and
    created anew, moved to another namespace or cluster, or restored loses nothing. One at a time. Unset: the uid.
    """
    credentials: Credentials | None = None
    """Who writes there."""


class EventStore(Section):
    quota: Annotated[Bytes, size("64Mi", "16Ti")] = 20 << 30
    """Disk that the events may take between puller and sink; above it, tables are held back and pulled again."""
    buffer_size: Annotated[Bytes, size("16Mi", "1Ti")] = 640 << 20
    """Memory of the newest events, of all pullers together, beside their memoryQuota. What finds no room there, or is
    needed for longer than five seconds, is written below the state's uri."""


class Pullers(Section):
    count: Annotated[int, whole(1, 64)] = 2
    """Spark tasks that pull; each holds a task slot for ever."""
    memory_quota: Annotated[Bytes, size("64Mi", "1Ti")] = 1 << 30
    """Memory of changes on their way through one puller."""


_TEMPLATE = Kind(None, {"additionalProperties": None, "x-kubernetes-preserve-unknown-fields": True})
_Template = Annotated[dict[str, Any], _TEMPLATE]


_ANNOTATIONS = Kind(None, {"maxProperties": 32})
_ACCOUNT = "[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?"


class ServiceAccount(Section):
    """The identity of the changefeed's pods, where a cloud gives rights by it (IRSA, GKE, Azure workload identity)."""

    model_config = ruled(
        rule(
            "!has(self.name) || !has(self.annotations) || size(self.annotations) == 0",
            "annotations for the account that the operator makes, or the name of one of yours",
        )
    )

    name: Annotated[str, text(_ACCOUNT, "the name of a ServiceAccount", 253)] | None = None
    """One of yours, which the operator binds to the driver's rights and does not change. Unset: one of its own."""
    annotations: Annotated[dict[str, str], _ANNOTATIONS] = Field(default={})
    """Of the one that the operator makes, such as eks.amazonaws.com/role-arn."""

    @field_validator("annotations")
    @classmethod
    def _of_our_own(cls, annotations: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if annotations and info.data.get("name"):
            raise wrong("annotations for the account that the operator makes, or the name of one of yours")
        return annotations


class Driver(Section):
    cores: Annotated[int, whole(1, 64)] = 1
    """CPU of its container."""
    memory: Annotated[Bytes, size("512Mi", "1Ti")] = 2 << 30
    """Memory limit of its container; the heap is derived from it."""
    template: _Template = Field(default={})
    """A PodTemplateSpec, for whatever a pod needs beside: node selector, tolerations, labels, volumes."""


class Executor(Section):
    instances: Annotated[int, whole(1, 1000)] = 2
    """Executor pods."""
    cores: Annotated[int, whole(1, 64)] = 2
    """CPU of a container, and tasks that run in it at the same time."""
    memory: Annotated[Bytes, size("512Mi", "1Ti")] = 4 << 30
    """Memory limit of a container; the heap is derived from it."""
    template: _Template = Field(default={})
    """A PodTemplateSpec, for whatever a pod needs beside: node selector, tolerations, labels, volumes."""

    @property
    def slots(self) -> int:
        """Tasks that can run at the same time."""
        return self.instances * self.cores


class Restart(Section):
    nonce: Annotated[int, whole(0, (1 << 31) - 1)]
    """Any other number than before: one rewind. It is done once; whether it stays in the spec then does not matter."""
    from_ts: Ts
    """The ts to go back to, at or below the checkpoint; the upstream must still have the history since then."""


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
            "executor.instances x executor.cores above pullers.count: each puller holds one for ever",
        )
    )

    image: Annotated[str, text("[!-~]*", "an image such as registry/changefeed-spark:1.0", 1024)] = ""
    """Image of the data plane. Empty: the operator's."""
    pullers: Pullers = Pullers()
    """The tasks that pull changes out of TiKV."""
    driver: Driver = Driver()
    """The driver's pod."""
    executor: Annotated[Executor, Field(validate_default=True)] = Executor()
    """The executors' pods."""
    service_account: ServiceAccount = ServiceAccount()
    """The account that the changefeed's pods run as."""

    @field_validator("executor")
    @classmethod
    def _slots_beside_the_pullers(cls, executor: Executor, info: ValidationInfo) -> Executor:
        pullers: Pullers | None = info.data.get("pullers")
        if pullers and executor.slots <= pullers.count:
            raise wrong(f"instances x cores above pullers.count ({pullers.count}): each puller holds one for ever")
        return executor


def _spec_rules() -> Iterator[JsonDict]:
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
        now, before = _if_set("self", path), _if_set("oldSelf", path)
        yield rule(
            f"{now} == {before}",
            f"the {path} that it was created with, or none as then; to {where}, create another Changefeed",
        )


def _if_set(root: str, path: str) -> str:
    """CEL: the text at `path`, or ''."""
    names = path.split(".")
    sections = [".".join([root, *names[: depth + 1]]) for depth in range(len(names))]
    return f"({' && '.join(f'has({section})' for section in sections)} ? {sections[-1]} : '')"


class Spec(Section):
    model_config = ruled(*_spec_rules())

    paused: Flag = False
    """Drain, then run nothing until this is false again."""
    restart_nonce: Annotated[int, whole(0, (1 << 31) - 1)] = 0
    """Any other number than before: one drain and restart, from the checkpoint."""
    restart: Restart | None = None
    """
    Rewind: drain, go back to a ts, and write everything after it again. The files go to a new folder beside the sink,
    `<uri>-gen-2`, then `-gen-3` and so on; what the folders before have stays as it is.
    """
    mode: Annotated[str, one_of("Throughput", "LowLatency")] = "Throughput"
    """LowLatency: changes reach the sink sooner, in smaller files: `flushInterval` is 200ms at most."""
    upstream: Upstream
    """The TiKV/TiDB cluster whose changes are followed."""
    start_ts: Annotated[Ts | None, fixed(FROM_CREATION)] = None
    """Changes after this ts. Unset: from the moment that the changefeed first starts."""
    initial_copy: Annotated[Flag, fixed(FROM_CREATION)] = False
    """
    The rows that stand in the tables at startTs are written before their changes, as inserts; of a table that `filter`
    selects later, those that stand there by then. A rewind begins with a copy, too.
    """
    target_ts: Ts | None = None
    """Finish when everything up to this ts is written."""
    time_zone: Annotated[str, text(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*", "a time zone such as UTC", 64)] = "UTC"
    """Time zone of TIMESTAMP values in the sink."""
    filter: Filter = Filter()
    """Which tables, and which of their changes."""
    integrity: Integrity = Integrity()
    """TiDB's row checksums."""
    state: State = State()
    """Where the changefeed keeps what it must remember."""
    event_store: EventStore = EventStore()
    """The store of events between puller and sink."""
    sink: Sink
    """Where the changes go: exactly one kind of sink."""
    lag_threshold: Annotated[Seconds, duration("1s", "24h")] = 60.0
    """The condition WithinLag is False while the checkpoint is further back than this."""
    drain_timeout: Annotated[Seconds, duration("1s", "1h")] = 60.0
    """How long a pause, an edit or a shutdown waits until what is planned is written."""
    deletion_policy: Annotated[str, one_of("Close", "Retain")] = "Close"
    """
    What deleting the resource does. Close: end the log, let the upstream clean up and delete the stored events; the
    deletion waits for it, an hour at most. Retain: nothing outside the cluster is touched.
    """
    spark: Spark = Spark()
    """The SparkApplication: image, tasks, pods. On a laptop `executor` says how many local cores are taken."""

    @field_validator("target_ts")
    @classmethod
    def _after_start(cls, target_ts: int | None, info: ValidationInfo) -> int | None:
        start_ts: int | None = info.data.get("start_ts")
        if target_ts is not None and start_ts is not None and target_ts <= start_ts:
            raise wrong(f'a ts above startTs ("{start_ts}")')
        restart: Restart | None = info.data.get("restart")
        if target_ts is not None and restart is not None and target_ts <= restart.from_ts:
            raise wrong(f'a ts above restart.fromTs ("{restart.from_ts}")')
        return target_ts


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
        """Whose the log, the sink and the hold on the upstream's history are: spec.state.id, or the resource's uid."""
        return self.spec.state.id or self.metadata.uid

    @property
    def storage(self) -> Storage:
        """The sink, where it is files."""
        storage = self.spec.sink.storage
        assert storage is not None, f"the sink is {self.spec.sink.kind}"
        return storage
