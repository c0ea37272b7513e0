"""What is planned of a table that the rules no longer select: refused, or left out where tasks' work shows nothing."""

from __future__ import annotations

import owner_records as made
import pytest
from changefeed.errors import InvalidSpec
from changefeed.log.history import apply
from changefeed.owner.preparation.checks import check_plans_are_selected, unselected
from changefeed.owner.preparation.records import left_out_record
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import parse_table_info
from changefeed.sink.blackhole import BlackholeClaim
from changefeed.sink.iceberg.claim import IcebergClaim
from changefeed.sink.kafka.claim import KafkaClaim
from changefeed.sink.mysql.claim import MysqlClaim
from changefeed.sink.storage.claim import StorageClaim

JOBS = parse_table_info({"id": 1, "name": {"O": "tidb_ddl_job"}, "cols": [], "state": 5}, "mysql")


def test_what_is_left_out_holds_up_nothing_and_is_not_planned_again() -> None:
    state = made.begun()
    state = apply(state, made.plan(state, made.entry(state, 200), made.entry(state, 200, 1, dispatcher=2)))
    state = apply(state, made.plan(state, made.entry(state, 300, dispatcher=2)))
    left_out = unselected(state, {1})
    assert [(plan, entry.entry) for plan, entry in left_out] == [(3, 1), (4, 0)]
    state = apply(state, left_out_record(state, left_out))
    assert [(plan, entry.dispatcher) for plan, entry in state.open_entries()] == [(3, 1)]
    assert unselected(state, {1}) == []
    assert (state.checkpoint_ts, state.rows, state.planned_ts(2)) == (100, 0, 300)
    state = apply(state, made.commit(state, 200))
    assert (state.plans, state.checkpoint_ts, state.rows) == ((), 200, 1)


def test_only_where_the_driver_commits_what_shows_may_it_be_left_out() -> None:
    sinks = (BlackholeClaim, IcebergClaim, KafkaClaim, MysqlClaim, StorageClaim)
    assert [sink for sink in sinks if sink.may_leave_out] == [IcebergClaim]
    state = made.begun()
    state = apply(state, made.plan(state, made.entry(state, 200)))
    with pytest.raises(InvalidSpec, match="1 is no longer selected, but plan 3 still has rows of it"):
        check_plans_are_selected(state, set(), SchemaHistory(100, (), (), JOBS))
