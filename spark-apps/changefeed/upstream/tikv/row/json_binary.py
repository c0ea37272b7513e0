"""Converts TiDB's binary JSON to the text that TiDB prints for it (docs/design/tidb.md, JSON).

The only type that is decoded value by value. Every offset is checked before use, and the parts of a value together may
not take more bytes than it has: a value with overlapping parts could expand without limit.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal

import pyarrow as pa

from changefeed.upstream.binary_view import BadCell

MAX_DEPTH = 100  # TiDB refuses more

_OBJECT, _ARRAY, _LITERAL, _INT, _UINT, _DOUBLE, _STRING, _OPAQUE = 1, 3, 4, 9, 10, 11, 12, 13
_DATE, _DATETIME, _TIMESTAMP, _DURATION = 14, 15, 16, 17
_LITERALS = ("null", "true", "false")
_HEADER, _KEY_ENTRY, _VALUE_ENTRY = 8, 6, 5
_LEAST_EXPONENT, _PLAIN_BELOW = 1e-15, 1e15  # of doubles that have no exponent
_SECOND_NS = 10**9
_SIZES = {_LITERAL: 1, _INT: 8, _UINT: 8, _DOUBLE: 8, _DATE: 8, _DATETIME: 8, _TIMESTAMP: 8, _DURATION: 12}
_ESCAPED = re.compile('[\\x00-\\x1f"\\\\\\u2028\\u2029]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class BadJson(Exception):
    """The bytes are no value; the message continues "column c ..."."""


def json_texts(values: pa.BinaryArray) -> pa.StringArray:
    """The text of each value, null where it is null. Equal values are decoded once. Raises BadCell."""
    encoded = values.dictionary_encode()
    indices = encoded.indices
    texts = []
    for number, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            texts.append(json_text(value))
        except BadJson as error:
            raise BadCell(indices.index(number).as_py(), str(error)) from error
    return pa.array(texts, pa.string()).take(indices)


def json_text(value: bytes) -> str:
    """One value, type byte first. Raises BadJson."""
    if not value:
        raise BadJson("is an empty value, which no JSON is")
    parts = _JsonValue(value)
    try:
        return "".join(parts.text(value[0], 1, 0))
    except struct.error as error:
        raise BadJson("holds JSON that ends too early") from error


def json_size(data: bytes) -> int:
    """How many bytes the value takes with which `data` begins. Raises BadJson."""
    try:
        return _size(data)
    except (struct.error, IndexError) as error:
        raise BadJson("holds JSON that ends too early") from error


def _size(data: bytes) -> int:
    kind = data[0]
    if kind in (_OBJECT, _ARRAY):
        size: int = struct.unpack_from("<II", data, 1)[1]
        return 1 + size
    if kind in _SIZES:
        return 1 + _SIZES[kind]
    if kind not in (_STRING, _OPAQUE):
        raise BadJson(f"holds JSON with a part of type {kind}, which is none")
    at, length, shift = 1 + (kind == _OPAQUE), 0, 0
    while data[at] >= 0x80 and shift < 28:
        length, at, shift = length | (data[at] & 0x7F) << shift, at + 1, shift + 7
    return at + 1 + (length | data[at] << shift)


class _JsonValue:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = len(data)  # bytes that no part has taken yet

    def text(self, kind: int, at: int, depth: int) -> Iterator[str]:
        """The pieces of the value of type `kind` that begins at `at`."""
        if kind in (_OBJECT, _ARRAY):
            if depth >= MAX_DEPTH:
                raise BadJson(f"holds JSON that is more than {MAX_DEPTH} levels deep")
            yield from self._container(kind, at, depth)
        elif (scalar := _SCALARS.get(kind)) is not None:
            yield scalar(self, at)
        else:
            raise BadJson(f"holds JSON with a part of type {kind}, which is none")

    def _container(self, kind: int, at: int, depth: int) -> Iterator[str]:
        count, size = struct.unpack_from("<II", self._data, at)
        with_keys = kind == _OBJECT
        entries = at + _HEADER + (count * _KEY_ENTRY if with_keys else 0)
        header = entries + count * _VALUE_ENTRY - at
        if header > size or at + size > len(self._data):
            raise BadJson(f"holds JSON whose {count} members need more bytes than there are")
        self._take(header)
        yield "{" if with_keys else "["
        for number in range(count):
            if number:
                yield ", "
            if with_keys:
                offset, length = struct.unpack_from("<IH", self._data, at + _HEADER + number * _KEY_ENTRY)
                yield f"{_quoted(self._slice(at + offset, length))}: "
            entry = entries + number * _VALUE_ENTRY
            member = self._data[entry]
            if member == _LITERAL:
                yield _literal(self._data[entry + 1])
            else:
                yield from self.text(member, at + struct.unpack_from("<I", self._data, entry + 1)[0], depth + 1)
        yield "}" if with_keys else "]"

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise BadJson("holds JSON whose parts lie one over the other")

    def _slice(self, at: int, length: int) -> bytes:
        self._take(length)
        if at + length > len(self._data):
            raise BadJson("holds JSON that ends too early")
        return self._data[at : at + length]

    def _number(self, form: str, at: int) -> int | float:
        self._take(struct.calcsize(form))
        found: int | float = struct.unpack_from(form, self._data, at)[0]
        return found

    def _counted(self, at: int) -> bytes:
        length = shift = 0
        while True:
            (byte,) = self._slice(at, 1)
            at += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                return self._slice(at, length)
            shift += 7
            if shift > 28:
                raise BadJson("holds JSON with an impossible length")

    # -- scalars

    def literal(self, at: int) -> str:
        return _literal(self._slice(at, 1)[0])

    def signed(self, at: int) -> str:
        return str(self._number("<q", at))

    def unsigned(self, at: int) -> str:
        return str(self._number("<Q", at))

    def double(self, at: int) -> str:
        return _double(self._number("<d", at))

    def string(self, at: int) -> str:
        return _quoted(self._counted(at))

    def opaque(self, at: int) -> str:
        kind = self._slice(at, 1)[0]
        return f'"base64:type{kind}:{base64.b64encode(self._counted(at + 1)).decode()}"'

    def date(self, at: int) -> str:
        return f'"{_day(int(self._number("<Q", at)))}"'

    def moment(self, at: int) -> str:
        core = int(self._number("<Q", at))
        clock = f"{core >> 36 & 31:02}:{core >> 30 & 63:02}:{core >> 24 & 63:02}.{core >> 4 & 0xFFFFF:06}"
        return f'"{_day(core)} {clock}"'

    def duration(self, at: int) -> str:
        nanoseconds = int(self._number("<q", at))
        self._take(4)  # how many digits were declared; all are printed
        seconds, rest = divmod(abs(nanoseconds), _SECOND_NS)
        sign = "-" if nanoseconds < 0 else ""
        return f'"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest // 1000:06}"'


_SCALARS: dict[int, Callable[[_JsonValue, int], str]] = {
    _LITERAL: _JsonValue.literal,
    _INT: _JsonValue.signed,
    _UINT: _JsonValue.unsigned,
    _DOUBLE: _JsonValue.double,
    _STRING: _JsonValue.string,
    _OPAQUE: _JsonValue.opaque,
    _DATE: _JsonValue.date,
    _DATETIME: _JsonValue.moment,
    _TIMESTAMP: _JsonValue.moment,
    _DURATION: _JsonValue.duration,
}


def _literal(code: int) -> str:
    if code >= len(_LITERALS):
        raise BadJson(f"holds JSON with a literal {code}, which is none")
    return _LITERALS[code]


def _day(core: int) -> str:
    return f"{core >> 50:04}-{core >> 46 & 15:02}-{core >> 41 & 31:02}"


def _quoted(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    return _ESCAPES.get(letter) or f"\\u{ord(letter):04x}"


def _double(value: float) -> str:
    """As current TiDB prints it: the shortest digits, with ".0", and an exponent for what is very small or large."""
    if not math.isfinite(value):
        raise BadJson("holds JSON with a number that is not finite")
    shortest = repr(value)
    if value and not _LEAST_EXPONENT <= abs(value) < _PLAIN_BELOW:
        mantissa, exponent = f"{Decimal(shortest).normalize():e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    plain = f"{Decimal(shortest):f}"
    return plain if "." in plain else f"{plain}.0"
