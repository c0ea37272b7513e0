"""Converts DATE, DATETIME, TIMESTAMP and TIME to the text that TiDB prints, by column (docs/design/tidb.md, Times).

Time zone rules come with polars, never from the machine: a file's bytes must not depend on where it is written (rule
10).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.schema.time_zones import shown_in
from changefeed.upstream.binary_view import BadCell, Ints, Mask, Words, take_text

Text = npt.NDArray[np.uint8]

MAX_FSP = 6

_SECOND = 1_000_000  # microseconds
_DAY = 86_400 * _SECOND
_EPOCH = 719_468  # days from 0000-03-01 to 1970-01-01
_MAX_HOURS = 838
_PAIRS = np.array([[ord("0") + n // 10, ord("0") + n % 10] for n in range(100)], np.uint8)


class Civil(NamedTuple):
    """The members of many times; month and day may be 0."""

    year: Ints
    month: Ints
    day: Ints
    hour: Ints
    minute: Ints
    second: Ints
    micros: Ints


def unpack(words: Words) -> Civil:
    """Packed times; raises BadCell for those that no clock shows."""
    micros = (words & np.uint64(0xFF_FFFF)).view(np.int64)
    rest = (words >> np.uint64(24)).view(np.int64)
    date = rest >> 17
    year_month = date >> 5
    year = year_month // 13
    civil = Civil(year, year_month - 13 * year, date & 31, rest >> 12 & 31, rest >> 6 & 63, rest & 63, micros)
    bad = (year > 9999) | (civil.hour > 23) | (civil.minute > 59) | (civil.second > 59) | (micros >= _SECOND)
    if bad.any():
        raise BadCell(int(bad.argmax()), "is no date or time")
    return civil


def pack(civil: tuple[int, int, int, int, int, int, int]) -> int:
    """The inverse of `unpack`, for one time."""
    year, month, day, hour, minute, second, micros = civil
    return ((((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second) << 24) | micros


def in_zone(civil: Civil, zone: str) -> Civil:
    """UTC times as the clocks of `zone` show them; the zero time stays. Raises BadCell for an incomplete date."""
    year, month, day, *clock = civil
    zero = (year | month | day | clock[0] | clock[1] | clock[2] | clock[3]) == 0
    bad = ((month == 0) | (day == 0)) & ~zero
    if bad.any():
        raise BadCell(int(bad.argmax()), "has a month or a day of 0, which is no point in time")
    hour, minute, second, micros = clock
    utc = _days(civil) * _DAY + ((hour * 60 + minute) * 60 + second) * _SECOND + micros
    local = shown_in(zone, utc)
    days = local // _DAY
    rest = local - days * _DAY
    seconds = rest // _SECOND
    found = (*_date(days), seconds // 3600, seconds // 60 % 60, seconds % 60, rest % _SECOND)
    return Civil(*(np.where(zero, 0, member) for member in found))


def _days(civil: Civil) -> Ints:
    """Days since 1970-01-01; years begin in March, so that a leap day is a year's last."""
    early = civil.month <= 2
    year = civil.year - early
    days: Ints = 365 * year + year // 4 - year // 100 + year // 400 - _EPOCH
    return days + (153 * (civil.month + np.where(early, 9, -3)) + 2) // 5 + civil.day - 1


def _date(days: Ints) -> tuple[Ints, Ints, Ints]:
    days = days + _EPOCH
    era = days // 146_097
    of_era = days - era * 146_097
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    early = month >= 10
    return year + 400 * era + early, month + np.where(early, -9, 3), of_year - (153 * month + 2) // 5 + 1


def time_text(civil: Civil, fsp: int, *, with_clock: bool, present: Mask) -> pa.Array:
    """`YYYY-MM-DD[ HH:MM:SS[.ffffff]]`, fractions cut to `fsp` digits; `civil` has the rows that are `present`."""
    clock = 9 + (1 + fsp if fsp else 0) if with_clock else 0
    text = np.empty((len(civil.year), 10 + clock), np.uint8)
    century = civil.year // 100
    text[:, 0:2] = _PAIRS[century]
    text[:, 2:4] = _PAIRS[civil.year - 100 * century]
    text[:, 4] = text[:, 7] = ord("-")
    text[:, 5:7] = _PAIRS[civil.month]
    text[:, 8:10] = _PAIRS[civil.day]
    if with_clock:
        text[:, 10] = ord(" ")
        _spell_clock(text[:, 11:], civil.hour, civil.minute, civil.second, civil.micros, fsp)
    return take_text(text, None, present)


def duration_text(nanoseconds: Ints, fsp: int, present: Mask) -> pa.Array:
    """`[-]HH:MM:SS[.ffffff]`, hours up to 838; raises BadCell beyond."""
    size = np.abs(nanoseconds)
    hours = size // 3_600_000_000_000
    bad = (hours > _MAX_HOURS) | (size < 0)
    if bad.any():
        raise BadCell(int(bad.argmax()), "is no time")
    text = np.empty((len(size), 10 + (1 + fsp if fsp else 0)), np.uint8)
    text[:, 0] = ord("-")
    micros = size // 1000
    _spell_clock(text[:, 2:], hours % 100, micros // 60_000_000 % 60, micros // _SECOND % 60, micros % _SECOND, fsp)
    text[:, 1] = ord("0") + hours // 100
    negative = nanoseconds < 0
    begin = np.where(hours > 99, 1, 2) - negative
    text[np.flatnonzero(negative), begin[negative]] = ord("-")
    return take_text(text, begin, present)


def _spell_clock(text: Text, hour: Ints, minute: Ints, second: Ints, micros: Ints, fsp: int) -> None:
    text[:, 0:2] = _PAIRS[hour]
    text[:, 2] = text[:, 5] = ord(":")
    text[:, 3:5] = _PAIRS[minute]
    text[:, 6:8] = _PAIRS[second]
    if fsp:
        text[:, 8] = ord(".")
        fraction = micros // 10 ** (MAX_FSP - fsp)
        for column in range(8 + fsp, 8, -1):
            rest = fraction // 10
            text[:, column] = ord("0") + fraction - 10 * rest
            fraction = rest
