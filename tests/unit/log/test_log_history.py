from __future__ import annotations

import pickle
import random
from collections.abc import Callable

import owner_records as made
import pytest
from changefeed.errors import Fenced, NeedsHuman, Superseded
from changefeed.log.history import apply, check_claim, is_stale_attempt
from changefeed.log.records import (
    DdlRecord,
    DefinitionsRecord,
    FileCommitted,
    Record,
    RewindRecord,
    decode_record,
    encode_record,
)
from changefeed.log.state import Generation, NewestEntry, State, restore, snapshot
from changefeed.model.position import Position


def planned(to: int = 110) -> State:
    state = made.begun()
    return apply(state, made.plan(state, made.entry(state, to)))


def committed(to: int = 110, checkpoint_ts: int = 105) -> State:
    state = planned(to)
    return apply(state, made.commit(state, checkpoint_ts))


def refused(state: State, record: Record, why: str) -> None:
    with pytest.raises(NeedsHuman, match=rf"Record {record.n} of the log \({record.kind}.*{why}"):
        apply(state, record)


def test_a_plan_and_its_commit_move_the_dispatcher() -> None:
    known = committed().dispatchers[1]
    assert (known.flushed_ts, known.planned_ts, known.output["index"], known.table_info) == (110, 110, 1, "info1")
    assert committed().plans == ()
    assert restore(snapshot(committed())).rows == 1
    state = apply(committed(), made.plan(committed(), made.entry(committed(), 120)))
    assert apply(state, made.commit(state, 115)).rows == 2


def test_the_newest_entry_with_rows_is_known_through_plans_and_ddls_of_its_table() -> None:
    state = committed()
    assert state.dispatchers[1].newest == (newest := NewestEntry(plan=3, entry=0, table_version=1))
    state = apply(state, made.plan(state, made.entry(state, 120)))
    state = apply(state, made.commit(state, 115, files=(made.file(state.n, rows=0),)))
    assert restore(snapshot(state)).dispatchers[1].newest == newest, "one without rows is none"
    values = {**made.owned(state), "ts": 130, "job_id": 1, "query": "", "dispatchers": (1,)}
    assert apply(state, DdlRecord(**values, involved=(1,))).dispatchers[1].newest == newest
    assert apply(state, DdlRecord(**values)).dispatchers[1].newest is None, "it joins: its table may be another one"


def test_what_no_driver_can_have_written_is_refused() -> None:
    begun, state = made.begun(), planned()
    refused(State(), made.epoch(State(), "a"), "record 1, and no other")
    refused(begun, made.commit(begun, 101, n=4), "it follows record 2")
    refused(begun, made.commit(begun, 101, nonce="z"), "belongs to epoch 1")
    refused(begun, made.plan(begun), "no entries")
    refused(begun, made.plan(begun, made.entry(begun, 110), table_infos={}), "which no record holds")
    refused(begun, made.plan(begun, made.entry(begun, 110, number=1)), "stands at number 0")
    refused(begun, made.plan(begun, made.entry(begun, 100)), "not after its start")
    half = made.entry(begun, 110).model_copy(update={"to": Position(110, 1, 2, b"k")})
    refused(begun, made.plan(begun, half), "stop inside a transaction")
    refused(state, made.commit(state, 105, files=(made.file(2),)), "plan 2 has no open entry 0")
    refused(begun, made.commit(begun, 105, files=(made.file(3),)), "plan 3 has no open entry 0")
    refused(begun, made.epoch(begun, "a"), "has an epoch already")
    refused(begun, made.epoch(begun, "b").model_copy(update={"epoch": 3}), "the epoch before it is 1")


def test_the_checkpoint_never_goes_back() -> None:
    state = committed(checkpoint_ts=105)
    refused(state, made.commit(state, 104), "below 105")


def test_nothing_follows_closed_and_only_closed_follows_finished() -> None:
    begun = made.begun()
    closed = apply(begun, made.closed(begun))
    refused(closed, made.epoch(closed, "b"), "closed")
    finished = apply(begun, made.commit(begun, 200, finished=True))
    refused(finished, made.commit(finished, 201), "finished")
    assert apply(finished, made.closed(finished)).closed


def test_rule_1_an_entry_does_not_pass_the_barrier_of_its_plan() -> None:
    begun = made.begun()
    refused(begun, made.plan(begun, made.entry(begun, 110), resolved_ts=109), "above the barrier 109")


def test_rule_1_a_dispatcher_of_a_ddl_joins_with_its_ts() -> None:
    begun = made.begun()
    ddl = DdlRecord(**made.owned(begun), ts=150, job_id=3, query="create table", dispatchers=(5,))
    state = apply(begun, ddl)
    assert state.flushed_ts(5) == 150
    again = ddl.model_copy(update={"n": 4})
    refused(state, again, "not after the last executed one")


def test_rule_1_a_table_that_rules_had_left_out_joins_by_a_rename() -> None:
    state = committed(to=110, checkpoint_ts=105)
    ddl = DdlRecord(**made.owned(state), ts=150, job_id=3, query="rename", dispatchers=(1,), table_infos=("after",))
    joined = apply(state, ddl)
    assert (joined.flushed_ts(1), joined.table_version(1)) == (150, 150)
    assert not joined.is_redefined(1, "after")
    assert joined.is_redefined(1, "another")


def test_rule_9_the_log_has_the_definition_of_a_ddl_before_rows_are_written_by_it() -> None:
    state = committed(to=110, checkpoint_ts=105)
    ddl = DdlRecord(**made.owned(state), ts=150, job_id=3, query="alter", involved=(1,), dispatchers=(1,))
    altered = apply(state, ddl.model_copy(update={"table_infos": ("after",), "definitions": {"after": {"id": 1}}}))
    assert altered.table_infos["after"] == {"id": 1}
    again = {"n": altered.n + 1, "ts": 160, "table_infos": ("later",), "definitions": {"later": {"id": 1}}}
    assert "after" not in apply(altered, ddl.model_copy(update=again)).table_infos


def test_rule_9_a_definition_that_no_ddl_record_tells_of_is_noticed() -> None:
    state = committed(to=110, checkpoint_ts=105)
    known = state.dispatchers[1].table_info
    assert not state.is_redefined(1, known)
    assert state.is_redefined(1, "another")
    assert not state.is_redefined(2, "another"), "nobody knows it"
    silent = DdlRecord(**made.owned(state), ts=150, job_id=3, query="", involved=(1,), dispatchers=(1,))
    assert not apply(state, silent).is_redefined(1, "another"), "as logs of before have it"


def test_rule_9_a_table_is_defined_before_anything_is_planned_of_it() -> None:
    state = committed(to=110, checkpoint_ts=105)
    new = {"dispatchers": (7,), "table_infos": ("seven",), "definitions": {"seven": {"id": 7}}}
    record = DefinitionsRecord(**made.owned(state), **new)
    defined = apply(state, record)
    assert defined.table_infos["seven"] == {"id": 7}
    assert (defined.dispatchers[7].definition, defined.is_redefined(7, "another")) == ("seven", True)
    before = [
        (each.position(7), each.flushed_ts(7), each.table_version(7), each.output(7)) for each in (state, defined)
    ]
    assert before[0] == before[1], "it goes on where it would have"
    assert defined.reached_ts() == state.reached_ts()
    written = apply(
        defined,
        made.plan(defined, made.entry(defined, 120, dispatcher=7, table_info="seven", table_version=made.START_TS)),
    )
    assert written.dispatchers[7].table_id
    refused(defined, record.model_copy(update={"n": defined.n + 1}), "table 7 is defined already")
    refused(state, record.model_copy(update={"definitions": {}}), "'seven' of table 7, which no record holds")
    old = state.dispatchers[1].model_copy(update={"definition": ""})
    unknown = state.model_copy(update={"dispatchers": {1: old}})
    mended = apply(unknown, record.model_copy(update={"dispatchers": (1,)}))
    assert mended.dispatchers[1] == old.model_copy(update={"definition": "seven"})


def test_rule_15_after_a_ddl_the_newest_output_is_still_known() -> None:
    state = committed(to=110, checkpoint_ts=105)
    ddl = DdlRecord(**made.owned(state), ts=150, job_id=3, query="alter", involved=(1,), dispatchers=(1,))
    altered = apply(state, ddl)
    assert altered.position(1) == Position.end_of(150)
    assert altered.output(1) == state.output(1)
    assert altered.output(1)["date"] == "2026-01-01", "which never goes back"
    refused(altered, made.plan(altered, made.entry(altered, 160, index=2)), "goes back to version 1")
    new = made.entry(altered, 160, table_version=150, directory="t1/150/2026-01-01", index=1)
    assert apply(altered, made.plan(altered, new)).output(1) == new.output
    ahead = ddl.model_copy(update={"ts": 109})
    refused(state, ahead, "already planned to 110")


def test_rule_9_a_dispatcher_that_a_ddl_ends_is_known_no_more() -> None:
    state = committed(to=110, checkpoint_ts=105)
    ddl = DdlRecord(**made.owned(state), ts=150, job_id=3, query="truncate", left=(1,), dispatchers=(7,))
    truncated = apply(state, ddl)
    assert truncated.dispatchers.keys() == {7}
    assert restore(snapshot(truncated)) == truncated


def test_rule_6_a_stale_attempt_is_told_apart() -> None:
    newest_4 = made.begun(attempt=4)
    assert [is_stale_attempt(newest_4, attempt) for attempt in (0, 3, 4, 5)] == [True, True, True, False]
    assert not is_stale_attempt(made.begun(), 0)
    refused(newest_4, made.epoch(newest_4, "b", attempt=4), "not above 4")


def begun_by(uid: str, attempt: int = 1) -> State:
    return apply(made.begun(), made.epoch(made.begun(), "b", attempt, made.config_of(uid)))


def test_rule_6_attempts_of_another_resource_are_counted_anew() -> None:
    old = begun_by("A", attempt=7)
    new = apply(old, made.epoch(old, "c", 1, made.config_of("B")))
    assert (new.epoch.attempt, new.superseded) == (1, ("A",))
    assert [is_stale_attempt(new, attempt, "B") for attempt in (1, 2)] == [True, False]
    assert apply(new, made.epoch(new, "d", 2, made.config_of("B"))).superseded == ("A",)
    assert restore(snapshot(new)) == new


@pytest.mark.parametrize("attempt", [7, 8, 99])
def test_rule_6_a_superseded_resource_never_comes_back(attempt: int) -> None:
    old = begun_by("A", attempt=7)
    new = apply(old, made.epoch(old, "c", 1, made.config_of("B")))
    refused(new, made.epoch(new, "d", attempt, made.config_of("A")), "resource A was superseded")
    with pytest.raises(Superseded, match=r"Changefeed shop/orders, uid B, has taken over .* from this one, uid A"):
        check_claim(new, "A", attempt, "s3://state")
    third = apply(new, made.epoch(new, "d", 1, made.config_of("C")))
    assert third.superseded == ("A", "B")


def test_rule_5_closed_ends_a_resource_and_another_one_goes_on() -> None:
    old = begun_by("A", attempt=7)
    closed = apply(old, made.closed(old))
    refused(closed, made.epoch(closed, "c", 8, made.config_of("A")), "closed")
    refused(closed, made.commit(closed, 200), "closed")
    with pytest.raises(Fenced, match="was deleted"):
        check_claim(closed, "A", 8, "s3://state")
    check_claim(closed, "B", 1, "s3://state")
    opened = apply(closed, made.epoch(closed, "c", 1, made.config_of("B")))
    assert (opened.closed, opened.superseded, opened.checkpoint_ts) == (False, ("A",), old.checkpoint_ts)
    again = apply(opened, made.closed(opened))
    refused(again, made.epoch(again, "d", 9, made.config_of("A")), "superseded")


def test_the_newest_attempt_is_told_to_one_that_is_fenced() -> None:
    with pytest.raises(Fenced) as caught:
        check_claim(begun_by("A", attempt=7), "A", 3, "s3://state")
    assert caught.value.newest_attempt == 7
    assert pickle.loads(pickle.dumps(caught.value)).newest_attempt == 7


def rewind(state: State, nonce: int, from_ts: int) -> RewindRecord:
    return RewindRecord(**made.owned(state), restart_nonce=nonce, from_ts=from_ts)


def test_a_rewind_begins_a_generation_with_nothing_in_it() -> None:
    state = committed(to=110, checkpoint_ts=105)
    for to in (120, 130):
        state = apply(state, made.plan(state, made.entry(state, to)))
    again = apply(state, rewind(state, 1, 102))
    assert (again.generation, again.from_ts, again.checkpoint_ts, again.start_ts) == (2, 102, 102, made.START_TS)
    assert again.generations == (Generation(from_ts=made.START_TS, checkpoint_ts=105),)
    assert (again.plans, again.dispatchers, again.planned_ts(1), again.rows) == ((), {}, 102, state.rows)
    assert restore(snapshot(again)) == again
    first = made.entry(again, 110)
    assert (first.output["index"], apply(again, made.plan(again, first)).generation) == (1, 2)
    refused(again, rewind(again, 1, 101), "nonce 1 is done")
    refused(again, rewind(again, 2, 103), "above the checkpoint 102")


def test_a_finished_changefeed_can_be_rewound() -> None:
    begun = made.begun()
    finished = apply(begun, made.commit(begun, 200, finished=True))
    again = apply(finished, rewind(finished, 1, 150))
    assert (again.finished, again.checkpoint_ts) == (False, 150)


@pytest.mark.parametrize(("target_ts", "is_finished"), [("200", True), ("150", True), ("201", False), (None, False)])
def test_a_finished_changefeed_goes_on_when_its_target_is_raised_or_removed(
    target_ts: str | None, is_finished: bool
) -> None:
    begun = made.begun()
    finished = apply(begun, made.commit(begun, 200, finished=True))
    config = {"spec": {} if target_ts is None else {"targetTs": target_ts}}
    again = apply(finished, made.epoch(finished, "b", config=config))
    assert again.finished is is_finished
    if not is_finished:
        assert apply(again, made.commit(again, 201)).checkpoint_ts == 201


def test_rule_9_a_ddl_waits_for_the_rows_of_its_table_and_holds_the_checkpoint() -> None:
    state = planned()
    ddl = DdlRecord(**made.owned(state), ts=150, job_id=3, query="alter", involved=(1,), dispatchers=(1,))
    refused(state, ddl, "has not drained")
    refused(state, ddl.model_copy(update={"involved": (), "dispatchers": (), "left": (1,)}), "has not drained")
    refused(state, ddl.model_copy(update={"involved": ()}), "has not drained")
    assert apply(state, ddl.model_copy(update={"involved": (2,), "dispatchers": (2,)})).last_ddl == (150, 3)
    late = committed(checkpoint_ts=105)
    refused(late, DdlRecord(**made.owned(late), ts=105, job_id=3, query=""), "already passed")


def test_rule_11_a_dispatcher_resumes_at_the_recorded_checkpoint() -> None:
    state = committed(to=110, checkpoint_ts=105)
    idle = apply(state, made.commit(state, 500))
    assert (state.flushed_ts(1), idle.flushed_ts(1), idle.flushed_ts(99)) == (110, 500, 500)
    at_110 = made.entry(idle, 600, from_ts=110)
    refused(idle, made.plan(idle, at_110), "but what is before it ends at")


@pytest.mark.parametrize("start", [109, 111])
def test_rule_11_entries_go_on_where_the_committed_ones_end(start: int) -> None:
    state = committed(to=110)
    entry = made.entry(state, 120, from_ts=start)
    refused(state, made.plan(state, entry), "but what is before it ends at")


def test_rule_11_entries_of_one_plan_go_on_from_each_other() -> None:
    begun = made.begun()
    first = made.entry(begun, 110)
    second = made.entry(begun, 120, number=1, index=2, from_ts=110)
    assert apply(begun, made.plan(begun, first, second)).planned_ts(1) == 120
    gap = made.entry(begun, 120, number=1, index=2, from_ts=111)
    refused(begun, made.plan(begun, first, gap), "entry 1 of dispatcher 1")


def test_rule_15_names_never_go_back() -> None:
    state = committed()
    refused(state, made.plan(state, made.entry(state, 120, table_version=0)), "goes back to version 0 from 1")
    refused(state, made.plan(state, made.entry(state, 120, index=1)), "is written to .*, as the one before it is")
    entry = made.entry(state, 120)
    assert apply(state, made.plan(state, entry)).output(1) == entry.output


def test_rule_24_record_1_fixes_start_ts() -> None:
    assert made.begun().checkpoint_ts == made.begun().start_ts == made.START_TS
    again = made.start().model_copy(update={"n": 3})
    refused(made.begun(), again, "record 1, and no other")


def test_table_infos_are_kept_while_something_names_them() -> None:
    state = committed()
    newer = made.entry(state, 120, table_info="newer")
    state = apply(state, made.plan(state, newer))
    assert set(state.table_infos) == {"info1", "newer"}
    assert set(apply(state, made.commit(state, 120)).table_infos) == {"newer"}


def test_table_infos_of_a_dropped_table_go_with_the_next_new_one() -> None:
    state = committed()
    state = apply(state, made.plan(state, made.entry(state, 120, dispatcher=2)))
    state = apply(state, made.commit(state, 119))
    drop = DdlRecord(**made.owned(state), ts=125, job_id=3, query="drop", involved=(1,), left=(1,))
    state = apply(state, drop)
    state = apply(state, made.plan(state, made.entry(state, 130, dispatcher=2), table_infos={}))
    state = apply(state, made.commit(state, 130))
    assert set(state.table_infos) == {"info1", "info2"}, "nobody looks: a plan without a new one is cheap"
    state = apply(state, made.plan(state, made.entry(state, 140, dispatcher=2, table_info="newer")))
    assert set(apply(state, made.commit(state, 140)).table_infos) == {"newer"}


def some_files(state: State, choose: random.Random) -> tuple[FileCommitted, ...]:
    """Return none or the first few of the files of each dispatcher that has open ones."""
    found: list[FileCommitted] = []
    ended: set[int] = set()
    for number, entry in state.open_entries():
        if entry.dispatcher not in ended and choose.random() < 0.5:
            found.append(made.file(number, entry.entry))
        else:
            ended.add(entry.dispatcher)
    return tuple(found)


def random_log(seed: int, length: int = 30) -> list[Record]:
    """A history of takeovers, plans of several dispatchers, commits of some of their files, and checkpoints."""
    choose = random.Random(seed)
    records: list[Record] = [made.start()]
    state = made.replay(*records)
    makers: list[Callable[[], Record]] = [
        lambda: made.epoch(state, f"run{state.n}", config={"n": state.n}),
        lambda: made.next_record(state),
        lambda: made.commit(state, state.checkpoint_ts, files=some_files(state, choose)),
        lambda: made.plan(
            state,
            *(made.entry(state, state.planned_ts(d) + choose.randint(1, 9), i, d) for i, d in enumerate((3, 1, 2))),
        ),
    ]
    while len(records) < length:
        make = makers[0] if state.epoch.number == 0 else choose.choice(makers)
        records.append(make())
        state = apply(state, records[-1])
    return records


def test_random_logs_have_what_they_are_for() -> None:
    """Or the properties below would hold for want of it."""
    states = [State()]
    for seed in range(20):
        for record in random_log(seed):
            states.append(apply(states[-1] if record.n > 1 else State(), record))
    assert max(len(state.plans) for state in states) >= 3
    assert any(plan.committed for state in states for plan in state.plans)
    assert any(len({plan.config["n"] for plan in state.plans}) >= 2 for state in states)
    assert any(state.checkpoint_ts > made.START_TS and state.plans for state in states)


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_and_the_tail_say_what_all_records_say(seed: int) -> None:
    records = random_log(seed)
    whole = made.replay(*records)
    for cut in range(len(records) + 1):
        state = restore(snapshot(made.replay(*records[:cut])))
        for record in records[cut:]:
            state = apply(state, decode_record(encode_record(record)))
        assert state == whole
        assert snapshot(state) == snapshot(whole)


@pytest.mark.parametrize("seed", range(5))
def test_every_record_fits_one_state_only(seed: int) -> None:
    records = random_log(seed)
    for i, record in enumerate(records):
        for j in (i - 1, i + 1):
            if 0 <= j < len(records):
                with pytest.raises(NeedsHuman):
                    apply(made.replay(*records[:j]), record)


@pytest.mark.parametrize("body", [b'{"v":2,"kind":"snapshot"}', b'{"v":1,"kind":"plan"}', b'{"surprise":1}', b"{"])
def test_an_unknown_snapshot_is_refused(body: bytes) -> None:
    with pytest.raises(NeedsHuman, match="can't be read"):
        restore(body)


def test_ts_are_strings_in_a_snapshot() -> None:
    body = snapshot(committed())
    for member in (b'"checkpoint_ts":"105"', b'"flushed_ts":"110"', b'"start_ts":"100"', b'"kind":"snapshot"'):
        assert member in body
