"""The Changefeed resource: what `kubectl apply` and `changefeed run -f` take (INTERFACES.md, The resource).

The one place of its fields, their defaults and what is allowed; the operator and the data plane share it. Does no I/O.
What a later version will take is refused here with a word about it: nothing is accepted and then ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel

from changefeed.spec.fields import (
    Bytes,
    ClusterId,
    Flag,
    Location,
    PdAddress,
    Seconds,
    Ts,
    duration,
    not_yet,
    one_of,
    size,
    text,
    whole,
    wrong,
)
from changefeed.spec.table_filter import BadRule, TableFilter

API_VERSION = "changefeed.dev/v1alpha1"
KIND = "Changefeed"

_DNS_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_ANY_TEXT = text(r"[\s\S]*", "text")


class _Section(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=False, extra="forbid", frozen=True)


class Metadata(_Section):
    """Kubernetes' own fields; those we don't need are left to it."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[
        str, text(rf"(?=.{{1,45}}\Z){_DNS_LABEL}", "1 to 45 characters: lower-case letters, digits, - inside")
    ]
    namespace: Annotated[str, text(rf"(?=.{{1,63}}\Z){_DNS_LABEL}", "a Kubernetes namespace")] = "default"
    uid: Annotated[str, text(r"[-0-9a-zA-Z]{1,63}", "the uid that Kubernetes gave")] = "local"


class SecretRef(_Section):
    name: Annotated[str, text(rf"(?=.{{1,253}}\Z){_DNS_LABEL}(?:\.{_DNS_LABEL})*", "the name of a Secret")]


class Credentials(_Section):
    secret_ref: SecretRef


class Upstream(_Section):
    pd_addresses: tuple[PdAddress, ...]
    cluster_id: ClusterId | None = None
    tls: Annotated[None, not_yet("none, for now", lambda value: value is None)] = None
    safepoint_ttl: Annotated[Seconds, duration("1m", "720h")] = 86_400.0

    @field_validator("pd_addresses")
    @classmethod
    def _few(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        if not 1 <= len(addresses) <= 16:
            raise wrong("1 to 16 addresses of PD")
        return addresses


def _rule(rule: str) -> str:
    try:
        TableFilter((rule,))
    except BadRule as e:
        raise wrong(f"a table-filter rule such as shop.* or !shop.tmp_*; {e}") from e
    return rule


class Filter(_Section):
    case_sensitive: Flag = False
    rules: tuple[Annotated[str, AfterValidator(_rule), _ANY_TEXT], ...] = ("*.*",)
    events: Annotated[tuple[Any, ...], not_yet("[]", lambda value: value in ([], ()))] = ()
    ignore_txn_start_ts: Annotated[tuple[Ts, ...], not_yet("[]", lambda value: value in ([], ()))] = ()

    @field_validator("rules")
    @classmethod
    def _some(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        if not rules:
            raise wrong('at least one rule; ["*.*"] selects every table')
        return rules

    def table_filter(self) -> TableFilter:
        return TableFilter(self.rules, self.case_sensitive)


class Integrity(_Section):
    level: Annotated[str, one_of("None", later=("Correctness",))] = "None"
    on_corruption: Annotated[str, one_of("Warn", "Error")] = "Warn"


class State(_Section):
    uri: Location | None = None  # None: the operator's, or a laptop's own
    credentials: Credentials | None = None


class EventStore(_Section):
    quota: Annotated[Bytes, size("64Mi", "16Ti")] = 20 << 30
    buffer_size: Annotated[Bytes, size("16Mi", "1Ti")] = 640 << 20


class Csv(_Section):
    """TiCDC's csv options (facts/ticdc-compatibility.md 1.1, `[sink.csv]`)."""

    quote: Annotated[str, text(r"[^\r\n]?", "one character, or none")] = '"'
    delimiter: Annotated[str, text(r"[^\r\n]{1,3}", "1 to 3 characters, without the quote")] = ","
    null: Annotated[str, text(r"[^\r\n]*", "text without a line break")] = "\\N"
    include_commit_ts: Flag = False
    binary_encoding_method: Annotated[str, one_of("base64", "hex")] = "base64"
    output_old_value: Flag = False
    output_field_header: Flag = False

    @field_validator("delimiter")
    @classmethod
    def _apart(cls, delimiter: str, info: ValidationInfo) -> str:
        quote = info.data.get("quote", '"')
        if quote and quote in delimiter:
            raise wrong("1 to 3 characters, without the quote")
        return delimiter


class CanalJson(_Section):
    """TiCDC's options that canal-json in storage has (facts/ticdc-compatibility.md 1.1, 2.8)."""

    enable_tidb_extension: Flag = False
    content_compatible: Flag = False
    only_output_updated_columns: Flag = False
    delete_only_output_handle_key_columns: Flag = False


class Storage(_Section):
    """TiCDC's layout on an object store; `uri` is its root."""

    uri: Location
    protocol: Annotated[str, one_of("csv", "canal-json", later=("parquet",))]
    flush_interval: Annotated[Seconds, duration("100ms", "10m")] = 5.0
    file_size: Annotated[Bytes, size("1Mi", "512Mi")] = 64 << 20
    date_separator: Annotated[str, one_of("none", "year", "month", "day")] = "day"
    file_index_width: Annotated[int, whole(6, 20)] = 20
    terminator: Annotated[str, text(r"\r?\n", r'"\r\n" or "\n", in double quotes')] = "\r\n"
    output_raw_change_event: Flag = False
    csv: Csv = Csv()
    canal_json: CanalJson = CanalJson()
    credentials: Credentials | None = None

    @field_validator("csv", "canal_json")
    @classmethod
    def _of_the_protocol(cls, options: Csv | CanalJson, info: ValidationInfo) -> Csv | CanalJson:
        owner = "csv" if isinstance(options, Csv) else "canal-json"
        if info.data.get("protocol", owner) != owner and options != type(options)():
            raise wrong(f"none of its options, which have a meaning for protocol: {owner} only")
        return options


_OTHER_SINK = not_yet("storage", lambda value: value is None)


class Sink(_Section):
    """Exactly one of its members; `storage` alone for now."""

    mysql: Annotated[None, _OTHER_SINK] = None
    kafka: Annotated[None, _OTHER_SINK] = None
    blackhole: Annotated[None, _OTHER_SINK] = None
    storage: Storage | None = Field(default=None, validate_default=True)

    @field_validator("storage")
    @classmethod
    def _exactly_one(cls, storage: Storage | None, info: ValidationInfo) -> Storage | None:
        others = {"mysql", "kafka", "blackhole"}
        if storage is None and others <= info.data.keys():  # else one of them was given, and reported already
            raise wrong("exactly one sink; storage: {uri: ..., protocol: csv} for now")
        return storage


class Pullers(_Section):
    count: Annotated[int, whole(1, 64)] = 2
    memory_quota: Annotated[Bytes, size("64Mi", "1Ti")] = 1 << 30


class Driver(_Section):
    cores: Annotated[int, whole(1, 64)] = 1
    memory: Annotated[Bytes, size("512Mi", "1Ti")] = 2 << 30
    template: dict[str, Any] = {}


class Executor(_Section):
    instances: Annotated[int, whole(1, 1000)] = 2
    cores: Annotated[int, whole(1, 64)] = 2
    memory: Annotated[Bytes, size("512Mi", "1Ti")] = 4 << 30
    template: dict[str, Any] = {}

    @property
    def slots(self) -> int:
        """Tasks that can run at the same time."""
        return self.instances * self.cores


class Spark(_Section):
    image: Annotated[str, _ANY_TEXT] = ""
    pullers: Pullers = Pullers()
    driver: Driver = Driver()
    executor: Executor = Field(default=Executor(), validate_default=True)

    @field_validator("executor")
    @classmethod
    def _slots_beside_the_pullers(cls, executor: Executor, info: ValidationInfo) -> Executor:
        pullers: Pullers | None = info.data.get("pullers")
        if pullers and executor.slots <= pullers.count:
            raise wrong(f"instances x cores above pullers.count ({pullers.count}): each puller holds one for ever")
        return executor


class Spec(_Section):
    paused: Flag = False
    restart_nonce: Annotated[int, whole(0, (1 << 31) - 1)] = 0
    mode: Annotated[str, one_of("Throughput", later=("LowLatency",))] = "Throughput"
    upstream: Upstream
    start_ts: Ts | None = None
    target_ts: Ts | None = None
    time_zone: Annotated[str, text(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*", "a time zone such as UTC")] = "UTC"
    filter: Filter = Filter()
    integrity: Integrity = Integrity()
    state: State = State()
    event_store: EventStore = EventStore()
    sink: Sink
    lag_threshold: Annotated[Seconds, duration("1s", "24h")] = 60.0
    drain_timeout: Annotated[Seconds, duration("1s", "1h")] = 60.0
    spark: Spark = Spark()

    @field_validator("target_ts")
    @classmethod
    def _after_start(cls, target_ts: int | None, info: ValidationInfo) -> int | None:
        start_ts: int | None = info.data.get("start_ts")
        if target_ts is not None and start_ts is not None and target_ts <= start_ts:
            raise wrong(f'a ts above startTs ("{start_ts}")')
        return target_ts


class Changefeed(_Section):
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
    def storage(self) -> Storage:
        """The sink: the only kind there is for now."""
        storage = self.spec.sink.storage
        assert storage is not None, "Sink refuses everything else"
        return storage
