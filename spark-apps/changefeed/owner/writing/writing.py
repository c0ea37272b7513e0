"""The files being written: by which task, from which segments. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass

from changefeed.log.records import FileCommitted, PlanEntry, PlanRecord
from changefeed.log.state import OpenPlan, State
from changefeed.owner.planning.planner import UnderWay
from changefeed.owner.pulling.stored_rows import StoredRows
from changefeed.owner.writing.dispatch import AHEAD, Ahead, Dispatch
from changefeed.owner.writing.open_entries import EntryKey, OpenEntries, size_of
from changefeed.owner.writing.reads import Reads
from changefeed.pipeline.work import Work, WorkEntry


@dataclass(frozen=True)
class Run:
    """Who this driver is (rule 6), and what it writes with."""

    epoch: int
    nonce: str
    codec: str  # fingerprint
    in_order: bool = False  # a dispatcher's entries are written one after the other: see Dispatch
    ahead: Ahead = AHEAD

    @property
    def name(self) -> str:
        return f"{self.epoch}-{self.nonce}"


class Writing:
    """Gives the files that `open_` knows to tasks. Tasks are known by their number."""

    def __init__(self, open_: OpenEntries, rows: StoredRows, run: Run) -> None:
        self._open = open_
        self._rows = rows
        self._run = run
        self._dispatch = Dispatch(run.in_order, run.ahead)
        self._reads = Reads()
        self._missing: set[EntryKey] = set()  # files whose rows may not have arrived in this run
        for key, entry in open_.unwritten():
            self._opened(key, entry)

    def planned(self, record: PlanRecord) -> None:
        """Its files are open."""
        for entry in record.entries:
            self._opened(EntryKey(record.n, entry.entry), entry)

    def _opened(self, key: EntryKey, entry: PlanEntry) -> None:
        self._dispatch.opened(key, entry.dispatcher, entry.estimate)
        self._missing.add(key)

    def joined(self, task: int) -> None:
        """Its stream is open; one that was still thought open has ended."""
        self.left(task)
        self._dispatch.joined(task)

    def left(self, task: int) -> None:
        """What it was given is written by another."""
        self._dispatch.left(task)
        self._reads.left(task)

    def given_back(self, task: int, key: EntryKey) -> None:
        """The task could not read it."""
        self._dispatch.given_back(task, key)
        self._reads.over(task, key)

    def done(self, task: int, file: FileCommitted) -> None:
        """The task has put a file in the sink. Of one that is not open that is no news (rule 20)."""
        key = EntryKey(file.plan, file.entry)
        self._reads.over(task, key)
        if self._open.done(file):
            self._dispatch.done(key)

    def pulled_again(self, dispatcher: int) -> None:
        """The rows of its open files may be missing."""
        self._missing |= {key for key, _ in self._open.of(dispatcher)}

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        unwritten = {key for key, _ in self._open.unwritten()}
        self._dispatch.check(unwritten)
        missing = {key for key, entry in self._open.unwritten() if not self._rows.is_whole([entry])}
        assert missing <= self._missing, "room is kept for a file whose rows are missing"

    @property
    def read(self) -> Set[str]:
        """URIs of the segments that tasks read, in memory or as files."""
        return self._reads.segments

    @property
    def read_in_memory(self) -> Set[str]:
        return self._reads.in_memory

    def under_way(self) -> UnderWay:
        """Files of an earlier run wait until their rows are pulled again: room is not kept for them."""
        missing = {key: self._open.entry(key) for key in self._missing if self._open.is_unwritten(key)}
        self._missing = {key for key, entry in missing.items() if not self._rows.is_whole([entry])}
        waiting = sum(size_of(missing[key]) for key in self._missing)
        return UnderWay(self._open.dispatchers, self._open.unwritten_bytes - waiting)

    def hand_out(self, state: State) -> list[tuple[int, Work]]:
        """What each task is to write as well, of what can be written."""
        given = self._dispatch.give(lambda key: self._can_be_written(self._open.entry(key)))
        return [(task, work) for task, keys in given.items() for work in self._works(state, task, keys)]

    def _can_be_written(self, entry: PlanEntry) -> bool:
        return self._rows.is_whole([entry]) and self._rows.is_readable(entry)

    def _works(self, state: State, task: int, keys: Sequence[EntryKey]) -> list[Work]:
        """A message a plan: what a file is made with is that of its plan (rule 10)."""
        plans = {each.plan.n: each for each in state.plans}
        by_plan: dict[int, list[PlanEntry]] = {}
        for key in keys:
            by_plan.setdefault(key.plan, []).append(self._open.entry(key))
        return [self._work(state, task, plans[number], entries) for number, entries in by_plan.items()]

    def _work(self, state: State, task: int, plan: OpenPlan, entries: Sequence[PlanEntry]) -> Work:
        record = plan.plan
        given = [
            WorkEntry(
                plan_entry=each,
                segments=self._rows.manifest(each, self._run.name),
                writer=self._dispatch.writer(each.dispatcher),
            )
            for each in entries
        ]
        for each in given:
            self._reads.begun(task, EntryKey(record.n, each.plan_entry.entry), each.segments)
        used = {entry.table_info for entry in entries}
        return Work(
            record=record.n,
            epoch=self._run.epoch,
            nonce=self._run.nonce,
            pd_ms=record.pd_ms,
            codec=record.codec,
            config=json.dumps(plan.config),
            entries=tuple(given),
            table_infos={name: json.dumps(state.table_infos[name]) for name in sorted(used)},
        )
