"""`python bench/owner_scale.py`: what a changefeed's decisions cost, by the number of its tables.

Drives the real Owner in virtual time, call by call as the driver does, with played pullers and pipeline tasks. It knows
nothing of regions: a span is a table, and its puller sends one resolved-ts for all of its regions. So `--tables 100000`
stands for a million regions of ten a table as well as for a hundred thousand of one.

Prints, and writes to bench/out/owner_scale.json, the CPU of one core. A *round* is a second in which the resolved-ts of
every span rises once: a report of each puller, read from its bytes; files handed out after each; a step every 20 ms;
the pullers tended every 100 ms; progress shown every 250 ms. Stores, PD and gRPC are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from changefeed.log.history import apply
from changefeed.log.records import EpochRecord, FileCommitted, PlanEntry, StartRecord, encode_record
from changefeed.log.state import DispatcherState, State, snapshot
from changefeed.metrics import Registry
from changefeed.model.tso import compose
from changefeed.owner.owner import Owner
from changefeed.owner.planning.actions import AppendCheckpoint, AppendPlan, Publish, Stop
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.plan_entries import Table
from changefeed.owner.planning.planner import Planner
from changefeed.owner.pulling.quota import Quota
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.reporting.meter import Meter
from changefeed.owner.writing.writing import Run
from changefeed.pipeline.work import Work
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import parse_table_info
from changefeed.sink.storage.layout import Layout
from changefeed.upstream.tikv.tidb.keys import table_span
from changefeed.wire import owner_pb2 as pb
from measured import ROOT, write_report

BEGAN_MS = 1_700_000_000_000
START_TS = compose(BEGAN_MS - 1000)
STEPS = 50  # a second
TASKS = 100
FLUSH_S = 5.0
FILE_SIZE = 64 << 20
PLAN_BYTES = 512 << 20
ROW_BYTES = 190
ROWS = 100  # of a busy table, in a second
QUOTA = 1 << 50
#: sysbench's. What is the same for all tables is in memory once.
TABLE_INFO = parse_table_info(
    {
        "id": 1,
        "name": "t",
        "cols": [
            {"id": n, "name": name, "offset": n - 1, "type": {"Tp": tp, "Flag": 3 if n == 1 else 1}, "state": 5}
            for n, (name, tp) in enumerate(
                (("id", SqlType.INT), ("k", SqlType.INT), ("c", SqlType.CHAR), ("pad", SqlType.CHAR)), 1
            )
        ],
        "pk_is_handle": True,
        "state": 5,
    },
    "shop",
).to_json()


@dataclass(frozen=True)
class Case:
    """A case to measure.

    `busy`: tables that have rows in every second. `is_full`: the event store stays beyond its quota.
    """

    tables: int
    pullers: int
    busy: int
    is_full: bool = False
    sink_works: bool = True

    @property
    def name(self) -> str:
        troubles = ("-full" if self.is_full else "") + ("" if self.sink_works else "-sink-stands")
        return f"owner-scale-{self.tables}-busy-{self.busy}{troubles}"


class Cpu:
    """CPU seconds of this process, by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.add(what, time.process_time() - began)

    def add(self, what: str, seconds: float) -> None:
        self.seconds[what] += seconds
        self.counts[what] += 1

    def each_ms(self, what: str) -> float:
        """Return the average, in milliseconds."""
        return round(self.seconds[what] * 1000 / max(self.counts[what], 1), 3)


class Pullers:
    """What they would report. A segment has the rows of all busy tables of its puller."""

    def __init__(self, count: int, busy: set[int]) -> None:
        self._subs: list[dict[int, int]] = [{} for _ in range(count)]  # sub_id -> span_id, of each
        self._seq = [0] * count
        self._busy = busy

    def told(self, puller: int, command: pb.Command) -> None:
        if command.HasField("subscribe"):
            self._subs[puller][command.subscribe.sub_id] = command.subscribe.span_id
        elif command.HasField("release"):
            self._subs[puller].pop(command.release.sub_id, None)

    def report(self, puller: int, ts: int) -> bytes:
        """All rows up to ts, one second of them."""
        shares = [self._share(sub, span, ts) for sub, span in self._subs[puller].items() if span in self._busy]
        segments = []
        if shares:
            self._seq[puller] += 1
            size = sum(share.bytes for share in shares)
            uri = f"file:///state/events/2-ab/{puller}-0/{self._seq[puller]:08}.arrow"
            segments = [pb.SegmentMeta(uri=uri, seq=self._seq[puller], bytes=size, spans=shares)]
        last = self._seq[puller]
        resolved = [
            pb.Resolved(sub_id=sub, ts=ts, first_segment=min(last, 1), last_segment=last if span in self._busy else 0)
            for sub, span in self._subs[puller].items()
        ]
        return pb.Report(puller=puller, segments=segments, resolved=resolved).SerializeToString()

    def _share(self, sub_id: int, span_id: int, ts: int) -> pb.SegmentSpan:
        first, last = _position(ts - (900 << 18)), _position(ts - (1 << 18))
        size = ROWS * ROW_BYTES
        return pb.SegmentSpan(
            span_id=span_id,
            sub_id=sub_id,
            rows=ROWS,
            bytes=size,
            min=first,
            max=last,
            first_batch=0,
            end_batch=1,
            curve=[pb.CurvePoint(position=last, bytes=size)],
        )


def _position(ts: int) -> pb.Position:
    return pb.Position(commit_ts=ts, start_ts=ts - 1, op=1, key=b"t\x80\0\0\0\0\0\0\x01_r\x80\0\0\0\0\0\0\x01")


def _written(plan: int, entry: PlanEntry) -> FileCommitted:
    rows = entry.estimate // ROW_BYTES
    return FileCommitted(
        plan=plan,
        entry=entry.entry,
        rows=rows,
        raw_rows=rows,
        filtered_rows=0,
        bytes=entry.estimate,
        hash="0123456789abcdef",
    )


class Driven:
    """An owner, and what its driver does."""

    def __init__(self, case: Case) -> None:
        tables, pullers, busy = case.tables, case.pullers, case.busy
        self.cpu = Cpu()
        self.sink_works = True
        self._now = 0.0
        self._tasks: list[tuple[int, Work]] = []  # given and not written
        self.entries = 0  # planned
        self._pullers = Pullers(pullers, set(range(1, tables + 1, max(tables // busy, 1))) if busy else set())
        with self.cpu.of("start"):
            self.owner = _owner(tables, pullers, busy * ROWS * ROW_BYTES if case.is_full else QUOTA)
            self._meter = Meter(self.owner, Registry("default", "bench"))
            for puller in range(pullers):
                for command in self.owner.puller_joined(self._now, puller):
                    self._pullers.told(puller, command)
            for task in range(TASKS):
                self.owner.task_joined(task)
            self.owner.begin(BEGAN_MS)
            self._tend()
        self._puller_count = pullers

    def round(self) -> None:
        """A second, from the first report to the last."""
        for step in range(STEPS):
            ts = compose(self._pd_ms())
            self.owner.barrier.on_resolved(ts)
            for puller in range(self._puller_count * step // STEPS, self._puller_count * (step + 1) // STEPS):
                self._report(puller, self._pullers.report(puller, ts))
            self._write_files()
            self._act()
            if step % (STEPS // 10) == 0:
                with self.cpu.of("tend"):
                    self._tend()
            if step % (STEPS // 4) == 0:
                with self.cpu.of("show"):
                    self._meter.snapshot(self._now)
            self._now += 1 / STEPS

    def _pd_ms(self) -> int:
        return BEGAN_MS + int(self._now * 1000)

    def _report(self, puller: int, said: bytes) -> None:
        with self.cpu.of("report"):
            report = pb.Report.FromString(said)
            self.owner.report(self._now, puller, report)
            self._meter.report(puller, report)
        self._hand_out()

    def _tend(self) -> None:
        for puller, command in self.owner.tend(self._now):
            self._pullers.told(puller, command)

    def _hand_out(self) -> None:
        with self.cpu.of("hand out"):
            given = self.owner.hand_out()
            for _, work in given:
                work.model_dump_json(by_alias=True).encode()
        self._tasks += given

    def _write_files(self) -> None:
        """Each file stands a step after it was given."""
        if not self.sink_works:
            return
        works, self._tasks = self._tasks, []
        for task, work in works:
            files = [_written(work.record, each.plan_entry) for each in work.entries]
            with self.cpu.of("files done"):
                for file in files:
                    self.owner.file_done(task, file)
            self._hand_out()

    def _act(self) -> None:
        while True:
            began = time.process_time()
            action = self.owner.step(self._now, self._pd_ms())
            if action is None:
                self.cpu.add("step", time.process_time() - began)
                with self.cpu.of("delete"):
                    for uri in self.owner.unneeded_segments():
                        self.owner.spans.files.deleted(uri)
                return
            if isinstance(action, Stop):
                raise SystemExit("the owner stops for nothing")
            if isinstance(action, AppendPlan):
                self.entries += len(action.record.entries)
            state = apply(self.owner.state, action.record)
            encode_record(action.record)
            self.owner.recorded(self._now, action, state)
            self._meter.recorded(self._now, action)
            self.cpu.add(_NAMES[type(action)], time.process_time() - began)
            self._hand_out()


_NAMES: dict[type, str] = {AppendPlan: "plan", Publish: "commit", AppendCheckpoint: "checkpoint"}


def _owner(tables: int, pullers: int, quota: int) -> Owner:
    state = apply(State(), StartRecord(n=1, epoch=0, nonce="ab", start_ts=START_TS, cluster_id=7, uid="bench"))
    config = {"metadata": {"namespace": "default", "name": "bench", "uid": "bench"}, "spec": {}}
    epoch = EpochRecord(n=2, epoch=1, nonce="cd", attempt=0, host="h", pid=1, config=config, versions={})
    known = {n: Table(n, f"{n:032x}", START_TS, f"shop/t{n}/{START_TS}") for n in range(1, tables + 1)}
    infos = {table.table_info: TABLE_INFO | {"id": n, "name": f"t{n}"} for n, table in known.items()}
    written = {n: _written_before(table) for n, table in known.items()}
    state = apply(state, epoch).model_copy(update={"dispatchers": written, "table_infos": infos})
    spans = Spans(pullers)
    for n in known:
        spans.add_span(n, *table_span(n), START_TS)
    return Owner(
        state=state,
        run=Run(1, "cd", "codec"),
        tables=known,
        table_infos=infos,
        outputs=Layout("day", 20, ".csv"),
        spans=spans,
        barrier=Barrier(START_TS),
        planner=Planner(FILE_SIZE, FLUSH_S, PLAN_BYTES),
        quota=Quota(quota),
    )


def _written_before(table: Table) -> DispatcherState:
    """Each has had a file."""
    return DispatcherState(
        dispatcher=table.table_id,
        table_id=table.table_id,
        flushed_ts=START_TS,
        planned_ts=START_TS,
        table_version=START_TS,
        output={"directory": f"{table.series}/2023-11-14", "index": 1, "date": "2023-11-14"},
        table_info=table.table_info,
        definition=table.table_info,
    )


def measure(case: Case, rounds: int) -> dict[str, Any]:
    before = psutil.Process().memory_info().rss
    driven = Driven(case)
    driven.round()  # the first one plans what came before the run
    start, driven.cpu = driven.cpu, Cpu()
    driven.sink_works = case.sink_works
    for _ in range(rounds):
        driven.round()
    cpu = driven.cpu
    rss = psutil.Process().memory_info().rss
    with start.of("snapshot"):
        folded = snapshot(driven.owner.state)
    return {
        "name": case.name,
        **asdict(case),
        "rounds": rounds,
        "start_cpu_s": round(start.seconds["start"], 2),
        "round_cpu_s": round(sum(cpu.seconds.values()) / rounds, 3),
        "report_us_per_span": round(cpu.seconds["report"] * 1e6 / (rounds * case.tables), 2),
        "round_ms": {what: round(seconds * 1000 / rounds, 1) for what, seconds in sorted(cpu.seconds.items())},
        "each_ms": {what: cpu.each_ms(what) for what in sorted(cpu.seconds)},
        "counts": dict(sorted(cpu.counts.items())),
        "entries": driven.entries,
        "snapshot_cpu_s": round(start.seconds["snapshot"], 2),
        "snapshot_bytes": len(folded),
        "rss_bytes": rss - before,
        "verified": None,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tables", type=int, default=100_000)
    arguments.add_argument("--pullers", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=12)
    arguments.add_argument("--only", default="", help="cases whose names have this in them")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "owner_scale.json")
    given = arguments.parse_args()
    tables, pullers = given.tables, given.pullers
    cases = [
        Case(tables, pullers, 0),
        Case(tables, pullers, tables // 100),
        Case(tables // 10, pullers, tables // 100),  # as many busy ones, less idle ones
        Case(tables, pullers, tables // 10),
        Case(tables, pullers, tables // 100, is_full=True),
        Case(tables, pullers, tables // 10, sink_works=False),
    ]
    runs = []
    for case in cases:
        if given.only in case.name:
            with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # or the memory would be of all of them
                runs.append(fresh.submit(measure, case, given.rounds).result())
            sys.stdout.write(json.dumps(runs[-1]) + "\n")
    write_report(given.out, runs)


if __name__ == "__main__":
    main()
