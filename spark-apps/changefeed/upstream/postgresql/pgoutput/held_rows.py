"""Row messages that wait for the end of their transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from changefeed.upstream.binary_view import Ints, Mask
from changefeed.upstream.postgresql.pgoutput.located_rows import RowMessages


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


def together(parts: Sequence[tuple[Held, Ints]]) -> RowMessages:
    """Parts with the number of each row's commit as one, one part behind the other."""
    if len(parts) == 1:
        rows, commits = parts[0]
        return RowMessages(rows.data, rows.starts, rows.ends, rows.kinds, rows.relations, commits)
    pieces: list[bytes] = []
    shifts, size = [], 0
    for rows, _ in parts:
        if not pieces or rows.data is not pieces[-1]:
            pieces.append(rows.data)
            size += len(rows.data)
        shifts.append(size - len(rows.data))
    return RowMessages(
        b"".join(pieces),
        np.concatenate([rows.starts + shift for (rows, _), shift in zip(parts, shifts, strict=True)]),
        np.concatenate([rows.ends + shift for (rows, _), shift in zip(parts, shifts, strict=True)]),
        np.concatenate([rows.kinds for rows, _ in parts]),
        np.concatenate([rows.relations for rows, _ in parts]),
        np.concatenate([commits for _, commits in parts]),
    )
