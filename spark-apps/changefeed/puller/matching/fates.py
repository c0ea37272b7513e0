"""Transactions whose commit ts is known, by registration, while there may still come rows of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from changefeed.puller.matching.pairs import pairs

_U64 = npt.NDArray[np.uint64]
_Regs = npt.NDArray[np.int64]


class Fates:
    def __init__(self) -> None:
        self._regs: _Regs = np.zeros(0, np.int64)
        self._start_ts: _U64 = np.zeros(0, np.uint64)
        self._commit_ts: _U64 = np.zeros(0, np.uint64)

    def __len__(self) -> int:
        return len(self._regs)

    def learn(self, regs: _Regs, start_ts: _U64, commit_ts: _U64) -> None:
        """A transaction's rows mostly come together: it is known once for each time that they do."""
        new = np.ones(len(regs), bool)
        new[1:] = (start_ts[1:] != start_ts[:-1]) | (regs[1:] != regs[:-1])
        self._regs = np.concatenate([self._regs, regs[new]])
        self._start_ts = np.concatenate([self._start_ts, start_ts[new]])
        self._commit_ts = np.concatenate([self._commit_ts, commit_ts[new]])

    def forget(self, resolved: _U64, is_open: npt.NDArray[np.bool_]) -> None:
        """Those of which nothing comes any more: registrations are closed, or resolved to beyond them.

        `resolved`, `is_open`: by registration.
        """
        kept = is_open[self._regs] & (self._commit_ts > resolved[self._regs])
        if not kept.all():
            self._regs, self._start_ts = self._regs[kept], self._start_ts[kept]
            self._commit_ts = self._commit_ts[kept]

    def of(self, regs: _Regs, start_ts: _U64) -> _U64:
        """The commit ts of each; 0: not known."""
        found = np.zeros(len(regs), np.uint64)
        asked, known = pairs(start_ts, self._start_ts)
        same = regs[asked] == self._regs[known]
        found[asked[same]] = self._commit_ts[known[same]]
        return found
