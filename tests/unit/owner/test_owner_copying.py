"""The initial copy in the log: which rows have which ts, what is recorded, and where a copy goes on."""

from __future__ import annotations

import random

import owner_records as made
import pytest
from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.log.history import apply
from changefeed.log.records import CopiedTable, CopyRecord, RewindRecord, decode_record, encode_record
from changefeed.log.state import State, restore, snapshot
from changefeed.model.table_copy import COPY_TICKS, TableCopy, bounds_of
from changefeed.owner.preparation.copying import check_copies_are_selected, tables_to_copy
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.reporting.copy_progress import CopyProgress

BOUNDS = ("6130", "6135", "6139")  # a0, a5, a9
COPY = TableCopy(100, (b"a0", b"a5", b"a9"))


def begun() -> State:
    state = apply(State(), made.start().model_copy(update={"initial_copy": True}))
    return apply(state, made.epoch(state, "a"))


def record(state: State, dispatcher: int = 1, **changes: object) -> CopyRecord:
    table = CopiedTable(dispatcher=dispatcher, bounds=BOUNDS)
    values = {**made.owned(state), "from_ts": state.checkpoint_ts, "tables": (table,)}
    return CopyRecord.model_validate(values | changes)


def test_chunks_have_the_ts_below_the_snapshot() -> None:
    assert COPY.ts == 100 + COPY_TICKS
    assert [(chunk.ts, chunk.start, chunk.end) for chunk in COPY.chunks(100)] == [
        (101, b"a0", b"a5"),
        (102, b"a5", b"a9"),
    ]
    assert [chunk.ts for chunk in COPY.chunks(101)] == [102]
    assert COPY.chunks(102) == []
    assert [COPY.done(ts) for ts in (99, 100, 101, 102, COPY.ts)] == [0, 0, 1, 2, 2]
    assert [COPY.is_under_way(ts) for ts in (99, 100, 102, COPY.ts - 1, COPY.ts)] == [False, True, True, True, False]


def test_each_key_is_in_one_chunk_which_has_its_ts() -> None:
    rng = random.Random(7)
    keys = sorted({rng.randbytes(2) for _ in range(400)})
    start, end = keys[0], keys[-1]
    borders = rng.sample(keys, 60)
    for most in (1, 2, 7, 61, 1000):
        bounds = bounds_of(start, end, borders, most)
        copy = TableCopy(500, bounds)
        assert bounds[0] == start
        assert bounds[-1] == end
        assert 1 <= copy.size <= most
        chunks = copy.chunks(500)
        for key in keys[:-1]:
            assert [chunk.ts for chunk in chunks if chunk.start <= key < chunk.end] == [copy.ts_of(key)]
    assert len(bounds_of(start, end, borders)) == len(set(borders) - {start, end}) + 2


def test_a_copy_is_recorded_once_at_the_checkpoint_and_survives_a_snapshot() -> None:
    state = begun()
    assert decode_record(encode_record(record(state))) == record(state)
    copied = restore(snapshot(apply(state, record(state))))
    assert copied.copies() == {1: COPY}
    assert copied.asked_ts == 100 + COPY_TICKS
    assert (copied.flushed_ts(1), copied.table_version(1)) == (100, 100)
    assert (state.whole_from_ts, copied.whole_from_ts) == (101, COPY.ts)  # where a syncpoint may be
    later = apply(copied, made.commit(copied, 110, files=()))
    again = apply(later, record(later, 2))
    assert again.copies()[2].from_ts == again.table_version(2) == 110
    for state, wrong, why in (
        (copied, record(copied), "written already"),
        (later, record(later, 2, from_ts=100), "but the checkpoint is 110"),
        (made.begun(), record(made.begun()), "began without copies"),
        (begun(), record(begun(), tables=(CopiedTable(dispatcher=1, bounds=BOUNDS[::-1]),)), "not keys in their order"),
    ):
        with pytest.raises(NeedsHuman, match=why):
            apply(state, wrong)


def test_tables_are_copied_that_nobody_has_pulled() -> None:
    state = apply(begun(), record(begun()))
    state = apply(state, made.plan(state, made.entry(state, 101, dispatcher=3)))
    assert tables_to_copy(state, {1, 2, 3}) == [2]
    assert tables_to_copy(made.begun(), {1, 2, 3}) == []
    with pytest.raises(InvalidSpec, match="table 1 is no longer selected"):
        check_copies_are_selected(state, set())
    done = apply(state, made.commit(state, COPY.ts))
    check_copies_are_selected(done, set())


def test_a_new_generation_begins_with_a_copy() -> None:
    state = apply(begun(), record(begun()))
    rewind = RewindRecord(**made.owned(state), restart_nonce=1, from_ts=100)
    rewound = apply(state, rewind)
    assert tables_to_copy(rewound, {1}) == [1]


def test_a_puller_is_told_of_the_copy_while_its_span_is_inside() -> None:
    for start_ts, told in ((100, True), (102, True), (COPY.ts, False)):
        spans = Spans(1)
        spans.add_span(7, b"a0", b"a9", start_ts, COPY)
        ((_, command),) = spans.puller_joined(0.0, 0).commands
        assert command.subscribe.HasField("copy") is told
        assert command.subscribe.start_ts == start_ts
        if told:
            assert (command.subscribe.copy.from_ts, tuple(command.subscribe.copy.bounds)) == (100, COPY.bounds)


def test_people_are_told_how_far_copies_are() -> None:
    state = apply(begun(), record(begun()))
    told = CopyProgress()
    assert told.say(10.0, begun()) == ""
    assert told.say(10.0, state) == "copied 0 %"
    half = apply(state, made.plan(state, made.entry(state, 101)))
    half = apply(half, made.commit(half, 100))
    assert told.say(310.0, half) == "copied 50 %, 5 min left"
    whole = apply(half, made.plan(half, made.entry(half, 102)))
    assert told.say(310.0, whole) == "copied 50 %, 5 min left"
    whole = apply(whole, made.commit(whole, 102))
    assert told.say(310.0, whole) == "copied 100 %"
    assert told.say(320.0, apply(whole, made.commit(whole, COPY.ts, files=()))) == ""
