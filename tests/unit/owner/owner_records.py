"""Records as a correct driver writes them, each from the state before it."""

from __future__ import annotations

from typing import Any

from changefeed.log.history import apply
from changefeed.log.records import (
    ClosedRecord,
    CommitRecord,
    EpochRecord,
    FileCommitted,
    PlanEntry,
    PlanRecord,
    Record,
    StartRecord,
)
from changefeed.log.state import State
from changefeed.model.position import Position

START_TS = 100


def start(nonce: str = "a") -> StartRecord:
    return StartRecord(n=1, epoch=0, nonce=nonce, start_ts=START_TS, cluster_id=7, uid="local")


def config_of(uid: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "shop", "name": "orders", "uid": uid}}


def epoch(state: State, nonce: str, attempt: int = 0, config: dict[str, Any] | None = None) -> EpochRecord:
    return EpochRecord(
        n=state.n + 1,
        epoch=state.epoch.number + 1,
        nonce=nonce,
        attempt=attempt,
        host="h",
        pid=1,
        config=config or {"fileSize": nonce},
        versions={},
    )


def owned(state: State) -> dict[str, Any]:
    return {"n": state.n + 1, "epoch": state.epoch.number, "nonce": state.epoch.nonce}


def entry(
    state: State, to: int, number: int = 0, dispatcher: int = 1, from_ts: int | None = None, **changes: Any
) -> PlanEntry:
    names = {
        "directory": f"t{dispatcher}/1/2026-01-01",
        "index": state.output(dispatcher).get("index", 0) + 1,
        "date": "2026-01-01",
    }
    names |= {name: changes.pop(name) for name in ("path", *names) if name in changes}
    values: dict[str, Any] = {
        "entry": number,
        "dispatcher": dispatcher,
        "table_id": 10 + dispatcher,
        "from": state.position(dispatcher) if from_ts is None else Position.end_of(from_ts),
        "to": Position.end_of(to),
        "output": {"path": f"{names['directory']}/{names['index']}.csv"} | names,
        "table_version": 1,
        "table_info": f"info{dispatcher}",
        "estimate": 1,
        "reason": "interval",
    }
    values |= changes
    return PlanEntry.model_validate(values)


def plan(state: State, *entries: PlanEntry, **changes: Any) -> PlanRecord:
    values: dict[str, Any] = {
        **owned(state),
        "pd_ms": 1,
        "resolved_ts": 1_000_000,
        "codec": "c",
        "entries": entries,
        "table_infos": {e.table_info: {"name": "t"} for e in entries},
    }
    return PlanRecord.model_validate(values | changes)


def file(plan: int, number: int = 0, rows: int = 1) -> FileCommitted:
    """That of an entry, whose plan is in record `plan`."""
    return FileCommitted(plan=plan, entry=number, rows=rows, raw_rows=rows, filtered_rows=0, bytes=1, hash="h")


def files(state: State) -> tuple[FileCommitted, ...]:
    """All that are open."""
    return tuple(file(number, entry.entry) for number, entry in state.open_entries())


def commit(state: State, checkpoint_ts: int, **changes: Any) -> CommitRecord:
    """Return a commit of all files that are open, unless `files` says of which."""
    values: dict[str, Any] = {**owned(state), "checkpoint_ts": checkpoint_ts, "files": files(state)}
    return CommitRecord.model_validate(values | changes)


def closed(state: State) -> ClosedRecord:
    return ClosedRecord(**owned(state))


def replay(*records: Record) -> State:
    state = State()
    for record in records:
        state = apply(state, record)
    return state


def begun(nonce: str = "a", attempt: int = 0) -> State:
    """Record 1 and the first driver's epoch."""
    state = replay(start(nonce))
    return apply(state, epoch(state, nonce, attempt))


def next_record(state: State) -> Record:
    """What the driver that owns `state` writes next: a plan or two, their files together or one by one, and so on."""
    open_ = [entry for _, entry in state.open_entries()]
    if not open_ and state.n % 5 == 0:
        return commit(state, state.checkpoint_ts + 5)
    if len(open_) == 2:
        ts = max(state.checkpoint_ts, open_[1].from_.commit_ts if open_[0].dispatcher == open_[1].dispatcher else 0)
        return commit(state, ts, files=files(state)[:1])
    if open_ and state.n % 3 == 0:
        return commit(state, max(entry.to.commit_ts for entry in open_))
    return plan(state, entry(state, state.planned_ts(1) + 10))
