"""The owner: makes one changefeed's decisions, built from the cores beside it.

Pure. Reports, DDLs and finished files come in; `step` returns the one action to take next, and is told when it is
done. It never does two things at once, so the order of publication (data file, index, commit record, metadata) is the
order of its actions, and nothing is published that is not in the log (rule 11). Files of several plans are written in
the meantime; `hand_out` assigns them to tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any

from changefeed.log.records import CommitRecord, DdlRecord, ExpireRecord, FileCommitted, PlanEntry, PlanRecord
from changefeed.log.state import State
from changefeed.model.tso import compose
from changefeed.owner.planning.actions import (
    Action,
    AppendCheckpoint,
    AppendExpiry,
    AppendPlan,
    Publish,
    Recorded,
    Stop,
    WriteDdl,
    WriteSyncpoint,
)
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.checkpoint import Checkpoint, DispatcherProgress, flushed_to, flushed_ts
from changefeed.owner.planning.expiration import expires_before
from changefeed.owner.planning.plan_entries import Table, make_plan
from changefeed.owner.planning.planner import Cut, Planner, Reason, UnderWay
from changefeed.owner.pulling.quota import Quota
from changefeed.owner.pulling.spans import Orders, Spans
from changefeed.owner.pulling.stored_rows import StoredRows
from changefeed.owner.writing.open_entries import EntryKey, OpenEntries
from changefeed.owner.writing.writing import Run, Writing
from changefeed.pipeline.work import Work
from changefeed.sink.contract import Ddl, Outputs
from changefeed.upstream.contract import WHOLE_TABLE
from changefeed.wire import owner_pb2 as pb

COMMIT_INTERVAL_S = 0.1  # files that are done soon after one another share a record


Done = Sequence[tuple[FileCommitted, PlanEntry]]


class Owner:
    """One run of one changefeed. Dispatchers are `tables`' keys, which are span ids as well."""

    def __init__(
        self,
        state: State,
        run: Run,
        tables: Mapping[int, Table],
        table_infos: Mapping[str, dict[str, Any]],
        outputs: Outputs,
        spans: Spans,
        barrier: Barrier,
        planner: Planner,
        quota: Quota,
        expiration_days: int = 0,
    ) -> None:
        """`expiration_days`: how long files are kept, 0: for ever."""
        self.state = state
        self._run = run
        self._tables = dict(tables)
        self._table_infos = dict(table_infos)
        self._outputs = outputs
        self.spans = spans
        self.barrier = barrier
        self.planner = planner
        self.quota = quota
        self._expiration_days = expiration_days
        self.checkpoint = Checkpoint(state.checkpoint_ts)
        self._open = OpenEntries(state)
        self._rows = StoredRows(spans)
        self._writing = Writing(self._open, self._rows, run)
        self._committed_at: float | None = None
        self._drain_ts: int | None = None
        self._began_ts: int | None = None  # until a plan has all that came before it
        self._commands: list[tuple[int, pb.Command]] = []  # that a DDL has brought, not yet told
        self._idle = True  # nothing can be written, and no plan could be made when that was last looked at
        planner.on_checkpoint(state.checkpoint_ts)
        for dispatcher in tables:
            planner.add(dispatcher, state.planned_ts(dispatcher))

    @property
    def dispatchers(self) -> Set[int]:
        """The dispatchers of all tables that are pulled and written now."""
        return self._tables.keys()

    def table_name(self, dispatcher: int) -> str:
        """As a person knows it; by its number where there is none."""
        table = self._tables.get(dispatcher)
        return table.name if table is not None and table.name else str(dispatcher)

    def furthest_behind(self, most: int) -> list[tuple[int, int]]:
        """(dispatcher, ts up to which all its rows are in the sink) of at most so many, the lowest ts first."""
        reached = ((self._flushed(dispatcher), dispatcher) for dispatcher in self._tables)
        return [(dispatcher, ts) for ts, dispatcher in heapq.nsmallest(most, reached)]

    def planned_ts(self, resolved_ts: int) -> int:
        """Every row up to it is planned, or written; at most `resolved_ts`."""
        first_ts = self.planner.lowest_unplanned_ts()
        return resolved_ts if first_ts is None else min(resolved_ts, first_ts - 1)

    # What happens.

    def puller_joined(self, now: float, puller: int) -> list[pb.Command]:
        """A puller's stream is open; what to tell it."""
        self._forget_commands(puller)
        commands = self.follow(self.spans.puller_joined(now, puller)).commands
        self._commands += [told for told in commands if told[0] != puller]
        return [command for number, command in commands if number == puller]

    def puller_left(self, now: float, puller: int) -> None:
        self._forget_commands(puller)
        self._commands += self.follow(self.spans.puller_left(now, puller)).commands

    def _forget_commands(self, puller: int) -> None:
        """What an earlier stream of it was to be told is of assignments that have ended with that."""
        self._commands = [told for told in self._commands if told[0] != puller]

    def report(self, now: float, puller: int, report: pb.Report) -> None:
        for segment in self.spans.on_report(puller, report).segments:
            self.planner.on_rows(now, segment)

    def task_joined(self, task: int) -> None:
        """A pipeline task's stream is open."""
        self._writing.joined(task)

    def task_left(self, task: int) -> None:
        self._writing.left(task)

    def given_back(self, task: int, key: EntryKey, uri: str) -> None:
        """The task could not read a segment in memory: the file is given out again once that can be read."""
        self._writing.given_back(task, key)
        self._commands += self.spans.unreadable(uri)

    def file_done(self, task: int, file: FileCommitted) -> None:
        self._writing.done(task, file)

    def begin(self, pd_ms: int) -> None:
        """The run begins now: what came before has waited long enough, and is planned as soon as all of it is there."""
        self._began_ts = compose(pd_ms)

    def drain(self) -> None:
        """Write what is resolved by now, then stop."""
        if self._drain_ts is None:
            self._drain_ts = self.resolved_ts()

    def under_way(self) -> UnderWay:
        """What tasks write, or can: the room that is kept for it."""
        return self._writing.under_way()

    def hand_out(self) -> list[tuple[int, Work]]:
        """What each pipeline task is to write as well, of what can be written: call it whenever something changes."""
        return self._writing.hand_out(self.state)

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        self.spans.check()
        self.planner.check()
        self._writing.check()
        self.quota.check(self.spans.held)
        open_ = [(key.plan, entry) for each in self._open.dispatchers for key, entry in self._open.of(each)]
        assert sorted(open_, key=_key) == list(self.state.open_entries()), "other files are open than in the log"
        known = self._tables.keys()
        assert all(dispatcher in self.spans for dispatcher in known), "nobody pulls a table"
        reached = self.checkpoint.recorded_ts
        assert reached == self.state.checkpoint_ts, "another checkpoint is in the log"
        first_ts = self.planner.lowest_unplanned_ts()
        limits = [self.barrier.checkpoint_limit(), self.resolved_ts(), reached if first_ts is None else first_ts - 1]
        assert reached <= min(limits), f"the checkpoint {reached} is above what is reached: {limits}"

    # Who pulls what. It is looked at while an action is under way, too: a sink may keep that waiting for long.

    def tend(self, now: float) -> list[tuple[int, pb.Command]]:
        """What to tell which puller, now: moves of spans, and what keeps the event store within its quota."""
        commands, self._commands = self._commands, []
        commands += self.follow(self.spans.arrange(now)).commands
        commands += self.spans.free(self._writing.read_in_memory)
        if self.quota.is_concerned(self.spans.files.bytes, self.spans.held):
            commands += self._relieve(now)
        if self.quota.lets_write(self.spans.files.bytes, self._idle):
            commands += self.spans.heard()
        return commands

    def _relieve(self, now: float) -> list[tuple[int, pb.Command]]:
        spans = self.spans
        lasts = ([entry for _, entry in self._open.of(dispatcher)][-1] for dispatcher in self._open.dispatchers)
        needed = {last.dispatcher: last.to.commit_ts for last in lasts if not self._rows.is_whole([last])}

        def limit(dispatcher: int) -> int:
            """Nothing of those that are needed can be committed before; the others must not take the room for that."""
            if needed and dispatcher not in self._open.dispatchers:
                return 0
            return needed[dispatcher] if dispatcher in needed else self.barrier.limit(dispatcher)

        relief = self.quota.relieve(now, spans, needed, limit, self._idle)
        orders = [spans.hold(relief.hold), spans.resume(relief.resume)]
        orders += [spans.cut_back(span_id, ts) for span_id, ts in relief.evict.items()]
        return [command for each in orders for command in self.follow(each).commands]

    def split(self, now: float, dispatcher: int, borders: Sequence[bytes]) -> None:
        """Pull a table in parts, between these keys, unless it is gone meanwhile; () makes it whole again."""
        if dispatcher in self.spans:
            self._commands += self.follow(self.spans.split(now, dispatcher, borders)).commands

    def follow(self, orders: Orders) -> Orders:
        """What ended assignments had above the ts they stand at will be pulled, and planned, again."""
        for span_id, ts in orders.ended.items():
            self.planner.forget_above(span_id, ts)
            self._writing.pulled_again(span_id)
        return orders

    # What to do next.

    def step(self, now: float, pd_ms: int) -> Action | None:
        """The next thing to do, or None until something happens or `next_deadline`. Ask again only once it is done."""
        if (ddl := self.barrier.due(self._flushed)) is not None:
            return self._write_ddl(ddl)
        if (publish := self._publish_if_due(now)) is not None:
            return publish
        if (syncpoint := self._write_syncpoint_if_due()) is not None:
            return syncpoint
        if (before := expires_before(self.state, self._expiration_days)) is not None:
            return self._expire(before)
        under_way = self.under_way()
        cuts = self._cuts(now, under_way)
        self._idle = not cuts and not under_way.bytes
        return AppendPlan(self._plan(cuts, pd_ms)) if cuts else self._stop() or self._checkpoint_if_due(now)

    def next_deadline(self) -> float | None:
        """When to ask `step` again if nothing else happens."""
        deadlines = [self.planner.next_deadline()]
        if self._committed_at is not None and self._open.can_commit:
            deadlines.append(self._committed_at + COMMIT_INTERVAL_S)
        return min((each for each in deadlines if each is not None), default=None)

    def recorded(self, now: float, action: Recorded, state: State) -> None:
        """The action's record is in the log, which says `state` now."""
        self.state = state
        if isinstance(action, AppendPlan):
            self._open.planned(action.record.n, action.record.entries)
            self._writing.planned(action.record)
            return
        if isinstance(action, AppendExpiry):
            return
        if isinstance(action, WriteDdl):
            self._executed(self.barrier.executed())
            return
        if isinstance(action, Publish):
            self._learn(action.record)
            self._committed_at = now
        if isinstance(action, WriteSyncpoint):
            self.barrier.syncpoint_written()
        self.checkpoint.recorded(now, state.checkpoint_ts)
        self.planner.on_checkpoint(state.checkpoint_ts)
        self.spans.on_checkpoint(state.checkpoint_ts)

    def unneeded_segments(self) -> list[str]:
        """Segment files that may be deleted: none that a file which is being written may still be made from."""
        return self.spans.files.take_unneeded(self._writing.read)

    def resolved_ts(self) -> int:
        """Every row and DDL of the changefeed up to it has arrived."""
        limit, lowest_ts = self.barrier.lowest_limit(self._tables.keys()), self.spans.lowest_ts()
        return limit if lowest_ts is None else min(lowest_ts, limit)

    def _cuts(self, now: float, under_way: UnderWay) -> list[Cut]:
        """While draining, what is resolved later is left to the next driver, or a drain under load would never end."""

        def limit(dispatcher: int) -> int:
            limits = (self.spans.resolved_ts(dispatcher), self.barrier.limit(dispatcher), self._drain_ts)
            return min(ts for ts in limits if ts is not None)

        stopped = self._stopped()
        cuts = self.planner.due(now, limit, stopped, self._all_for(), under_way)
        if not cuts and self.quota.is_short(self.spans.files.bytes):
            cuts = self.planner.due(now, limit, stopped, "quota", under_way)
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
        entries = make_plan(self.state, cuts, self._tables, self._outputs, pd_ms)
        new = {e.table_info for e in entries if e.table_info not in self.state.table_infos}
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

    def _publish_if_due(self, now: float) -> Publish | None:
        """Files that are done: at once when all are, or after a while."""
        if not self._open.can_commit:
            return None
        soon = self._committed_at is not None and now - self._committed_at < COMMIT_INTERVAL_S
        if soon and not self._open.all_done:
            return None
        done = self._open.committable()
        ts = self.checkpoint.next(self._progress(done), self.barrier)
        return Publish(tuple(entry for _, entry in done), self._commit_record(ts, done))

    def _checkpoint_if_due(self, now: float) -> AppendCheckpoint | None:
        ends = self._drain_ts is not None or self.barrier.is_at_target()
        if not (ends or self.checkpoint.may_be_due(now)):
            return None
        ts = self.checkpoint.next(self._progress(), self.barrier)
        if self.checkpoint.is_due(now, ts) or (ends and not self._open and ts > self.checkpoint.recorded_ts):
            return AppendCheckpoint(self._commit_record(ts))
        return None

    def _commit_record(self, ts: int, done: Done = ()) -> CommitRecord:
        return CommitRecord(
            n=self.state.n + 1,
            epoch=self._run.epoch,
            nonce=self._run.nonce,
            checkpoint_ts=ts,
            files=tuple(file for file, _ in done),
            finished=self.barrier.is_finished(ts),
        )

    def _expire(self, before: str) -> AppendExpiry:
        run = self._run
        return AppendExpiry(ExpireRecord(n=self.state.n + 1, epoch=run.epoch, nonce=run.nonce, before=before))

    def _stop(self) -> Stop | None:
        """Whether this was all, once everything that can be recorded is."""
        if self._drain_ts is None and not self.state.finished:
            return None
        progress = list(self._progress())
        if self.checkpoint.next(progress, self.barrier) > self.checkpoint.recorded_ts:
            return None
        if self.state.finished:
            return Stop()
        if self._drain_ts is not None and flushed_ts(progress, self.barrier.ceiling()) >= self._drain_ts:
            return Stop()
        return None

    def _progress(self, done: Done = ()) -> Iterator[DispatcherProgress]:
        """Yield the progress of all dispatchers. Those without open files share one: the lowest of all.

        `done`: files that count as committed.
        """
        if (lowest_ts := self.spans.lowest_ts()) is not None:
            yield DispatcherProgress(0, lowest_ts, is_open=False, first_unplanned_ts=self.planner.lowest_unplanned_ts())
        flushed = {entry.dispatcher: entry.to.commit_ts for _, entry in done}
        keys = {EntryKey(file.plan, file.entry) for file, _ in done}
        closed = {d for d in flushed if all(key in keys for key, _ in self._open.of(d))}
        for dispatcher in self._open.dispatchers:
            if dispatcher not in closed:
                yield self._progress_of(dispatcher, flushed.get(dispatcher, 0), self._open.dispatchers)

    def _progress_of(self, dispatcher: int, flushed_ts: int, open_: Collection[int]) -> DispatcherProgress:
        return DispatcherProgress(
            flushed_ts=max(flushed_ts, self.state.flushed_ts(dispatcher)),
            resolved_ts=self.spans.resolved_ts(dispatcher),
            is_open=dispatcher in open_,
            first_unplanned_ts=self.planner.first_unplanned_ts(dispatcher),
        )

    # DDLs and syncpoints.

    def _write_syncpoint_if_due(self) -> WriteSyncpoint | None:
        ts = self.barrier.syncpoint()
        if ts is None or flushed_ts(self._progress(), ts) < ts:
            return None
        return WriteSyncpoint(ts, self._commit_record(ts))

    def _flushed(self, dispatcher: int) -> int:
        """Every row of the dispatcher <= it is in committed files."""
        progress = self._progress_of(dispatcher, 0, self._open.dispatchers)
        return flushed_to(progress, self.barrier.limit(dispatcher))

    def _write_ddl(self, ddl: Ddl) -> WriteDdl:
        """An upstream may not know any more how tables were at its ts, so the log does."""
        new = {info.hash: info.to_json() for info in ddl.tables.values() if info.hash not in self.state.table_infos}
        record = DdlRecord(
            n=self.state.n + 1,
            epoch=self._run.epoch,
            nonce=self._run.nonce,
            ts=ddl.ts,
            job_id=ddl.job_id,
            query=ddl.query,
            involved=tuple(sorted(ddl.involved)),
            dispatchers=tuple(sorted(ddl.tables)),
            table_infos=tuple(info.hash for _, info in sorted(ddl.tables.items())),
            definitions=dict(sorted(new.items())),
            left=tuple(sorted(ddl.left)),
        )
        return WriteDdl(ddl, record)

    def _executed(self, ddl: Ddl) -> None:
        """Those that it ends are pulled no more; of the others what is above its ts has the definition after it."""
        for dispatcher in ddl.left:
            del self._tables[dispatcher]
            self.planner.remove(dispatcher)
            self._commands += self.spans.remove_span(dispatcher).commands
        for dispatcher, info in ddl.tables.items():
            if dispatcher not in self._tables:
                self.planner.add(dispatcher, ddl.ts)
                self._commands += self.spans.add_span(dispatcher, *WHOLE_TABLE, ddl.ts).commands
            series = self._outputs.series(info, dispatcher, ddl.ts)
            self._tables[dispatcher] = Table(dispatcher, info.hash, ddl.ts, series, info.full_name)
            self._table_infos[info.hash] = info.to_json()

    def _learn(self, record: CommitRecord) -> None:
        for file in record.files:
            key = EntryKey(file.plan, file.entry)
            entry = self._open.entry(key)
            self.planner.learn(entry.dispatcher, entry.estimate, file.bytes)
            self.spans.release_below(entry.dispatcher, self.state.flushed_ts(entry.dispatcher))
        self._open.committed(record.files)


def _key(open_: tuple[int, PlanEntry]) -> tuple[int, int]:
    plan, entry = open_
    return plan, entry.entry
