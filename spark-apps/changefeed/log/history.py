"""What the transaction log says, folded into one State (docs/design/layouts.md, Log records).

`apply` is the only interpretation of a record. It is total and strict: what no correct driver can have written is
refused with the record's name, because going on would turn one fault into wrong files. It never guesses, repairs or
skips, and does no I/O.

Why the checks are the right ones:

1. *A driver dies between plan and commit.* Its successor's epoch record leaves `plans` as they were, each with the
   config under which it was recorded (rule 10): they are finished as they stand, and committed by the successor.
2. *A plan while others are open.* It goes on where what is planned of its dispatchers ends: no two plans name the same
   rows. A dispatcher's position moves with the plan, not with the commit, and so does the output that the next follows.
3. *A dispatcher is idle for a day.* No entry says so; the recorded checkpoint does. It resumes at
   max(last planned `to`, recorded checkpoint) (rule 11): `State.planned_ts`, where a plan must start.
4. *The checkpoint moves while files are open.* It can't pass the start of any of them, or a row at or below a published
   checkpoint would appear later (promise 4): refused.
5. *The second file of a dispatcher is done, the first is not.* A commit record that names the second alone would have
   an index file vouch for the first (rule 8), and a flushed ts for its rows: refused. Files of different dispatchers
   are committed in any order.
6. *A driver takes over before a DDL is executed that its predecessor had executed.* The table version of a dispatcher
   never falls. Its newest output is kept across DDLs, so that the sink can name what follows (rule 15).

A rewind (spec.restart) begins a new generation: a folder of its own beside the sink, where everything after a ts is
written again. No checkpoint goes back for it: each generation has its own `metadata`, whose checkpoint only grows
(promise 4). Open plans are dropped with the generation they belong to; their files, if any, are above what that
generation's index files publish.

With spec.state.id a log outlives its resource. Resource A is deleted, B is created with A's state id:

7. *B counts its attempts from 1, A got to 7.* Attempts order the drivers of one resource, and the config in an epoch
   says which resource (uid) it drives: B's attempt 1 is compared with no attempt of A.
8. *A driver of A is late: it starts, or wakes, after B's first epoch.* B's epoch made A superseded, which is for ever:
   no epoch of A can follow, whatever its attempt. One that woke in the middle of a run finds B's epoch at its next
   number.
9. *A and B both live, by mistake.* Were the newest always right, they would fence each other for ever. As it is, the
   second takes over once, at the most, and A is told who has superseded it. While A's driver is alive B does not start
   (`alive`), so a mistake disturbs nothing that runs.
10. *A is deleted with `closed`.* `closed` ends A, not the log: only an epoch of a resource that is neither A nor
   superseded may follow, and opens it again. Without a state id no such resource can find the log.
11. *The close of A is late: B drives already.* It sees that the newest epoch is B's, and touches nothing: neither the
    log, nor the safepoint, nor the segments. So does the close of a B that never got to drive what is A's.
12. *A's driver is late and never claimed an epoch, so nothing marks A as superseded.* While B's driver is alive it is
    refused like any other resource (9). It can win only while B's does not run; then B says that it is superseded, and
    `changefeed adopt` gives the log back to it. Files are right all the same: there is one history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, NoReturn

from changefeed.errors import Fenced, NeedsHuman, Superseded
from changefeed.log.records import (
    ClosedRecord,
    CommitRecord,
    CopyRecord,
    DdlRecord,
    DefinitionsRecord,
    EpochRecord,
    ExpireRecord,
    PlanEntry,
    PlanRecord,
    Record,
    RewindRecord,
    StartRecord,
)
from changefeed.log.state import (
    NEXT_STEP,
    DispatcherState,
    Epoch,
    Generation,
    NewestEntry,
    OpenPlan,
    RecordedCopy,
    State,
)
from changefeed.model.position import Position
from changefeed.model.table_copy import COPY_TICKS

_SHOWN = 512  # characters of a statement
_TABLE_INFO: Callable[[DispatcherState], str] = attrgetter("table_info")
_DEFINITION: Callable[[DispatcherState], str] = attrgetter("definition")


def is_of_another(state: State, uid: str) -> bool:
    """Whether the newest epoch drives another resource than `uid`."""
    return bool(uid and state.epoch.uid and uid != state.epoch.uid)


def is_stale_attempt(state: State, attempt: int, uid: str = "") -> bool:
    """Whether a driver of this attempt must not start (rule 6). 0: nobody stamps attempts here (a laptop)."""
    newest = state.epoch.attempt
    return not is_of_another(state, uid) and (attempt < newest or attempt == newest > 0)


def check_claim(state: State, uid: str, attempt: int, where: str) -> None:
    """Raises Superseded or Fenced when no driver of this resource and attempt may take over what `where` has."""
    if uid in state.superseded:
        by = "changefeed adopt" if state.released else f"Changefeed {state.epoch.name}, uid {state.epoch.uid},"
        raise Superseded(
            f"Superseded: {by} has taken over the state at {where} from this one, uid {uid}.",
            "Delete one of the two, or give this one another spec.state.id and sink. If the other one is gone, hand "
            "the state back with changefeed adopt.",
        )
    if state.closed and not is_of_another(state, uid):
        raise Fenced(
            f"The changefeed at {where} was deleted (record {state.n}).",
            "Create a new one. With this spec.state.id it resumes from here; otherwise give it another sink.",
        )
    if is_stale_attempt(state, attempt, uid):
        raise Fenced(
            f"This driver is attempt {attempt}; attempt {state.epoch.attempt} has already started, at {where}.",
            "Leave the changefeed to the newer driver.",
            newest_attempt=state.epoch.attempt,
        )


def apply(state: State, record: Record) -> State:
    """The state after `record`. Raises NeedsHuman, naming the record, for anything that can't follow `state`."""
    _check_frame(state, record)
    match record:
        case StartRecord():
            changes = _start(record)
        case EpochRecord():
            changes = _epoch(state, record)
        case PlanRecord():
            changes = _plan(state, record)
        case CommitRecord():
            changes = _commit(state, record)
        case DdlRecord():
            changes = _ddl(state, record)
        case DefinitionsRecord():
            changes = _definitions(state, record)
        case CopyRecord():
            changes = _copy(state, record)
        case RewindRecord():
            changes = _rewind(state, record)
        case ExpireRecord():
            if record.before <= state.expired_before:
                _refuse(record, f"files of days before {state.expired_before} are given up already")
            changes = {"expired_before": record.before}
        case ClosedRecord():
            released = record.superseded is not None
            superseded = state.superseded if record.superseded is None else record.superseded
            changes = {"closed": True, "released": released, "superseded": superseded}
    return state.model_copy(update={"n": record.n, **changes})


def _refuse(record: Record, why: str) -> NoReturn:
    raise NeedsHuman(
        f"Record {record.n} of the log ({record.kind}, epoch {record.epoch}) is impossible: {why}.", NEXT_STEP
    )


def _check_frame(state: State, record: Record) -> None:
    if record.n != state.n + 1:
        _refuse(record, f"it follows record {state.n}")
    if state.closed and not (isinstance(record, EpochRecord) and is_of_another(state, record.uid)):
        _refuse(record, "the changefeed is closed")
    if isinstance(record, StartRecord) != (state.n == 0):
        _refuse(record, "record 1, and no other, is `start`")
    if isinstance(record, StartRecord | EpochRecord):
        return
    if (record.epoch, record.nonce) != (state.epoch.number, state.epoch.nonce):
        _refuse(
            record, f"the log belongs to epoch {state.epoch.number}, run {state.epoch.nonce!r}, not {record.nonce!r}"
        )
    if state.epoch.number == 0:
        _refuse(record, "no driver has claimed an epoch yet")
    if state.finished and not isinstance(record, RewindRecord | ClosedRecord):
        _refuse(record, "the changefeed is finished")


def _start(record: StartRecord) -> dict[str, Any]:
    if record.epoch != 0:
        _refuse(record, "record 1 comes before any epoch")
    return {
        "uid": record.uid,
        "origin": record.nonce,
        "cluster_id": record.cluster_id,
        "start_ts": record.start_ts,
        "adopted": record.adopted,
        "checkpoint_ts": record.start_ts,
        "restart_nonce": record.restart_nonce,
        "initial_copy": record.initial_copy,
    }


def _copy(state: State, record: CopyRecord) -> dict[str, Any]:
    """A copy comes before everything that is known of its table, and above what is published."""
    if not state.initial_copy:
        _refuse(record, "the changefeed began without copies")
    if record.from_ts != state.checkpoint_ts:
        _refuse(record, f"it begins at {record.from_ts}, but the checkpoint is {state.checkpoint_ts}")
    for table in record.tables:
        if table.dispatcher in state.copied or table.dispatcher in state.dispatchers:
            _refuse(record, f"table {table.dispatcher} is written already")
        if len(table.bounds) > COPY_TICKS or list(table.bounds) != sorted(set(table.bounds)):
            _refuse(record, f"the bounds of table {table.dispatcher} are not keys in their order")
    new = {table.dispatcher: RecordedCopy(from_ts=record.from_ts, bounds=table.bounds) for table in record.tables}
    return {"copied": {**state.copied, **new}}


def _epoch(state: State, record: EpochRecord) -> dict[str, Any]:
    if record.epoch != state.epoch.number + 1:
        _refuse(record, f"the epoch before it is {state.epoch.number}")
    if record.nonce == state.epoch.nonce:
        _refuse(record, f"run {record.nonce!r} has an epoch already")
    if record.uid in state.superseded:
        _refuse(record, f"resource {record.uid} was superseded before")
    if is_stale_attempt(state, record.attempt, record.uid):
        _refuse(record, f"its attempt {record.attempt} is not above {state.epoch.attempt}")
    epoch = Epoch(number=record.epoch, nonce=record.nonce, attempt=record.attempt, config=record.config)
    before = (state.epoch.uid,) if is_of_another(state, record.uid) else ()
    return {
        "epoch": epoch,
        "closed": False,
        "released": False,
        "finished": state.finished and _reaches_target(state, record),
        "superseded": (*state.superseded, *before),
    }


def _reaches_target(state: State, record: EpochRecord) -> bool:
    """Whether all is written that its spec asks for: `targetTs` may have been raised, or removed."""
    target_ts = record.config["spec"].get("targetTs")
    return target_ts is not None and int(target_ts) <= state.checkpoint_ts


def _rewind(state: State, record: RewindRecord) -> dict[str, Any]:
    if record.restart_nonce == state.restart_nonce:
        _refuse(record, f"spec.restart of nonce {record.restart_nonce} is done")
    if record.from_ts > state.checkpoint_ts:
        _refuse(record, f"it goes to {record.from_ts}, which is above the checkpoint {state.checkpoint_ts}")
    ended = Generation(from_ts=state.from_ts, checkpoint_ts=state.checkpoint_ts, expired_before=state.expired_before)
    return {
        "generations": (*state.generations, ended),
        "rewound_to": record.from_ts,
        "restart_nonce": record.restart_nonce,
        "checkpoint_ts": record.from_ts,
        "plans": (),
        "dispatchers": {},
        "copied": {},
        "table_infos": {},
        "last_ddl": None,
        "last_statement": "",
        "finished": False,
        "expired_before": "",
    }


def _plan(state: State, record: PlanRecord) -> dict[str, Any]:
    if not record.entries:
        _refuse(record, "it has no entries")
    infos = state.table_infos
    if record.table_infos:
        infos = dict(sorted({**infos, **record.table_infos}.items()))
    for number, entry in enumerate(record.entries):
        if entry.entry != number:
            _refuse(record, f"entry {entry.entry} stands at number {number}")
        if entry.table_info not in infos:
            _refuse(record, f"entry {number} names TableInfo {entry.table_info!r}, which no record holds")
        if entry.to.commit_ts > record.resolved_ts:
            _refuse(record, f"entry {number} ends at {entry.to.commit_ts}, above the barrier {record.resolved_ts}")
    advanced = {}
    for dispatcher, entries in _entries_by_dispatcher(record).items():
        _check_ranges(record, state.position(dispatcher), entries)
        advanced[dispatcher] = _advance(record, state, entries)
    return {
        "plans": (*state.plans, OpenPlan(plan=record, config=state.epoch.config)),
        "dispatchers": {**state.dispatchers, **advanced},
        "table_infos": infos,
    }


def _entries_by_dispatcher(plan: PlanRecord) -> dict[int, list[PlanEntry]]:
    grouped: dict[int, list[PlanEntry]] = {}
    for entry in plan.entries:
        grouped.setdefault(entry.dispatcher, []).append(entry)
    return grouped


def _check_ranges(record: PlanRecord, position: Position, entries: list[PlanEntry]) -> None:
    for entry in entries:
        if entry.from_ != position:
            _refuse(
                record,
                f"entry {entry.entry} of dispatcher {entry.dispatcher} starts at {entry.from_.to_json()}, "
                f"but what is before it ends at {position.to_json()}",
            )
        if entry.to <= entry.from_:
            _refuse(record, f"entry {entry.entry} ends at {entry.to.to_json()}, not after its start")
        position = entry.to
    if not position.is_end_of_ts:
        _refuse(record, f"dispatcher {entries[0].dispatcher} would stop inside a transaction, at {position.commit_ts}")


def _advance(record: PlanRecord, state: State, entries: list[PlanEntry]) -> DispatcherState:
    """The dispatcher once its entries are planned."""
    first, ts = entries[0], state.checkpoint_ts
    now = state.dispatchers.get(first.dispatcher)
    now = now or DispatcherState(dispatcher=first.dispatcher, table_id=first.table_id, flushed_ts=ts, planned_ts=ts)
    for entry in entries:
        if now.table_id not in (0, entry.table_id):
            _refuse(record, f"entry {entry.entry} is of table {entry.table_id}, its dispatcher of {now.table_id}")
        if entry.table_version < now.table_version:
            _refuse(record, f"entry {entry.entry} goes back to version {entry.table_version} from {now.table_version}")
        if entry.output and entry.output == now.output:
            _refuse(record, f"entry {entry.entry} is written to {entry.output}, as the one before it is (rule 15)")
        now = DispatcherState(
            dispatcher=entry.dispatcher,
            table_id=entry.table_id,
            flushed_ts=now.flushed_ts,
            planned_ts=entry.to.commit_ts,
            table_version=entry.table_version,
            output=entry.output,
            table_info=entry.table_info,
            definition=entry.table_info,
            newest=now.newest,
        )
    return now


def _commit(state: State, record: CommitRecord) -> dict[str, Any]:
    if record.checkpoint_ts < state.checkpoint_ts:
        _refuse(record, f"its checkpoint {record.checkpoint_ts} is below {state.checkpoint_ts}")
    rows = {(file.plan, file.entry): file.rows for file in record.files}
    if len(rows) != len(record.files):
        _refuse(record, "it names a file twice")
    left, advanced = _without(state, record, rows)
    if left and record.finished:
        _refuse(record, f"{len(left)} files are not written yet")
    for plan, entry in left:
        if record.checkpoint_ts > (before := _whole_ts(entry.from_)):
            _refuse(record, f"plan {plan} still has to write rows above {before}")
    changes: dict[str, Any] = {"checkpoint_ts": record.checkpoint_ts, "finished": record.finished}
    return {**changes, **_committed(state, record, advanced)} if record.files else changes


def _without(
    state: State, record: CommitRecord, rows: dict[tuple[int, int], int]
) -> tuple[list[tuple[int, PlanEntry]], dict[int, dict[str, Any]]]:
    """What stays open, and what the record changes of each dispatcher that has files in it, which `rows` names."""
    left: list[tuple[int, PlanEntry]] = []
    waiting: set[int] = set()
    advanced: dict[int, dict[str, Any]] = {}
    for plan, entry in state.open_entries():
        if (plan, entry.entry) not in rows:
            left.append((plan, entry))
            waiting.add(entry.dispatcher)
            continue
        if entry.dispatcher in waiting:
            name, before = f"entry {entry.entry} of plan {plan}", f"what dispatcher {entry.dispatcher} has before it"
            _refuse(record, f"it commits {name}, but not {before}")
        changes = advanced.setdefault(entry.dispatcher, {})
        changes["flushed_ts"] = _whole_ts(entry.to)
        if rows.pop((plan, entry.entry)):
            changes["newest"] = NewestEntry(plan=plan, entry=entry.entry, table_version=entry.table_version)
    if rows:
        _refuse(record, "plan {} has no open entry {}".format(*min(rows)))
    return left, advanced


def _whole_ts(position: Position) -> int:
    """Every row <= it is before the position, which may be inside a transaction."""
    return position.commit_ts if position.is_end_of_ts else position.commit_ts - 1


def _committed(state: State, record: CommitRecord, advanced: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    done: dict[int, list[int]] = {}
    for file in record.files:
        done.setdefault(file.plan, []).append(file.entry)
    plans = []
    for each in state.plans:
        committed = tuple(sorted([*each.committed, *done.get(each.plan.n, ())]))
        if len(committed) < len(each.plan.entries):
            plans.append(each.model_copy(update={"committed": committed}))
    copies = {
        dispatcher: state.dispatchers[dispatcher].model_copy(update=changes) for dispatcher, changes in advanced.items()
    }
    dispatchers = {**state.dispatchers, **copies}
    infos = state.table_infos
    if any(each.plan.table_infos for each in state.plans):  # to look over all tables each time would cost too much
        infos = _named(infos, dispatchers, plans)
    return {
        "plans": tuple(plans),
        "dispatchers": dispatchers,
        "table_infos": infos,
        "rows": state.rows + sum(file.rows for file in record.files),
    }


def _ddl(state: State, record: DdlRecord) -> dict[str, Any]:
    if state.last_ddl is not None and (record.ts, record.job_id) <= state.last_ddl:
        _refuse(record, f"DDL {record.job_id} at {record.ts} is not after the last executed one, {state.last_ddl}")
    if state.checkpoint_ts >= record.ts:
        _refuse(record, f"the checkpoint {state.checkpoint_ts} has already passed its ts {record.ts}")
    drained = {*record.involved, *record.left, *record.dispatchers}
    for plan, entry in state.open_entries():
        if entry.dispatcher in drained:
            _refuse(record, f"entry {entry.entry} of plan {plan} has not drained")
    definitions = record.table_infos or ("",) * len(record.dispatchers)
    follow = {
        dispatcher: _follow(state, record, dispatcher, definition)
        for dispatcher, definition in zip(record.dispatchers, definitions, strict=True)
    }
    stay = {number: known for number, known in state.dispatchers.items() if number not in record.left}
    dispatchers = {**stay, **follow}
    infos = state.table_infos
    if record.definitions:
        infos = _named({**infos, **record.definitions}, dispatchers, state.plans)
    return {
        "last_ddl": (record.ts, record.job_id),
        "last_statement": record.query[:_SHOWN],
        "dispatchers": dispatchers,
        "table_infos": infos,
    }


def _definitions(state: State, record: DefinitionsRecord) -> dict[str, Any]:
    """Nothing is planned by it, and no version begins: the next driver begins with these definitions."""
    infos, defined, ts = {**state.table_infos, **record.definitions}, {}, state.checkpoint_ts
    for dispatcher, definition in zip(record.dispatchers, record.table_infos, strict=True):
        if definition not in infos:
            _refuse(record, f"it names TableInfo {definition!r} of table {dispatcher}, which no record holds")
        known = state.dispatchers.get(dispatcher) or DispatcherState(
            dispatcher=dispatcher,
            table_id=0,
            flushed_ts=ts,
            planned_ts=ts,
            table_version=state.first_version(dispatcher),
        )
        if known.definition:
            _refuse(record, f"table {dispatcher} is defined already")
        defined[dispatcher] = known.model_copy(update={"definition": definition})
    dispatchers = {**state.dispatchers, **defined}
    return {"dispatchers": dispatchers, "table_infos": _named(infos, dispatchers, state.plans)}


def _named(
    infos: Mapping[str, dict[str, Any]], dispatchers: Mapping[int, DispatcherState], plans: Iterable[OpenPlan]
) -> dict[str, dict[str, Any]]:
    """Keep the definitions by which rows were written last, are being written, or are written next."""
    used = set(map(_TABLE_INFO, dispatchers.values())) | set(map(_DEFINITION, dispatchers.values()))
    used |= {entry.table_info for each in plans for entry in each.open_entries}
    return {name: infos[name] for name in sorted(infos) if name in used}


def _follow(state: State, record: DdlRecord, dispatcher: int, definition: str) -> DispatcherState:
    """The dispatcher after the DDL: its next entry is of the new version.

    One that joins may be known: rules that selected its table before do so no more, and a rename brings it back.
    """
    known = state.dispatchers.get(dispatcher) or DispatcherState(
        dispatcher=dispatcher, table_id=0, flushed_ts=record.ts, planned_ts=record.ts
    )
    if known.planned_ts > record.ts:
        _refuse(record, f"dispatcher {dispatcher} is already planned to {known.planned_ts}")
    return known.model_copy(
        update={
            "flushed_ts": record.ts,
            "planned_ts": record.ts,
            "table_version": record.ts,
            "definition": definition,
            "newest": known.newest if dispatcher in record.involved else None,
        }
    )
