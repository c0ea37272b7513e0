"""A pipeline task and the owner's real service: files are put and told, each once, and nothing holds another up."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest
from changefeed.eventstore.reader import read_slice
from changefeed.eventstore.run_folder import RunFolder
from changefeed.objectstore import Location
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.patience import REQUESTS
from changefeed.pipeline import task as module
from changefeed.pipeline.work import Work
from changefeed.sink import file_sink
from changefeed.sink import spool as spool_module
from changefeed.sink.file_sink import PUT
from changefeed.sink.stages import STAGES
from changefeed.wire import owner_pb2 as pb
from pipeline_files import Encodings, Sink, content_of, make_work, path_of
from pipeline_owner import ATTEMPT, DEADLINE_S, SILENCE_S, Begin, Owner


@pytest.mark.parametrize("in_memory", [1 << 20, 0], ids=["in memory", "on disk"])
def test_what_is_ordered_is_put_and_told(
    owner: Owner, state: Location, sink: Sink, begin: Begin, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(spool_module, "IN_MEMORY_BYTES", in_memory)
    files = {(9, 0): range(3), (9, 2): range(3, 1003), (10, 0): [7]}
    task = begin()
    owner.write(make_work(state, 9, {0: files[9, 0], 2: files[9, 2]}))
    owner.write(make_work(state, 10, {0: files[10, 0]}))
    owner.until(lambda: len(owner.done()) == 3)
    owner.stop()
    assert task.result(DEADLINE_S) is None
    assert sink.list() == sorted((path_of(*file), len(content_of(rows))) for file, rows in files.items())
    for done in owner.done():
        content = content_of(files[done.plan, done.entry])
        assert sink.get(path_of(done.plan, done.entry)).body == content
        assert done == pb.FileDone(
            plan=done.plan,
            entry=done.entry,
            rows=len(files[done.plan, done.entry]),
            raw_rows=len(files[done.plan, done.entry]),
            filtered_rows=0,
            bytes=len(content),
            hash=Digest(content).hexdigest(),
        )
    assert sorted(owner.files()) == sorted(files)
    assert owner.heard.failures == []


def test_rule_13_an_entry_without_rows_is_put_and_told(owner: Owner, state: Location, sink: Sink, begin: Begin) -> None:
    begin()
    owner.write(make_work(state, 9, {4: []}))
    owner.until(lambda: owner.files() == [(9, 4)])
    assert owner.done()[0].bytes == owner.done()[0].rows == 0
    assert sink.list() == [(path_of(9, 4), 0)]


def test_it_says_who_it_is_first_and_each_time(owner: Owner, state: Location, begin: Begin) -> None:
    begin(number=5, attempt=ATTEMPT)
    begin(number=6, attempt=None)
    for number in (5, 6):
        owner.write(make_work(state, 10 + number, {0: [1]}), task=number)
    owner.until(lambda: len(owner.files(5)) == len(owner.files(6)) == 1)
    for number, attempt in ((5, ATTEMPT), (6, None)):
        first, *others = owner.heard.written_by[number]
        assert first == pb.Written(task=number, attempt=attempt)
        assert others
        assert {(word.HasField("attempt"), word.attempt) for word in others} == {(attempt is not None, attempt or 0)}
    assert (owner.files(5), owner.files(6)) == ([(15, 0)], [(16, 0)])


def test_where_the_cpu_time_went_is_told_once(
    owner: Owner, state: Location, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAY_EVERY_S", 0.01)
    begin()
    for known in (1, 2):
        owner.write(make_work(state, 8 + known, {0: range(2000)}))
        owner.until(partial(tells, owner, known))
        owner.hears()
    counters = ("changefeed_pipeline_cpu_seconds_total", REQUESTS)
    assert {(name, gauge) for name, _, _, gauge in told(owner)} == {(name, False) for name in counters}
    seconds = [value for _, label, value, _ in told(owner) if label == PUT]
    assert all(value > 0 for value in seconds)


def tells(owner: Owner, times: int) -> bool:
    labels = Counter(label for _, label, _, _ in told(owner))
    return min(labels[stage] for stage in (*STAGES, PUT)) >= times


def told(owner: Owner) -> list[tuple[str, str, float, bool]]:
    words = owner.heard.written_by[0]
    return [(metric.name, metric.label, metric.value, metric.gauge) for word in words for metric in word.metrics]


def test_rule_20_while_one_put_is_slow_others_of_any_plan_are_put_and_told(
    owner: Owner, state: Location, sink: Sink, begin: Begin
) -> None:
    slow = path_of(9, 0)
    sink.hold_back(slow)
    begin()
    owner.write(make_work(state, 9, {0: [1], 1: [2]}))
    owner.write(make_work(state, 10, {0: [3]}))
    sink.until_tried(slow)
    owner.until(lambda: sorted(owner.files()) == [(9, 1), (10, 0)])
    assert slow not in dict(sink.list())
    sink.let_go()
    owner.until(lambda: len(owner.files()) == 3)
    assert owner.files()[-1] == (9, 0)


def test_no_more_is_encoded_than_some_files_ahead_of_a_slow_store(
    owner: Owner, state: Location, sink: Sink, begin: Begin, encodings: Encodings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "PUTS", 2)
    files = range(6)
    sink.hold_back(*[path_of(9, entry) for entry in files])
    begin()
    owner.write(make_work(state, 9, {entry: [entry] for entry in files}))
    for _ in range(3):  # two are being put, and the next one waits for room
        assert encodings.begun.acquire(timeout=DEADLINE_S)
    assert not encodings.begun.acquire(timeout=SILENCE_S)
    sink.let_go(path_of(9, 0))
    assert encodings.begun.acquire(timeout=DEADLINE_S)
    assert not encodings.begun.acquire(timeout=SILENCE_S)
    sink.let_go()
    owner.until(lambda: sorted(owner.files()) == [(9, entry) for entry in files])


def test_segments_of_a_store_are_read_side_by_side_once(
    owner: Owner, state: Location, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of this machine, and what was fetched for another file, are read by the one that encodes."""
    together, readers = threading.Barrier(3, timeout=DEADLINE_S), []

    def read_together(*given: Any, **options: Any) -> Any:
        if len(readers) < 3:
            together.wait()
        readers.append(threading.current_thread().name)
        return read_slice(*given, **options)

    monkeypatch.setattr(module, "read_slice", read_together)
    monkeypatch.setattr(RunFolder, "is_mapped", False)

    def of_three_segments(plan: int, first: int) -> Work:
        works = [make_work(state, plan, {0: [key]}) for key in range(first, first + 3)]
        segments = tuple(piece for work in works for entry in work.entries for piece in entry.segments)
        entry = works[0].entries[0].model_copy(update={"segments": segments})
        return works[0].model_copy(update={"entries": (entry,)})

    begin()
    work = of_three_segments(9, 0)
    owner.write(work)
    owner.until(lambda: len(owner.files()) == 1)
    owner.write(work.model_copy(update={"record": 10}))
    owner.until(lambda: len(owner.files()) == 2)
    monkeypatch.setattr(RunFolder, "is_mapped", True)
    owner.write(of_three_segments(11, 3))
    owner.until(lambda: len(owner.files()) == 3)
    assert [done.rows for done in owner.done()] == [3, 3, 3]
    assert [name.startswith("read") for name in readers] == [True] * 3 + [False] * 6


@pytest.mark.parametrize("puller", [0, 3])
def test_one_that_is_to_pull_leaves_with_the_pullers_number_once_all_is_put(
    owner: Owner, state: Location, sink: Sink, begin: Begin, puller: int
) -> None:
    sink.hold_back(path_of(9, 0))
    task = begin()
    owner.write(make_work(state, 9, {0: [1]}))
    sink.until_tried(path_of(9, 0))
    owner.order(pb.Order(pull=pb.Pull(puller=puller)))
    sink.let_go()
    assert task.result(DEADLINE_S) == puller
    assert sink.get(path_of(9, 0)).body == content_of([1])
    owner.until(lambda: owner.heard.left == [0])


def test_an_end_is_not_a_pull(owner: Owner, begin: Begin) -> None:
    task = begin()
    owner.until(lambda: owner.heard.joined == [0])
    owner.end()
    assert task.result(DEADLINE_S) is None


def test_nothing_of_one_that_has_left_goes_on(owner: Owner, begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may pull next, and write again after that."""
    monkeypatch.setattr(module, "SAY_EVERY_S", 3600.0)
    before = set(threading.enumerate())
    task = begin()
    owner.order(pb.Order(pull=pb.Pull(puller=0)))
    assert task.result(DEADLINE_S) == 0
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith("task"):
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), thread


def test_a_successor_takes_its_place(owner: Owner, state: Location, begin: Begin) -> None:
    first = begin()
    owner.until(lambda: owner.heard.joined == [0])
    begin(attempt=ATTEMPT + 1)
    assert first.result(DEADLINE_S) is None
    owner.until(lambda: (owner.heard.joined, owner.heard.left) == ([0, 0], [0]))
    owner.write(make_work(state, 9, {0: [1]}))
    owner.until(lambda: owner.files() == [(9, 0)])
    assert owner.heard.written_by[0][-1].attempt == ATTEMPT + 1
