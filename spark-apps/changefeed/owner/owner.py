"""The owner: one changefeed's decisions, made of the cores beside it (DESIGN.md 3.3).

Pure. Reports, DDLs and finished files come in; `step` hands out the one thing to do next, and is told when that is
done. It never does two things at once, so the order of publication (data file, index, commit record, metadata) is the
order of its actions, and nothing is published that is not in the log (rule 11).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from changefeed.model.record import CommitRecord, DdlRecord, FileCommitted, PlanRecord, Work, WorkEntry
from changefeed.model.tso import compose
from changefeed.owner.planning.actions import Action, AppendCheckpoint, AppendPlan, Publish, Recorded, Stop, WriteDdl
from changefeed.owner.planning.barrier import Barrier, Ddl
from changefeed.owner.planning.checkpoint import Checkpoint, Progress, flushed_to, flushed_ts
from changefeed.owner.planning.planner import Cut, Planner, Reason, Table, make_plan
from changefeed.owner.pulling.quota import Quota
from changefeed.owner.pulling.spans import Orders, Spans
from changefeed.owner.transaction_log.state import State
from changefeed.schema.keys import table_span
from changefeed.schema.table_info import TableInfo
from changefeed.wire import owner_pb2 as pb


class Names(Protocol):
    """Where files go (sink.storage.layout): pure functions of their arguments."""

    def date(self, pd_ms: int) -> str:
        """The date part of directories at a time; "" when they have none."""
        ...

    def directory(self, place: str, date: str) -> str: ...

    def data_file(self, directory: str, index: int) -> str: ...

    def place(self, table: TableInfo, dispatcher: int, table_version: int) -> str:
        """A directory but for its date."""
        ...


@dataclass(frozen=True)
class Run:
    """Who this driver is (rule 6), and what it writes with."""

    epoch: int
    nonce: str
    codec: str  # fingerprint

    @property
    def name(self) -> str:
        return f"{self.epoch}-{self.nonce}"


class Owner:
    """One run of one changefeed. Dispatchers are `tables`' keys, which are span ids as well."""

    def __init__(
        self,
        state: State,
        run: Run,
        tables: Mapping[int, Table],
        table_infos: Mapping[str, dict[str, Any]],
        names: Names,
        spans: Spans,
        barrier: Barrier,
        planner: Planner,
        quota: Quota,
    ) -> None:
        self.state = state
        self._run = run
        self._tables = dict(tables)
        self._table_infos = dict(table_infos)
        self._names = names
        self._schema_files = {(dispatcher, table.table_version) for dispatcher, table in tables.items()}
        self.spans = spans
        self.barrier = barrier
        self.planner = planner
        self._quota = quota
        self.checkpoint = Checkpoint(state.checkpoint_ts)
        self._work: Work | None = None  # of the uncommitted plan, once it may be executed
        self._latest = 0
        self._files: dict[int, FileCommitted] = {}
        self._drain_ts: int | None = None
        self._began_ts: int | None = None  # until a plan has all that came before it
        self._commands: list[tuple[int, pb.Command]] = []  # that a DDL has brought, not yet told
        self._idle = True  # no plan is executed, and none could be made when that was last looked at
        planner.on_checkpoint(state.checkpoint_ts)
        for dispatcher in tables:
            planner.add(dispatcher, state.planned_ts(dispatcher))

    @property
    def dispatchers(self) -> int:
        """How many there are."""
        return len(self._tables)

    # What happens.

    def puller_joined(self, now: float, puller: int) -> list[pb.Command]:
        """A puller's stream is open; what to tell it."""
        self._forget_commands(puller)
        return [command for _, command in self._follow(self.spans.puller_joined(now, puller)).commands]

    def puller_left(self, now: float, puller: int) -> None:
        self._forget_commands(puller)
        self._follow(self.spans.puller_left(now, puller))

    def _forget_commands(self, puller: int) -> None:
        """What an earlier stream of it was to be told is of assignments that have ended with that."""
        self._commands = [told for told in self._commands if told[0] != puller]

    def report(self, now: float, puller: int, report: pb.Report) -> None:
        for segment in self.spans.on_report(puller, report).segments:
            self.planner.on_rows(now, segment)

    def file_done(self, record: int, nonce: str, file: FileCommitted) -> None:
        """An entry's file stands in the sink; what is said of another plan or run is dropped (rule 20)."""
        if self.state.plan is not None and record == self.state.plan.n and nonce == self._run.nonce:
            self._files[file.entry] = file

    def begin(self, pd_ms: int) -> None:
        """The run begins now: what came before has waited long enough, and is planned as soon as all of it is there."""
        self._began_ts = compose(pd_ms)

    def drain(self) -> None:
        """Write what is resolved by now, then stop."""
        if self._drain_ts is None:
            self._drain_ts = self.resolved_ts()

    # What the Spark source asks.

    def latest(self) -> int:
        """The newest plan that may be executed, or was."""
        if self._work is None and self.state.plan is not None and self.spans.is_whole(self.state.plan.entries):
            self._work = self._manifest(self.state.plan)
            self._latest = self.state.plan.n
        return self._latest

    def work(self, record: int) -> Work:
        """What to do for a plan; nothing when it is committed (rule 20)."""
        if self._work is not None and self._work.record == record:
            return self._work
        return Work(
            record=record,
            epoch=self._run.epoch,
            nonce=self._run.nonce,
            pd_ms=0,
            codec=self._run.codec,
            config={},
            entries=(),
            table_infos={},
        )

    # Who pulls what. It is looked at while an action is under way, too: a sink may keep that waiting for long.

    def tend(self, now: float) -> list[tuple[int, pb.Command]]:
        """What to tell which puller, now: moves of spans, and what keeps the event store within its quota."""
        commands, self._commands = self._commands, []
        commands += self._follow(self.spans.arrange(now)).commands
        if self._quota.is_concerned(self.spans.files.bytes, self.spans.held):
            commands += self._relieve()
        if self._quota.lets_write(self.spans.files.bytes, self._idle):
            commands += self.spans.heard()
        return commands

    def _relieve(self) -> list[tuple[int, pb.Command]]:
        spans, entries = self.spans, self.state.plan.entries if self.state.plan else ()
        needed = {entry.dispatcher for entry in entries if not spans.is_whole([entry])}
        limits = {dispatcher: 0 if entries else self.barrier.limit(dispatcher) for dispatcher in self._tables}
        limits |= {entry.dispatcher: entry.to.commit_ts for entry in entries}  # the last one of each counts
        relief = self._quota.relieve(spans, needed, limits, self._idle)
        orders = [spans.hold(relief.hold), spans.resume(relief.resume)]
        orders += [spans.cut_back(span_id, ts) for span_id, ts in relief.evict.items()]
        return [command for each in orders for command in self._follow(each).commands]

    def _follow(self, orders: Orders) -> Orders:
        """What ended assignments had above the ts they stand at will be pulled, and planned, again."""
        for span_id, ts in orders.ended.items():
            self.planner.forget_above(span_id, ts)
        return orders

    # What to do next.

    def step(self, now: float, pd_ms: int) -> Action | None:
        """The next thing to do, or None until something happens or `next_deadline`. Ask again only once it is done."""
        if (ddl := self.barrier.due(self._flushed)) is not None:
            return self._write_ddl(ddl)
        plan = self.state.plan
        if plan is not None:
            if len(self._files) == len(plan.entries):
                return self._publish(plan)
            self._idle = not self.spans.is_whole(plan.entries)
            return self._checkpoint_if_due(now)
        cuts = self._cuts(now)
        self._idle = not cuts
        return AppendPlan(self._plan(cuts, pd_ms)) if cuts else self._stop() or self._checkpoint_if_due(now)

    def next_deadline(self) -> float | None:
        """When to ask `step` again if nothing else happens: while a plan is executed, no time makes another."""
        return None if self.state.plan is not None else self.planner.next_deadline()

    def recorded(self, now: float, action: Recorded, state: State) -> None:
        """The action's record is in the log, which says `state` now."""
        self.state = state
        if isinstance(action, AppendPlan):
            return
        if isinstance(action, WriteDdl):
            self._executed(self.barrier.executed())
            return
        if isinstance(action, Publish):
            self._learn()
            self._work, self._files = None, {}
        self.checkpoint.recorded(now, state.checkpoint_ts)
        self.planner.on_checkpoint(state.checkpoint_ts)
        for dispatcher in self._tables:
            self.spans.release_below(dispatcher, state.flushed_ts(dispatcher))

    def unneeded_segments(self) -> list[str]:
        """Segment files that may be deleted: none that the plan which is being executed may still read."""
        entries = self._work.entries if self._work is not None else ()
        return self.spans.files.take_unneeded({segment.uri for entry in entries for segment in entry.segments})

    def resolved_ts(self) -> int:
        """Every row and DDL of the changefeed up to it has arrived."""
        reached = (min(self.spans.resolved_ts(each), self.barrier.limit(each)) for each in self._tables)
        return min(reached, default=self.barrier.ceiling())

    def _cuts(self, now: float) -> list[Cut]:
        """While draining, what is resolved later is left to the next driver, or a drain under load would never end."""

        def limit(dispatcher: int) -> int:
            limits = (self.spans.resolved_ts(dispatcher), self.barrier.limit(dispatcher), self._drain_ts)
            return min(ts for ts in limits if ts is not None)

        stopped = self._stopped()
        cuts = self.planner.due(now, limit, stopped, self._all_for())
        if not cuts and self._quota.is_short(self.spans.files.bytes):
            cuts = self.planner.due(now, limit, stopped, "quota")
        return cuts

    def _stopped(self) -> set[int]:
        """The dispatchers that nothing more comes for until a DDL is executed, or ever."""
        stopped = self.barrier.stopped(self._tables) & self._tables.keys()
        return {each for each in stopped if self.spans.resolved_ts(each) >= self.barrier.limit(each)}

    def _all_for(self) -> Reason | None:
        """Why everything that can be planned is to be, however little it is; None: it is not."""
        if self._drain_ts is not None:
            return "shutdown"
        if self._began_ts is None or self.resolved_ts() < self._began_ts:
            return None
        self._began_ts = None
        return "interval"

    def _plan(self, cuts: list[Cut], pd_ms: int) -> PlanRecord:
        entries = make_plan(
            self.state,
            cuts,
            self._tables,
            self._names.date(pd_ms),
            self._names.directory,
            self._names.data_file,
            self._schema_files,
        )
        new = {e.table_info for e in entries} - self.state.table_infos.keys()
        return PlanRecord(
            n=self.state.n + 1,
            epoch=self._run.epoch,
            nonce=self._run.nonce,
            pd_ms=pd_ms,
            resolved_ts=self.barrier.ceiling(),
            codec=self._run.codec,
            entries=entries,
            table_infos={name: self._table_infos[name] for name in sorted(new)},
        )

    def _manifest(self, plan: PlanRecord) -> Work:
        entries = (WorkEntry(plan_entry=e, segments=self.spans.manifest(e, self._run.name)) for e in plan.entries)
        used = {e.table_info for e in plan.entries}
        return Work(
            record=plan.n,
            epoch=self._run.epoch,
            nonce=self._run.nonce,
            pd_ms=plan.pd_ms,
            codec=plan.codec,
            config=self.state.plan_config or {},
            entries=tuple(entries),
            table_infos={name: self.state.table_infos[name] for name in sorted(used)},
        )

    def _publish(self, plan: PlanRecord) -> Publish:
        last = {e.directory: (e.directory, e.index, e.path) for e in plan.entries}
        record = self._commit_record(self._progress(plan_is_done=True), plan)
        return Publish(tuple(last.values()), record)

    def _checkpoint_if_due(self, now: float) -> AppendCheckpoint | None:
        ends = self._drain_ts is not None or self.barrier.is_at_target()
        if not (ends or self.checkpoint.may_be_due(now)):
            return None
        progress = self._progress()
        ts = self.checkpoint.next(progress, self.barrier)
        if self.checkpoint.is_due(now, ts) or (ends and self.state.plan is None and ts > self.checkpoint.recorded_ts):
            return AppendCheckpoint(self._commit_record(progress))
        return None

    def _commit_record(self, progress: list[Progress], plan: PlanRecord | None = None) -> CommitRecord:
        ts = self.checkpoint.next(progress, self.barrier)
        return CommitRecord(
            n=self.state.n + 1,
            epoch=self._run.epoch,
            nonce=self._run.nonce,
            plan=plan.n if plan else None,
            checkpoint_ts=ts,
            files=tuple(self._files[number] for number in sorted(self._files)) if plan else (),
            finished=self.barrier.is_finished(ts),
        )

    def _stop(self) -> Stop | None:
        """Whether this was all, once everything that can be recorded is."""
        if self._drain_ts is None and not self.state.finished:
            return None
        progress = self._progress()
        if self.checkpoint.next(progress, self.barrier) > self.checkpoint.recorded_ts:
            return None
        if self.state.finished:
            return Stop()
        if self._drain_ts is not None and flushed_ts(progress, self.barrier.ceiling()) >= self._drain_ts:
            return Stop()
        return None

    def _progress(self, plan_is_done: bool = False) -> list[Progress]:
        plan = self.state.plan
        planned = {entry.dispatcher for entry in plan.entries} if plan and not plan_is_done else set()
        reached: Callable[[int], int] = self.state.planned_ts if plan_is_done else self.state.flushed_ts
        return [self._progress_of(dispatcher, reached, dispatcher in planned) for dispatcher in self._tables]

    def _progress_of(self, dispatcher: int, reached: Callable[[int], int], in_plan: bool) -> Progress:
        return Progress(
            flushed_ts=reached(dispatcher),
            resolved_ts=self.spans.resolved_ts(dispatcher),
            in_plan=in_plan,
            first_unplanned_ts=self.planner.first_unplanned_ts(dispatcher),
        )

    # DDLs.

    def _flushed(self, dispatcher: int) -> int:
        """Every row of the dispatcher <= it is in committed files."""
        plan = self.state.plan
        in_plan = plan is not None and any(entry.dispatcher == dispatcher for entry in plan.entries)
        progress = self._progress_of(dispatcher, self.state.flushed_ts, in_plan)
        return flushed_to(progress, self.barrier.limit(dispatcher))

    def _write_ddl(self, ddl: Ddl) -> WriteDdl:
        record = DdlRecord(
            n=self.state.n + 1,
            epoch=self._run.epoch,
            nonce=self._run.nonce,
            ts=ddl.ts,
            job_id=ddl.job_id,
            query=ddl.query,
            involved=tuple(sorted(ddl.involved)),
            schema_files=tuple(file.path for file in ddl.schema_files),
            dispatchers=tuple(sorted(ddl.tables)),
            table_infos=tuple(info.hash for _, info in sorted(ddl.tables.items())),
            left=tuple(sorted(ddl.left)),
        )
        return WriteDdl(ddl.schema_files, record)

    def _executed(self, ddl: Ddl) -> None:
        """Those that it ends are pulled no more; of the others what is above its ts has the definition after it."""
        for dispatcher in ddl.left:
            del self._tables[dispatcher]
            self.planner.remove(dispatcher)
            self._commands += self.spans.remove_span(dispatcher).commands
        for dispatcher, info in ddl.tables.items():
            if dispatcher not in self._tables:
                self.planner.add(dispatcher, ddl.ts)
                self._commands += self.spans.add_span(dispatcher, *table_span(dispatcher), ddl.ts).commands
            place = self._names.place(info, dispatcher, ddl.ts)
            self._tables[dispatcher] = Table(dispatcher, info.hash, ddl.ts, place)
            self._table_infos[info.hash] = info.to_json()
            self._schema_files.add((dispatcher, ddl.ts))

    def _learn(self) -> None:
        if self._work is not None:
            for entry in self._work.entries:
                done = self._files[entry.plan_entry.entry]
                self.planner.learn(entry.plan_entry.dispatcher, entry.plan_entry.estimate, done.bytes)
