"""Files on an object store."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ValidationInfo, field_validator
from pydantic.config import JsonDict

from changefeed.spec.field.fields import Bytes, Flag, Location, Seconds, duration, many, one_of, size, text, whole
from changefeed.spec.field.kind import cel_text, fixed, rule, wrong
from changefeed.spec.field.section import FROM_CREATION, Credentials, ruled
from changefeed.spec.filter.filters import ColumnSelector
from changefeed.spec.sink.formats import CanalJsonSpec, Csv, Parquet
from changefeed.spec.sink.section import SinkSection
from changefeed.spec.sink.staying import STAYS, as_created

_Options = Csv | CanalJsonSpec | Parquet
_PROTOCOLS: dict[type[_Options], str] = {Csv: "csv", CanalJsonSpec: "canal-json", Parquet: "parquet"}
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
#: Of storage: they decide which names a reader looks for, from one file to the next. Their defaults, in CEL.
OF_NAMES = {"protocol": "''", "compression": "'none'", "fileIndexWidth": "20", "useTableIdAsPath": "false"}


class Storage(SinkSection):
    """TiCDC's layout on an object store."""

    model_config = ruled(
        _options_of("csv", Csv(), "csv"),
        _options_of("canalJson", CanalJsonSpec(), "canal-json"),
        _options_of("parquet", Parquet(), "parquet"),
        rule("self.protocol != 'parquet' || !has(self.compression) || self.compression == 'none'", _COMPRESSION),
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
        *(as_created(field, default) for field, default in OF_NAMES.items()),
    )

    uri: Annotated[Location, STAYS, fixed(FROM_CREATION)]
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
    canal_json: CanalJsonSpec = CanalJsonSpec()
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

    def matchers(self) -> dict[str, tuple[str, ...]]:
        given = self.column_selectors
        return {f"storage.columnSelectors[{n}].matcher": selector.matcher for n, selector in enumerate(given)}

    def stores(self) -> tuple[str, ...]:
        return (self.uri,)

    def folders(self) -> tuple[tuple[str, str], ...]:
        return (("spec.sink.storage.uri", self.uri),)
