"""Which transactions may run concurrently, and which worker writes each.

Pure. A *node* is a transaction that is not written yet; its *keys* are hashes of the values of all primary and unique
keys that it writes, old and new. A node depends on the last node before it that shares a key. A worker writes its nodes
in the order in which they were assigned, so a node may be assigned

- once everything it depends on is written: to the worker with the least to do;
- once everything unwritten that it depends on is assigned to the same worker: to that one, immediately, queued behind
  it.

Otherwise it waits, along with what depends on it; nothing else does. So that few have to wait, nodes that hang together
by what they depend on, a *part* of the graph, go to one worker as a whole: a hot key's, with all that it meets, are few
large batches then. All this works on arrays of nodes. Hash collisions can make two nodes wait for each other
unnecessarily, never the other way round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Nodes = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_NOBODY = -1  # has it yet
_WRITTEN = -2
_HALF = 32  # bits of a number that holds two
_LOW = (1 << _HALF) - 1
_WIDE = 4  # a part may be split if one of so many nodes depends on nothing


@dataclass(frozen=True)
class Given:
    """`nodes`, in this order, are behind all that `worker` was given before."""

    worker: int
    nodes: Nodes


class Conflicts:
    """Nodes are numbered 0, 1, 2 ... in the order in which they are added, which is that of their commits."""

    def __init__(self, workers: int, enough: float = math.inf) -> None:
        """While each worker has more than `enough` nodes to write, nobody looks which others could be given out."""
        self._enough = enough
        self._loads = np.zeros(workers, np.int64)  # nodes that each was given and has not written
        self.unwritten = 0  # nodes that were added and are not written
        self._first = 0  # the lowest node that is kept
        self._workers = np.empty(0, np.int64)  # of the nodes from `_first` on
        self._hashes = np.empty(0, np.uint64)  # of the keys of unwritten nodes, half of each: a collision does no harm
        self._last = np.empty(0, np.int64)  # the last node with each
        self._node = np.empty(0, np.int64)  # edges of the nodes that wait: the node, in order,
        self._pred = np.empty(0, np.int64)  # and one that it depends on

    def add(self, count: int, nodes: Nodes, hashes: Hashes) -> list[Given]:
        """`count` more nodes; `hashes[i]` is a key of `nodes[i]`, counted from the first of these.

        A node without keys depends on nothing.
        """
        self._forget()
        first = self._first + len(self._workers)
        self._workers = np.concatenate([self._workers, np.full(count, _NOBODY)])
        self.unwritten += count
        node, pred = self._edges(first, nodes.astype(np.int64) + first, hashes)
        self._drop_written_edges()
        self._node, self._pred = np.concatenate([self._node, node]), np.concatenate([self._pred, pred])
        return self._give()

    def written(self, nodes: Nodes) -> list[Given]:
        """Nodes that were given out are written."""
        at = nodes - self._first
        self._loads -= np.bincount(self._workers[at], minlength=len(self._loads))
        self._workers[at] = _WRITTEN
        self.unwritten -= len(nodes)
        if not len(self._node) or self._loads.min() > self._enough or not self._drop_written_edges():
            return []
        return self._give()

    def _edges(self, first: int, nodes: Nodes, hashes: Hashes) -> tuple[Nodes, Nodes]:
        """(node, what it depends on), each pair once, in order of nodes, which are from `first` on; and keeps the last
        node of each key.
        """
        is_open = self._worker_of(self._last) != _WRITTEN
        nodes = np.concatenate([self._last[is_open], nodes])
        hashes = np.concatenate([self._hashes[is_open], hashes])
        both = np.sort(hashes << np.uint64(_HALF) | (nodes - self._first).astype(np.uint64))
        hashes, nodes = both >> np.uint64(_HALF), (both & np.uint64(_LOW)).astype(np.int64) + self._first
        goes_on, is_last = hashes[1:] == hashes[:-1], np.ones(len(nodes), np.bool_)
        is_last[:-1] = ~goes_on
        self._hashes, self._last = hashes[is_last], nodes[is_last]
        depends = np.flatnonzero(goes_on & (nodes[1:] >= first) & (nodes[1:] != nodes[:-1]))
        pairs = np.unique((nodes[depends + 1] - self._first) << _HALF | (nodes[depends] - self._first))
        return (pairs >> _HALF) + self._first, (pairs & _LOW) + self._first

    def _worker_of(self, nodes: Nodes) -> Nodes:
        """_WRITTEN for those that are not kept."""
        is_kept = nodes >= self._first
        found = np.full(len(nodes), _WRITTEN)
        found[is_kept] = self._workers[nodes[is_kept] - self._first]
        return found

    def _drop_written_edges(self) -> bool:
        """Whether there were edges to nodes that are written since."""
        is_open = self._worker_of(self._pred) != _WRITTEN
        if is_open.all():
            return False
        self._node, self._pred = self._node[is_open], self._pred[is_open]
        return True

    def _forget(self) -> None:
        """What is written before the first node that is not, once that is most of what is kept."""
        if 2 * self.unwritten < len(self._workers):
            is_open = self._workers != _WRITTEN
            over = int(is_open.argmax()) if self.unwritten else len(self._workers)
            if 2 * over > len(self._workers):
                self._first += over
                self._workers = self._workers[over:]

    def _give(self) -> list[Given]:
        """Give out what can be given out of the nodes that nobody has."""
        waiting = np.flatnonzero(self._workers == _NOBODY)
        worker = self._choose(waiting)
        given = worker != _NOBODY
        self._workers[waiting] = worker
        self._loads += np.bincount(worker[given], minlength=len(self._loads))
        waits = self._workers[self._node - self._first] == _NOBODY
        self._node, self._pred = self._node[waits], self._pred[waits]
        return [
            Given(each, waiting[mine] + self._first)
            for each in range(len(self._loads))
            if (mine := worker == each).any()
        ]

    def _choose(self, waiting: Nodes) -> Nodes:
        """Who gets each of these nodes, _NOBODY if it has to wait."""
        count, workers = len(waiting), len(self._loads)
        if not len(self._node):
            return self._spread(self._loads, np.ones(count, np.int64))
        place = np.full(len(self._workers), -1)
        place[waiting] = np.arange(count)
        node, pred = place[self._node - self._first], place[self._pred - self._first]
        inside = pred >= 0
        holder = self._workers[self._pred - self._first]  # of what is given out
        part = _parts(count, node[inside], pred[inside])
        # Of each part, by its first node: its size, how many of it depend on nothing, whose nodes it depends on.
        size, depends = np.bincount(part, minlength=count), np.zeros(count, np.bool_)
        depends[node] = True
        sources = np.bincount(part[~depends], minlength=count)
        low, high = np.full(count, workers), np.full(count, _NOBODY)
        np.minimum.at(low, part[node[~inside]], holder[~inside])
        np.maximum.at(high, part[node[~inside]], holder[~inside])
        is_whole = (low >= high) & ((size * workers <= count) | (sources * _WIDE < size))
        is_given = is_whole & (size > 0)
        follows = is_given & (high != _NOBODY)
        loads = self._loads + np.bincount(high[follows], size[follows], workers).astype(np.int64)
        # The others are spread: parts as a whole, and of those that are split the nodes that depend on nothing.
        is_alone = ~depends & ~is_whole[part]
        spread = np.flatnonzero(is_given & ~follows | is_alone)
        has = np.where(follows, high, _NOBODY)
        has[spread] = self._spread(loads, np.where(is_alone, 1, size)[spread])
        worker: Nodes = np.where(is_whole[part], has[part], np.where(is_alone, has, _NOBODY))
        split = ~is_whole[part[node]]
        if split.any():
            _follow(worker, node[split], pred[split], holder[split])
        return worker

    def _spread(self, loads: Nodes, sizes: Nodes) -> Nodes:
        """Which worker gets each of so many nodes, so that all have about as much to do then."""
        workers, worker = len(loads), np.zeros(len(sizes), np.int64)
        loads, is_small = loads.astype(np.float64), sizes * len(loads) <= sizes.sum()
        for large in np.flatnonzero(~is_small):
            worker[large] = loads.argmin()
            loads[worker[large]] += sizes[large]
        small = sizes[is_small]
        order = np.argsort(loads, kind="stable")
        loads = loads[order]
        levels = (loads.cumsum() + small.sum()) / np.arange(1, workers + 1)  # if only the first so many get any
        level = levels[np.flatnonzero(levels <= np.r_[loads[1:], np.inf])[0]]
        full = np.cumsum(np.maximum(level - loads, 0.0))
        worker[is_small] = order[np.minimum(np.searchsorted(full, small.cumsum() - small, side="right"), workers - 1)]
        return worker


def _parts(count: int, node: Nodes, pred: Nodes) -> Nodes:
    """Say of each of `count` nodes which is the first of those that hang together with it by these edges.

    In rounds: each part joins the first one that it has an edge to, so that half of them are gone at least.
    """
    part, high, low = np.arange(count), node, pred
    while len(high):
        np.minimum.at(part, high, low)
        while not np.array_equal(further := part[part], part):
            part = further
        one, other = part[high], part[low]
        apart = one != other
        high, low = np.maximum(one, other)[apart], np.minimum(one, other)[apart]
    return part


def _follow(worker: Nodes, node: Nodes, pred: Nodes, holder: Nodes) -> None:
    """Say in `worker` who gets each of the nodes of these edges, in their order: who has all that it depends on.

    `holder` is of what is given out already, which is no `pred`. One by one, as each decides for later ones.
    """
    found: dict[int, int] = {}
    before = worker.tolist()
    for each, at, known in zip(node.tolist(), pred.tolist(), holder.tolist(), strict=True):
        one = known if at < 0 else found.get(at, before[at])
        found[each] = one if found.get(each, one) == one else _NOBODY
    worker[list(found)] = list(found.values())
