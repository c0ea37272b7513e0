"""What ends a pipeline task, what it waits for meanwhile, and how its silence is told from its work."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from changefeed.errors import (
    ChangefeedError,
    Fenced,
    InvalidSpec,
    NeedsHuman,
    NotFound,
    OutcomeUnknown,
    OutputConflict,
    Refused,
    Transient,
    Unavailable,
)
from changefeed.eventstore.run_folder import RunFolder
from changefeed.objectstore import Location, patience
from changefeed.objectstore.patience import REQUESTS, outcome
from changefeed.pipeline import task as module
from changefeed.pipeline.task import PipelineTask
from changefeed.sink import file_sink
from changefeed.sink import spool as spool_module
from changefeed.sink.spool import Spool
from changefeed.sink.storage import event_sink
from changefeed.sink.storage.event_sink import encode_entry
from changefeed.wire import owner_pb2 as pb
from pipeline_files import Encodings, Sink, content_of, make_work, path_of
from pipeline_owner import DEADLINE_S, EPOCH, NONCE, Begin, Owner

AWAY = Unavailable("The lake is away.", "Look at it.")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(patience, "LONGEST_WAIT_S", 0.01)


@pytest.fixture
def full_disk(state: Location, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Nothing can be spooled until it is called."""
    monkeypatch.setattr(spool_module, "IN_MEMORY_BYTES", 0)
    folder = RunFolder(state, EPOCH, NONCE).spool_folder
    folder.parent.mkdir(parents=True)
    folder.touch()
    return folder.unlink


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released once for each failure that a task has noted."""
    noted = threading.Semaphore(0)
    note = PipelineTask.fail

    def note_and_tell(task: PipelineTask, error: BaseException) -> None:
        note(task, error)
        noted.release()

    monkeypatch.setattr(PipelineTask, "fail", note_and_tell)
    return noted


@pytest.mark.parametrize("in_memory", [1 << 20, 0], ids=["in memory", "on disk"])
def test_rule_16_a_file_that_stands_there_with_the_same_bytes_is_written(
    owner: Owner, state: Location, sink: Sink, begin: Begin, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(spool_module, "IN_MEMORY_BYTES", in_memory)
    sink.create(path_of(9, 0), content_of([1, 2]))
    begin()
    owner.write(make_work(state, 9, {0: [1, 2]}))
    owner.until(lambda: owner.files() == [(9, 0)])
    assert (owner.done()[0].rows, owner.done()[0].bytes) == (2, len(content_of([1, 2])))


@pytest.mark.parametrize("in_memory", [1 << 20, 0], ids=["in memory", "on disk"])
def test_rule_16_a_file_that_stands_there_with_other_bytes_ends_it(
    owner: Owner, state: Location, sink: Sink, begin: Begin, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(spool_module, "IN_MEMORY_BYTES", in_memory)
    sink.create(path_of(9, 0), content_of([1, 3]))
    task = begin()
    owner.write(make_work(state, 9, {0: [1, 2]}))
    with pytest.raises(OutputConflict, match=path_of(9, 0)):
        task.result(DEADLINE_S)
    assert sink.get(path_of(9, 0)).body == content_of([1, 3])
    assert owner.files() == []


@pytest.mark.parametrize(
    "error",
    [NeedsHuman("no", "look"), InvalidSpec("spec.sink", "no"), NotFound("no"), ZeroDivisionError("a fault of ours")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("in_memory", [1 << 20, 0], ids=["in memory", "on disk"])
def test_a_put_that_fails_ends_it_with_that_error_and_what_was_put_before_is_told(
    owner: Owner,
    state: Location,
    sink: Sink,
    begin: Begin,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    in_memory: int,
) -> None:
    monkeypatch.setattr(spool_module, "IN_MEMORY_BYTES", in_memory)
    bad = path_of(9, 0)
    sink.hold_back(bad)
    sink.fail(bad, [error])
    task = begin()
    owner.write(make_work(state, 9, {0: [1], 1: [2], 2: [3]}))
    owner.until(lambda: sorted(owner.files()) == [(9, 1), (9, 2)])
    sink.let_go()
    assert task.exception(DEADLINE_S) is error
    assert [path for path, _ in sink.list()] == [path_of(9, 1), path_of(9, 2)]
    assert len(owner.files()) == 2
    owner.until(lambda: owner.heard.left == [0])


def test_the_first_failure_is_the_one_that_is_raised(
    owner: Owner, state: Location, sink: Sink, begin: Begin, failed: threading.Semaphore
) -> None:
    first, second = path_of(9, 0), path_of(9, 1)
    sink.hold_back(first, second)
    sink.fail(first, [NeedsHuman("of the first file")])
    sink.fail(second, [OutputConflict("of the second file")])
    task = begin()
    owner.write(make_work(state, 9, {0: [1], 1: [2]}))
    sink.until_tried(first)
    sink.until_tried(second)
    sink.let_go(second)
    assert failed.acquire(timeout=DEADLINE_S)
    sink.let_go(first)
    with pytest.raises(OutputConflict, match="of the second file"):
        task.result(DEADLINE_S)


def test_a_failure_ends_it_while_another_put_waits_for_the_store(
    owner: Owner, state: Location, sink: Sink, begin: Begin
) -> None:
    sink.hold_back(path_of(9, 0))
    sink.fail(path_of(9, 0), [OutputConflict("no")])
    sink.fail(path_of(9, 1), itertools.repeat(AWAY))
    task = begin()
    owner.write(make_work(state, 9, {0: [1], 1: [2]}))
    owner.until(lambda: len(owner.heard.failures) > 2)
    sink.let_go()
    assert isinstance(task.exception(DEADLINE_S), OutputConflict)


def test_what_is_put_while_it_fails_is_told(
    owner: Owner, state: Location, sink: Sink, begin: Begin, failed: threading.Semaphore
) -> None:
    bad, good = path_of(9, 0), path_of(9, 1)
    sink.hold_back(bad, good)
    sink.fail(bad, [NeedsHuman("no")])
    task = begin()
    owner.write(make_work(state, 9, {0: [1], 1: [2]}))
    sink.until_tried(bad)
    sink.until_tried(good)
    sink.let_go(bad)
    assert failed.acquire(timeout=DEADLINE_S)
    sink.let_go(good)
    assert isinstance(task.exception(DEADLINE_S), NeedsHuman)
    owner.until(lambda: owner.heard.left == [0])
    assert owner.files() == [(9, 1)]


def test_a_failure_is_raised_though_the_disk_is_full(
    owner: Owner, state: Location, sink: Sink, begin: Begin, full_disk: Callable[[], None]
) -> None:
    sink.hold_back(path_of(9, 0))
    sink.fail(path_of(9, 0), [OutputConflict("no")])
    task = begin()
    owner.write(make_work(state, 9, {0: [], 1: [2]}))  # an empty file needs no room
    sink.until_tried(path_of(9, 0))
    owner.until(lambda: len(owner.heard.failures) > 2)
    sink.let_go()
    assert isinstance(task.exception(DEADLINE_S), OutputConflict)
    full_disk()


@pytest.mark.usefixtures("talkative")
def test_a_sink_that_is_away_is_no_sign_of_work(
    owner: Owner, state: Location, sink: Sink, begin: Begin, encodings: Encodings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    sink.fail(path_of(9, 0), itertools.repeat(AWAY))
    begin()
    owner.write(make_work(state, 9, {0: [1]}))
    owner.until(lambda: len(owner.heard.failures) > 2)
    assert encodings.begun.acquire(timeout=DEADLINE_S)
    encodings.held = {1}
    owner.write(make_work(state, 9, {1: [2]}))
    assert encodings.begun.acquire(timeout=DEADLINE_S)
    clock.now += 2 * module.STUCK_S
    owner.hears_nothing()
    owner.stop()
    encodings.go_on.set()


def test_nothing_is_encoded_after_a_failure(
    owner: Owner, state: Location, sink: Sink, begin: Begin, encodings: Encodings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "PUTS", 1)
    sink.fail(path_of(9, 0), [NeedsHuman("no")])
    sink.hold_back(path_of(9, 0))
    task = begin()
    owner.write(make_work(state, 9, {entry: [entry] for entry in range(6)}))
    for _ in range(2):
        assert encodings.begun.acquire(timeout=DEADLINE_S)
    sink.let_go()
    with pytest.raises(NeedsHuman):
        task.result(DEADLINE_S)
    assert not encodings.begun.acquire(blocking=False)


def test_rule_3_a_segment_that_is_lost_ends_it_and_nothing_is_put(
    owner: Owner, state: Location, sink: Sink, begin: Begin
) -> None:
    work = make_work(state, 9, {0: [1], 1: [2]})
    ((lost,), _) = (entry.segments for entry in work.entries)
    RunFolder(state, EPOCH, NONCE).delete_segment(lost.uri)
    task = begin()
    owner.write(work)
    with pytest.raises(Transient, match=f"{lost.uri} .* is missing"):
        task.result(DEADLINE_S)
    assert sink.list() == []


def test_rule_3_a_spooled_file_that_has_changed_is_not_put(
    owner: Owner, state: Location, sink: Sink, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "IN_MEMORY_BYTES", 0)

    def encode_and_harm(*given: Any) -> Spool:
        encoded = encode_entry(*given)
        (file,) = RunFolder(state, EPOCH, NONCE).spool_folder.iterdir()
        file.write_bytes(content_of([2]))
        return encoded

    monkeypatch.setattr(event_sink, "encode_entry", encode_and_harm)
    task = begin()
    owner.write(make_work(state, 9, {0: [1]}))
    with pytest.raises(Transient, match="has changed since it was written"):
        task.result(DEADLINE_S)
    assert (sink.list(), owner.files()) == ([], [])


def _requests(owner: Owner) -> Counter[str]:
    """To the sink, and for segments, by how they ended."""
    counted: Counter[str] = Counter()
    for written in owner.heard.written_by.get(0, []):
        counted.update({each.label: int(each.value) for each in written.metrics if each.name == REQUESTS})
    return counted


@pytest.mark.parametrize("error", [AWAY, Refused("no"), Transient("no"), OutcomeUnknown("?")])
def test_a_store_that_is_away_is_told_and_tried_again(
    owner: Owner, state: Location, sink: Sink, begin: Begin, error: ChangefeedError
) -> None:
    sink.fail(path_of(9, 0), [error] * 3)
    begin()
    owner.write(make_work(state, 9, {0: [1]}))
    owner.until(lambda: owner.files() == [(9, 0)])
    told = pb.Failure(reason="Transient", message=error.message, next_step=error.next_step, answered=error.answered)
    assert owner.heard.failures == [told] * 3
    requests = {outcome(error.answered): 3, "ok": 1}
    owner.until(lambda: _requests(owner).items() >= requests.items())
    assert sink.get(path_of(9, 0)).body == content_of([1])


def test_a_full_disk_is_told_and_tried_again(
    owner: Owner, state: Location, sink: Sink, begin: Begin, full_disk: Callable[[], None]
) -> None:
    begin()
    owner.write(make_work(state, 9, {0: [1]}))
    owner.until(lambda: len(owner.heard.failures) > 2)
    full_disk()
    owner.until(lambda: owner.files() == [(9, 0)])
    assert {failure.reason for failure in owner.heard.failures} == {"Transient"}
    assert all(failure.message.startswith("Cannot write the spool file") for failure in owner.heard.failures)


def test_an_end_ends_it_while_the_sink_is_away(owner: Owner, state: Location, sink: Sink, begin: Begin) -> None:
    sink.fail(path_of(9, 0), itertools.repeat(AWAY))
    task = begin()
    owner.write(make_work(state, 9, {0: [1]}))
    owner.until(lambda: len(owner.heard.failures) > 2)
    owner.end()
    assert task.result(DEADLINE_S) is None
    assert owner.files() == []


def test_an_end_ends_it_while_it_waits_for_room(
    owner: Owner, state: Location, sink: Sink, begin: Begin, encodings: Encodings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "PUTS", 1)
    for entry in range(3):
        sink.fail(path_of(9, entry), itertools.repeat(AWAY))
    task = begin()
    owner.write(make_work(state, 9, {entry: [entry] for entry in range(3)}))
    for _ in range(2):
        assert encodings.begun.acquire(timeout=DEADLINE_S)
    owner.until(lambda: len(owner.heard.failures) > 2)
    owner.end()
    assert task.result(DEADLINE_S) is None


def test_an_end_ends_it_while_the_disk_is_full(
    owner: Owner, state: Location, begin: Begin, full_disk: Callable[[], None]
) -> None:
    task = begin()
    owner.write(make_work(state, 9, {0: [1]}))
    owner.until(lambda: len(owner.heard.failures) > 2)
    owner.end()
    assert task.result(DEADLINE_S) is None
    full_disk()


def test_an_owner_that_vanishes_is_unavailable(owner: Owner, begin: Begin) -> None:
    task = begin()
    owner.until(lambda: owner.heard.joined == [0])
    owner.vanish()
    with pytest.raises(Unavailable, match="The owner ended the pipeline task's stream"):
        task.result(DEADLINE_S)


@pytest.mark.parametrize("disk_is_full", [False, True], ids=["the sink is away", "the disk is full"])
def test_an_owner_that_vanishes_is_unavailable_while_a_store_is_away(
    owner: Owner, state: Location, sink: Sink, begin: Begin, request: pytest.FixtureRequest, disk_is_full: bool
) -> None:
    mend = request.getfixturevalue("full_disk") if disk_is_full else None
    sink.fail(path_of(9, 0), itertools.repeat(AWAY))
    task = begin()
    owner.write(make_work(state, 9, {0: [1]}))
    owner.until(lambda: len(owner.heard.failures) > 2)
    owner.vanish()
    with pytest.raises(Unavailable, match="The owner ended"):
        task.result(DEADLINE_S)
    if mend is not None:
        mend()


@pytest.mark.parametrize("wrong", [{"epoch": EPOCH - 1}, {"epoch": EPOCH + 1}, {"token": "guessed"}])
def test_rule_6_a_task_of_another_run_is_fenced(owner: Owner, begin: Begin, wrong: dict[str, Any]) -> None:
    with pytest.raises(Fenced, match="is orphaned"):
        begin(**wrong).result(DEADLINE_S)
    assert owner.heard.joined == []


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAY_EVERY_S", 0.01)


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("held", [0, 1], ids=["the first file", "the second file"])
def test_it_says_that_it_works_also_when_idle_and_not_when_it_is_stuck(
    owner: Owner, state: Location, begin: Begin, encodings: Encodings, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(module, "STUCK_S", 0.0)
    encodings.held = {held}
    begin()
    owner.hears()
    owner.write(make_work(state, 9, {0: [1], 1: [2]}))
    for _ in range(held + 1):
        assert encodings.begun.acquire(timeout=DEADLINE_S)
    owner.hears_nothing()
    encodings.go_on.set()
    owner.until(lambda: len(owner.files()) == 2)
    owner.hears()


@pytest.mark.usefixtures("talkative")
def test_what_is_put_is_told_though_the_next_file_is_stuck(
    owner: Owner, state: Location, sink: Sink, begin: Begin, encodings: Encodings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STUCK_S", 0.0)
    encodings.held = {1}
    sink.hold_back(path_of(9, 0))
    begin()
    owner.write(make_work(state, 9, {0: [1], 1: [2]}))
    for _ in range(2):
        assert encodings.begun.acquire(timeout=DEADLINE_S)
    owner.hears_nothing()
    sink.let_go()
    owner.until(lambda: owner.files() == [(9, 0)])
    encodings.go_on.set()


@pytest.mark.usefixtures("talkative")
def test_a_step_that_takes_less_long_is_work(owner: Owner, state: Location, begin: Begin, encodings: Encodings) -> None:
    encodings.held = {0}
    begin()
    owner.write(make_work(state, 9, {0: [1]}))
    assert encodings.begun.acquire(timeout=DEADLINE_S)
    owner.hears()
    encodings.go_on.set()


@pytest.mark.usefixtures("talkative")
def test_each_file_has_its_own_time(
    owner: Owner, state: Location, begin: Begin, encodings: Encodings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    encodings.held = {2}

    def encode_slowly(*given: Any) -> Spool:
        clock.now += 0.7 * module.STUCK_S
        return encodings(*given)

    monkeypatch.setattr(event_sink, "encode_entry", encode_slowly)
    begin()
    owner.write(make_work(state, 9, {0: [1], 1: [2], 2: [3]}))
    for _ in range(3):
        assert encodings.begun.acquire(timeout=DEADLINE_S)
    owner.hears()
    encodings.go_on.set()


@pytest.mark.usefixtures("talkative")
def test_a_put_that_takes_long_is_no_silence(
    owner: Owner, state: Location, sink: Sink, begin: Begin, encodings: Encodings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STUCK_S", 0.0)
    monkeypatch.setattr(file_sink, "PUTS", 1)
    sink.hold_back(*[path_of(9, entry) for entry in range(3)])
    begin()
    owner.write(make_work(state, 9, {0: [1]}))
    sink.until_tried(path_of(9, 0))
    owner.hears()
    owner.write(make_work(state, 9, {1: [2], 2: [3]}))  # for which there is no room
    for _ in range(2):
        assert encodings.begun.acquire(timeout=DEADLINE_S)
    owner.hears()


@pytest.mark.usefixtures("talkative")
def test_waiting_for_a_disk_is_no_silence(
    owner: Owner, state: Location, begin: Begin, full_disk: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    begin()
    owner.write(make_work(state, 9, {0: [1]}))
    for known in range(3):
        owner.until(partial(tells_failures, owner, known + 1))
        clock.now += 2 * module.STUCK_S
        owner.hears()
    full_disk()
    owner.until(lambda: owner.files() == [(9, 0)])


def tells_failures(owner: Owner, count: int) -> bool:
    return len(owner.heard.failures) >= count


class Clock:
    """Stands where the module `time` does."""

    now = 1000.0
    thread_time = staticmethod(time.thread_time)
    sleep = staticmethod(time.sleep)

    def monotonic(self) -> float:
        return self.now
