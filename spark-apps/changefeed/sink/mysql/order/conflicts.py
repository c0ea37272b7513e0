"""Which transactions may run concurrently, and which worker writes each.

Pure. A *node* is a transaction that is not written yet; its *keys* are hashes of the values of all primary and unique
keys that it writes, old and new. A node depends on the last node before it that shares a key. A worker writes its nodes
in the order in which they were assigned, so a node may be assigned

- once everything it depends on is written: to the worker with the least to do;
- once everything unwritten that it depends on is assigned to the same worker: to that one, immediately, queued behind
  it.

Otherwise it waits, along with what depends on it; nothing else does. All this works on arrays of nodes. Hash collisions
can make two nodes wait for each other unnecessarily, never the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Nodes = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_NOBODY = -1  # has it yet
_WRITTEN = -2


@dataclass(frozen=True)
class Given:
    """`nodes`, in this order, are behind all that `worker` was given before."""

    worker: int
    nodes: Nodes


class Conflicts:
    """Nodes are numbered 0, 1, 2 ... in the order in which they are added, which is that of their commits."""

    def __init__(self, workers: int) -> None:
        self._loads = np.zeros(workers, np.int64)  # nodes that each was given and has not written
        self._first = 0  # the lowest node that is kept
        self._workers = np.empty(0, np.int64)  # of the nodes from `_first` on
        self._hashes = np.empty(0, np.uint64)  # of all keys of nodes that are kept, in order
        self._last = np.empty(0, np.int64)  # the last node with each
        self._node = np.empty(0, np.int64)  # edges of the nodes that wait: the node, in order,
        self._pred = np.empty(0, np.int64)  # and one that it depends on, which is not written

    @property
    def unwritten(self) -> int:
        """Nodes that were added and are not written."""
        return int(np.count_nonzero(self._workers != _WRITTEN))

    def add(self, count: int, nodes: Nodes, hashes: Hashes) -> list[Given]:
        """`count` more nodes; `hashes[i]` is a key of `nodes[i]`, counted from the first of these.

        A node without keys depends on nothing.
        """
        first = self._first + len(self._workers)
        self._workers = np.concatenate([self._workers, np.full(count, _NOBODY)])
        node, pred = self._edges(nodes.astype(np.int64) + first, hashes)
        self._node, self._pred = np.concatenate([self._node, node]), np.concatenate([self._pred, pred])
        free = np.ones(count, np.bool_)
        free[node - first] = False
        return self._give(np.flatnonzero(free) + first)

    def written(self, nodes: Nodes) -> list[Given]:
        """Nodes that were given out are written."""
        at = nodes - self._first
        self._loads -= np.bincount(self._workers[at], minlength=len(self._loads))
        self._workers[at] = _WRITTEN
        is_over = self._worker_of(self._pred) == _WRITTEN
        concerned = np.unique(self._node[is_over])
        self._node, self._pred = self._node[~is_over], self._pred[~is_over]
        given = self._give(concerned[~np.isin(concerned, self._node)])
        self._forget()
        return given

    def _edges(self, nodes: Nodes, hashes: Hashes) -> tuple[Nodes, Nodes]:
        """(node, what it depends on), each pair once, in order of nodes; and keeps the last node of each key."""
        if not len(nodes):
            return nodes, nodes
        order = np.lexsort((nodes, hashes))
        nodes, hashes = nodes[order], hashes[order]
        begins = np.r_[True, hashes[1:] != hashes[:-1]]
        before = np.roll(nodes, 1)
        before[begins] = self._last_with(hashes[begins])
        self._keep(hashes[begins], nodes[np.roll(begins, -1)])
        depends = (before != nodes) & (self._worker_of(before) != _WRITTEN)
        pairs = np.unique(np.stack([nodes[depends], before[depends]]), axis=1)
        return pairs[0], pairs[1]

    def _last_with(self, hashes: Hashes) -> Nodes:
        """The last node with each of these keys; -1, which is not kept, when there is none. `hashes` in order."""
        if not len(self._hashes):
            return np.full(len(hashes), -1)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.where(self._hashes[at] == hashes, self._last[at], -1)

    def _keep(self, hashes: Hashes, last: Nodes) -> None:
        """`hashes`: each once, in order."""
        others = ~np.isin(self._hashes, hashes, assume_unique=True)
        merged = np.concatenate([self._hashes[others], hashes])
        order = np.argsort(merged, kind="stable")
        self._hashes, self._last = merged[order], np.concatenate([self._last[others], last])[order]

    def _worker_of(self, nodes: Nodes) -> Nodes:
        """_WRITTEN for those that are not kept."""
        is_kept = nodes >= self._first
        found = np.full(len(nodes), _WRITTEN)
        found[is_kept] = self._workers[nodes[is_kept] - self._first]
        return found

    def _forget(self) -> None:
        """What is written before the first node that is not, once that is most of what is kept."""
        unwritten = np.flatnonzero(self._workers != _WRITTEN)
        over = int(unwritten[0]) if len(unwritten) else len(self._workers)
        if 2 * over > len(self._workers):
            self._first += over
            self._workers = self._workers[over:]
            is_kept = self._last >= self._first
            self._hashes, self._last = self._hashes[is_kept], self._last[is_kept]

    def _give(self, free: Nodes) -> list[Given]:
        """Give out `free`, which depend on nothing, and of what waits all that can be given out then."""
        waiting = np.union1d(free, self._node)
        node, is_free = np.searchsorted(waiting, self._node), np.searchsorted(waiting, free)
        root = _roots(len(waiting), node, *_found(waiting, self._pred))
        has = np.full(len(waiting), _NOBODY)  # the worker of each root
        has[is_free] = self._spread(np.bincount(root, minlength=len(waiting))[is_free])
        self._give_roots(waiting, root, node, has)
        worker = has[root]
        given = worker != _NOBODY
        self._workers[waiting[given] - self._first] = worker[given]
        self._loads += np.bincount(worker[given], minlength=len(self._loads))
        waits = ~given[node]
        self._node, self._pred = self._node[waits], self._pred[waits]
        return [Given(int(each), waiting[worker == each]) for each in np.unique(worker[given])]

    def _give_roots(self, waiting: Nodes, root: Nodes, node: Nodes, has: Nodes) -> None:
        """Say in `has` who gets each root whose worker follows from what it depends on.

        In rounds, as one root's worker decides that of others: as many as roots depend on one another in a row. A chain
        of nodes that depend on one other each is a single tree, and takes none.
        """
        of_root = root[node] == node
        node, pred = node[of_root], self._pred[of_root]
        at, inside = _found(waiting, pred)
        at, given = root[at], self._worker_of(pred)
        while len(node):
            worker = np.where(inside, has[at], given)
            starts = np.flatnonzero(np.r_[True, node[1:] != node[:-1]])
            low, high = np.minimum.reduceat(worker, starts), np.maximum.reduceat(worker, starts)
            can = (low == high) & (low != _NOBODY)
            if not can.any():
                return
            has[node[starts[can]]] = low[can]
            is_open = np.repeat(low == _NOBODY, np.diff(np.r_[starts, len(node)]))
            node, at, inside, given = node[is_open], at[is_open], inside[is_open], given[is_open]

    def _spread(self, sizes: Nodes) -> Nodes:
        """Which worker gets each tree of so many nodes, so that all have about as much to do then."""
        order = np.argsort(self._loads, kind="stable")
        loads = self._loads[order]
        levels = (loads.cumsum() + sizes.sum()) / np.arange(1, len(loads) + 1)  # if only the first so many get any
        level = levels[np.flatnonzero(levels <= np.r_[loads[1:], np.inf])[0]]
        full = np.cumsum(np.maximum(level - loads, 0.0))
        return order[np.minimum(np.searchsorted(full, sizes.cumsum() - sizes, side="right"), len(order) - 1)]


def _found(sorted_nodes: Nodes, nodes: Nodes) -> tuple[Nodes, npt.NDArray[np.bool_]]:
    """Where each of `nodes` is in `sorted_nodes`, and whether it is there."""
    if not len(sorted_nodes):
        return np.zeros(len(nodes), np.int64), np.zeros(len(nodes), np.bool_)
    at = np.minimum(np.searchsorted(sorted_nodes, nodes), len(sorted_nodes) - 1)
    return at, sorted_nodes[at] == nodes


def _roots(count: int, node: Nodes, pred: Nodes, inside: npt.NDArray[np.bool_]) -> Nodes:
    """The root of each of `count` waiting nodes: who depends on one other only, which waits too, has that one's."""
    alone = np.bincount(node, minlength=count)[node] == 1
    root = np.arange(count)
    root[node[alone & inside]] = pred[alone & inside]
    while not np.array_equal(further := root[root], root):
        root = further
    return root
