"""Text and bytes as TiCDC's JSON writer (Go's easyjson) puts them between quotes, for whole columns.

The result is always ASCII or valid UTF-8, whatever the cells hold: a reader never meets a broken line.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

_SHORT = {"\t": "\\t", "\r": "\\r", "\n": "\\n", "\\": "\\\\", '"': '\\"'}
_PLAIN_ESCAPES = {c: f"\\u{ord(c):04x}" for c in map(chr, range(0x20))} | _SHORT
# What means something in HTML or in JavaScript is escaped too.
_ESCAPES = {c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"} | _PLAIN_ESCAPES
# "surrogateescape" stands for each byte that is no UTF-8 by a surrogate, which valid text never has.
_BROKEN = {chr(0xDC00 + byte): "\\ufffd" for byte in range(0x80, 0x100)}


def _escapes(html: bool) -> dict[str, str]:
    return _ESCAPES if html else _PLAIN_ESCAPES


def _of_character(html: bool) -> dict[int, str]:
    return {ord(character): text for character, text in (_escapes(html) | _BROKEN).items()}


def json_string(text: str, *, html: bool = True) -> str:
    """A constant with its quotes."""
    return f'"{text.translate(_of_character(html))}"'


def escaped(values: pa.Array, *, is_text: bool, html: bool = True) -> pa.Array:
    """The inside of a JSON string for each cell, as pa.string(); NULL stays. `is_text`: or else bytes, in ISO 8859-1.
    `html`: Go's own writer, or else the one of jsoniter, which lets `<`, `>` and `&` stand.

    Text is pa.string(), or pa.binary() if some of its bytes are no UTF-8: each such byte becomes an escaped U+FFFD.
    """
    if is_text and pa.types.is_binary(values.type):
        return _escaped_broken(values, html)
    escapes = _escapes(html)
    text = values if is_text else _latin_1(values)
    raw = _bytes_of(text)
    if not raw.size:
        return text
    is_ascii = int(raw.max()) < 0x80
    # A search of the whole buffer is much cheaper than a replacement that finds nothing.
    data = raw.tobytes()
    marks = [c.encode() for c in escapes if c > " " and (c < "\x7f" or not is_ascii)]
    if int(raw.min()) >= 0x20 and not any(mark in data for mark in marks):
        return text
    series = pl.Series(values=text, dtype=pl.String)
    return series.str.replace_many(list(escapes), list(escapes.values())).to_arrow().cast(pa.string())


def _offsets(values: pa.Array) -> npt.NDArray[np.int32]:
    offsets: npt.NDArray[np.int32] = np.frombuffer(values.buffers()[1], np.int32)
    return offsets[values.offset :][: len(values) + 1]


def _bytes_of(values: pa.Array) -> npt.NDArray[np.uint8]:
    data = values.buffers()[2]
    if not len(values) or data is None:
        return np.empty(0, np.uint8)
    offsets = _offsets(values)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def _latin_1(values: pa.Array) -> pa.Array:
    """Each byte as the character of its number."""
    raw = _bytes_of(values)
    wide = np.flatnonzero(raw >= 0x80)
    if not wide.size:
        return values.cast(pa.string())
    offsets = _offsets(values) - _offsets(values)[0]
    longer = (offsets + np.searchsorted(wide, offsets)).astype(np.int32)  # a wide character has two bytes
    data = pa.py_buffer(raw.tobytes().decode("latin-1").encode())
    text = pa.StringArray.from_buffers(len(values), pa.py_buffer(longer), data)
    return pc.if_else(values.is_valid(), text, pa.scalar(None, pa.string())) if values.null_count else text


def _escaped_broken(values: pa.BinaryArray, html: bool) -> pa.Array:
    """Cell by cell: it is rare."""
    of_character = _of_character(html)
    decoded = [cell if cell is None else cell.decode("utf-8", "surrogateescape") for cell in values.to_pylist()]
    return pa.array([cell if cell is None else cell.translate(of_character) for cell in decoded], pa.string())
