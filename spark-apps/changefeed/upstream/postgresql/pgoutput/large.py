"""Puts the parts of large transactions together anew, so that all changes of one row are in one part.

Two changes of a row may be far apart, and only a part is in memory at a time. So a first look makes a number of each
message, the hash of its row, and remembers that alone: 8 bytes a message. A message that changes a key is of two rows,
and what is in the transaction of either belongs together. Most rows are in one part and stay there. Those of several
are put aside, spread by their numbers over as many parts as they need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from changefeed.upstream.binary_view import Ints, Mask, Words
from changefeed.upstream.postgresql.pgoutput import held_rows
from changefeed.upstream.postgresql.pgoutput.held_rows import Part, aside
from changefeed.upstream.postgresql.pgoutput.row_messages import RowMessages, joined_messages
from changefeed.upstream.scratch import Scratch


@dataclass(frozen=True)
class RowHashes:
    """`first`: by message, that of the row it is about, 0 where nobody wants it. `links`: pairs, of rows that hang
    together.
    """

    first: Words
    links: Words


def row_by_row(
    parts: Sequence[Part], hashes: Callable[[RowMessages], RowHashes], scratch: Scratch | None
) -> Sequence[Part]:
    """Return the same messages in other parts. Raises Unavailable."""
    looked_at, sizes = [], []
    for part in parts:
        rows = part()
        looked_at.append(hashes(rows))
        sizes.append(rows.bytes)
    links = np.concatenate([found.links for found in looked_at], axis=1)
    groups = _grouped([found.first for found in looked_at], links)
    in_parts = np.sort(np.concatenate([_distinct(found) for found in groups]))
    several = _distinct(in_parts[1:][in_parts[1:] == in_parts[:-1]])
    several = several[several != 0]
    if not len(several):
        return parts
    apart = [several[_places(found, several)] == found for found in groups]
    size = sum(size * int(chosen.sum()) / max(1, len(chosen)) for size, chosen in zip(sizes, apart, strict=True))
    rest = _spread(parts, groups, apart, math.ceil(size / held_rows.PART_BYTES), scratch)
    return [*(partial(_left, part, ~chosen) for part, chosen in zip(parts, apart, strict=True)), *rest]


def _spread(
    parts: Sequence[Part], groups: Sequence[Words], apart: Sequence[Mask], count: int, scratch: Scratch | None
) -> list[Part]:
    """The messages that are apart, in so many parts at most."""
    file = None if scratch is None else scratch()
    found: list[list[Part]] = [[] for _ in range(count)]
    for part, group, chosen in zip(parts, groups, apart, strict=True):
        rows = part().only(chosen)
        to = (group[chosen] >> np.uint64(1)) % np.uint64(count)
        for number in np.unique(to).tolist():
            found[number].append(aside(rows.only(to == number), file))
    return [partial(_joined, pieces) for pieces in found if pieces]


def _grouped(first: Sequence[Words], links: Words) -> list[Words]:
    """The same number for all that hangs together."""
    if not links.size:
        return list(first)
    rows, places = np.unique(links, return_inverse=True)
    left, right = places.reshape(2, -1)
    least = rows[_roots(left, right, len(rows))]

    def of(hashes: Words) -> Words:
        at = _places(hashes, rows)
        return np.where(rows[at] == hashes, least[at], hashes)

    return [of(hashes) for hashes in first]


def _places(numbers: Words, ordered: Words) -> Ints:
    """Where each stands among the ordered ones, if it does."""
    found: Ints = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
    return found


def _distinct(numbers: Words) -> Words:
    """In order. Of many that differ, sorting finds them in a fraction of the time that np.unique's hashes take."""
    ordered: Words = np.sort(numbers)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _roots(left: Ints, right: Ints, count: int) -> Ints:
    """For each of so many, the same one of all with which it hangs together."""
    root: Ints = np.arange(count)
    while True:
        one, other = root[left], root[right]
        if np.array_equal(one, other):
            return root
        np.minimum.at(root, np.maximum(one, other), np.minimum(one, other))
        while not np.array_equal(further := root[root], root):
            root = further


def _left(part: Part, chosen: Mask) -> RowMessages:
    return part().only(chosen)


def _joined(pieces: Sequence[Part]) -> RowMessages:
    return joined_messages([piece() for piece in pieces])
