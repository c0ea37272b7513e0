"""A data file's rows, whatever its protocol and compression."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from changefeed.reading.failures import Break
from changefeed.reading.rows import lines, parquet
from changefeed.reading.rows.formats import Format
from changefeed.reading.rows.lines import LineShape


def read_rows(body: bytes, path: str, shape: LineShape, fmt: Format, old: bool = False) -> Iterator[pa.Table]:
    """In pieces: op, table, schema (text), commit_ts (u64), c0..cn. Raises Break that names the file.

    `old`: also has_old and o0..on, what a row was before an update, where the file has all of it.
    """
    if fmt.protocol == "parquet":
        return parquet.read_rows(body, path, shape, old)
    return lines.read_lines(_plain(body, path, fmt), path, shape, fmt, old)


def lowest_ts(body: bytes, path: str, fmt: Format) -> int | None:
    """The lowest commit ts of a file's rows, whatever its table; None: it has none. Raises Break that names it."""
    if fmt.protocol == "parquet":
        return parquet.lowest_ts(body, path)
    return lines.lowest_ts(_plain(body, path, fmt), path, fmt)


def _plain(body: bytes, path: str, fmt: Format) -> bytes:
    if fmt.compression == "none":
        return body
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), fmt.compression) as stream:
            return bytes(stream.read())
    except (OSError, pa.ArrowInvalid) as error:
        raise Break(f"{path} can't be decompressed ({fmt.compression}): {str(error).strip().rstrip('.')}.") from None
