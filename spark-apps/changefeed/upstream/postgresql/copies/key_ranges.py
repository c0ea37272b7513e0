"""Where a table is cut into chunks, and what is in a chunk, in SQL. Pure.

Raw keys are in the order of the length of their first value, then of its bytes (pgoutput.changes). Of whole numbers
those between two keys are a few ranges: of as many characters, negative ones come first, and away from zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from changefeed.upstream.postgresql.pgoutput.tuples import CELL_HEAD, TEXT

_MOST_CHARACTERS, _LARGEST = 20, (1 << 63) - 1  # of a bigint
#: What is above every key, which begins with TEXT; it has the definition behind it that the copy is made with.
_END = bytes([TEXT + 1])


def bounds_of(numbers: Iterable[int], most: int, definition: bytes) -> tuple[bytes, ...]:
    """The bounds of no more than `most` chunks, cut at whole numbers of the key's first column."""
    borders = sorted({_key(number) for number in numbers})
    step = -(-(len(borders) + 1) // most)
    return (b"", *borders[step - 1 :: step], _END + definition)


def definition_of(end: bytes) -> bytes:
    """What `bounds_of` was told, from the last bound."""
    return end[len(_END) :]


def condition(column: str, start: bytes, end: bytes) -> str:
    """Which rows are in a chunk. `column`: the key's first, as SQL has it."""
    if not start and end.startswith(_END):
        return "true"
    found = ranges(None if not start else _number(start), None if end.startswith(_END) else _number(end))
    each = (f"{column} BETWEEN '{low}'::bigint AND '{high}'::bigint" for low, high in found)
    return " OR ".join(each) or "false"


def ranges(start: int | None, end: int | None) -> Iterator[tuple[int, int]]:
    """The whole numbers from `start` on whose keys are below that of `end`; None: there is no such bound."""
    for size in range(1, _MOST_CHARACTERS + 1):
        for sign in (-1, 1):
            digits = size if sign > 0 else size - 1
            low, high = (10 ** (digits - 1) if digits > 1 else int(sign < 0)), 10**digits - 1
            high = min(high, _LARGEST + (sign < 0))
            if start is not None:
                low = max(low, _first(start, size, sign))
            if end is not None:
                high = min(high, _first(end, size, sign) - 1)
            if low <= high:
                yield (low, high) if sign > 0 else (-high, -low)


def _first(border: int, size: int, sign: int) -> int:
    """The first number with so many characters and that sign, without its sign, that is not below the border.

    Where all are, it is larger than any.
    """
    at, here = (len(str(border)), border >= 0), (size, sign > 0)
    if at == here:
        return abs(border)
    return 0 if at < here else 10**_MOST_CHARACTERS


def _key(number: int) -> bytes:
    text = str(number).encode()
    return bytes([TEXT]) + len(text).to_bytes(CELL_HEAD - 1) + text


def _number(key: bytes) -> int:
    return int(key[CELL_HEAD:])
