"""Where a table is cut into chunks, and what is in a chunk, in SQL. Pure.

Raw keys are in the order of the length of their first value, then of its bytes (pgoutput.changes). Of whole numbers
those between two keys are a few ranges: of as many characters, negative ones come first, and away from zero. All UUIDs
are of one length, so they are in their own order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from changefeed.upstream.postgresql.pgoutput.tuples import CELL_HEAD, TEXT

_MOST_CHARACTERS, _LARGEST = 20, (1 << 63) - 1  # of a bigint
#: What is above every key, which begins with TEXT; it has the definition behind it that the copy is made with.
_END = bytes([TEXT + 1])
_UUID = 2950
#: OIDs of the types at whose values tables can be cut: bigint, smallint, integer, uuid.
CUT_AT = frozenset({20, 21, 23, _UUID})


def bounds_of(texts: Iterable[str], most: int, definition: bytes) -> tuple[bytes, ...]:
    """The bounds of no more than `most` chunks, cut at values of the key's first column."""
    borders = sorted({_key(text.encode()) for text in texts})
    step = -(-(len(borders) + 1) // most)
    return (b"", *borders[step - 1 :: step], _END + definition)


def definition_of(end: bytes) -> bytes:
    """What `bounds_of` was told, from the last bound."""
    return end[len(_END) :]


def condition(column: str, type_oid: int, start: bytes, end: bytes) -> str:
    """Which rows are in a chunk. `column`: the key's first, as SQL has it; its type is in CUT_AT, or nothing is cut."""
    low, high = (None if not key or key.startswith(_END) else key[CELL_HEAD:].decode() for key in (start, end))
    if low is None and high is None:
        return "true"
    if type_oid == _UUID:
        bounds = [] if low is None else [f"{column} >= '{low}'::uuid"]
        return " AND ".join(bounds if high is None else [*bounds, f"{column} < '{high}'::uuid"])
    found = ranges(*(None if text is None else int(text) for text in (low, high)))
    each = (f"{column} BETWEEN '{first}'::bigint AND '{last}'::bigint" for first, last in found)
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


def _key(text: bytes) -> bytes:
    return bytes([TEXT]) + len(text).to_bytes(CELL_HEAD - 1) + text
