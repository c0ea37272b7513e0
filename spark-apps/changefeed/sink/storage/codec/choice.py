"""The codec that a changefeed's config names, in one form for all of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.records import Records
from changefeed.sink.storage.codec import csv, parquet
from changefeed.sink.storage.codec.csv import CsvFormat
from changefeed.sink.storage.codec.encoder import Compressed, FileEncoder, Lines
from changefeed.sink.storage.codec.parquet import ParquetFile, ParquetFormat
from changefeed.sink.text import canal_json
from changefeed.sink.text.canal_json import CanalJsonFormat


class FileCodec(Protocol):
    """Records to a file's bytes, in format and library versions that the fingerprint names (rule 10)."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def halve_updates(self) -> bool:
        """Whether an update is to come as two records."""
        ...

    @property
    def with_old(self) -> bool:
        """Whether an update is to come with the row before it."""
        ...

    @property
    def in_utc(self) -> bool:
        """Whether TIMESTAMP is to come in UTC, whatever the time zone of the changefeed."""
        ...

    def open(self, table: TableInfo, columns: Sequence[ColumnInfo], pd_ms: int) -> FileEncoder:
        """Return the encoder of a file of these columns of the table; `pd_ms` is the plan's "now".

        Raises NeedsHuman for columns that the format can't have.
        """
        ...


@dataclass(frozen=True)
class CsvCodec:
    fmt: CsvFormat
    with_old: bool = False
    in_utc: bool = False

    @property
    def fingerprint(self) -> str:
        return csv.fingerprint()

    @property
    def halve_updates(self) -> bool:
        return self.fmt.output_old_value

    def open(self, table: TableInfo, columns: Sequence[ColumnInfo], pd_ms: int) -> FileEncoder:
        return Lines(csv.header([column.name for column in columns], self.fmt), self._encode)

    def _encode(self, records: Records) -> Iterator[pa.Buffer]:
        yield csv.encode(records, self.fmt)


@dataclass(frozen=True)
class CanalJsonCodec:
    fmt: CanalJsonFormat
    with_old: bool = True
    halve_updates: bool = False
    in_utc: bool = False

    @property
    def fingerprint(self) -> str:
        return canal_json.fingerprint()

    def open(self, table: TableInfo, columns: Sequence[ColumnInfo], pd_ms: int) -> FileEncoder:
        return Lines(b"", lambda records: canal_json.encode(records, pd_ms, self.fmt))


@dataclass(frozen=True)
class ParquetCodec:
    fmt: ParquetFormat
    halve_updates: bool = False
    in_utc: bool = True

    @property
    def fingerprint(self) -> str:
        return parquet.fingerprint()

    @property
    def with_old(self) -> bool:
        return self.fmt.old_values

    def open(self, table: TableInfo, columns: Sequence[ColumnInfo], pd_ms: int) -> FileEncoder:
        return ParquetFile(table, columns, self.fmt)


@dataclass(frozen=True)
class CompressedCodec:
    text: FileCodec
    compression: str

    @property
    def fingerprint(self) -> str:
        library = f"zlib-{zlib.ZLIB_RUNTIME_VERSION}" if self.compression == "gzip" else f"pyarrow-{pa.__version__}"
        return f"{self.text.fingerprint} {self.compression} {library}"

    @property
    def halve_updates(self) -> bool:
        return self.text.halve_updates

    @property
    def with_old(self) -> bool:
        return self.text.with_old

    @property
    def in_utc(self) -> bool:
        return self.text.in_utc

    def open(self, table: TableInfo, columns: Sequence[ColumnInfo], pd_ms: int) -> FileEncoder:
        return Compressed(self.text.open(table, columns, pd_ms), self.compression)


def file_codec(storage: Mapping[str, Any]) -> FileCodec:
    """For `sink.storage` of the effective spec (its JSON, every member there; older ones know no compression)."""
    if storage["protocol"] == "parquet":
        return ParquetCodec(ParquetFormat.from_config(storage))
    is_csv = storage["protocol"] == "csv"
    text = CsvCodec(CsvFormat.from_config(storage)) if is_csv else CanalJsonCodec(CanalJsonFormat.from_config(storage))
    compression = storage.get("compression", "none")
    return text if compression == "none" else CompressedCodec(text, compression)
