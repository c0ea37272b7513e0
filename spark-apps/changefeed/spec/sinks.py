"""Where the changes go: the kinds of sink, of which a changefeed has one (INTERFACES.md, The resource)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict

from changefeed.spec.field.fields import (
    Bytes,
    Flag,
    Location,
    Seconds,
    duration,
    many,
    not_yet,
    one_of,
    server,
    size,
    text,
    whole,
)
from changefeed.spec.field.kind import RULES, Kind, cel_text, fixed, rule, wrong
from changefeed.spec.field.section import FROM_CREATION, Credentials, Section, Tls, ruled
from changefeed.spec.filter.filters import ColumnSelector

_KINDS = ("storage", "mysql", "kafka", "blackhole")
_ONE_SINK = "exactly one sink; storage: {uri: ..., protocol: csv} for now"
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
_STAYS = Kind(None, {RULES: [rule("self == oldSelf", f"the uri that it was created with; {_ELSEWHERE}")]})


class Storage(Section):
    """TiCDC's layout on an object store."""

    model_config = ruled(
        _options_of("csv", Csv(), "csv"),
        _options_of("canalJson", CanalJson(), "canal-json"),
        rule(
            "self.protocol != 'csv' || !has(self.columnSelectors) || size(self.columnSelectors) == 0 "
            "|| (has(self.csv) && has(self.csv.outputFieldHeader) && self.csv.outputFieldHeader)",
            _NAMED_COLUMNS,
        ),
    )

    uri: Annotated[Location, _STAYS, fixed(FROM_CREATION)]
    """Root of the files."""
    protocol: Annotated[str, one_of("csv", "canal-json", later=("parquet",))]
    """Format of the files."""
    flush_interval: Annotated[Seconds, duration("100ms", "10m")] = 5.0
    """A file is written at the latest this long after its first change."""
    file_size: Annotated[Bytes, size("1Mi", "512Mi")] = 64 << 20
    """A file is written when it has about this size; a transaction is never split."""
    date_separator: Annotated[str, one_of("none", "year", "month", "day")] = "day"
    """Part of the date that is a folder above the files."""
    file_index_width: Annotated[int, whole(6, 20)] = 20
    """Digits of a file's number."""
    terminator: Annotated[str, text(r"\r?\n", r'"\r\n" or "\n", in double quotes', 2)] = "\r\n"
    """End of a line."""
    output_raw_change_event: Flag = False
    """Leave an update of a primary or unique key one update, instead of a delete and an insert."""
    csv: Csv = Csv()
    """Options of protocol csv."""
    canal_json: CanalJson = CanalJson()
    """Options of protocol canal-json."""
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

    @field_validator("csv", "canal_json")
    @classmethod
    def _of_the_protocol(cls, options: Csv | CanalJson, info: ValidationInfo) -> Csv | CanalJson:
        owner = "csv" if isinstance(options, Csv) else "canal-json"
        if info.data.get("protocol", owner) != owner and options != type(options)():
            raise wrong(_other_options(owner))
        return options


class Mysql(Section):
    """A MySQL or TiDB that the changes are applied to."""

    uri: Annotated[str, server("mysql", "mysql://host:port"), _STAYS, fixed(FROM_CREATION)]
    """The server."""
    tls: Tls | None = None
    """TLS towards it."""
    credentials: Credentials | None = None
    """Who writes there."""


class Kafka(Section):
    """A Kafka topic."""

    uri: Annotated[str, server("kafka", "kafka://host:port/topic"), _STAYS, fixed(FROM_CREATION)]
    """Broker and topic."""
    protocol: Annotated[str, one_of("canal-json", "open-protocol")]
    """Format of the messages."""
    tls: Tls | None = None
    """TLS towards it."""
    credentials: Credentials | None = None
    """Who writes there."""


class Blackhole(Section):
    """Counts the changes and drops them."""


def _sink_rules() -> Iterator[JsonDict]:
    given = " + ".join(f"(has(self.{kind}) ? 1 : 0)" for kind in _KINDS)
    yield rule(f"{given} == 1", _ONE_SINK)
    same = " && ".join(f"has(self.{kind}) == has(oldSelf.{kind})" for kind in _KINDS)
    yield rule(same, f"the kind of sink that it was created with; {_ELSEWHERE}")


_OTHER_SINK = not_yet("storage", lambda value: value is None)


class Sink(Section):
    """Exactly one of its members."""

    model_config = ruled(*_sink_rules())

    mysql: Annotated[Mysql | None, _OTHER_SINK] = None
    """A MySQL or TiDB."""
    kafka: Annotated[Kafka | None, _OTHER_SINK] = None
    """Kafka."""
    blackhole: Annotated[Blackhole | None, _OTHER_SINK] = None
    """Nothing: changes are counted and dropped."""
    storage: Annotated[Storage | None, Field(validate_default=True)] = None
    """Files on an object store, in TiCDC's layout."""

    @field_validator("storage")
    @classmethod
    def _exactly_one(cls, storage: Storage | None, info: ValidationInfo) -> Storage | None:
        others = {"mysql", "kafka", "blackhole"}
        if storage is None and others <= info.data.keys():  # else one of them was given, and reported already
            raise wrong(_ONE_SINK)
        return storage
