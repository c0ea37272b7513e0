"""Messages of rows, many together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from changefeed.upstream.binary_view import Ints, Mask
from changefeed.upstream.postgresql.pgoutput.tuples import joined, view_of

INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")


@dataclass(frozen=True)
class RowMessages:
    """Each transaction's in their order. `starts`: of their kind.

    `relations`: by number, the version of the table that each row has. `commits`: by number, the row's transaction.
    """

    data: bytes | npt.NDArray[np.uint8]
    starts: Ints
    ends: Ints
    kinds: npt.NDArray[np.uint8]
    relations: Ints
    commits: Ints

    def only(self, chosen: Mask | Ints) -> RowMessages:
        """Some of them."""
        starts, ends, kinds = self.starts[chosen], self.ends[chosen], self.kinds[chosen]
        return RowMessages(self.data, starts, ends, kinds, self.relations[chosen], self.commits[chosen])

    def counted_from(self, commit: int) -> RowMessages:
        """The same, where the transaction of that number is the first."""
        return replace(self, commits=self.commits - commit)

    @property
    def bytes(self) -> int:
        """Their size."""
        return int((self.ends - self.starts).sum())


def joined_messages(parts: Sequence[RowMessages]) -> RowMessages:
    """The messages of all; if there are several, with no other bytes than theirs."""
    if len(parts) == 1:
        return parts[0]
    texts = [joined(view_of(part.data), [(part.starts, part.ends)]).buffers()[2] for part in parts if part.bytes]
    sizes = np.concatenate([part.ends - part.starts for part in parts])
    ends = np.cumsum(sizes)
    return RowMessages(
        b"".join(texts),
        ends - sizes,
        ends,
        np.concatenate([part.kinds for part in parts]),
        np.concatenate([part.relations for part in parts]),
        np.concatenate([part.commits for part in parts]),
    )


def gathered(parts: Sequence[RowMessages], size: int) -> list[RowMessages]:
    """The same in fewer parts, each of little more than `size` bytes at most, unless one is larger."""
    found: list[RowMessages] = []
    gathering: list[RowMessages] = []
    for part in parts:
        if gathering and sum(each.bytes for each in gathering) + part.bytes > size:
            found.append(joined_messages(gathering))
            gathering = []
        gathering.append(part)
    return [*found, joined_messages(gathering)] if gathering else found
