from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import owner_records as made
import pytest
from changefeed.errors import Fenced, NeedsHuman
from changefeed.log.history import apply
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, EpochRecord, Record, decode_record, encode_record
from changefeed.log.state import State
from changefeed.objectstore.patience import LATE_WRITES, Patience, Tally
from owner_faulty_store import Fault, MemoryStore


def path(n: int) -> str:
    return f"log/{n:020}.json"


def open_log(store: MemoryStore) -> Log:
    return Log(store, sleep=lambda seconds: None)


def claimed(store: MemoryStore, nonce: str, attempt: int = 0) -> Log:
    log = open_log(store)
    if log.read().n == 0:
        log.append(made.start())
    log.claim_epoch(lambda state: made.epoch(state, nonce, attempt))
    return log


def go_on(log: Log, records: int) -> None:
    for _ in range(records):
        log.append(made.next_record(log.state))


def numbers(store: MemoryStore, marker: str = "log/0") -> list[int]:
    return sorted(int(name[-25:-5]) for name in store.objects if name.startswith(marker))


def test_an_empty_log_reads_as_nothing() -> None:
    assert open_log(MemoryStore()).read() == State()


def test_what_was_appended_is_read() -> None:
    store = MemoryStore()
    log = claimed(store, "a")
    go_on(log, 7)
    assert open_log(store).read() == log.state
    assert log.tail == 9


def test_an_impossible_record_is_not_written() -> None:
    store = MemoryStore()
    log = claimed(store, "a")
    go_on(log, 1)
    with pytest.raises(NeedsHuman, match="but what is before it ends at"):
        log.append(made.plan(log.state, made.entry(log.state, 600, from_ts=500)))
    assert path(4) not in store.objects


def test_a_gap_is_damage() -> None:
    store = MemoryStore()
    go_on(claimed(store, "a"), 5)
    del store.objects[path(4)]
    with pytest.raises(NeedsHuman, match="gap after record 3"):
        open_log(store).read()


def test_a_missing_snapshot_is_damage() -> None:
    store = MemoryStore()
    log = claimed(store, "a")
    go_on(log, 5)
    log.fold(log.state)
    del store.objects[f"log/snapshot-{7:020}.json"]
    with pytest.raises(NeedsHuman, match="gap"):
        open_log(store).read()


@pytest.mark.parametrize("body", [b'{"v":2,"kind":"commit"}', b'{"v":1,"kind":"novel"}', b"{}"])
def test_an_unknown_record_is_refused(body: bytes) -> None:
    store = MemoryStore()
    claimed(store, "a")
    store.objects[path(3)] = body
    with pytest.raises(NeedsHuman, match="Record 3 of the log at memory://test/log can't be read"):
        open_log(store).read()


def test_a_fold_keeps_what_must_be_kept_and_loses_nothing() -> None:
    store = MemoryStore()
    log = claimed(store, "a")
    go_on(log, 6)
    log.fold(log.state)
    assert numbers(store) == [1, 2, 8]
    second = claimed(store, "b")
    go_on(second, 3)
    second.fold(second.state)
    assert numbers(store) == [1, 2, 9, 12]
    assert numbers(store, "log/snapshot") == [12]
    assert open_log(store).read() == second.state
    assert second.tail == 0


def test_rule_10_plans_that_are_open_at_a_fold_are_finished_by_the_next_driver() -> None:
    store = MemoryStore()
    log = claimed(store, "a")
    for to in (110, 120):
        log.append(made.plan(log.state, made.entry(log.state, to), made.entry(log.state, to, 1, dispatcher=2)))
    log.append(made.commit(log.state, 100, files=(made.file(3, 1),)))
    log.fold(log.state)
    assert path(3) not in store.objects
    second = claimed(store, "b")
    assert [(each.plan.n, each.config, each.committed) for each in second.state.plans] == [
        (3, {"fileSize": "a"}, (1,)),
        (4, {"fileSize": "a"}, ()),
    ]
    second.append(made.commit(second.state, 120))
    read = open_log(store).read()
    assert (read.plans, read.flushed_ts(1), read.flushed_ts(2), read.rows) == ((), 120, 120, 4)


def test_a_fold_reads_no_record_that_this_run_has_written() -> None:
    calls: list[tuple[str, str]] = []

    def noted(call: str, name: str) -> Fault:
        calls.append((call, name))
        return ""

    store = MemoryStore(before=noted)
    log = claimed(store, "a")
    for _ in range(3):
        go_on(log, 6)
        calls.clear()
        log.fold(log.state)
        assert not [name for call, name in calls if call == "get" and name in (path(1), path(2))]


def test_a_different_snapshot_stops_the_fold() -> None:
    store = MemoryStore()
    log = claimed(store, "a")
    go_on(log, 5)
    store.objects[f"log/snapshot-{7:020}.json"] = log.state.model_copy(update={"uid": "x"}).model_dump_json().encode()
    with pytest.raises(NeedsHuman, match="contradicts"):
        log.fold(log.state)
    assert numbers(store) == [1, 2, 3, 4, 5, 6, 7]


def test_a_snapshot_that_says_the_same_in_other_bytes_is_as_good() -> None:
    store = MemoryStore()
    log = claimed(store, "a")
    go_on(log, 5)
    store.objects[f"log/snapshot-{7:020}.json"] = log.state.model_dump_json(indent=1).encode()
    log.fold(log.state)
    assert numbers(store) == [1, 2, 7]


def test_a_reader_that_meets_a_fold_starts_again() -> None:
    objects: dict[str, bytes] = {}
    live = claimed(MemoryStore(objects), "a")
    go_on(live, 5)

    def fold_after_the_list(call: str, name: str) -> Fault:
        if (call, name) == ("get", path(3)):
            store.before = lambda call, name: ""
            go_on(live, 4)
            live.fold(live.state)
        return ""

    store = MemoryStore(objects, fold_after_the_list)
    assert open_log(store).read() == live.state


def test_rule_5_a_driver_that_slept_before_its_record_finds_it_taken_after_a_fold() -> None:
    store = MemoryStore()
    zombie = claimed(store, "a")
    go_on(zombie, 3)
    pending = made.next_record(zombie.state)  # 6, about to be created
    successor = claimed(store, "b")
    assert successor.state.n == pending.n
    go_on(successor, 20)
    successor.fold(successor.state)
    before = dict(store.objects)
    with pytest.raises(Fenced, match=r"Record 6 .* is a epoch of epoch 2, run b"):
        zombie.append(pending)
    with pytest.raises(Fenced):
        zombie.poll_fence()
    assert store.objects == before


def test_rule_5_a_claimant_that_slept_through_a_fold_is_fenced() -> None:
    objects: dict[str, bytes] = {}
    live = claimed(MemoryStore(objects), "a")
    go_on(live, 3)

    def sleep_before_the_claim(call: str, name: str) -> Fault:
        if call == "create":
            go_on(live, 20)
            live.fold(live.state)
            assert name not in objects
        return ""

    with pytest.raises(Fenced, match="Epoch record 6 came too late: the log is already folded up to 25"):
        open_log(MemoryStore(objects, sleep_before_the_claim)).claim_epoch(lambda state: made.epoch(state, "late"))
    live.poll_fence()
    assert open_log(MemoryStore(objects)).read() == live.state


def test_rule_5_a_reader_that_slept_through_a_fold_does_not_take_a_late_claim_for_history() -> None:
    objects: dict[str, bytes] = {}
    live = claimed(MemoryStore(objects), "a")
    go_on(live, 3)
    late = made.epoch(live.state, "late")  # 6, about to be created

    def fold_while_it_reads(call: str, name: str) -> Fault:
        if (call, name) == ("get", path(6)) and live.state.n == 5:
            go_on(live, 2)
            live.fold(live.state)
            MemoryStore(objects).create(path(6), encode_record(late))
        return ""

    assert open_log(MemoryStore(objects, fold_while_it_reads)).read() == live.state
    assert path(6) in objects
    assert path(7) in objects


def test_rule_5_a_first_driver_that_slept_through_a_fold_does_not_start_the_log_again() -> None:
    store = MemoryStore()
    first = open_log(store)
    first.read()
    live = claimed(store, "b")
    go_on(live, 5)
    live.fold(live.state)
    with pytest.raises(Fenced):
        first.append(made.start("late"))


def test_rule_5_nothing_is_deleted_before_the_snapshot_can_be_read() -> None:
    class Crash(Exception):
        pass

    def crash(call: str, name: str) -> Fault:
        if call == "create" and "snapshot" in name:
            raise Crash
        return ""

    store = MemoryStore()
    log = claimed(store, "a")
    go_on(log, 6)
    store.before = crash
    with pytest.raises(Crash):
        log.fold(log.state)
    assert store.deleted == []


def test_rule_6_of_two_records_at_one_number_one_wins() -> None:
    store = MemoryStore()
    first = claimed(store, "a")
    second = claimed(store, "b")
    go_on(second, 1)
    with pytest.raises(Fenced, match="run b"):
        go_on(first, 1)
    assert open_log(store).read() == second.state


def test_rule_6_a_claim_that_loses_applies_the_winner_and_takes_the_next_epoch() -> None:
    objects: dict[str, bytes] = {}
    seen: list[State] = []

    def claim(state: State) -> EpochRecord:
        if not seen:
            claimed(MemoryStore(objects), "winner")
        seen.append(state)
        return made.epoch(state, "second")

    log = open_log(MemoryStore(objects))
    log.read()
    log.append(made.start())
    state = log.claim_epoch(claim)
    assert [s.epoch.number for s in seen] == [0, 1]
    assert (state.epoch.number, state.epoch.nonce) == (2, "second")


@pytest.mark.parametrize("attempt", [0, 6, 7])
def test_rule_6_an_attempt_that_is_not_newer_has_no_effect(attempt: int) -> None:
    store = MemoryStore()
    claimed(store, "a", attempt=7)
    before = dict(store.objects)
    with pytest.raises(Fenced, match=f"attempt {attempt}"):
        claimed(store, "b", attempt=attempt)
    assert store.objects == before


def test_rule_6_a_closed_changefeed_is_not_taken_over() -> None:
    store = MemoryStore()
    log = claimed(store, "a")
    log.append(made.closed(log.state))
    with pytest.raises(Fenced, match="was deleted"):
        claimed(store, "b")


def test_rule_6_poll_fence_sees_a_newer_epoch() -> None:
    store = MemoryStore()
    log = claimed(store, "a")
    log.poll_fence()
    claimed(store, "b")
    with pytest.raises(Fenced, match="epoch 2, run b"):
        log.poll_fence()


@pytest.mark.parametrize("fault", ["unknown", "unknown-written", "transient"])
def test_rule_16_the_same_bytes_are_tried_until_the_winner_is_known(fault: Fault) -> None:
    left = [fault, fault, fault]
    store = MemoryStore()
    log = claimed(store, "a")
    store.before = lambda call, name: left.pop() if call == "create" and left else ""
    tally = Tally()
    log.patience = Patience(sleep=lambda _: None, count=tally.add)
    go_on(log, 1)
    assert open_log(store).read() == log.state
    assert tally.take()[LATE_WRITES, ""] == (fault == "unknown-written")


def test_rule_16_after_an_unknown_outcome_another_winner_is_found() -> None:
    objects: dict[str, bytes] = {}

    def lose(call: str, name: str) -> Fault:
        if call != "create" or name in objects:
            return ""
        claimed(MemoryStore(objects), "b")
        return "unknown"

    store = MemoryStore(objects)
    log = claimed(store, "a")
    store.before = lose
    with pytest.raises(Fenced, match="run b"):
        go_on(log, 1)


class Crash(Exception):
    """The driver's process is gone."""


@dataclass
class Driver:
    """A thread that stops before every call to the store until its turn comes."""

    nonce: str
    objects: dict[str, bytes]
    acknowledged: list[tuple[int, bytes]] = field(default_factory=list)
    fault: str = ""
    outcome: str = ""
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    call: str = ""

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()
        self.stopped.acquire()

    def step(self, fault: str) -> None:
        self.fault = fault
        self.turn.release()
        self.stopped.acquire()

    def _before(self, call: str, name: str) -> Fault:
        self.call = call
        self.stopped.release()
        self.turn.acquire()
        if self.fault == "crash":
            raise Crash
        if self.fault == "transient":
            return "transient"
        return self.fault if call == "create" else ""

    def _run(self) -> None:
        try:
            self._drive(Log(MemoryStore(self.objects, self._before), sleep=lambda seconds: None))
            self.outcome = "done"
        except Fenced:
            self.outcome = "fenced"
        except Crash:
            self.outcome = "crashed"
        except NeedsHuman as error:
            self.outcome = f"broken: {error}"
        self.stopped.release()

    def _drive(self, log: Log) -> None:
        if log.read().n == 0:
            self._append(log, made.start(self.nonce))
        log.claim_epoch(lambda state: made.epoch(state, self.nonce))
        self.acknowledged.append((log.state.n, b""))
        for _ in range(7):
            self._append(log, made.next_record(log.state))
            if log.tail >= 4:
                log.fold(log.state)
            log.poll_fence()

    def _append(self, log: Log, record: Record) -> None:
        log.append(record)
        self.acknowledged.append((record.n, encode_record(record)))


class Archive(dict[str, bytes]):
    """Objects that remembers the first body ever created at a record's name, deleted or not."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[int, bytes] = {}

    def __setitem__(self, name: str, body: bytes) -> None:
        super().__setitem__(name, body)
        if "snapshot" not in name:
            self.first.setdefault(int(name[-25:-5]), body)


def race(seed: int, faults: Callable[[random.Random], str]) -> tuple[Archive, list[Driver]]:
    choose = random.Random(seed)
    objects = Archive()
    drivers: list[Driver] = []
    while True:
        running = [driver for driver in drivers if not driver.outcome]
        if len(drivers) < 5 and (len(running) < 2 or choose.random() < 0.02):
            drivers.append(Driver(f"run{len(drivers)}", objects))
            drivers[-1].start()
            continue
        if not running:
            return objects, drivers
        driver = choose.choice(running)
        for _ in range(choose.choice((1, 1, 3, 30))):  # the others sleep meanwhile
            if not driver.outcome:
                driver.step(faults(choose))


def random_fault(choose: random.Random) -> str:
    return choose.choices(["", "unknown", "unknown-written", "transient", "crash"], [90, 4, 4, 2, 1])[0]


@pytest.mark.parametrize("seed", range(60))
def test_rule_16_racing_drivers_and_crashes_leave_one_history(seed: int) -> None:
    objects, drivers = race(seed, random_fault)
    assert not [driver.outcome for driver in drivers if driver.outcome.startswith("broken")]
    # Promise 6: what was ever acknowledged to anybody is what stands at that number, for ever, in one chain.
    state = State()
    for n in range(1, max(objects.first) + 1):
        state = apply(state, decode_record(objects.first[n]))
    for driver in drivers:
        for n, body in driver.acknowledged:
            assert objects.first[n] == body or (not body and decode_record(objects.first[n]).nonce == driver.nonce)
    assert open_log(MemoryStore(objects)).read() == state


def test_the_races_reach_what_they_are_for() -> None:
    """Or the property above would hold for want of trouble."""
    outcomes: list[str] = []
    folded = False
    for seed in range(20):
        objects, drivers = race(seed, random_fault)
        outcomes += [driver.outcome for driver in drivers]
        folded |= any("snapshot" in name for name in objects)
    assert {"done", "fenced", "crashed"} <= set(outcomes)
    assert folded


@pytest.mark.parametrize("step", range(60))
def test_a_crash_after_every_step_loses_nothing(step: int) -> None:
    objects = Archive()
    first = Driver("first", objects)
    first.start()
    for _ in range(step):
        if not first.outcome:
            first.step("")
    if not first.outcome:
        first.step("crash")
    second = Driver("second", objects)
    second.start()
    while not second.outcome:
        second.step("")
    assert second.outcome == "done"
    final = open_log(MemoryStore(objects)).read()
    assert all(objects.first[n] == body for n, body in first.acknowledged if body)
    assert final.n == second.acknowledged[-1][0]


def test_files_that_are_not_of_the_log_are_ignored() -> None:
    store = MemoryStore()
    log = claimed(store, "a")
    store.objects["log/notes.txt"] = b"x"
    store.objects["other/00000000000000000009.json"] = b"x"
    assert open_log(store).read() == log.state


def test_a_commit_is_read_back_as_it_was_written() -> None:
    record = made.commit(made.begun(), 105, finished=True)
    assert isinstance(record, CommitRecord)
    assert decode_record(encode_record(record)) == record
