"""Bugs in what decides: spans, planner, barrier, log, recovery, quota."""

from __future__ import annotations

from changefeed.eventstore.house import House
from changefeed.owner import checkpoint, history, planner
from changefeed.owner.barrier import Barrier
from changefeed.owner.checkpoint import Checkpoint
from changefeed.owner.history import State
from changefeed.owner.log import Log
from changefeed.owner.owner import Owner
from changefeed.owner.planner import Planner
from changefeed.owner.quota import Quota
from changefeed.owner.spans import Spans
from mutation import Mutation

PLANNER = (
    Mutation(
        "planner",
        "a file may end past what is resolved",
        Planner,
        "_cuts",
        "Position.end_of(limit), estimate, reason",
        "Position.end_of(max(limit, rest[-1].last_ts)), estimate, reason",
    ),
    Mutation(
        "planner",
        "unplanned rows hold no checkpoint back",
        Planner,
        "first_unplanned_ts",
        "min((piece.first_ts for piece in self._dispatchers[dispatcher].pieces), default=None)",
        "None",
    ),
    Mutation(
        "planner",
        "a piece counts from its last row on",
        Planner,
        "first_unplanned_ts",
        "piece.first_ts for piece",
        "piece.last_ts for piece",
    ),
    Mutation(
        "planner",
        "a piece that is cut is forgotten",
        planner,
        "_above",
        "if piece.last_ts > ts",
        "if piece.first_ts > ts",
    ),
    Mutation(
        "planner",
        "a date goes by today's clock",
        planner,
        "make_plan",
        "day = max(date, last.date) if last else date",
        "day = date",
        rule=15,
        story="A driver whose clock is a day ahead has written a file; its successor's clock is right.",
    ),
    Mutation(
        "planner",
        "of the segments in a report one is planned by",
        Owner,
        "report",
        "self.spans.on_report(puller, report).segments:",
        "self.spans.on_report(puller, report).segments[:1]:",
    ),
    Mutation(
        "planner",
        "what a span has not resolved yet is planned",
        Owner,
        "_cuts",
        "return min(self.spans.resolved_ts(dispatcher), ceiling)",
        "return ceiling",
    ),
    Mutation(
        "planner",
        "while the store is short each plan is forgotten for a second one",
        Owner,
        "_cuts",
        "if not cuts and self._quota",
        "if self._quota",
    ),
    Mutation(
        "planner",
        "indexes go on in a new directory",
        planner,
        "make_plan",
        "index = index if place == before else 1",
        "index = index",
        story="A day begins between two plans of a table.",
    ),
)

BARRIER = (
    Mutation(
        "barrier",
        "the DDL span is in no minimum",
        Barrier,
        "limit",
        "min([self._resolved_ts, *self._stops()])",
        "min([1 << 63, *self._stops()])",
        rule=1,
        story="The DDL span stands still while tables are resolved beyond a DDL that nobody has seen yet.",
    ),
    Mutation(
        "barrier",
        "the checkpoint reaches the DDL's own ts",
        Barrier,
        "checkpoint_limit",
        "min(self.limit(), first.ts - 1)",
        "min(self.limit(), first.ts)",
        rule=9,
    ),
    Mutation(
        "barrier",
        "rows at the DDL's own ts are left out",
        Barrier,
        "_stops",
        "(first.ts if first else None, self._target_ts)",
        "(first.ts - 1 if first else None, self._target_ts)",
        rule=9,
    ),
    Mutation(
        "barrier",
        "the last of several DDLs counts",
        Barrier,
        "_first",
        "min(self._pending.values()",
        "max(self._pending.values()",
    ),
    Mutation(
        "barrier",
        "the target is no barrier",
        Barrier,
        "_stops",
        "(first.ts if first else None, self._target_ts)",
        "(first.ts if first else None,)",
        rule=24,
    ),
)

BARRIER_IN_USE = (
    Mutation(
        "barrier",
        "no plan is limited by it",
        Owner,
        "_cuts",
        "return min(self.spans.resolved_ts(dispatcher), ceiling)",
        "return self.spans.resolved_ts(dispatcher)",
    ),
    Mutation(
        "barrier",
        "a plan's record says what is resolved, not what it may reach",
        Owner,
        "_plan",
        "resolved_ts=self.barrier.limit()",
        "resolved_ts=self.resolved_ts()",
    ),
    Mutation(
        "barrier",
        "only a drain stops a run, no DDL and no target",
        Owner,
        "_stop",
        "self._drain_ts is None and self.barrier.edge() is None and",
        "self._drain_ts is None and",
    ),
    Mutation(
        "barrier",
        "no commit record says that the target is reached",
        Owner,
        "_commit_record",
        "finished=self.barrier.is_finished(ts)",
        "finished=False",
        rule=24,
    ),
)

_CREATE = "self._retry(lambda: self._store.create(path, body))"
_CREATE_PERHAPS = """from contextlib import suppress
        from changefeed.errors import OutcomeUnknown
        def create():
            with suppress(OutcomeUnknown):
                self._store.create(path, body)
        self._retry(create)"""
_SNAPSHOT = "stored = self._create(self._snapshot_path(state.n), snapshot(state))"
_DELETE = (
    "for n in self._list().records:\n"
    "        if n < state.n and not self._is_kept(n):\n"
    "            self._delete(self._record_path(n))\n"
)
LOG = (
    Mutation(
        "log",
        "any record at my number is mine",
        Log,
        "_create_record",
        "if stored != body:",
        "if stored is None:",
        rule=6,
    ),
    Mutation(
        "log",
        "an unknown outcome is taken for success",
        Log,
        "_create",
        _CREATE,
        _CREATE_PERHAPS,
        rule=16,
    ),
    Mutation(
        "log",
        "a commit record forgets the tables that had no file in its plan",
        history,
        "_commit",
        "dispatchers = {**state.dispatchers, **advanced}",
        "dispatchers = advanced",
        rule=15,
    ),
    Mutation("log", "folding deletes epoch records", Log, "_is_kept", "return n in self._kept", "return False", rule=5),
    Mutation(
        "log",
        "who claims an epoch does not look for a snapshot",
        Log,
        "claim_epoch",
        ">= record.n:",
        "< 0:",
        rule=5,
        story="A driver sleeps between its look at the log and its epoch record; the living one goes on by two records "
        "and folds, so that the number is free. The sleeper takes it for its epoch and deletes the other's segments.",
    ),
    Mutation(
        "log",
        "folding deletes before it has written",
        Log,
        "fold",
        _SNAPSHOT,
        f"{_DELETE}    {_SNAPSHOT}",
        rule=5,
        story="A driver is killed between the first deletion and the snapshot.",
    ),
    Mutation(
        "log",
        "a reader does not look whether it was folded meanwhile",
        Log,
        "read",
        "> listing.newest_snapshot:",
        "< 0:",
        story="The log is folded between a reader's listing and its reading of what it has listed.",
    ),
)

RECOVERY = (
    Mutation(
        "recovery",
        "a plan runs under the new driver's config",
        Owner,
        "_manifest",
        "config=self.state.plan_config or {}",
        "config=self.state.epoch.config",
        rule=10,
    ),
    Mutation(
        "recovery",
        "a table resumes at the checkpoint",
        State,
        "flushed_ts",
        "max(known.flushed_ts, self.checkpoint_ts) if known",
        "self.checkpoint_ts if known",
        rule=11,
    ),
    Mutation(
        "recovery",
        "the plan of the driver before is forgotten",
        history,
        "_epoch",
        'return {"epoch": epoch}',
        'return {"epoch": epoch, "plan": None}',
    ),
    Mutation(
        "recovery",
        "planning goes on where files end, not where the uncommitted plan does",
        Owner,
        "__init__",
        "planner.add(dispatcher, state.planned_ts(dispatcher))",
        "planner.add(dispatcher, state.flushed_ts(dispatcher))",
    ),
    Mutation(
        "recovery",
        "a plan runs on what is there",
        Spans,
        "is_whole",
        "self.resolved_ts(entry.dispatcher) >= entry.to.commit_ts",
        "True",
        rule=3,
    ),
    Mutation(
        "recovery",
        "a driver cleans everybody's house",
        House,
        "delete_lower_epochs",
        "int(found[1]) < self.epoch:",
        "int(found[1]) != self.epoch:",
        rule=21,
        story="A driver sleeps between its epoch record and its cleaning; by then its successor has segments.",
    ),
)

OWNER = (
    Mutation(
        "owner",
        "a message of another plan counts",
        Owner,
        "file_done",
        "record == self.state.plan.n and nonce == self._run.nonce",
        "True",
        rule=20,
        story="A message comes once more when the next plan has begun: that is committed without its file.",
    ),
    Mutation(
        "owner",
        "the files of a committed plan count for the next one",
        Owner,
        "recorded",
        "self._work, self._files = None, {}",
        "self._work = None",
        rule=20,
    ),
    Mutation(
        "owner",
        "a plan is committed with its first file",
        Owner,
        "step",
        "if len(self._files) == len(plan.entries):",
        "if self._files:",
    ),
    Mutation(
        "checkpoint",
        "rows of a plan that runs count as written",
        checkpoint,
        "_flushed",
        "if one.in_plan:",
        "if False:",
    ),
    Mutation(
        "checkpoint",
        "it is one higher than what is reached",
        Checkpoint,
        "next",
        "return max(self.recorded_ts, reached)",
        "return max(self.recorded_ts, reached + 1)",
        rule=11,
    ),
    Mutation(
        "spans",
        "a puller that lost the span is believed",
        Spans,
        "_end",
        "del self._subs[span.sub_id]\n    span.sub_id = 0",
        "pass",
        rule=2,
    ),
    Mutation(
        "spans",
        "a resolved-ts counts before its segments are known",
        Spans,
        "_count",
        " and span.waiting[0][0] <= contiguous",
        "",
        rule=2,
    ),
    Mutation(
        "spans",
        "a segment of an earlier stream fills a gap",
        Spans,
        "on_report",
        "all(share.sub_id >= stream.first_sub_id for share in meta.spans) and stream.know(meta.seq)",
        "stream.know(meta.seq)",
        rule=2,
    ),
    Mutation(
        "spans",
        "a move forgets what it resumes from",
        Spans,
        "_fall_back",
        "lambda segment: segment.min.commit_ts > whole",
        "lambda segment: True",
        rule=21,
    ),
    Mutation(
        "quota",
        "nobody is held back",
        Quota,
        "relieve",
        "used, resolved, stored, held =",
        "return Relief([], [], {})\n    used, resolved, stored, held =",
        rule=17,
    ),
    Mutation(
        "quota",
        "the lowest is held back with the others",
        Quota,
        "relieve",
        "hold, resume = self._marks.decide(used, reached, stored, held)",
        "hold = [each for each in reached if each not in held and self._marks.is_short(used)]\n"
        "    resume = [each for each in held if self._marks.is_at_ease(used)]",
        rule=17,
    ),
)

OWNER_MUTATIONS = (*PLANNER, *BARRIER, *BARRIER_IN_USE, *LOG, *RECOVERY, *OWNER)
