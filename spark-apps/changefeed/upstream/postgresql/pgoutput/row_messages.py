"""Messages of rows, many together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from changefeed.upstream.binary_view import Ints, Mask
from changefeed.upstream.postgresql.pgoutput.tuples import view_of

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
    """The messages of all, which stand in their order; with what stands between them."""
    parts = [part for part in parts if len(part.starts)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    whole = [view_of(part.data).data[part.starts[0] : part.ends[-1]] for part in parts]
    ahead = np.cumsum([0, *map(len, whole[:-1])]) - [part.starts[0] for part in parts]
    return RowMessages(
        np.concatenate(whole),
        np.concatenate([part.starts + shift for part, shift in zip(parts, ahead, strict=True)]),
        np.concatenate([part.ends + shift for part, shift in zip(parts, ahead, strict=True)]),
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
