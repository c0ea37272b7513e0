"""Where the changes go: the kinds of sink, of which a changefeed has one (INTERFACES.md, The resource)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict

from changefeed.spec.field.fields import (
    Bytes,
    Flag,
    Location,
    Seconds,
    Warehouse,
    duration,
    many,
    one_of,
    server,
    server_of,
    size,
    text,
    whole,
)
from changefeed.spec.field.kind import RULES, Kind, cel_text, fixed, rule, wrong
from changefeed.spec.field.section import FROM_CREATION, Credentials, Section, SinkTls, ruled
from changefeed.spec.filter.filters import ColumnSelector, Rule

_KINDS = ("storage", "iceberg", "mysql", "kafka", "blackhole")
_ONE_SINK = "exactly one sink, such as storage: {uri: ..., protocol: csv}"
_ELSEWHERE = "to write elsewhere, create another Changefeed"


_APART = "1 to 3 characters, without the quote"
_QUOTE = "(has(self.quote) ? self.quote : '\"')"


class Csv(Section):
    """TiCDC's csv options (facts/ticdc-compatibility.md 1.1, `[sink.csv]`)."""

    model_config = ruled(
        rule(
            f"{_QUOTE} == '' || !has(self.delimiter) || !self.delimiter.contains({_QUOTE})", f"a delimiter of {_APART}"
        ),
        rule(f"has(self.delimiter) || {_QUOTE} != ','", f"a delimiter of {_APART}"),
    )

    quote: Annotated[str, text(r"[^\r\n]?", "one character, or none", 1)] = '"'
    """Character that quotes text."""
    delimiter: Annotated[str, text(r"[^\r\n]{1,3}", _APART, 3), Field(validate_default=True)] = ","
    """Separator between fields."""
    null: Annotated[str, text(r"[^\r\n]*", "text without a line break, of at most 256 characters", 256)] = "\\N"
    """How NULL is written."""
    include_commit_ts: Flag = False
    """Include each row's commit ts."""
    binary_encoding_method: Annotated[str, one_of("base64", "hex")] = "base64"
    """Encoding of binary values."""
    output_old_value: Flag = False
    """Write an update as two lines: the old row, then the new one."""
    output_field_header: Flag = False
    """Start each file with a line of column names."""

    @field_validator("delimiter")
    @classmethod
    def _apart(cls, delimiter: str, info: ValidationInfo) -> str:
        quote = info.data.get("quote", '"')
        if quote and quote in delimiter:
            raise wrong(_APART)
        return delimiter


class CanalJson(Section):
    """TiCDC's options that canal-json in storage has (facts/ticdc-compatibility.md 1.1, 2.8)."""

    enable_tidb_extension: Flag = False
    """Add `_tidb` with the row's commit ts."""
    content_compatible: Flag = False
    """Write full column types in mysqlType."""
    only_output_updated_columns: Flag = False
    """Limit `old` to the columns that an update changed."""
    delete_only_output_handle_key_columns: Flag = False
    """Write only the key columns of a deleted row."""


class Parquet(Section):
    """Options of parquet files."""

    old_values: Flag = False
    """Add a column `_old` with the row before an update."""
    compression: Annotated[str, one_of("zstd", "snappy", "none")] = "zstd"
    """Compression of pages within the files."""


_Options = Csv | CanalJson | Parquet
_PROTOCOLS: dict[type[_Options], str] = {Csv: "csv", CanalJson: "canal-json", Parquet: "parquet"}
_COMPRESSION = "none with protocol: parquet, whose files are compressed inside: see parquet.compression"


def _only_defaults(section: str, options: BaseModel) -> str:
    """CEL: `section` says nothing that its defaults don't say."""
    named = {f"{section}.{_cel_name(name)}": value for name, value in options.model_dump(by_alias=True).items()}
    return " && ".join([f"(!has({path}) || {path} == {cel_text(value)})" for path, value in named.items()])


def _cel_name(field: str) -> str:
    """CEL keeps some words for itself; the API server renames such fields."""
    return f"__{field}__" if field == "null" else field


def _options_of(section: str, options: BaseModel, protocol: str) -> JsonDict:
    return rule(
        f"self.protocol == '{protocol}' || !has(self.{section}) || ({_only_defaults(f'self.{section}', options)})",
        _other_options(protocol),
    )


def _other_options(protocol: str) -> str:
    return f"none of its options, which have a meaning for protocol: {protocol} only"


_DAYS = "0 unless dateSeparator: day, as files expire by the day of their folder"
_NAMED_COLUMNS = "none with protocol: csv, unless csv.outputFieldHeader: true says which columns a file has"
_DATABASE = "the name of a database, of letters, digits, _ and $"


def _stays(what: str) -> Kind:
    return Kind(None, {RULES: [rule("self == oldSelf", f"the {what} that it was created with; {_ELSEWHERE}")]})


_STAYS = _stays("uri")


def _as_created(field: str, default: str) -> JsonDict:
    """The rule of a section whose optional field stays; `default`: in CEL."""
    now, before = (f"(has({each}.{field}) ? {each}.{field} : {default})" for each in ("self", "oldSelf"))
    return rule(f"{now} == {before}", f"the {field} that it was created with; {_ELSEWHERE}")


#: Of storage: they decide which names a reader looks for, from one file to the next. Their defaults, in CEL.
_OF_NAMES = {"protocol": "''", "compression": "'none'", "fileIndexWidth": "20", "useTableIdAsPath": "false"}


class Storage(Section):
    """TiCDC's layout on an object store."""

    model_config = ruled(
        _options_of("csv", Csv(), "csv"),
        _options_of("canalJson", CanalJson(), "canal-json"),
        _options_of("parquet", Parquet(), "parquet"),
        rule(
            "self.protocol != 'parquet' || !has(self.compression) || self.compression == 'none'",
            _COMPRESSION,
        ),
        rule(
            "self.protocol != 'csv' || !has(self.columnSelectors) || size(self.columnSelectors) == 0 "
            "|| (has(self.csv) && has(self.csv.outputFieldHeader) && self.csv.outputFieldHeader)",
            _NAMED_COLUMNS,
        ),
        rule(
            "!has(self.fileExpirationDays) || self.fileExpirationDays == 0 || !has(self.dateSeparator) "
            "|| self.dateSeparator == 'day'",
            _DAYS,
        ),
        *(_as_created(field, default) for field, default in _OF_NAMES.items()),
    )

    uri: Annotated[Location, _STAYS, fixed(FROM_CREATION)]
    """Root folder of the files."""
    protocol: Annotated[str, one_of("csv", "canal-json", "parquet"), fixed(FROM_CREATION)]
    """File format."""
    flush_interval: Annotated[Seconds, duration("100ms", "10m")] = 5.0
    """Longest time a change waits before its file is written."""
    file_size: Annotated[Bytes, size("1Mi", "512Mi")] = 64 << 20
    """Approximate size at which a file is written. Transactions are never split."""
    date_separator: Annotated[str, one_of("none", "year", "month", "day")] = "day"
    """Granularity of the date folder above the files."""
    file_expiration_days: Annotated[int, whole(0, 36_500)] = 0
    """
    Delete files this many days after the day of their folder, counted back from the checkpoint; schema files stay.
    Verify and restore need all files. 0: keep files forever.
    """
    use_table_id_as_path: Annotated[Flag, fixed(FROM_CREATION)] = False
    """
    Name the folders of tables and partitions by their TiDB ids instead of their names. No files are written about
    databases as a whole.
    """
    file_index_width: Annotated[int, whole(6, 20), fixed(FROM_CREATION)] = 20
    """Number of digits in a file's number."""
    compression: Annotated[str, one_of("none", "gzip", "zstd"), fixed(FROM_CREATION)] = "none"
    """Compression of csv and canal-json files; their names then end in .gz or .zst."""
    terminator: Annotated[str, text(r"\r?\n", r'"\r\n" or "\n", in double quotes', 2)] = "\r\n"
    """Line terminator."""
    output_raw_change_event: Flag = False
    """Write an update of a primary or unique key as one update instead of a delete and an insert."""
    csv: Csv = Csv()
    """Options for protocol: csv."""
    canal_json: CanalJson = CanalJson()
    """Options for protocol: canal-json."""
    parquet: Parquet = Parquet()
    """Options for protocol: parquet."""
    column_selectors: Annotated[tuple[ColumnSelector, ...], many(0, 16, "at most 16 column selectors")] = ()
    """
    Which columns to write. The first selector that matches a table applies; if none matches, all columns are written.
    """
    credentials: Credentials | None = None
    """Credentials to write with."""

    @field_validator("column_selectors")
    @classmethod
    def _named(cls, selectors: tuple[ColumnSelector, ...], info: ValidationInfo) -> tuple[ColumnSelector, ...]:
        csv: Csv | None = info.data.get("csv")
        if selectors and info.data.get("protocol") == "csv" and csv and not csv.output_field_header:
            raise wrong(_NAMED_COLUMNS)
        return selectors

    @field_validator("file_expiration_days")
    @classmethod
    def _by_day(cls, days: int, info: ValidationInfo) -> int:
        if days and info.data.get("date_separator", "day") != "day":
            raise wrong(_DAYS)
        return days

    @field_validator("compression")
    @classmethod
    def _of_text(cls, compression: str, info: ValidationInfo) -> str:
        if info.data.get("protocol") == "parquet" and compression != "none":
            raise wrong(_COMPRESSION)
        return compression

    @field_validator("csv", "canal_json", "parquet")
    @classmethod
    def _of_the_protocol(cls, options: _Options, info: ValidationInfo) -> _Options:
        owner = _PROTOCOLS[type(options)]
        if info.data.get("protocol", owner) != owner and options != type(options)():
            raise wrong(_other_options(owner))
        return options


class Mysql(Section):
    """A MySQL, MariaDB or TiDB server to apply changes to. Its tables must exist as they were at startTs."""

    uri: Annotated[str, server("mysql", "mysql://host:port"), _STAYS, fixed(FROM_CREATION)]
    """Address of the server."""
    worker_count: Annotated[int, whole(1, 256)] = 16
    """Connections that each task writes rows through concurrently."""
    max_txn_row: Annotated[int, whole(1, 16_384)] = 256
    """Rows per downstream transaction, unless upstream transactions must stay whole."""
    transaction_atomicity: Annotated[str, one_of("none", "table")] = "none"
    """table: everything that an upstream transaction changed in one table is committed together."""
    safe_mode: Flag = False
    """Write rows with REPLACE and DELETE only, for a downstream that already has rows with the same keys."""
    progress_database: Annotated[str, text(r"[A-Za-z0-9_$]{0,64}", _DATABASE, 64)] = "changefeed"
    """
    Database for the bookkeeping tables that make writes exactly-once and fence off replaced drivers. Empty: no such
    tables; after a failure rows are written again with REPLACE and DELETE, and a replaced driver that is still alive is
    not fenced.
    """
    enable_sync_point: Flag = False
    """
    Periodically bring all tables to the same ts and record it in tidb_cdc.syncpoint_v1, as TiCDC does. At that moment
    the downstream equals the upstream as of that ts.
    """
    sync_point_interval: Annotated[Seconds, duration("1s", "24h")] = 600.0
    """Time between syncpoints. All tables wait for each one."""
    sync_point_retention: Annotated[Seconds, duration("1h", "8760h")] = 86_400.0
    """How long rows in tidb_cdc.syncpoint_v1 are kept."""
    tls: SinkTls | None = None
    """TLS to the server."""
    credentials: Credentials | None = None
    """Credentials to write with."""


_CATALOGS = ("http", "https", "mysql", "postgresql", "sqlite")
_CATALOG_ALLOWED = (
    "https://host:port/path, postgresql://host:port/database, mysql://host:port/database or sqlite:///path"
)


class IcebergCatalog(Section):
    """The catalog that the tables stand in."""

    uri: Annotated[str, server_of(_CATALOGS, _CATALOG_ALLOWED), _STAYS, fixed(FROM_CREATION)]
    """A REST catalog (http or https), or a database used as a JDBC catalog."""
    name: Annotated[str, text(r"[A-Za-z0-9_.\-]*", "letters, digits and _ . -", 255)] = ""
    """
    REST: the warehouse to ask the catalog for. Database: the catalog name under which tables are registered; readers
    use the same one. Empty: changefeed.
    """
    credentials: Credentials | None = None
    """Database: username, password. REST: token, or credential (id:secret)."""


class Iceberg(Section):
    """Tables of Apache Iceberg, one for each table of the upstream."""

    warehouse: Annotated[Warehouse, _stays("warehouse"), fixed(FROM_CREATION)]
    """Root folder of the tables' files."""
    catalog: IcebergCatalog
    """Where readers find the tables."""
    mode: Annotated[str, one_of("append", "upsert"), _stays("mode"), fixed(FROM_CREATION)] = "append"
    """append: each table is a changelog of all changes. upsert: each table mirrors the upstream's current rows."""
    namespace_prefix: Annotated[
        str, text("[A-Za-z0-9_]*", "letters, digits and _", 64), _stays("namespacePrefix"), fixed(FROM_CREATION)
    ] = ""
    """Prefix added to a database's name to form its namespace."""
    flush_interval: Annotated[Seconds, duration("100ms", "1h")] = 60.0
    """Longest time a change waits before it is committed. Every commit adds a snapshot and a file."""
    file_size: Annotated[Bytes, size("1Mi", "512Mi")] = 64 << 20
    """Approximate size at which a file is written. Transactions are never split."""
    credentials: Credentials | None = None
    """Credentials to write to the warehouse."""

    @property
    def uri(self) -> str:
        """Where the changes go."""
        return self.warehouse


_TOPIC = r"[A-Za-z0-9._\-]*(?:\{schema\})?(?:[A-Za-z0-9._\-]*\{table\})?[A-Za-z0-9._\-]*"
_TOPIC_ALLOWED = "[prefix]{schema}[middle]{table}[suffix], of letters, digits and . _ -"


class Dispatcher(Section):
    """Where the messages of the tables that `matcher` selects go. The first one that fits a table decides."""

    matcher: Annotated[tuple[Rule, ...], many(1, 64, "1 to 64 rules")]
    """Tables this applies to, in the syntax of `filter.rules`."""
    topic: Annotated[str, text(_TOPIC, _TOPIC_ALLOWED, 249)] = ""
    """Topic for each table, such as `{schema}_{table}`. Empty: the topic in the uri."""
    partition: Annotated[str, one_of("table", "index-value", "columns", "ts")] = "table"
    """What determines a row's partition: its table, the values of an index or of columns, or its commit ts."""
    index: Annotated[str, text(r"[^`]*", "the name of an index", 64)] = ""
    """Index for index-value. Empty: the primary key, or a unique key that can stand in for it."""
    columns: Annotated[tuple[Annotated[str, text(r"[^`]+", "a column's name", 64)], ...], many(0, 64, "64 names")] = ()
    """Columns for partition: columns."""


class LargeMessages(Section):
    """What becomes of a row whose message is larger than maxMessageBytes."""

    option: Annotated[str, one_of("none", "handle-key-only", "claim-check")] = "none"
    """none: stop the changefeed. handle-key-only: send only the row's key. claim-check: put the message in a store."""
    claim_check_uri: Annotated[Location | None, Field()] = None
    """Store for claim-check, written with the environment's own credentials."""


_NEEDS_STORE = "claimCheckUri for option: claim-check"


class Kafka(Section):
    """Topics of a Kafka cluster."""

    uri: Annotated[str, server("kafka", "kafka://host:port/topic"), _STAYS, fixed(FROM_CREATION)]
    """Brokers, separated by commas, and the default topic."""
    protocol: Annotated[str, one_of("canal-json", "open-protocol", "simple", "debezium", "avro")]
    """Message format."""
    delivery: Annotated[str, one_of("at-least-once", "exactly-once")] = "at-least-once"
    """exactly-once uses Kafka transactions; consumers need isolation.level=read_committed."""
    partition_num: Annotated[int, whole(1, 1_000)] = 3
    """Partitions of the topics that the changefeed creates."""
    replication_factor: Annotated[int, whole(1, 16)] = 1
    """Replicas of the topics that the changefeed creates."""
    max_message_bytes: Annotated[Bytes, size("1Ki", "1Gi")] = 10 << 20
    """Largest message to send; see largeMessages for larger ones. The topic's max.message.bytes must allow it."""
    compression: Annotated[str, one_of("none", "gzip", "snappy", "lz4", "zstd")] = "none"
    """Compression of message batches."""
    dispatchers: Annotated[tuple[Dispatcher, ...], many(0, 64, "at most 64 dispatchers")] = ()
    """Topics and partitions by table. If none matches: the default topic, partitioned by table."""
    large_messages: LargeMessages = LargeMessages()
    """What to do about rows that are too large for a message."""
    canal_json: CanalJson = CanalJson()
    """Options for protocol: canal-json. Resolved-ts messages are only sent with enableTidbExtension."""
    schema_registry: Annotated[str | None, text(r"https?://[^@\s]+", "http://host:port", 1024)] = None
    """Confluent-compatible schema registry, for protocol: avro."""
    output_raw_change_event: Flag = False
    """Write an update of a primary or unique key as one update instead of a delete and an insert."""
    cloud_events: Flag = False
    """Add CloudEvents headers to each message (binary content mode). Costs one client call per message."""
    sasl_mechanism: Annotated[str, one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")] = "PLAIN"
    """SASL mechanism for the credentials' user."""
    tls: SinkTls | None = None
    """TLS to the brokers."""
    credentials: Credentials | None = None
    """Credentials to write with."""

    @field_validator("large_messages")
    @classmethod
    def _with_a_store(cls, large: LargeMessages) -> LargeMessages:
        if large.option == "claim-check" and large.claim_check_uri is None:
            raise wrong(_NEEDS_STORE)
        return large


class Blackhole(Section):
    """Counts the changes and drops them."""


def _sink_rules() -> Iterator[JsonDict]:
    given = " + ".join(f"(has(self.{kind}) ? 1 : 0)" for kind in _KINDS)
    yield rule(f"{given} == 1", _ONE_SINK)
    same = " && ".join(f"has(self.{kind}) == has(oldSelf.{kind})" for kind in _KINDS)
    yield rule(same, f"the kind of sink that it was created with; {_ELSEWHERE}")


class Sink(Section):
    """Exactly one of its members."""

    model_config = ruled(*_sink_rules())

    iceberg: Iceberg | None = None
    """Tables of Apache Iceberg."""
    mysql: Mysql | None = None
    """A MySQL, MariaDB or TiDB server."""
    kafka: Kafka | None = None
    """Topics of a Kafka cluster."""
    blackhole: Blackhole | None = None
    """Discards changes after counting them."""
    storage: Annotated[Storage | None, Field(validate_default=True)] = None
    """Files on an object store, in TiCDC's layout."""

    @field_validator("storage")
    @classmethod
    def _exactly_one(cls, storage: Storage | None, info: ValidationInfo) -> Storage | None:
        others = [info.data[kind] for kind in _KINDS if kind in info.data]  # one that is not is reported already
        if len(others) == len(_KINDS) - 1 and sum(each is not None for each in (*others, storage)) != 1:
            raise wrong(_ONE_SINK)
        return storage

    @property
    def kind(self) -> str:
        """Which one it is."""
        return next(kind for kind in _KINDS if getattr(self, kind) is not None)

    @property
    def has_ids_for_paths(self) -> bool:
        """Whether folders are named by tables' ids."""
        return self.storage is not None and self.storage.use_table_id_as_path

    @property
    def names(self) -> dict[str, str]:
        """By field: the options that decide files' names, which stay as they were; none of other sinks."""
        options = self.storage.model_dump(by_alias=True, mode="json") if self.storage else {}
        return {f"spec.sink.storage.{field}": str(options[field]).lower() for field in _OF_NAMES if options}

    @property
    def expiration_days(self) -> int:
        """How long files are kept; 0: forever."""
        return self.storage.file_expiration_days if self.storage else 0

    @property
    def syncpoint_interval_s(self) -> float | None:
        """None: no syncpoints are asked for."""
        return self.mysql.sync_point_interval if self.mysql is not None and self.mysql.enable_sync_point else None

    @property
    def uri(self) -> str:
        """Where the changes go."""
        return str(getattr(getattr(self, self.kind), "uri", f"{self.kind}://"))


def sink_of(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The kind of sink that an effective resource has, and its options."""
    (kind, options), *_ = config["spec"]["sink"].items()
    return kind, options
