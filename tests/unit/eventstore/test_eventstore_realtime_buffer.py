"""The realtime buffer as a core: what stands where, and that no memory is given out twice."""

from __future__ import annotations

from changefeed.eventstore.realtime_buffer import (
    SLOTS,
    Action,
    Archive,
    Clear,
    DeleteLateFile,
    RealtimeBuffer,
    Slot,
    Store,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

OLD_S = 5.0


def store(buffer: RealtimeBuffer, seq: int, size: int, now: float = 0.0) -> Slot:
    (action,) = buffer.offer(seq, size, now)
    assert isinstance(action, Store)
    buffer.stored(seq)
    return action.slot


def test_memory_of_what_is_released_soon_is_used_again_and_nothing_becomes_a_file() -> None:
    buffer = RealtimeBuffer(1000, OLD_S)
    first = store(buffer, 1, 400)
    assert buffer.freed(1) == [Clear(first)]
    again = store(buffer, 2, 400, now=1.0)
    assert (again.offset, again.index) == (first.offset, first.index), "the same pages"
    assert again.generation > first.generation
    assert buffer.due(1.0 + OLD_S - 0.1) == []


def test_what_is_needed_for_long_is_archived_and_its_memory_stays_until_the_owner_lets_go() -> None:
    buffer = RealtimeBuffer(1000, OLD_S)
    slot = store(buffer, 1, 400)
    assert buffer.next_deadline() == OLD_S
    assert buffer.due(OLD_S) == [Archive(1, slot)]
    assert (buffer.due(2 * OLD_S), buffer.next_deadline()) == ([], None)
    assert buffer.archived(1) == []
    assert (buffer.used, buffer.only_here) == (448, 0)
    assert buffer.freed(1) == [Clear(slot)]
    assert buffer.used == 0


def test_overflow_archives_the_next_one_and_the_oldest_and_remembers_the_next_head() -> None:
    buffer = RealtimeBuffer(1024, OLD_S)
    first, second = store(buffer, 1, 500), store(buffer, 2, 500)
    assert buffer.offer(3, 300, 0.0) == [Archive(3, None), Archive(1, first)]
    assert (buffer.overflows, buffer.next_head) == (1, 4)
    assert buffer.offer(4, 300, 0.0) == [Archive(4, None)], "enough is on its way out"
    assert buffer.archived(1) == []
    assert buffer.freed(1) == [Clear(first)]
    assert store(buffer, 5, 300).offset == first.offset
    assert buffer.offer(6, 600, 0.0) == [Archive(6, None), Archive(2, second), Archive(5, buffer._kept[5].slot)]


def test_one_that_is_larger_than_the_buffer_goes_to_the_archive() -> None:
    buffer = RealtimeBuffer(1000, OLD_S)
    assert buffer.offer(1, 1001, 0.0) == [Archive(1, None)]


def test_a_file_that_comes_after_the_owner_has_let_go_is_deleted() -> None:
    buffer = RealtimeBuffer(1000, OLD_S)
    slot = store(buffer, 1, 400)
    assert buffer.due(OLD_S) == [Archive(1, slot)]
    assert buffer.freed(1) == [Clear(slot)]
    assert buffer.archived(1) == [DeleteLateFile(1)]
    assert buffer.freed(1) == []


def test_what_a_task_cannot_read_is_archived_at_once() -> None:
    buffer = RealtimeBuffer(1000, OLD_S)
    slot = store(buffer, 1, 400)
    assert buffer.wanted([1, 2]) == [Archive(1, slot)]
    assert buffer.wanted([1]) == []


def test_one_that_is_being_stored_is_not_archived() -> None:
    buffer = RealtimeBuffer(1000, OLD_S)
    buffer.offer(1, 900, 0.0)
    assert buffer.due(OLD_S) == []
    assert buffer.offer(2, 900, 0.0) == [Archive(2, None)]


def test_there_are_no_more_segments_than_slots() -> None:
    buffer = RealtimeBuffer(1 << 30, OLD_S)
    indexes = {store(buffer, seq, 1).index for seq in range(1, SLOTS + 1)}
    assert len(indexes) == SLOTS
    assert buffer.offer(SLOTS + 1, 1, 0.0)[0] == Archive(SLOTS + 1, None)


class Machine(RuleBasedStateMachine):
    """Any order of what a puller and its owner do."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = RealtimeBuffer(1000, OLD_S)
        self.now = 0.0
        self.seq = 0
        self.storing: dict[int, Slot] = {}
        self.readable: dict[int, Slot] = {}  # a task may be told to read it there
        self.archiving: dict[int, Slot] = {}
        self.generations: set[int] = set()

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Store(seq, slot):
                    assert slot.generation not in self.generations
                    self.generations.add(slot.generation)
                    self.storing[seq] = slot
                case Archive(seq, Slot() as slot):
                    assert self.readable[seq] == slot
                    assert seq not in self.archiving
                    self.archiving[seq] = slot
                case Clear(slot):
                    assert slot not in (*self.readable.values(), *self.storing.values())

    @rule(size=st.integers(1, 700))
    def offer(self, size: int) -> None:
        self.seq += 1
        self.act(self.buffer.offer(self.seq, size, self.now))

    @precondition(lambda self: self.storing)
    @rule(data=st.data())
    def stored(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.storing)))
        self.readable[seq] = self.storing.pop(seq)
        self.buffer.stored(seq)

    @precondition(lambda self: self.archiving)
    @rule(data=st.data())
    def archived(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.archiving)))
        del self.archiving[seq]
        self.act(self.buffer.archived(seq))

    @precondition(lambda self: self.readable)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.readable)))
        del self.readable[seq]
        self.act(self.buffer.freed(seq))

    @rule(seconds=st.floats(0.0, 4.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.buffer.due(self.now))

    @invariant()
    def nothing_overlaps(self) -> None:
        held = {*self.storing.values(), *self.readable.values()}
        ends = [0]
        for slot in sorted(held, key=lambda slot: slot.offset):
            assert slot.offset >= ends[-1]
            ends.append(slot.offset + slot.size)
        assert ends[-1] <= 1000
        assert len({slot.index for slot in held}) == len(held)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True, deadline=None)
