"""Row messages that wait for the end of their transaction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from changefeed.upstream.binary_view import Ints, Mask
from changefeed.upstream.postgresql.pgoutput.row_messages import RowMessages


@dataclass(frozen=True)
class Held:
    """Some of a stream's, in their order. `numbers` ascend. `xids`: of their subtransactions, 0 in plain ones.

    A streamed message has its xid behind its kind. `starts` is behind that then, where only `kinds` knows the kind.
    """

    data: bytes
    starts: Ints
    ends: Ints
    kinds: npt.NDArray[np.uint8]
    relations: Ints
    numbers: Ints
    xids: Ints

    def only(self, chosen: Mask | slice) -> Held:
        starts, ends, kinds = self.starts[chosen], self.ends[chosen], self.kinds[chosen]
        return Held(self.data, starts, ends, kinds, self.relations[chosen], self.numbers[chosen], self.xids[chosen])

    def of_commits(self, commits: Ints) -> RowMessages:
        """They are committed: `commits` has each row's number."""
        return RowMessages(self.data, self.starts, self.ends, self.kinds, self.relations, commits)

    @property
    def bytes(self) -> int:
        """The size of the messages."""
        return int((self.ends - self.starts).sum())


class StreamedRows:
    """What the server has sent of large transactions that are still open, in memory.

    Who keeps them elsewhere has the same methods.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[Held]] = {}

    def add(self, xid: int, rows: Held) -> None:
        """More of the transaction."""
        self._held.setdefault(xid, []).append(rows)

    def drop(self, xid: int, aborted: int) -> None:
        """Forget what a subtransaction has done, or all if it is the transaction itself."""
        held = self._held.pop(xid, [])
        if xid != aborted:
            self._held[xid] = [rows.only(rows.xids != aborted) for rows in held]

    def take(self, xid: int) -> list[Held]:
        """All of it, which is forgotten."""
        return self._held.pop(xid, [])

    @property
    def bytes(self) -> int:
        """The size of what is held."""
        return sum(rows.bytes for held in self._held.values() for rows in held)
