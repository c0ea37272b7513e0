"""Converts MySQL's binary decimals to text, a whole column at a time (docs/design/tidb.md, Decimals).

Exact: digits are moved as digits, never through a float, and rounded half up only if the column keeps fewer fraction
digits than the value has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.upstream.binary_view import BadCell, BinaryView, Ints, Mask, Words, take_text

Digits = npt.NDArray[np.uint8]

MAX_PRECISION = 65
_GROUP = 9  # decimal digits in four bytes
_GROUP_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decode_decimals(view: BinaryView, starts: Ints, ends: Ints, present: Mask, scale: int) -> pa.Array:
    """The text of each decimal with `scale` fraction digits, as pa.string(); null where not `present`.

    Raises BadCell for bytes that no encoder writes.
    """
    rows = np.flatnonzero(present)
    at, length = starts[rows], ends[rows] - starts[rows]
    _refuse(rows, length < 3, "shorter than 3 bytes")
    shapes = view.read(at, 2)  # precision, fraction digits
    distinct = np.unique(shapes).tolist()
    whole = max((shape % 256 - shape // 256 for shape in distinct), default=0)
    # Column 0 of the digits is spare: rounding may carry into it.
    digits = np.zeros((len(rows), 1 + max(whole, 0) + scale), np.uint8)
    negative = np.zeros(len(rows), np.bool_)
    for shape in distinct:
        precision, fraction = shape % 256, shape // 256
        chosen = np.flatnonzero(shapes == shape)
        wrong = not 0 < precision <= MAX_PRECISION or fraction > precision
        _refuse(rows[chosen], np.full(len(chosen), wrong), f"precision {precision}, scale {fraction}")
        groups = _groups(precision - fraction, fraction)
        size = 2 + sum(_GROUP_BYTES[group] for group in groups)
        _refuse(rows[chosen], length[chosen] != size, f"not {size} bytes long as precision and scale want")
        part, negative[chosen] = _digits(view, at[chosen] + 2, groups, rows[chosen])
        part = _rescale(part, precision - fraction, fraction, scale)
        digits[chosen, digits.shape[1] - part.shape[1] :] = part
    text, begin = _text(digits, negative, scale)
    return take_text(text, begin, present)


def decimal_size(shapes: Words) -> Ints:
    """How many bytes decimals take, by their first two: precision and fraction digits."""
    fraction = (shapes >> np.uint64(8)).view(np.int64)
    whole = np.maximum((shapes & np.uint64(0xFF)).view(np.int64) - fraction, 0)
    sizes = np.array(_GROUP_BYTES)
    size: Ints = 2 + 4 * (whole // _GROUP + fraction // _GROUP) + sizes[whole % _GROUP] + sizes[fraction % _GROUP]
    return size


def _groups(whole: int, fraction: int) -> list[int]:
    """How many digits each stored group has."""
    groups = [whole % _GROUP, *[_GROUP] * (whole // _GROUP), *[_GROUP] * (fraction // _GROUP), fraction % _GROUP]
    return [group for group in groups if group]


def _digits(view: BinaryView, at: Ints, groups: list[int], rows: Ints) -> tuple[Digits, Mask]:
    """The digits of values of one shape, behind a spare zero; and which values are negative."""
    digits = np.zeros((len(at), 1 + sum(groups)), np.uint8)
    negative = view.read(at, 1) < 0x80
    column = 1
    for number, group in enumerate(groups):
        width = _GROUP_BYTES[group]
        value = view.read(at, width).byteswap() >> np.uint64(64 - 8 * width)
        if number == 0:
            value ^= np.uint64(0x80 << 8 * (width - 1))
        value = np.where(negative, value ^ np.uint64((1 << 8 * width) - 1), value)
        _refuse(rows, value >= 10**group, f"a group holds more than {group} digits")
        _spell(value, digits[:, column : column + group])
        column += group
        at = at + width
    return digits, negative


def _spell(value: Words, digits: Digits) -> None:
    rest = value.astype(np.uint32)
    for column in range(digits.shape[1] - 1, -1, -1):
        tens = rest // np.uint32(10)
        digits[:, column] = rest - tens * np.uint32(10)
        rest = tens


def _rescale(digits: Digits, whole: int, fraction: int, scale: int) -> Digits:
    if fraction <= scale:
        return np.pad(digits, ((0, 0), (0, scale - fraction)))
    keep = 1 + whole + scale
    kept = digits[:, :keep].copy()
    carry = digits[:, keep] >= 5
    for column in range(keep - 1, -1, -1):
        kept[:, column] += carry
        carry = kept[:, column] > 9
        kept[carry, column] = 0
    return kept


def _text(digits: Digits, negative: Mask, scale: int) -> tuple[Digits, Ints]:
    """ASCII, right-aligned in rows of equal width, and the column at which each row's text begins."""
    whole = digits.shape[1] - scale
    shown = digits[:, :whole] != 0
    shown[:, -1] = True
    begin: Ints = 1 + shown.argmax(axis=1)  # behind the column that is left for a sign
    negative = negative & digits.any(axis=1)  # there is no minus zero
    point = 1 + whole
    text = np.empty((len(digits), point + (1 + scale if scale else 0)), np.uint8)
    text[:, 1:point] = digits[:, :whole] + ord("0")
    if scale:
        text[:, point] = ord(".")
        text[:, point + 1 :] = digits[:, whole:] + ord("0")
    begin = begin - negative
    text[np.flatnonzero(negative), begin[negative]] = ord("-")
    return text, begin


def _refuse(rows: Ints, bad: Mask, why: str) -> None:
    if bad.any():
        raise BadCell(int(rows[int(bad.argmax())]), f"is no decimal: {why}")
