"""The forms that a value of a type may have in a message, and which of them it has: the one that gives most back.

A form reads what an ordinary decoder (Python's json, fastavro) found in a message, and knows nothing of encoders.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from consumers_reading import Column
from consumers_values import moment
from integration_types import ZONE

_EPOCH = datetime(1970, 1, 1)
_GO_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.DOTALL)
_ZEROS = re.compile(r"\.0+$")
_GO_SHORT = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


class Changed(NamedTuple):
    """A value that a form does not give back, and what it gives."""

    meant: Any
    found: Any


@dataclass(frozen=True)
class Form:
    """`said`: on the page; "" where the message's own type says it. `read` may fail for a value
    that is in another form.
    """

    said: str
    read: Callable[[Column, Any], Any]

    def changed(self, column: Column, pairs: Sequence[Changed]) -> list[Changed]:
        """Return what would be read as something else, of what is meant and what the decoder found."""
        read = [Changed(meant, self._read(column, found)) for meant, found in pairs]
        return list(dict.fromkeys(each for each in read if each.found != each.meant))

    def _read(self, column: Column, found: Any) -> Any:
        if found is None or isinstance(found, Unreadable):
            return found
        try:
            return self.read(column, found)
        except (ValueError, TypeError, LookupError, OverflowError):
            return found if isinstance(found, (str, int, float, bytes)) else str(found)


class Unreadable(str):
    """What the decoder says of a message."""


def form_of(column: Column, pairs: Sequence[Changed]) -> Form:
    """The first of those that change the fewest values."""
    return min(_FORMS[column.base], key=lambda form: len(form.changed(column, pairs)))


def _of(kind: type, found: Any) -> Any:
    if type(found) is not kind:
        raise TypeError(found)
    return found


def _number(column: Column, found: Any) -> int:
    if type(found) not in (int, float, Decimal):
        raise TypeError(found)
    return int(found)


def _bits(column: Column, found: Any) -> int:
    return int.from_bytes(_base64(column, found), "little")


def _base64(column: Column, found: Any) -> bytes:
    return base64.b64decode(_of(str, found), validate=True)


def _float(column: Column, found: Any) -> float:
    value = float(found)
    return float(np.float32(value)) if column.base == "float" else value


def _decimal(column: Column, found: Any) -> Decimal:
    return Decimal(repr(found) if type(found) is float else found)


def _unquoted(column: Column, found: Any) -> bytes:
    """As Go's strconv.Unquote."""
    raw, end = b"", 0
    for escape in _GO_ESCAPE.finditer(_of(str, found)):
        byte, short, long, named = escape.groups()
        raw += found[end : escape.start()].encode()
        raw += bytes([int(byte, 16)]) if byte else bytes([_GO_SHORT[named]]) if named else _utf_8(short or long)
        end = escape.end()
    return raw + found[end:].encode()


def _utf_8(digits: str) -> bytes:
    return chr(int(digits, 16)).encode()


def _text(column: Column, found: Any) -> Any:
    if isinstance(found, (int, dict)):
        raise TypeError(found)
    return without_zeros(moment(column.base, found))


def without_zeros(value: Any) -> Any:
    """A date that Python lacks, without digits of a second that are 0."""
    return _ZEROS.sub("", value) if isinstance(value, str) else value


def _days(column: Column, found: Any) -> date:
    return (_EPOCH + timedelta(days=_number(column, found))).date()


def _since_1970(unit: str, column: Column, found: Any) -> datetime:
    return _EPOCH + timedelta(**{unit: _number(column, found)})


def _zoned(column: Column, found: Any) -> Any:
    if not _of(str, found).endswith("Z"):
        raise ValueError(found)
    return moment("datetime", found)


def _clock(column: Column, found: Any) -> Any:
    shown = _text(column, found)
    if isinstance(shown, str):
        return shown
    return shown.replace(tzinfo=ZoneInfo(ZONE)).astimezone(UTC).replace(tzinfo=None)


def _located(column: Column, found: Any) -> Any:
    if _of(dict, found)["location"] != ZONE:
        raise ValueError(found)
    return _clock(column, found["value"])


def _microseconds(column: Column, found: Any) -> timedelta:
    return timedelta(microseconds=_number(column, found))


def _index(column: Column, found: Any) -> str:
    return ("", *_elements(column))[int(found)]


def _set(column: Column, found: Any) -> str:
    return ",".join(name for bit, name in enumerate(_elements(column)) if int(found) >> bit & 1)


def _elements(column: Column) -> list[str]:
    return re.findall("'([^']*)'", column.sql)


def _as_text(column: Column, found: Any) -> str:
    return str(_of(str, found))


def _as_bytes(column: Column, found: Any) -> bytes:
    return bytes(_of(bytes, found))


_WHOLE = (
    Form("", _number),
    Form("", lambda column, found: int(_of(str, found))),
    Form("", lambda column, found: int(_of(bool, found))),
    Form("base64 of the bits, the lowest byte first", _bits),
    Form("the highest byte first", lambda column, found: int.from_bytes(_as_bytes(column, found), "big")),
    Form("the lowest byte first", lambda column, found: int.from_bytes(_as_bytes(column, found), "little")),
)
_FLOATS = (Form("", _float),)
_TEXTS = (Form("", _as_text), Form("base64 of its UTF-8", lambda column, found: _base64(column, found).decode()))
_BYTES = (
    Form("", _as_bytes),
    Form("base64", _base64),
    Form("a character for each byte (ISO 8859-1)", lambda column, found: _of(str, found).encode("latin-1")),
    Form("as Go's `strconv.Quote` has it", _unquoted),
)
_MILLISECONDS = Form("milliseconds since 1970-01-01", partial(_since_1970, "milliseconds"))
_MICROSECONDS = Form("microseconds since 1970-01-01", partial(_since_1970, "microseconds"))
_FORMS: dict[str, tuple[Form, ...]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"), _WHOLE),
    **dict.fromkeys(("float", "double"), _FLOATS),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "vector"), _TEXTS),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _BYTES),
    "decimal": (Form("", _decimal),),
    "date": (Form("", _text), Form("days since 1970-01-01", _days)),
    "datetime": (Form("", _text), _MILLISECONDS, _MICROSECONDS),
    "timestamp": (
        Form("", _text),
        Form("such as 2024-02-29T12:00:00Z", _zoned),
        Form("the clock of `timeZone`", _clock),
        Form("`location`: `timeZone`; `value`: its clock", _located),
    ),
    "time": (Form("", _text), Form("microseconds", _microseconds)),
    "enum": (Form("", _as_text), Form("its number, from 1", _index)),
    "set": (Form("", _as_text), Form("its bits as a number", _set)),
}
