"""Fragments of statements that cover many rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.sink.mysql.rows.changes import Rows
from changefeed.sink.mysql.rows.literals import Parts, identifier, joined

_STATEMENT_BYTES = 1 << 20
CONDITIONS = 999  # of a statement: MariaDB makes a subquery of a longer IN


def conditions(handle: Sequence[str], values: Mapping[str, pa.Array]) -> tuple[bytes, bytes, bytes, pa.BinaryArray]:
    """What tells rows by some columns, of which `values` has the literals: before them, between them, behind them, and
    one for each row with a separator at its end.

    Some servers use no index for rows of values in an IN, so it stands for a single column only.
    """
    if len(handle) == 1:
        (name,) = handle
        return identifier(name) + b" IN (", b",", b")", joined([values[name], b","])
    equal = [[identifier(name) + b"=", values[name]] for name in handle]
    each: list[bytes | pa.Array] = [b"("]
    for number, pair in enumerate(equal):
        each += [b" AND ", *pair] if number else pair
    return b"", b" OR ", b"", joined([*each, b") OR "])


def between(separator: bytes, values: Sequence[Parts]) -> Parts:
    return [part for parts in values for part in (separator, *parts)][1:]


def offsets(values: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Bytes of all values before each, and of all."""
    bounds = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return bounds.astype(np.int64)


def parts(rows: Rows, bounds: Rows, most: int | None = None) -> list[Rows]:
    """For a statement each: of at most so many rows, and of one, or of few bytes."""
    if not len(rows):
        return []
    most = most or len(rows)
    sizes = bounds[rows + 1] - bounds[rows]
    if len(rows) <= most and sizes.sum() <= _STATEMENT_BYTES:
        return [rows]
    by_size, by_count = (sizes.cumsum() - sizes) // _STATEMENT_BYTES, np.arange(len(rows)) // most
    return np.split(rows, np.flatnonzero(np.diff(by_size) | np.diff(by_count)) + 1)


def text(values: pa.BinaryArray, rows: Rows, separator: bytes) -> bytes:
    """Those of `rows`, at least one, one after another, without the last one's separator."""
    follow = (np.diff(rows) == 1).all()  # then they are in one piece
    taken = values.slice(rows[0], len(rows)) if follow else values.take(pa.array(rows))
    begin, end = np.frombuffer(taken.buffers()[1], np.int32)[[taken.offset, taken.offset + len(taken)]].tolist()
    joined_rows: bytes = taken.buffers()[2].slice(begin, end - begin - len(separator)).to_pybytes()
    return joined_rows
