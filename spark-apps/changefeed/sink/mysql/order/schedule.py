"""Which rows each worker writes next, in one transaction. Pure; one caller at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

import numpy as np

from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.mysql.order.conflicts import Conflicts, Given, Hashes, Nodes
from changefeed.sink.mysql.rows.changes import Rows
from changefeed.sink.mysql.rows.statements import ChunkStatements


@dataclass(frozen=True)
class Chunk:
    """Rows of an entry that are to be written. Node n of the chunk has rows `starts[n]` up to `starts[n + 1]`."""

    claim: Claim
    entry: EntryId
    statements: ChunkStatements
    starts: Rows
    numbers: Rows  # of the nodes, among all of the entry

    @property
    def nodes(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class Batch:
    """What one transaction writes: nodes of a chunk, in this order."""

    chunk: Chunk
    nodes: Nodes

    @property
    def rows(self) -> Rows:
        if self.chunk.starts[-1] == self.chunk.nodes:  # each node is one row
            return self.nodes
        begins, ends = self.chunk.starts[self.nodes], self.chunk.starts[self.nodes + 1]
        counts = ends - begins
        return np.repeat(begins - (counts.cumsum() - counts), counts) + np.arange(counts.sum())


class Schedule:
    """Rows of several chunks, entries and tables, all of which may conflict with one another."""

    def __init__(self, workers: int, batch_rows: int, batch_bytes: int) -> None:
        """A batch has at most so many rows and bytes, or one node."""
        self._conflicts = Conflicts(workers, enough=2 * batch_rows)
        self._queues: list[deque[Batch]] = [deque() for _ in range(workers)]
        self._batch_rows, self._batch_bytes = batch_rows, batch_bytes
        self._added = 0
        self._firsts: list[int] = []  # of each chunk that has unwritten nodes, the conflict detector's number of node 0
        self._chunks: list[Chunk] = []
        self._unwritten: list[int] = []

    def add(self, chunk: Chunk, nodes: Rows, hashes: Hashes) -> None:
        """A chunk with at least one node, behind all others; `hashes[i]` is a key of the chunk's node `nodes[i]`."""
        self._firsts.append(self._added)
        self._chunks.append(chunk)
        self._unwritten.append(chunk.nodes)
        self._added += chunk.nodes
        self._give(self._conflicts.add(chunk.nodes, nodes, hashes))

    def take(self, worker: int) -> Batch | None:
        """What this worker has to write next, behind all that it has taken before."""
        queue = self._queues[worker]
        if not queue:
            return None
        chunk, rows, size = queue[0].chunk, 0, 0
        taken: list[Nodes] = []
        while queue and queue[0].chunk is chunk:
            given = queue[0].nodes
            nodes = given[: self._batch_rows]  # each has a row
            counts, sizes = self._sizes(chunk, nodes)
            fits = (rows + counts.cumsum() <= self._batch_rows) & (size + sizes.cumsum() <= self._batch_bytes)
            count = max(int(np.count_nonzero(fits)), 0 if taken else 1)
            taken.append(nodes[:count])
            if count < len(given):
                queue[0] = Batch(chunk, given[count:])
                break
            queue.popleft()
            rows, size = rows + int(counts.sum()), size + int(sizes.sum())
        return Batch(chunk, np.concatenate(taken))

    def written(self, batch: Batch) -> bool:
        """Whether that lets others go on: a worker has been given more, or a chunk is whole."""
        index = next(at for at, chunk in enumerate(self._chunks) if chunk is batch.chunk)
        first = self._firsts[index]
        self._unwritten[index] -= len(batch.nodes)
        given = self._conflicts.written(batch.nodes + first)
        self._give(given)
        if is_whole := not self._unwritten[index]:
            del self._firsts[index], self._chunks[index], self._unwritten[index]
        return is_whole or bool(given)

    def open_chunks(self, claim: Claim) -> int:
        """How many of a dispatcher's chunks are not written as a whole."""
        return sum(chunk.claim == claim for chunk in self._chunks)

    def _sizes(self, chunk: Chunk, nodes: Nodes) -> tuple[Rows, Rows]:
        """Rows and bytes of each node."""
        begins, ends = chunk.starts[nodes], chunk.starts[nodes + 1]
        offsets = chunk.statements.offsets
        return ends - begins, offsets[ends] - offsets[begins]

    def _give(self, given: list[Given]) -> None:
        for each in given:
            nodes = each.nodes
            while len(nodes):
                index = bisect_right(self._firsts, int(nodes[0])) - 1
                end = self._firsts[index + 1] if index + 1 < len(self._firsts) else self._added
                count = int(np.searchsorted(nodes, end))
                self._queues[each.worker].append(Batch(self._chunks[index], nodes[:count] - self._firsts[index]))
                nodes = nodes[count:]
