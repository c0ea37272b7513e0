"""Transactions whose commit ts is known, by registration, for as long as more of their rows may arrive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from changefeed.upstream.tikv.matching.pairs import pairs

_U64 = npt.NDArray[np.uint64]
_Regs = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


class _Transactions(NamedTuple):
    """Transactions, one an element."""

    regs: _Regs
    start_ts: _U64
    commit_ts: _U64

    def only(self, flags: _Flags) -> _Transactions:
        return self if flags.all() else _Transactions(self.regs[flags], self.start_ts[flags], self.commit_ts[flags])


class Fates:
    def __init__(self) -> None:
        # Joined when they are of one size, and when somebody asks: a scan teaches with each chunk and rarely asks.
        self._parts: list[_Transactions] = []

    def __len__(self) -> int:
        return sum(len(part.regs) for part in self._parts)

    def learn(self, regs: _Regs, start_ts: _U64, commit_ts: _U64) -> None:
        """A transaction's rows mostly come together: it is known once for each time that they do."""
        if not len(regs):
            return
        new = np.ones(len(regs), bool)
        new[1:] = (start_ts[1:] != start_ts[:-1]) | (regs[1:] != regs[:-1])
        self._parts.append(_Transactions(regs[new], start_ts[new], commit_ts[new]))
        while len(self._parts) > 1 and len(self._parts[-2].regs) <= 2 * len(self._parts[-1].regs):
            self._join(2)

    def forget(self, resolved: _U64, is_open: _Flags) -> None:
        """Those of which nothing comes any more: registrations are closed, or resolved to beyond them.

        `resolved`, `is_open`: by registration.
        """
        kept = [part.only(is_open[part.regs] & (part.commit_ts > resolved[part.regs])) for part in self._parts]
        self._parts = [part for part in kept if len(part.regs)]

    def of(self, regs: _Regs, start_ts: _U64) -> _U64:
        """The commit ts of each; 0: not known."""
        found = np.zeros(len(regs), np.uint64)
        if not (len(regs) and self._parts):
            return found
        self._join(len(self._parts))
        (all_known,) = self._parts
        asked, known = pairs(start_ts, all_known.start_ts)
        same = regs[asked] == all_known.regs[known]
        found[asked[same]] = all_known.commit_ts[known[same]]
        return found

    def _join(self, newest: int) -> None:
        """So many parts into one."""
        if newest > 1:
            self._parts[-newest:] = [_Transactions(*map(np.concatenate, zip(*self._parts[-newest:], strict=True)))]
