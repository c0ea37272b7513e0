"""Stories that go through spans, barrier, planner, log state and checkpoint together, told in testdata/*.txt.

A story is commands, `----`, and what they print; blank lines part it. `#` starts a comment. Commands:

    span ID START_TS | puller N | left N
    rows PULLER SEQ SPAN TS...        segment SEQ of the puller's stream
    resolved PULLER SPAN TS LAST      said of the span's current assignment; `stale` instead: of its one before
    ddl TS JOB SPAN... | ddl-resolved TS
    due SECONDS [shutdown]            record the plan that is due
    task N | task-left N
    give                              what tasks are to write as well
    done FILE...                      they stand in the sink
    commit                            what can be of the files that are done
    execute                           every open file whose rows are there is done, then commit
    checkpoint SECONDS                commit without files if it is due
    write-ddl                         record the DDL that is due
    restart                           forget everything but the log's state
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import owner_records as made
import owner_segments as s
import pytest
from changefeed.model.record import DdlRecord, PlanEntry
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.checkpoint import Checkpoint, Progress, flushed_to
from changefeed.owner.planning.plan_entries import Table, make_plan
from changefeed.owner.planning.planner import Cut, Planner, UnderWay
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.pulling.stored_rows import StoredRows
from changefeed.owner.transaction_log.history import apply
from changefeed.owner.transaction_log.state import State, restore, snapshot
from changefeed.owner.writing.dispatch import Dispatch
from changefeed.owner.writing.open_entries import EntryKey, OpenEntries
from changefeed.sink.contract import Ddl
from changefeed.wire import owner_pb2 as pb

STORIES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


class World:
    """The cores put together as a driver does it, with a file size of 100 bytes and rows of 10."""

    def __init__(self, state: State, spans: dict[int, int]) -> None:
        self.state = state
        self.known = spans
        self.spans = Spans(2)
        self.barrier = Barrier(max(state.checkpoint_ts, state.last_ddl[0] if state.last_ddl else 0))
        self.versions = {number: known.table_version for number, known in state.dispatchers.items()}
        self.planner = Planner(100, 5.0)
        self.checkpoint = Checkpoint(state.checkpoint_ts)
        self.open = OpenEntries(state)
        self.dispatch = Dispatch()
        for key, entry in self.open.unwritten():
            self.dispatch.opened(key, entry.dispatcher, entry.estimate)
        self.subs: dict[int, list[int]] = {}
        for span_id, start_ts in spans.items():
            self.add(span_id, max(start_ts, state.flushed_ts(span_id)))

    def add(self, span_id: int, start_ts: int) -> None:
        self.spans.add_span(span_id, b"", b"", start_ts)
        self.planner.add(span_id, self.state.planned_ts(span_id))

    def limit(self, span_id: int) -> int:
        return min(self.spans.resolved_ts(span_id), self.barrier.limit(span_id))

    def progress(self, done: Mapping[EntryKey, PlanEntry] | None = None) -> list[Progress]:
        """`done`: files that count as committed."""
        done = done or {}
        ends = {entry.dispatcher: entry.to.commit_ts for entry in done.values()}
        return [
            Progress(
                max(ends.get(span_id, 0), self.state.flushed_ts(span_id)),
                self.spans.resolved_ts(span_id),
                is_open=any(key not in done for key, _ in self.open.of(span_id)),
                first_unplanned_ts=self.planner.first_unplanned_ts(span_id),
            )
            for span_id in self.known
        ]

    def can_be_written(self, key: EntryKey) -> bool:
        return StoredRows(self.spans).is_whole([self.open.entry(key)])

    def run(self, command: str) -> str:
        name, *args = command.split()
        method = getattr(self, "do_" + name.replace("-", "_"))
        return str(method(*args))

    def do_span(self, span_id: str, start_ts: str) -> str:
        self.known[int(span_id)] = int(start_ts)
        self.add(int(span_id), int(start_ts))
        return ""

    def do_puller(self, puller: str) -> str:
        said = [command.subscribe for _, command in self.spans.puller_joined(0.0, int(puller)).commands]
        for subscribe in said:
            self.subs.setdefault(subscribe.span_id, []).append(subscribe.sub_id)
        return "\n".join(f"subscribe {c.sub_id}: span {c.span_id} after {c.start_ts}" for c in said)

    def do_left(self, puller: str) -> str:
        lost = self.spans.puller_left(0.0, int(puller)).ended
        for span_id, ts in lost.items():
            self.planner.forget_above(span_id, ts)
        return "\n".join(f"span {span_id} stands at {ts}" for span_id, ts in lost.items())

    def do_rows(self, puller: str, seq: str, span_id: str, *rows: str) -> str:
        share = s.share(int(span_id), self.subs[int(span_id)][-1], [int(ts) for ts in rows], point_every=1)
        attempt = f"{puller}-{max(map(max, self.subs.values()))}"
        return self._report(int(puller), pb.Report(segments=[s.meta(int(seq), share, attempt=attempt)]))

    def do_resolved(self, puller: str, span_id: str, ts: str, last: str, which: str = "") -> str:
        sub_id = self.subs[int(span_id)][-2 if which == "stale" else -1]
        return self._report(int(puller), pb.Report(resolved=[s.resolved(sub_id, int(ts), int(last))]))

    def _report(self, puller: int, report: pb.Report) -> str:
        changes = self.spans.on_report(puller, report)
        for segment in changes.segments:
            self.planner.on_rows(0.0, segment)
        return "\n".join(f"span {span_id} resolved {ts}" for span_id, ts in changes.resolved.items())

    def do_ddl(self, ts: str, job: str, *span_ids: str) -> str:
        self.barrier.on_ddl(Ddl(int(ts), int(job), involved=frozenset(map(int, span_ids))))
        return ""

    def do_ddl_resolved(self, ts: str) -> str:
        self.barrier.on_resolved(int(ts))
        limits = ", ".join(f"{span_id} to {self.barrier.limit(span_id)}" for span_id in self.known)
        return f"limits: {limits}; checkpoint to {self.barrier.checkpoint_limit()}"

    def do_write_ddl(self) -> str:
        at = dict(zip(self.known, self.progress(), strict=True))
        ddl = self.barrier.due(lambda span_id: flushed_to(at[span_id], self.barrier.limit(span_id)))
        if ddl is None:
            return "no DDL is due"
        self.barrier.executed()
        ids = tuple(sorted(ddl.involved))
        record = DdlRecord(
            **made.owned(self.state), ts=ddl.ts, job_id=ddl.job_id, query="", involved=ids, dispatchers=ids
        )
        self.state = apply(self.state, record)
        self.versions |= dict.fromkeys(ids, ddl.ts)
        return f"DDL {ddl.job_id} at {ddl.ts} is written"

    def do_due(self, now: str, shutdown: str = "") -> str:
        stopped = {
            span_id
            for span_id in self.barrier.stopped(self.known)
            if self.spans.resolved_ts(span_id) >= self.barrier.limit(span_id)
        }
        writable = sum(entry.estimate for key, entry in self.open.unwritten() if self.can_be_written(key))
        under_way = UnderWay(self.open.dispatchers, writable)
        cuts = self.planner.due(float(now), self.limit, stopped, "shutdown" if shutdown else None, under_way)
        if not cuts:
            return "nothing"
        entries = make_plan(
            self.state,
            cuts,
            {cut.dispatcher: self._table(cut.dispatcher) for cut in cuts},
            "2026-01-01",
            lambda place, date: f"{place}/{date}",
            lambda directory, index: f"{directory}/{index}",
            [(cut.dispatcher, self.versions.get(cut.dispatcher, 1)) for cut in cuts],
        )
        self.state = apply(self.state, made.plan(self.state, *entries, resolved_ts=str(self.barrier.ceiling())))
        self.open.planned(self.state.n, entries)
        for entry in entries:
            self.dispatch.opened(EntryKey(self.state.n, entry.entry), entry.dispatcher, entry.estimate)
        return "\n".join(f"{self._shown(cut)} {entry.path}" for cut, entry in zip(cuts, entries, strict=True))

    def _table(self, span_id: int) -> Table:
        version = self.versions.get(span_id, 1)
        return Table(span_id, "info", version, f"t{span_id}/{version}")

    def _shown(self, cut: Cut) -> str:
        return f"{cut.reason}: {cut.dispatcher} ({cut.from_.commit_ts}, {cut.to.commit_ts}]"

    def do_task(self, number: str) -> str:
        self.dispatch.joined(int(number))
        return ""

    def do_task_left(self, number: str) -> str:
        self.dispatch.left(int(number))
        return ""

    def do_give(self) -> str:
        given = self.dispatch.give(self.can_be_written)
        paths = {task: " ".join(self.open.entry(key).path for key in keys) for task, keys in sorted(given.items())}
        return "\n".join(f"task {task}: {files}" for task, files in paths.items()) or "nothing"

    def do_done(self, *paths: str) -> str:
        named = [key for key, entry in self.open.unwritten() if entry.path in paths]
        assert len(named) == len(paths), "no such open file"
        for key in named:
            self._done(key)
        return ""

    def _done(self, key: EntryKey) -> None:
        self.open.done(made.file(*key))
        self.dispatch.done(key)

    def do_commit(self) -> str:
        if not (done := self.open.committable()):
            return "nothing to commit"
        ts = self.checkpoint.next(self.progress({EntryKey(f.plan, f.entry): entry for f, entry in done}), self.barrier)
        files = [file for file, _ in done]
        self.state = apply(self.state, made.commit(self.state, ts, files=files))
        self.open.committed(files)
        self._recorded(0.0, ts)
        for span_id in self.known:
            self.spans.release_below(span_id, self.state.flushed_ts(span_id))
        return f"committed {' '.join(entry.path for _, entry in done)}; checkpoint {ts}"

    def do_execute(self) -> str:
        if not self.open:
            return "no plan"
        for key in [key for key, _ in self.open.unwritten() if self.can_be_written(key)]:
            self._done(key)
        return self.do_commit()

    def do_checkpoint(self, now: str) -> str:
        ts = self.checkpoint.next(self.progress(), self.barrier)
        if not self.checkpoint.is_due(float(now), ts):
            return "not due"
        self.state = apply(self.state, made.commit(self.state, ts, files=()))
        self._recorded(float(now), ts)
        return f"checkpoint {ts}"

    def _recorded(self, now: float, ts: int) -> None:
        self.checkpoint.recorded(now, ts)
        self.planner.on_checkpoint(ts)

    def do_restart(self) -> str:
        state = restore(snapshot(self.state))
        self.__init__(apply(state, made.epoch(state, f"run{state.n}")), self.known)  # type: ignore[misc]
        files = " ".join(entry.path for _, entry in self.state.open_entries())
        return f"open: {files or 'nothing'}; checkpoint {self.state.checkpoint_ts}"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path) -> None:
    world = World(made.begun(), {})
    lines = [line for line in story.read_text().splitlines() if not line.startswith("#")]
    for block in "\n".join(lines).split("\n\n"):
        commands, _, expected = block.strip().partition("----")
        printed = [world.run(command) for command in commands.strip().splitlines()]
        assert "\n".join(filter(None, printed)) == expected.strip(), f"{story.name}: {commands}"
