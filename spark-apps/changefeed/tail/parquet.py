"""Rows of a Parquet file as text, which is what files of the other formats have."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pyarrow.parquet

from changefeed.reading.failures import Break

_META = ("_op", "_commit_ts")
_OLD = "_old"  # what an update changed


def read_rows(body: bytes, path: str) -> Iterator[tuple[int, str, dict[str, str | None]]]:
    """Gives commit ts, op and the cells by column; None: NULL. Raises Break that names the file."""
    try:
        with pyarrow.parquet.ParquetFile(pa.BufferReader(body)) as file:
            names = [name for name in file.schema_arrow.names if name not in (*_META, _OLD)]
            for batch in file.iter_batches(columns=[*_META, *names]):
                cells = [_shown(batch.column(name)) for name in names]
                for number, (op, commit_ts) in enumerate(zip(*map(batch.column, _META), strict=True)):
                    yield commit_ts.as_py(), op.as_py(), {n: of[number] for n, of in zip(names, cells, strict=True)}
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        raise Break(f"{path} can't be decoded: {str(error).strip().rstrip('.')}.") from None


def _shown(values: pa.Array) -> list[str | None]:
    """Bytes in base64, a TIMESTAMP in UTC."""
    if pa.types.is_binary(values.type):
        return [None if value is None else base64.b64encode(value).decode() for value in values.to_pylist()]
    if pa.types.is_decimal(values.type):  # Arrow writes small ones with an exponent
        return pl.Series(pl.from_arrow(values)).cast(pl.String).to_list()
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us"))
    shown: list[str | None] = values.cast(pa.string()).to_pylist()
    return shown
