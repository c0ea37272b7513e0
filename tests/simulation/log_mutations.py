"""Bugs in the log, and in what the next driver makes of one."""

from __future__ import annotations

from changefeed.eventstore.run_folder import RunFolder
from changefeed.log import history
from changefeed.log.log import Log
from changefeed.log.state import State
from changefeed.owner.owner import Owner
from changefeed.owner.pulling.stored_rows import StoredRows
from changefeed.owner.writing.writing import Writing
from mutation import Mutation

_CREATE = "self._retry(lambda: self.store.create(path, body))"
_CREATE_PERHAPS = """
from contextlib import suppress
from changefeed.errors import OutcomeUnknown
def create():
    with suppress(OutcomeUnknown):
        self.store.create(path, body)
self._retry(create)
"""
_SNAPSHOT = "stored = self._create(self._snapshot_path(state.n), body)"
_DELETE = (
    "for n in self._list().records:\n"
    "    if n < state.n and not self._is_kept(n):\n"
    "        self._delete(self._record_path(n))\n"
)
LOG = (
    Mutation(
        "log",
        "any record at my number is mine",
        Log,
        "_create_record",
        "if (stored := self._get(path)) != body:",
        "if (stored := self._get(path)) is None:",
        rule=6,
    ),
    Mutation(
        "log",
        "an unknown outcome is taken for success",
        Log,
        "_create_record",
        _CREATE,
        _CREATE_PERHAPS,
        rule=16,
    ),
    Mutation(
        "log",
        "a commit record forgets the tables that had no file in its plan",
        history,
        "_committed",
        "dispatchers = {**state.dispatchers, **copies}",
        "dispatchers = copies",
        rule=15,
    ),
    Mutation(
        "log",
        "a table's first output is remembered, not its newest",
        history,
        "_advance",
        "output=entry.output",
        "output=now.output or entry.output",
        rule=15,
    ),
    Mutation(
        "log",
        "a plan outlives one takeover, not two",
        history,
        "_epoch",
        "{'epoch': epoch, 'closed': False, 'released': False, "
        "'finished': state.finished and _reaches_target(state, record), 'superseded': (*state.superseded, *before)}",
        "{'epoch': epoch, 'plans': tuple(each for each in state.plans if record.epoch == each.plan.epoch + "
        "1), 'closed': False, 'released': False, "
        "'finished': state.finished and _reaches_target(state, record), 'superseded': (*state.superseded, *before)}",
        story="A plan's driver is killed, and its successor too, before the plan is committed.",
    ),
    Mutation(
        "log",
        "of a plan's committed files only those of the last commit record are remembered",
        history,
        "_committed",
        "[*each.committed, *done.get(each.plan.n, ())]",
        "done.get(each.plan.n, each.committed)",
    ),
    Mutation("log", "folding deletes epoch records", Log, "_is_kept", "return n in self._kept", "return False", rule=5),
    Mutation(
        "log",
        "who claims an epoch does not look for a snapshot",
        Log,
        "claim_epoch",
        "(covering := self._list().newest_snapshot) >= record.n",
        "(covering := self._list().newest_snapshot) < 0",
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
        _DELETE + _SNAPSHOT,
        rule=5,
        story="A driver is killed between the first deletion and the snapshot.",
    ),
    Mutation(
        "log",
        "a reader does not look whether it was folded meanwhile",
        Log,
        "read",
        "self._list().newest_snapshot > listing.newest_snapshot",
        "self._list().newest_snapshot < 0",
        story="The log is folded between a reader's listing and its reading of what it has listed.",
    ),
)

RECOVERY = (
    Mutation(
        "recovery",
        "a plan runs under the new driver's config",
        Writing,
        "_work",
        "config=json.dumps(plan.config)",
        "config=json.dumps(state.epoch.config)",
        rule=10,
    ),
    Mutation(
        "recovery",
        "what a task is given together is all of one plan",
        Writing,
        "_works",
        "by_plan.setdefault(key.plan, [])",
        "by_plan.setdefault(keys[0].plan, [])",
        rule=10,
    ),
    Mutation(
        "recovery",
        "a plan runs under the config of the second driver after it",
        history,
        "_epoch",
        "{'epoch': epoch, 'closed': False, 'released': False, "
        "'finished': state.finished and _reaches_target(state, record), 'superseded': (*state.superseded, *before)}",
        "{'epoch': epoch, 'plans': tuple(each.model_copy(update={'config': record.config}) if record.epoch > "
        "each.plan.epoch + 1 else each for each in state.plans), 'closed': False, 'released': False, "
        "'finished': state.finished and _reaches_target(state, record), 'superseded': (*state.superseded, *before)}",
        rule=10,
        story="A plan's driver is killed, and its successor too, before the plan is committed; its files are in part "
        "written.",
    ),
    Mutation(
        "recovery",
        "a plan of the driver before has no time",
        Writing,
        "_work",
        "pd_ms=record.pd_ms",
        "pd_ms=record.pd_ms if record.epoch == self._run.epoch else 0",
        rule=10,
    ),
    Mutation(
        "recovery",
        "a table resumes at the checkpoint",
        State,
        "flushed_ts",
        "max(known.flushed_ts, self.checkpoint_ts)",
        "self.checkpoint_ts",
        rule=11,
    ),
    Mutation(
        "recovery",
        "the plan of the driver before is forgotten",
        history,
        "_epoch",
        "{'epoch': epoch, 'closed': False, 'released': False, "
        "'finished': state.finished and _reaches_target(state, record), 'superseded': (*state.superseded, *before)}",
        "{'epoch': epoch, 'plans': (), 'closed': False, 'released': False, "
        "'finished': state.finished and _reaches_target(state, record), 'superseded': (*state.superseded, *before)}",
    ),
    Mutation(
        "recovery",
        "planning goes on where committed files end, not where the open ones do",
        Owner,
        "__init__",
        "planner.add(dispatcher, state.planned_ts(dispatcher))",
        "planner.add(dispatcher, state.flushed_ts(dispatcher))",
    ),
    Mutation(
        "recovery",
        "a plan runs on what is there",
        StoredRows,
        "is_whole",
        "spans.resolved_ts(entry.dispatcher) >= entry.to.commit_ts",
        "True",
        rule=3,
    ),
    Mutation(
        "recovery",
        "a driver cleans everybody's house",
        RunFolder,
        "delete_lower_epochs",
        "int(found[1]) < self.epoch",
        "int(found[1]) != self.epoch",
        rule=21,
        story="A driver sleeps between its epoch record and its cleaning; by then its successor has segments.",
    ),
)

LOG_MUTATIONS = (*LOG, *RECOVERY)
