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
    """Character around text."""
    delimiter: Annotated[str, text(r"[^\r\n]{1,3}", _APART, 3), Field(validate_default=True)] = ","
    """Characters between two fields."""
    null: Annotated[str, text(r"[^\r\n]*", "text without a line break, of at most 256 characters", 256)] = "\\N"
    """What stands for NULL."""
    include_commit_ts: Flag = False
    """Write each row's commit ts."""
    binary_encoding_method: Annotated[str, one_of("base64", "hex")] = "base64"
    """How bytes become text."""
    output_old_value: Flag = False
    """Write an update as two lines, the old row and the new one."""
    output_field_header: Flag = False
    """Write the columns' names as a file's first line."""

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
    """Write `_tidb` with each row's commit ts."""
    content_compatible: Flag = False
    """Write the whole type of a column into mysqlType."""
    only_output_updated_columns: Flag = False
    """Write into `old` only what an update changed."""
    delete_only_output_handle_key_columns: Flag = False
    """Write only the key of a deleted row."""


class Parquet(Section):
    """Options of parquet files."""

    old_values: Flag = False
    """Write a column `_old` with the row before an update."""
    compression: Annotated[str, one_of("zstd", "snappy", "none")] = "zstd"
    """Of the files' pages."""


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
        *(_as_created(field, default) for field, default in _OF_NAMES.items()),
    )

    uri: Annotated[Location, _STAYS, fixed(FROM_CREATION)]
    """Root of the files."""
    protocol: Annotated[str, one_of("csv", "canal-json", "parquet"), fixed(FROM_CREATION)]
    """Format of the files."""
    flush_interval: Annotated[Seconds, duration("100ms", "10m")] = 5.0
    """A file is written at the latest this long after its first change."""
    file_size: Annotated[Bytes, size("1Mi", "512Mi")] = 64 << 20
    """A file is written when it has about this size; a transaction is never split."""
    date_separator: Annotated[str, one_of("none", "year", "month", "day")] = "day"
    """Part of the date that is a folder above the files."""
    use_table_id_as_path: Annotated[Flag, fixed(FROM_CREATION)] = False
    """
    Name the folder of a table, and of a partition, by its id in TiDB instead of by its name. Nothing is written of a
    database as a whole.
    """
    file_index_width: Annotated[int, whole(6, 20), fixed(FROM_CREATION)] = 20
    """Digits of a file's number."""
    compression: Annotated[str, one_of("none", "gzip", "zstd"), fixed(FROM_CREATION)] = "none"
    """Of csv and canal-json files, whose names end with .gz or .zst then."""
    terminator: Annotated[str, text(r"\r?\n", r'"\r\n" or "\n", in double quotes', 2)] = "\r\n"
    """End of a line."""
    output_raw_change_event: Flag = False
    """Leave an update of a primary or unique key one update, instead of a delete and an insert."""
    csv: Csv = Csv()
    """Options of protocol csv."""
    canal_json: CanalJson = CanalJson()
    """Options of protocol canal-json."""
    parquet: Parquet = Parquet()
    """Options of protocol parquet."""
    column_selectors: Annotated[tuple[ColumnSelector, ...], many(0, 16, "at most 16 column selectors")] = ()
    """Which columns are written; the first selector that a table's name fits decides. None fits: all of them."""
    credentials: Credentials | None = None
    """Who writes there."""

    @field_validator("column_selectors")
    @classmethod
    def _named(cls, selectors: tuple[ColumnSelector, ...], info: ValidationInfo) -> tuple[ColumnSelector, ...]:
        csv: Csv | None = info.data.get("csv")
        if selectors and info.data.get("protocol") == "csv" and csv and not csv.output_field_header:
            raise wrong(_NAMED_COLUMNS)
        return selectors

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
    """A MySQL, MariaDB or TiDB that the changes are applied to. Its tables must be there, as they were at startTs."""

    uri: Annotated[str, server("mysql", "mysql://host:port"), _STAYS, fixed(FROM_CREATION)]
    """The server."""
    worker_count: Annotated[int, whole(1, 256)] = 16
    """Connections of a task that write rows at the same time."""
    max_txn_row: Annotated[int, whole(1, 16_384)] = 256
    """Rows that are written in one transaction, if no transaction of the upstream must stay whole."""
    transaction_atomicity: Annotated[str, one_of("none", "table")] = "none"
    """table: what a transaction of the upstream has changed in a table is committed at once."""
    safe_mode: Flag = False
    """Write rows by REPLACE and DELETE only, for a downstream that has rows of its own with the same keys."""
    progress_database: Annotated[str, text(r"[A-Za-z0-9_$]{0,64}", _DATABASE, 64)] = "changefeed"
    """
    Where our own two tables are, by which each row counts once. Empty: there are none; after a failure rows are written
    again, by REPLACE and DELETE, and nothing keeps out a driver that has been given up but lives.
    """
    enable_sync_point: Flag = False
    """
    Now and then have all tables written to the same ts, and say so in the table tidb_cdc.syncpoint_v1, as TiCDC does:
    the downstream is then as the upstream was at that ts.
    """
    sync_point_interval: Annotated[Seconds, duration("1s", "24h")] = 600.0
    """Time between two of them. Each is waited for by all tables."""
    sync_point_retention: Annotated[Seconds, duration("1h", "8760h")] = 86_400.0
    """How long their rows are kept."""
    tls: SinkTls | None = None
    """TLS towards it."""
    credentials: Credentials | None = None
    """Who writes there."""


_CATALOGS = ("http", "https", "mysql", "postgresql", "sqlite")
_CATALOG_ALLOWED = (
    "https://host:port/path, postgresql://host:port/database, mysql://host:port/database or sqlite:///path"
)


class IcebergCatalog(Section):
    """The catalog that the tables stand in."""

    uri: Annotated[str, server_of(_CATALOGS, _CATALOG_ALLOWED), _STAYS, fixed(FROM_CREATION)]
    """http(s): a REST catalog. All else: a database that is one, as Iceberg's JDBC catalog."""
    name: Annotated[str, text(r"[A-Za-z0-9_.\-]*", "letters, digits and _ . -", 255)] = ""
    """
    REST: the warehouse that the catalog is asked for. Of a database: the name under which the tables stand there;
    readers use the same one. Empty: changefeed.
    """
    credentials: Credentials | None = None
    """Of a database: username, password. REST: token, or credential (id:secret)."""


class Iceberg(Section):
    """Tables of Apache Iceberg, one for each table of the upstream."""

    warehouse: Annotated[Warehouse, _stays("warehouse"), fixed(FROM_CREATION)]
    """Root of the tables' files."""
    catalog: IcebergCatalog
    """Where readers find the tables."""
    mode: Annotated[str, one_of("append", "upsert"), _stays("mode"), fixed(FROM_CREATION)] = "append"
    """append: a table has all changes, one after the other. upsert: it has the rows that the upstream's has now."""
    namespace_prefix: Annotated[
        str, text("[A-Za-z0-9_]*", "letters, digits and _", 64), _stays("namespacePrefix"), fixed(FROM_CREATION)
    ] = ""
    """What stands before a database's name in the name of its namespace."""
    flush_interval: Annotated[Seconds, duration("100ms", "1h")] = 60.0
    """Changes are in their table at the latest this long after they came. Each time makes a snapshot and a file."""
    file_size: Annotated[Bytes, size("1Mi", "512Mi")] = 64 << 20
    """A file is written when it has about this size; a transaction is never split."""
    credentials: Credentials | None = None
    """Who writes into the warehouse."""

    @property
    def uri(self) -> str:
        """Where the changes go."""
        return self.warehouse


_TOPIC = r"[A-Za-z0-9._\-]*(?:\{schema\})?(?:[A-Za-z0-9._\-]*\{table\})?[A-Za-z0-9._\-]*"
_TOPIC_ALLOWED = "[prefix]{schema}[middle]{table}[suffix], of letters, digits and . _ -"


class Dispatcher(Section):
    """Where the messages of the tables that `matcher` selects go. The first one that fits a table decides."""

    matcher: Annotated[tuple[Rule, ...], many(1, 64, "1 to 64 rules")]
    """Tables it is about, in the syntax of `filter.rules`."""
    topic: Annotated[str, text(_TOPIC, _TOPIC_ALLOWED, 249)] = ""
    """Topic of a table, such as `{schema}_{table}`. Empty: that of the uri."""
    partition: Annotated[str, one_of("table", "index-value", "columns", "ts")] = "table"
    """What decides the partition of a row: its table, the values of an index or of columns, or its commit ts."""
    index: Annotated[str, text(r"[^`]*", "the name of an index", 64)] = ""
    """Of index-value. Empty: the primary key, or a unique one that is as good."""
    columns: Annotated[tuple[Annotated[str, text(r"[^`]+", "a column's name", 64)], ...], many(0, 64, "64 names")] = ()
    """Of columns."""


class LargeMessages(Section):
    """What becomes of a row whose message is larger than maxMessageBytes."""

    option: Annotated[str, one_of("none", "handle-key-only", "claim-check")] = "none"
    """none: the changefeed stops. handle-key-only: only its key is sent. claim-check: it is kept in a store."""
    claim_check_uri: Annotated[Location | None, Field()] = None
    """The store of claim-check. Who writes there: the environment's own credentials."""


_NEEDS_STORE = "claimCheckUri for option: claim-check"


class Kafka(Section):
    """Topics of a Kafka cluster."""

    uri: Annotated[str, server("kafka", "kafka://host:port/topic"), _STAYS, fixed(FROM_CREATION)]
    """Brokers, with commas between, and the default topic."""
    protocol: Annotated[str, one_of("canal-json", "open-protocol", "simple", "debezium", "avro")]
    """Format of the messages."""
    delivery: Annotated[str, one_of("at-least-once", "exactly-once")] = "at-least-once"
    """exactly-once: by transactions, for consumers with isolation.level=read_committed."""
    partition_num: Annotated[int, whole(1, 1_000)] = 3
    """Partitions of a topic that is made here."""
    replication_factor: Annotated[int, whole(1, 16)] = 1
    """Replicas of a topic that is made here."""
    max_message_bytes: Annotated[Bytes, size("1Ki", "1Gi")] = 10 << 20
    """A larger message is not sent; see largeMessages. The topic's own max.message.bytes must allow it."""
    compression: Annotated[str, one_of("none", "gzip", "snappy", "lz4", "zstd")] = "none"
    """Of batches of messages."""
    dispatchers: Annotated[tuple[Dispatcher, ...], many(0, 64, "at most 64 dispatchers")] = ()
    """Topics and partitions of tables. None fits: the default topic, a partition for each table."""
    large_messages: LargeMessages = LargeMessages()
    """Rows that are too large for a message."""
    canal_json: CanalJson = CanalJson()
    """Options of protocol canal-json. Without enableTidbExtension there are no messages of the resolved-ts."""
    schema_registry: Annotated[str | None, text(r"https?://[^@\s]+", "http://host:port", 1024)] = None
    """Confluent's registry, or one like it, for protocol avro."""
    output_raw_change_event: Flag = False
    """Leave an update of a primary or unique key one update, instead of a delete and an insert."""
    cloud_events: Flag = False
    """Give each message the headers of a CloudEvent (binary content mode). It takes a call of the client each."""
    sasl_mechanism: Annotated[str, one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")] = "PLAIN"
    """How the user of the credentials is authenticated."""
    tls: SinkTls | None = None
    """TLS towards the brokers."""
    credentials: Credentials | None = None
    """Who writes there."""

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
    """A MySQL or TiDB."""
    kafka: Kafka | None = None
    """Kafka."""
    blackhole: Blackhole | None = None
    """Nothing: changes are counted and dropped."""
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
