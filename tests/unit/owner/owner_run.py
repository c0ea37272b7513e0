"""An Owner whose run has just begun, and what happens to it, in few words."""

from __future__ import annotations

import owner_records as made
import owner_segments as s
from changefeed.log.history import apply
from changefeed.log.state import State
from changefeed.model.tso import compose
from changefeed.owner.owner import Owner
from changefeed.owner.planning.actions import AppendPlan, Publish, Recorded
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.plan_entries import Table
from changefeed.owner.planning.planner import Planner
from changefeed.owner.pulling.quota import Quota
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.writing.writing import Run
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Outputs
from changefeed.sink.storage.layout import Layout
from changefeed.wire import owner_pb2 as pb

BEGAN_MS = 5_000
BEGAN_TS = compose(BEGAN_MS)
INTERVAL_S = 60.0


class Names(Layout):
    def series(self, table: TableInfo, dispatcher: int, table_version: int) -> str:
        return f"t{dispatcher}/{table_version}"

    def data_file(self, directory: str, index: int) -> str:
        return f"{directory}/{index}.csv"


def began(
    quota: int = 1 << 30,
    dispatchers: int = 1,
    state: State | None = None,
    file_size: int = 1 << 20,
    expiration_days: int = 0,
    outputs: Outputs | None = None,
) -> Owner:
    """Just now, with spans 1, 2, ... and a puller for each; `state`: of the log before its epoch."""
    before = apply(State(), made.start()) if state is None else state
    state = apply(before, made.epoch(before, f"run{before.n}"))
    tables = {each: Table(10 + each, f"info{each}", 1, f"s/t{each}/1") for each in range(1, dispatchers + 1)}
    spans = Spans(dispatchers)
    for each in tables:
        spans.add_span(each, b"a", b"b", state.flushed_ts(each))
    owner = Owner(
        state=state,
        run=Run(state.epoch.number, state.epoch.nonce, "codec"),
        tables=tables,
        table_infos={f"info{each}": {} for each in tables},
        outputs=outputs or Names("none", 1, ".csv"),
        spans=spans,
        barrier=Barrier(made.START_TS),
        planner=Planner(file_size, INTERVAL_S),
        quota=Quota(quota),
        expiration_days=expiration_days,
    )
    for puller in range(dispatchers):
        owner.puller_joined(0.0, puller)
    owner.begin(BEGAN_MS)
    return owner


def row(owner: Owner, seq: int, ts: int, resolved_ts: int, span_id: int = 1, rows: int = 1) -> None:
    """It comes (or `rows` of one transaction do), and all up to resolved_ts with it, in a segment of its own."""
    segment = s.meta(seq, s.share(span_id, span_id, [ts] * rows), attempt=f"span{span_id}")
    report = pb.Report(segments=[segment], resolved=[s.resolved(span_id, resolved_ts, seq)])
    owner.report(0.0, span_id - 1, report)
    owner.barrier.on_resolved(resolved_ts)


def record(owner: Owner, action: Recorded, now: float = 0.0) -> None:
    owner.recorded(now, action, apply(owner.state, action.record))


def plan(owner: Owner, now: float = 0.0) -> AppendPlan:
    """The next thing to do is a plan: it is recorded."""
    action = owner.step(now, BEGAN_MS)
    assert isinstance(action, AppendPlan)
    record(owner, action, now)
    return action


def publish(owner: Owner, now: float = 0.0) -> Publish:
    """The next thing to do is to publish files: they are."""
    action = owner.step(now, BEGAN_MS)
    assert isinstance(action, Publish)
    record(owner, action, now)
    return action
