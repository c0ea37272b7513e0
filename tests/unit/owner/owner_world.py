"""An Owner in a world that does what it is told: the stories of test_owner_scripts.py.

World stands for what is around the owner: log, pullers, DDL span, pipeline tasks, sink. It decides nothing: what a
command prints is what the owner said. A segment has 1,000 bytes, each of its rows 10; a file is full with 100. A ts is
a number; `@5` is one at 5 ms, `d5` one at the fifth day after 2026-01-01, each also with `+N`.

    begin [WORD=VALUE ...]             a changefeed that starts at 100; see `do_begin`
    puller N | left N                  its stream is open | over
    rows PULLER SEQ SPAN TS... [in-memory]    segment SEQ of the puller's stream
    resolved PULLER SPAN TS LAST [stale]      after segment LAST of its stream; `stale`: by the assignment before
    archived PULLER SEQ                a segment in memory has a file as well
    ddl TS JOB [alters=SPAN,...] [leaves=...] [joins=...] | ddl-resolved TS
    tend NOW                           what pullers are told
    ask NOW                            the next action, which is not done
    recorded NOW                       the action that was asked for is in the log
    step NOW                           both, or `nothing`
    steps NOW                          until there is nothing more
    day N                              what PD says
    task N | task-left N | give        give: what tasks are to write as well
    done TASK FILE...                  they are in the sink
    written                            all that tasks were given is
    give-back TASK FILE                it can't read the first of the file's segments
    delete                             segment files that nobody needs
    store                              what the event store has
    drain | rewind TS
    restart [WORD=VALUE ...]           another driver takes over, which knows the log alone
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from typing import assert_never

import owner_records as made
import owner_segments as s
from changefeed.log.history import apply
from changefeed.log.records import CopiedTable, CopyRecord, FileCommitted, PlanEntry, RewindRecord
from changefeed.log.state import State, restore, snapshot
from changefeed.model.tso import compose
from changefeed.owner.owner import Owner
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
from changefeed.owner.planning.plan_entries import Table
from changefeed.owner.planning.planner import Planner
from changefeed.owner.planning.syncpoints import Syncpoints
from changefeed.owner.pulling.quota import Quota
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.writing.open_entries import EntryKey
from changefeed.owner.writing.writing import Run
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.contract import Ddl
from changefeed.upstream.contract import WHOLE_TABLE
from changefeed.wire import owner_pb2 as pb
from owner_run import Names

_DAY_MS = 86_400_000
_TICKS = compose(1)
_TABLE = b"a", b"d"
_WHOLE = _TABLE, WHOLE_TABLE


class DatedNames(Names):
    def date(self, pd_ms: int, last: str = "") -> str:
        return max(last, str(date(2026, 1, 1) + timedelta(milliseconds=pd_ms)))

    def data_file(self, directory: str, index: int) -> str:
        return f"{directory}/{index}"


def path_of(entry: PlanEntry) -> str:
    return str(entry.output["path"])


class World:
    owner: Owner

    def __init__(self) -> None:
        self._log = State()
        self._tables: set[int] = set()
        self._options: dict[str, str] = {}
        self._subs: dict[int, list[int]] = {}  # of spans, in order
        self._uris: dict[tuple[int, int], str] = {}  # of puller and segment
        self._asked: Recorded | None = None
        self._given: dict[EntryKey, tuple[int, PlanEntry]] = {}  # what a task has been told to write, and has not
        self._now = 0.0
        self._day = 0

    def run(self, command: str) -> str:
        name, *words = command.split()
        before = self._resolved()
        lines = list(getattr(self, "do_" + name.replace("-", "_"))(*words) or ())
        self.owner.check()
        if name not in ("begin", "restart"):
            lines += self._moved(before)
        return "\n".join(lines)

    def _resolved(self) -> dict[int, int]:
        spans = self.owner.spans if self._log.n else ()
        return {each: spans.resolved_ts(each) for each in sorted(self._tables) if each in spans}

    def _moved(self, before: dict[int, int]) -> Iterator[str]:
        for span, ts in self._resolved().items():
            if ts != before.get(span, ts):
                yield f"span {span} {'resolved' if ts > before[span] else 'falls back to'} {shown(ts)}"

    def do_begin(self, *words: str) -> None:
        """`tables=1,2`, `copied`: they are copied first, in three chunks. `pullers=2`. `quota=BYTES`. `target=TS`.
        `syncpoints=MS`: the sink is told of these. `days=N`: files are kept so long. `in-order`: the sink wants a
        table's entries one after the other.
        """
        self._options = dict(word.partition("=")[::2] for word in words)
        self._tables = set(numbers(self._options.get("tables", "1")))
        self._log = apply(State(), made.start().model_copy(update={"initial_copy": "copied" in self._options}))
        self._drive()

    def do_restart(self, *words: str) -> Iterator[str]:
        self._options |= dict(word.partition("=")[::2] for word in words)
        self._log = restore(snapshot(self._log))
        self._given.clear()
        self._drive()
        files = " ".join(path_of(entry) for _, entry in self._log.open_entries())
        yield f"open: {files or 'nothing'}; checkpoint {shown(self._log.checkpoint_ts)}"

    def _drive(self) -> None:
        """A driver comes: what `Driver` makes of a log."""
        self._log = state = apply(self._log, made.epoch(self._log, f"run{self._log.n}"))
        if "copied" in self._options and not state.copied:
            bounds = tuple(bytes([each]).hex() for each in b"abcd")
            copies = tuple(CopiedTable(dispatcher=each, bounds=bounds) for each in sorted(self._tables))
            record = CopyRecord(**made.owned(state), from_ts=state.checkpoint_ts, tables=copies)
            self._log = state = apply(state, record)
        options, spans = self._options, Spans(int(self._options.get("pullers", "1")))
        start_ts = max(state.checkpoint_ts, state.last_ddl[0] if state.last_ddl else 0)
        syncpoints = None
        if "syncpoints" in options:
            syncpoints = Syncpoints(int(options["syncpoints"]), state.whole_from_ts, state.reached_ts())
        infos = {each: definition(each, state.table_version(each)) for each in sorted(self._tables)}
        outputs = DatedNames("day", 1, "")
        self.owner = Owner(
            state=state,
            run=Run(state.epoch.number, state.epoch.nonce, "codec", in_order="in-order" in options),
            tables={
                each: Table(
                    each, info.hash, state.table_version(each), outputs.series(info, each, state.table_version(each))
                )
                for each, info in infos.items()
            },
            table_infos={info.hash: info.to_json() for info in infos.values()},
            outputs=outputs,
            spans=spans,
            barrier=Barrier(start_ts, ts_of(options["target"]) if "target" in options else None, syncpoints),
            planner=Planner(file_size=100, flush_interval_s=5.0),
            quota=Quota(int(options.get("quota", 1 << 30))),
            expiration_days=int(options.get("days", "0")),
        )
        for each in infos:
            spans.add_span(each, *_TABLE, state.flushed_ts(each), state.copies().get(each))

    # Pullers.

    def do_puller(self, puller: str) -> Iterator[str]:
        return self._told((int(puller), command) for command in self.owner.puller_joined(self._now, int(puller)))

    def do_left(self, puller: str) -> None:
        self.owner.puller_left(self._now, int(puller))

    def do_tend(self, now: str) -> Iterator[str]:
        self._now = float(now)
        return self._told(self.owner.tend(self._now))

    def _told(self, commands: Iterable[tuple[int, pb.Command]]) -> Iterator[str]:
        for puller, command in commands:
            if command.HasField("subscribe"):
                asked = command.subscribe
                self._subs.setdefault(asked.span_id, []).append(asked.sub_id)
            yield f"puller {puller}: {_command(command)}"

    def do_rows(self, puller: str, seq: str, span: str, *words: str) -> None:
        rows = [ts_of(word) for word in words if word != "in-memory"]
        attempt = f"{puller}-{max(map(max, self._subs.values()))}"
        span_id, sub_id = self._pulled(span)
        meta = s.meta(int(seq), s.share(span_id, sub_id, rows, point_every=1), attempt=attempt)
        if "in-memory" in words:
            meta.slot.CopyFrom(pb.Slot(pid=1, file=1, token="t", index=int(seq), generation=1, offset=0))
        self._uris[int(puller), int(seq)] = meta.uri
        self.owner.report(self._now, int(puller), pb.Report(segments=[meta]))

    def do_resolved(self, puller: str, span: str, ts: str, last: str, which: str = "") -> None:
        _, sub_id = self._pulled(span, -2 if which == "stale" else -1)
        self.owner.report(self._now, int(puller), pb.Report(resolved=[s.resolved(sub_id, ts_of(ts), int(last))]))

    def _pulled(self, span: str, which: int = -1) -> tuple[int, int]:
        """(span_id, sub_id) of "1", its newest assignment, or of "1#5", which says that it is number 5."""
        span_id, _, sub_id = span.partition("#")
        return int(span_id), int(sub_id or self._subs[int(span_id)][which])

    def do_split(self, span: str, borders: str = "") -> None:
        self.owner.split(self._now, int(span), [border.encode() for border in borders])

    def do_archived(self, puller: str, seq: str) -> None:
        archived = pb.Archived(segment=int(seq), uri=self._uris[int(puller), int(seq)])
        self.owner.report(self._now, int(puller), pb.Report(archived=[archived]))

    def do_delete(self) -> Iterator[str]:
        for uri in self.owner.unneeded_segments():
            self.owner.spans.files.deleted(uri)
            yield f"delete {uri}"

    def do_store(self) -> Iterator[str]:
        spans = self.owner.spans
        held = f"; held: {', '.join(map(str, sorted(spans.held)))}" if spans.held else ""
        yield f"{spans.files.bytes} bytes{held}"

    # The DDL span.

    def do_ddl(self, ts: str, job: str, *words: str) -> None:
        said = {name: frozenset(numbers(spans)) for name, _, spans in (word.partition("=") for word in words)}
        alters, leaves, joins = (said.get(name, frozenset()) for name in ("alters", "leaves", "joins"))
        tables = {each: definition(each, ts_of(ts)) for each in sorted(alters | joins)}
        self.owner.barrier.on_ddl(Ddl(ts_of(ts), int(job), involved=alters | leaves, left=leaves, tables=tables))

    def do_ddl_resolved(self, ts: str) -> Iterator[str]:
        barrier = self.owner.barrier
        barrier.on_resolved(ts_of(ts))
        limits = ", ".join(f"{each} to {shown(barrier.limit(each))}" for each in sorted(self._tables))
        yield f"limits: {limits}; checkpoint to {shown(barrier.checkpoint_limit())}"

    # What the driver does, one thing after another.

    def do_ask(self, now: str) -> Iterator[str]:
        self._now = float(now)
        action = self.owner.step(self._now, self._day * _DAY_MS)
        self._asked = None if isinstance(action, Stop) else action
        return _action(action)

    def do_recorded(self, now: str) -> None:
        action = self._asked
        assert action is not None, "nothing was asked for"
        self._log = apply(self._log, action.record)
        self._asked = None
        self.owner.recorded(float(now), action, self._log)
        if isinstance(action, WriteDdl):
            self._tables = self._tables - action.ddl.left | action.ddl.tables.keys()

    def do_step(self, now: str) -> Iterator[str]:
        yield from self.do_ask(now)
        if self._asked is not None:
            self.do_recorded(now)

    def do_steps(self, now: str) -> Iterator[str]:
        lines = list(self.do_step(now))
        yield from lines
        while lines not in (["nothing"], ["stop"]):
            lines = list(self.do_step(now))
            yield from (line for line in lines if line != "nothing")

    def do_day(self, day: str) -> None:
        self._day = int(day)

    def do_rewind(self, ts: str) -> None:
        """What the next driver finds first, if spec.restart asks for it."""
        self._log = apply(self._log, RewindRecord(**made.owned(self._log), restart_nonce=1, from_ts=ts_of(ts)))

    def do_drain(self) -> None:
        self.owner.drain()

    # Pipeline tasks.

    def do_task(self, task: str) -> None:
        self.owner.task_joined(int(task))

    def do_task_left(self, task: str) -> None:
        self.owner.task_left(int(task))

    def do_give(self) -> Iterator[str]:
        given = [(task, work.record, each) for task, work in self.owner.hand_out() for each in work.entries]
        for task, plan, each in sorted(given, key=lambda one: one[0]):
            self._given[EntryKey(plan, each.plan_entry.entry)] = task, each.plan_entry
            writer = f" as writer {each.writer}" if each.writer else ""
            pieces = [piece.uri + (" in memory" if piece.slot else "") for piece in each.segments]
            yield f"task {task}: {path_of(each.plan_entry)}{writer}{' from ' if pieces else ''}{', '.join(pieces)}"
        if not given:
            yield "nothing"

    def do_written(self) -> None:
        for key, (task, entry) in list(self._given.items()):
            self._done(task, key, entry)

    def do_done(self, task: str, *paths: str) -> None:
        for path in paths:
            self._done(int(task), *self._open(path))

    def _done(self, task: int, key: EntryKey, entry: PlanEntry) -> None:
        self._given.pop(key, None)
        size = max(entry.estimate, 0)
        file = FileCommitted(plan=key.plan, entry=key.entry, rows=1, raw_rows=1, filtered_rows=0, bytes=size, hash="h")
        self.owner.file_done(task, file)

    def do_give_back(self, task: str, path: str) -> None:
        key, entry = self._open(path)
        self._given.pop(key, None)
        self.owner.given_back(int(task), key, self.owner.spans.segments(entry.dispatcher)[0].uri)

    def _open(self, path: str) -> tuple[EntryKey, PlanEntry]:
        open_ = self._log.open_entries()
        found = [(EntryKey(plan, entry.entry), entry) for plan, entry in open_ if path_of(entry) == path]
        assert found, f"{path} is no open file"
        return found[0]


def definition(table: int, version: int) -> TableInfo:
    column = {"id": 1, "name": f"c{version}", "offset": 0, "type": {"Tp": 3}, "state": 5}
    return parse_table_info({"id": table, "name": f"t{table}", "cols": [column], "state": 5}, "s")


def numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",") if word]


def ts_of(word: str) -> int:
    base, _, more = word.partition("+")
    if base.startswith("@"):
        return compose(int(base[1:])) + int(more or 0)
    if base.startswith("d"):
        return compose(int(base[1:]) * _DAY_MS) + int(more or 0)
    return int(word)


def shown(ts: int) -> str:
    ms, logical = divmod(ts, _TICKS)
    if not ms:
        return str(ts)
    base = f"@{ms}" if ms % _DAY_MS else f"d{ms // _DAY_MS}"
    return f"{base}+{logical}" if logical else base


def _range(start: bytes, end: bytes) -> str:
    return f"[{start.decode()}, {end.decode()})"


def _command(command: pb.Command) -> str:
    match command.WhichOneof("command"):
        case "subscribe":
            asked = command.subscribe
            copy = f", copied in {len(asked.copy.bounds) - 1} chunks" if asked.HasField("copy") else ""
            part = "" if (asked.start_key, asked.end_key) in _WHOLE else f" {_range(asked.start_key, asked.end_key)}"
            return f"subscribe {asked.sub_id}: span {asked.span_id}{part} after {shown(asked.start_ts)}{copy}"
        case "release":
            return f"release {command.release.sub_id}"
        case "heard":
            return f"heard up to segment {command.heard.segment}"
        case "archive":
            return f"archive {', '.join(map(str, command.archive.segments))}"
        case "free":
            return f"free {', '.join(map(str, command.free.segments))}"
        case other:
            raise AssertionError(other)


def _action(action: Action | None) -> Iterator[str]:
    match action:
        case None:
            yield "nothing"
        case AppendPlan(record):
            yield from (_entry(entry) for entry in record.entries)
        case Publish(entries, record):
            files = " ".join(path_of(entry) for entry in entries)
            yield f"publish {files}; {_checkpoint(record.checkpoint_ts, record.finished)}"
        case AppendCheckpoint(record):
            yield _checkpoint(record.checkpoint_ts, record.finished)
        case WriteDdl(ddl, record):
            yield f"execute DDL {ddl.job_id} at {shown(ddl.ts)}"
        case WriteSyncpoint(ts, record):
            yield f"syncpoint {shown(ts)}; {_checkpoint(record.checkpoint_ts, record.finished)}"
        case AppendExpiry(record):
            yield f"expire files of days before {record.before}"
        case Stop():
            yield "stop"
        case _:
            assert_never(action)


def _entry(entry: PlanEntry) -> str:
    rows = f"({shown(entry.from_.commit_ts)}, {shown(entry.to.commit_ts)}]"
    return f"{entry.reason}: {entry.dispatcher} {rows} {path_of(entry)}"


def _checkpoint(ts: int, finished: bool) -> str:
    return f"checkpoint {shown(ts)}{', finished' if finished else ''}"
