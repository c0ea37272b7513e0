from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Position(_message.Message):
    __slots__ = ("commit_ts", "start_ts", "op", "key")
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    commit_ts: int
    start_ts: int
    op: int
    key: bytes
    def __init__(self, commit_ts: _Optional[int] = ..., start_ts: _Optional[int] = ..., op: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class CurvePoint(_message.Message):
    __slots__ = ("position", "bytes")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    position: Position
    bytes: int
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., bytes: _Optional[int] = ...) -> None: ...

class SegmentSpan(_message.Message):
    __slots__ = ("span_id", "sub_id", "rows", "bytes", "min", "max", "first_batch", "end_batch", "curve")
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    SUB_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    FIRST_BATCH_FIELD_NUMBER: _ClassVar[int]
    END_BATCH_FIELD_NUMBER: _ClassVar[int]
    CURVE_FIELD_NUMBER: _ClassVar[int]
    span_id: int
    sub_id: int
    rows: int
    bytes: int
    min: Position
    max: Position
    first_batch: int
    end_batch: int
    curve: _containers.RepeatedCompositeFieldContainer[CurvePoint]
    def __init__(self, span_id: _Optional[int] = ..., sub_id: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., min: _Optional[_Union[Position, _Mapping]] = ..., max: _Optional[_Union[Position, _Mapping]] = ..., first_batch: _Optional[int] = ..., end_batch: _Optional[int] = ..., curve: _Optional[_Iterable[_Union[CurvePoint, _Mapping]]] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("pid", "file", "token", "index", "generation", "offset", "host", "address")
    PID_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    file: int
    token: str
    index: int
    generation: int
    offset: int
    host: str
    address: str
    def __init__(self, pid: _Optional[int] = ..., file: _Optional[int] = ..., token: _Optional[str] = ..., index: _Optional[int] = ..., generation: _Optional[int] = ..., offset: _Optional[int] = ..., host: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class SegmentMeta(_message.Message):
    __slots__ = ("uri", "seq", "bytes", "spans", "host", "slot")
    URI_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    uri: str
    seq: int
    bytes: int
    spans: _containers.RepeatedCompositeFieldContainer[SegmentSpan]
    host: str
    slot: Slot
    def __init__(self, uri: _Optional[str] = ..., seq: _Optional[int] = ..., bytes: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[SegmentSpan, _Mapping]]] = ..., host: _Optional[str] = ..., slot: _Optional[_Union[Slot, _Mapping]] = ...) -> None: ...

class Archived(_message.Message):
    __slots__ = ("segment", "uri")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    segment: int
    uri: str
    def __init__(self, segment: _Optional[int] = ..., uri: _Optional[str] = ...) -> None: ...

class Resolved(_message.Message):
    __slots__ = ("sub_id", "ts", "first_segment", "last_segment")
    SUB_ID_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    sub_id: int
    ts: int
    first_segment: int
    last_segment: int
    def __init__(self, sub_id: _Optional[int] = ..., ts: _Optional[int] = ..., first_segment: _Optional[int] = ..., last_segment: _Optional[int] = ...) -> None: ...

class MetricDelta(_message.Message):
    __slots__ = ("name", "label", "value", "gauge")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    GAUGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    label: str
    value: float
    gauge: bool
    def __init__(self, name: _Optional[str] = ..., label: _Optional[str] = ..., value: _Optional[float] = ..., gauge: _Optional[bool] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("sub_id", "reason", "message", "next_step", "answered")
    SUB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    sub_id: int
    reason: str
    message: str
    next_step: str
    answered: bool
    def __init__(self, sub_id: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., next_step: _Optional[str] = ..., answered: _Optional[bool] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("puller", "resolved", "segments", "metrics", "failures", "trouble", "answered", "task", "archived", "blocked", "stopped", "news")
    PULLER_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    NEWS_FIELD_NUMBER: _ClassVar[int]
    puller: int
    resolved: _containers.RepeatedCompositeFieldContainer[Resolved]
    segments: _containers.RepeatedCompositeFieldContainer[SegmentMeta]
    metrics: _containers.RepeatedCompositeFieldContainer[MetricDelta]
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    trouble: str
    answered: bool
    task: int
    archived: _containers.RepeatedCompositeFieldContainer[Archived]
    blocked: Blocked
    stopped: Stopped
    news: _containers.RepeatedCompositeFieldContainer[SchemaNews]
    def __init__(self, puller: _Optional[int] = ..., resolved: _Optional[_Iterable[_Union[Resolved, _Mapping]]] = ..., segments: _Optional[_Iterable[_Union[SegmentMeta, _Mapping]]] = ..., metrics: _Optional[_Iterable[_Union[MetricDelta, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., trouble: _Optional[str] = ..., answered: _Optional[bool] = ..., task: _Optional[int] = ..., archived: _Optional[_Iterable[_Union[Archived, _Mapping]]] = ..., blocked: _Optional[_Union[Blocked, _Mapping]] = ..., stopped: _Optional[_Union[Stopped, _Mapping]] = ..., news: _Optional[_Iterable[_Union[SchemaNews, _Mapping]]] = ...) -> None: ...

class SchemaNews(_message.Message):
    __slots__ = ("ts", "content")
    TS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    ts: int
    content: bytes
    def __init__(self, ts: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class Blocked(_message.Message):
    __slots__ = ("span_id", "start_ts", "ttl_ms")
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    span_id: int
    start_ts: int
    ttl_ms: int
    def __init__(self, span_id: _Optional[int] = ..., start_ts: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class Stopped(_message.Message):
    __slots__ = ("store_id", "reason", "message")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    store_id: int
    reason: str
    message: str
    def __init__(self, store_id: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("sub_id", "span_id", "start_key", "end_key", "start_ts", "copy", "reached_ts")
    SUB_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    REACHED_TS_FIELD_NUMBER: _ClassVar[int]
    sub_id: int
    span_id: int
    start_key: bytes
    end_key: bytes
    start_ts: int
    copy: Copy
    reached_ts: int
    def __init__(self, sub_id: _Optional[int] = ..., span_id: _Optional[int] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., start_ts: _Optional[int] = ..., copy: _Optional[_Union[Copy, _Mapping]] = ..., reached_ts: _Optional[int] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("from_ts", "bounds")
    FROM_TS_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    from_ts: int
    bounds: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, from_ts: _Optional[int] = ..., bounds: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("sub_id",)
    SUB_ID_FIELD_NUMBER: _ClassVar[int]
    sub_id: int
    def __init__(self, sub_id: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heard(_message.Message):
    __slots__ = ("segment",)
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    segment: int
    def __init__(self, segment: _Optional[int] = ...) -> None: ...

class Free(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, segments: _Optional[_Iterable[int]] = ...) -> None: ...

class Archive(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, segments: _Optional[_Iterable[int]] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Command(_message.Message):
    __slots__ = ("subscribe", "release", "drain", "heard", "end", "free", "archive")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    subscribe: Subscribe
    release: Release
    drain: Drain
    heard: Heard
    end: End
    free: Free
    archive: Archive
    def __init__(self, subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., heard: _Optional[_Union[Heard, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., free: _Optional[_Union[Free, _Mapping]] = ..., archive: _Optional[_Union[Archive, _Mapping]] = ...) -> None: ...

class FileDone(_message.Message):
    __slots__ = ("plan", "entry", "rows", "bytes", "hash", "raw_rows", "filtered_rows")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    RAW_ROWS_FIELD_NUMBER: _ClassVar[int]
    FILTERED_ROWS_FIELD_NUMBER: _ClassVar[int]
    plan: int
    entry: int
    rows: int
    bytes: int
    hash: str
    raw_rows: int
    filtered_rows: int
    def __init__(self, plan: _Optional[int] = ..., entry: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., hash: _Optional[str] = ..., raw_rows: _Optional[int] = ..., filtered_rows: _Optional[int] = ...) -> None: ...

class GivenBack(_message.Message):
    __slots__ = ("plan", "entry", "segment")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    plan: int
    entry: int
    segment: str
    def __init__(self, plan: _Optional[int] = ..., entry: _Optional[int] = ..., segment: _Optional[str] = ...) -> None: ...

class Written(_message.Message):
    __slots__ = ("task", "files", "metrics", "attempt", "given_back")
    TASK_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GIVEN_BACK_FIELD_NUMBER: _ClassVar[int]
    task: int
    files: _containers.RepeatedCompositeFieldContainer[FileDone]
    metrics: _containers.RepeatedCompositeFieldContainer[MetricDelta]
    attempt: int
    given_back: _containers.RepeatedCompositeFieldContainer[GivenBack]
    def __init__(self, task: _Optional[int] = ..., files: _Optional[_Iterable[_Union[FileDone, _Mapping]]] = ..., metrics: _Optional[_Iterable[_Union[MetricDelta, _Mapping]]] = ..., attempt: _Optional[int] = ..., given_back: _Optional[_Iterable[_Union[GivenBack, _Mapping]]] = ...) -> None: ...

class Write(_message.Message):
    __slots__ = ("work",)
    WORK_FIELD_NUMBER: _ClassVar[int]
    work: bytes
    def __init__(self, work: _Optional[bytes] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("puller",)
    PULLER_FIELD_NUMBER: _ClassVar[int]
    puller: int
    def __init__(self, puller: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("write", "pull", "end")
    WRITE_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    write: Write
    pull: Pull
    end: End
    def __init__(self, write: _Optional[_Union[Write, _Mapping]] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
