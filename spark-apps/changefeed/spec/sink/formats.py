"""The options of the formats that rows are written in."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from changefeed.spec.field.fields import Flag, one_of, text
from changefeed.spec.field.kind import rule, wrong
from changefeed.spec.field.section import Section, ruled

_APART = "1 to 3 characters, without the quote"
_QUOTE = "(has(self.quote) ? self.quote : '\"')"


class Csv(Section):
    """TiCDC's csv options (docs/sink-files.md, csv)."""

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


class CanalJsonSpec(Section):
    """TiCDC's options that canal-json in storage has (docs/sink-files.md, canal-json)."""

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
