"""Which transactions go to which worker, and when: an example to read, and rules over random workloads."""

from __future__ import annotations

import math

import numpy as np
from changefeed.sink.mysql.order.conflicts import Conflicts, Given
from hypothesis import given, settings
from hypothesis import strategies as st


class Model:
    """What was added, given out and written, kept naively, a node at a time."""

    def __init__(self, workers: int, enough: float = math.inf) -> None:
        self.conflicts, self._enough = Conflicts(workers, enough), enough
        self.queues: list[list[int]] = [[] for _ in range(workers)]
        self.worker: dict[int, int] = {}
        self.depends: list[set[int]] = []
        self.written: set[int] = set()
        self._last: dict[int, int] = {}

    def add(self, keys_of_nodes: list[list[int]]) -> None:
        first = len(self.depends)
        for node, keys in enumerate(keys_of_nodes, first):
            self.depends.append({self._last[key] for key in keys if key in self._last})
            self._last |= dict.fromkeys(keys, node)
        pairs = [(node, key) for node, keys in enumerate(keys_of_nodes) for key in keys]
        nodes, hashes = ([pair[part] for pair in pairs] for part in (0, 1))
        self._take(self.conflicts.add(len(keys_of_nodes), np.array(nodes, np.int64), np.array(hashes, np.uint64)))

    def write(self, worker: int, count: int) -> None:
        done, self.queues[worker] = self.queues[worker][:count], self.queues[worker][count:]
        if done:
            self.written |= set(done)
            self._take(self.conflicts.written(np.array(done, np.int64)))

    def _take(self, given_out: list[Given]) -> None:
        for each in given_out:
            for node in each.nodes.tolist():
                assert node not in self.worker, "it is given out twice"
                self.worker[node] = each.worker
                self.queues[each.worker].append(node)
        self.check()

    def check(self) -> None:
        for node, depends in enumerate(self.depends):
            open_ = depends - self.written
            holders = {self.worker.get(each) for each in open_}
            if node in self.worker:
                assert node in self.written or holders <= {self.worker[node]}, f"{node} overtakes what it depends on"
            elif min(map(len, self.queues)) <= self._enough:
                assert None in holders or len(holders) > 1, f"{node} could be given out"
        for queue in self.queues:
            for at, node in enumerate(queue):
                assert not self.depends[node] & set(queue[at:]), f"{node} comes before what it depends on"
        assert self.conflicts.unwritten == len(self.depends) - len(self.written)


def test_the_example_of_the_design() -> None:
    """DML1 to 6 of the talk on TiCDC's sinks, in which only DML5 has to wait, for DML3 and DML4 alone."""
    pk, uk = 0, 100
    model = Model(2)
    model.add([[pk + 1, uk + 2], [pk + 2, uk + 3]])
    assert model.queues == [[0], [1]]
    model.add([[pk + 2, uk + 3, pk + 4], [pk + 1, uk + 2], [pk + 1, uk + 3], [pk + 5, uk + 6]])
    assert model.queues == [[0, 3, 5], [1, 2]] or model.queues == [[0, 3], [1, 2, 5]]
    model.write(1, 3)
    assert 4 in model.queues[0], "what is left of it is all with one worker: it need not wait for that"


def test_a_hot_key_keeps_one_worker_busy_and_holds_up_nobody_else() -> None:
    model = Model(4)
    model.add([[7]] * 50 + [[1000 + node] for node in range(150)])
    assert not [node for node in range(200) if node not in model.worker]
    assert model.worker[0] == model.worker[49]
    assert [len(queue) for queue in model.queues] == [50] * 4, "what has no conflict evens it out"


def test_what_hot_keys_hold_together_is_one_workers_and_waits_for_nothing() -> None:
    """The first nodes of each key are free. Were they spread, each node with two keys would wait for two workers."""
    model, chosen = Model(4), np.random.default_rng(5)
    hot = chosen.integers(0, 6, (600, 2)).tolist()
    model.add([*hot, *([1000 + node] for node in range(200))])
    assert {model.worker[node] for node in range(600)} == {model.worker[0]}
    assert sorted(map(len, model.queues)) == [66, 67, 67, 600], "the others go where there is less to do"
    model.add(hot)
    assert {model.worker[node] for node in range(800, 1400)} == {model.worker[0]}


def test_a_large_part_is_split_when_much_of_it_can_be_written_at_once() -> None:
    model = Model(4)
    model.add([*([node] for node in range(400)), list(range(400))])
    assert [len(queue) for queue in model.queues] == [100] * 4
    assert 400 not in model.worker, "it depends on all"


def test_a_transaction_without_keys_waits_for_nothing() -> None:
    model = Model(2)
    model.add([[], [], []])
    assert sorted(map(len, model.queues)) == [1, 2]


def test_what_is_written_is_forgotten() -> None:
    conflicts = Conflicts(2)
    for first in range(0, 100_000, 1000):
        keys = np.arange(first, first + 1000, dtype=np.uint64)
        for each in conflicts.add(1000, np.arange(1000), keys):
            conflicts.written(each.nodes)
    assert conflicts.unwritten == 0
    assert len(conflicts._hashes) <= 1000


_KEYS = st.lists(st.integers(0, 12), max_size=4)


@given(
    st.integers(1, 4),
    st.sampled_from([0, 2, math.inf]),
    st.lists(st.one_of(st.lists(_KEYS, max_size=12), st.tuples(st.integers(0, 3), st.integers(1, 6)))),
)
@settings(max_examples=300, deadline=None)
def test_nothing_overtakes_and_nothing_waits_without_need(workers: int, enough: float, steps: list[object]) -> None:
    model = Model(workers, enough)
    for step in steps:
        if isinstance(step, tuple):
            model.write(step[0] % workers, step[1])
        elif isinstance(step, list):
            model.add(step)
    while any(model.queues):
        model.write(max(range(workers), key=lambda worker: len(model.queues[worker])), 3)
    assert len(model.written) == len(model.depends), "it stands still"
