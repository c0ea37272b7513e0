"""Finds a transaction's several changes of one row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_INSERT
from changefeed.upstream.binary_view import BinaryView, Ints, Mask, Words

_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)  # odd, with its bits spread: numbers times it stay different
_SEEDS = 64


@dataclass(frozen=True)
class Chains:
    """`order`: all changes, those of one row side by side, each row's in their order. `is_first`: of its row, there.

    A row is a key in a commit.
    """

    order: Ints
    is_first: Mask

    @property
    def firsts(self) -> Ints:
        """Each row's first change."""
        found: Ints = self.order[self.is_first]
        return found

    @property
    def lasts(self) -> Ints:
        """Each row's last change, in the order of `firsts`."""
        found: Ints = self.order[np.append(self.is_first[1:], True)]
        return found

    @property
    def before(self) -> Ints:
        """By change: the one before it of its row, or -1."""
        found = np.full(len(self.order), -1, np.int64)
        found[self.order[1:]] = np.where(self.is_first[1:], -1, self.order[:-1])
        return found


def chains(commits: Ints, keys: pa.BinaryArray) -> Chains | None:
    """The changes by row; None if no row has several. They are in their order."""
    view = BinaryView(keys)
    for seed in range(_SEEDS):
        hashes = _hashes(view, commits, seed)
        if not _repeats(np.sort(hashes)).any():
            return None
        order = np.argsort(hashes, kind="stable")
        same = np.flatnonzero(_repeats(hashes[order]))
        left, right = order[same], order[same + 1]
        alike = pc.equal(keys.take(pa.array(left)), keys.take(pa.array(right))).to_numpy(zero_copy_only=False)
        if (alike & (commits[left] == commits[right])).all():
            is_first = np.ones(len(order), np.bool_)
            is_first[same + 1] = False
            return Chains(order, is_first)
    raise AssertionError(f"{_SEEDS} hashes have collided")


def _repeats(sorted_hashes: Words) -> Mask:
    same: Mask = sorted_hashes[1:] == sorted_hashes[:-1]
    return same


def row_hashes(commits: Ints, keys: pa.BinaryArray, seed: int) -> Words:
    """A number each, the same for the same key in the same commit."""
    return _hashes(BinaryView(keys), commits, seed)


def _hashes(view: BinaryView, commits: Ints, seed: int) -> Words:
    """See row_hashes; 8 bytes of all keys at a time."""
    sizes = view.ends - view.starts
    hashes = _mixed(commits.astype(np.uint64) + sizes.astype(np.uint64) * _MIX + np.uint64(seed))
    for done in range(0, int(sizes.max(initial=0)), 8):
        longer = sizes > done
        rows: Ints | slice = slice(None) if longer.all() else np.flatnonzero(longer)
        words = view.read(view.starts[rows] + done, np.minimum(sizes[rows] - done, 8))
        hashes[rows] = _mixed(hashes[rows] ^ words)
    return hashes


def _mixed(words: Words) -> Words:
    words = words * _MIX
    return words ^ words >> np.uint64(29)


def out_of_order(found: Chains, op: npt.NDArray[np.uint8]) -> Ints:
    """Changes that can't follow the one before them: the insert of a row that is there, others of one that is not."""
    before, after = op[found.order[:-1]], op[found.order[1:]]
    wrong = ~found.is_first[1:] & ((before == OP_DELETE) != (after == OP_INSERT))
    changes: Ints = found.order[1:][wrong]
    return changes
