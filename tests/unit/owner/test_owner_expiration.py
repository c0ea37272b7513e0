"""Files expire by the checkpoint: the log gives them up once a day, before anything is deleted."""

from __future__ import annotations

import owner_records as made
import owner_run as run
import pytest
from changefeed.errors import NeedsHuman
from changefeed.log.history import apply
from changefeed.log.records import ExpireRecord, RewindRecord, decode_record, encode_record
from changefeed.log.state import State, restore, snapshot
from changefeed.model.tso import compose
from changefeed.owner.planning.actions import AppendExpiry
from changefeed.owner.planning.expiration import expires_before
from changefeed.sink.storage.layout import Layout

DAY_MS = 86_400_000
NAMES = Layout("day", 20, ".csv")


def at_day(day: float, start_day: int = 0) -> State:
    """The changefeed began on a day since 1970, and its checkpoint is at another."""
    state = apply(State(), made.start().model_copy(update={"start_ts": compose(start_day * DAY_MS)}))
    state = apply(state, made.epoch(state, "a"))
    return apply(state, made.commit(state, compose(int(day * DAY_MS))))


def expire(state: State, before: str) -> State:
    return apply(state, ExpireRecord(**made.owned(state), before=before))


@pytest.mark.parametrize(
    ("state", "days", "before"),
    [
        (at_day(9.9), 0, None),
        (at_day(1.9), 1, None),  # the start's own day is all that there could be
        (at_day(2), 1, "1970-01-02"),
        (at_day(9.9), 3, "1970-01-07"),
        (at_day(9.9, start_day=6), 3, None),
        (expire(at_day(9.9), "1970-01-06"), 3, "1970-01-07"),
        (expire(at_day(9.9), "1970-01-07"), 3, None),
        (expire(at_day(9.9), "1970-01-09"), 3, None),  # it was 1 before
        (apply(at_day(8), made.commit(at_day(8), compose(9 * DAY_MS), finished=True)), 3, None),
    ],
)
def test_days_expire_as_the_checkpoint_passes_them(state: State, days: int, before: str | None) -> None:
    assert expires_before(state, days) == before


def test_an_owner_gives_a_day_up_once() -> None:
    owner = run.began(state=at_day(9.5), expiration_days=3, outputs=NAMES)
    action = owner.step(0.0, run.BEGAN_MS)
    assert isinstance(action, AppendExpiry)
    assert action.record.before == "1970-01-07"
    run.record(owner, action)
    assert owner.state.expired_before == "1970-01-07"
    assert not isinstance(owner.step(0.0, run.BEGAN_MS), AppendExpiry)


def test_what_is_given_up_stays_so_until_a_rewind_begins_another_folder() -> None:
    state = expire(at_day(9.5), "1970-01-07")
    assert restore(snapshot(state)) == state
    record = ExpireRecord(**made.owned(state), before="1970-01-08")
    assert decode_record(encode_record(record)) == record
    with pytest.raises(NeedsHuman, match="given up already"):
        expire(state, "1970-01-07")
    back = RewindRecord(**made.owned(state), restart_nonce=1, from_ts=compose(8 * DAY_MS))
    rewound = apply(state, back)
    assert rewound.expired_before == ""
    assert [ended.expired_before for ended in rewound.generations] == ["1970-01-07"]
