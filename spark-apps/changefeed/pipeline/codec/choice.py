"""The codec that a changefeed's config names, in one form for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from changefeed.pipeline.codec import canal_json, csv
from changefeed.pipeline.codec.canal_json import CanalJsonFormat
from changefeed.pipeline.codec.csv import CsvFormat
from changefeed.pipeline.mounter import Records
from changefeed.schema.table_info import ColumnInfo


class Codec(Protocol):
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

    def header(self, columns: Sequence[ColumnInfo]) -> bytes:
        """What a file of these columns begins with, even one without rows."""
        ...

    def encode(self, records: Records, pd_ms: int) -> Iterator[pa.Buffer]:
        """The bytes of `records`, in order; `pd_ms` is the plan's "now"."""
        ...


@dataclass(frozen=True)
class CsvCodec:
    fmt: CsvFormat
    with_old: bool = False

    @property
    def fingerprint(self) -> str:
        return csv.fingerprint()

    @property
    def halve_updates(self) -> bool:
        return self.fmt.output_old_value

    def header(self, columns: Sequence[ColumnInfo]) -> bytes:
        return csv.header([column.name for column in columns], self.fmt)

    def encode(self, records: Records, pd_ms: int) -> Iterator[pa.Buffer]:
        yield csv.encode(records, self.fmt)


@dataclass(frozen=True)
class CanalJsonCodec:
    fmt: CanalJsonFormat
    with_old: bool = True
    halve_updates: bool = False

    @property
    def fingerprint(self) -> str:
        return canal_json.fingerprint()

    def header(self, columns: Sequence[ColumnInfo]) -> bytes:
        return b""

    def encode(self, records: Records, pd_ms: int) -> Iterator[pa.Buffer]:
        return canal_json.encode(records, pd_ms, self.fmt)


def codec_of(storage: Mapping[str, Any]) -> Codec:
    """For `sink.storage` of the effective spec (its JSON, every member there)."""
    if storage["protocol"] == "csv":
        return CsvCodec(CsvFormat.from_config(storage))
    return CanalJsonCodec(CanalJsonFormat.from_config(storage))
