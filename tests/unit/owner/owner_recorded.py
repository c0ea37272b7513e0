"""A changefeed's log as a run leaves it, for each kind of sink, and what the next run makes of it.

testdata/logs has those of 0.1.0, and beside each what 0.1.0 itself made of it. `python owner_recorded.py FOLDER`
records them as the present version writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import owner_segments as s
from changefeed.log.log import Log
from changefeed.log.records import EpochRecord, FileCommitted, PlanEntry, StartRecord
from changefeed.log.state import State
from changefeed.model.tso import compose
from changefeed.objectstore.local import LocalStore
from changefeed.owner.owner import Owner
from changefeed.owner.planning.actions import AppendPlan, Publish, Stop, WriteDdl
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.plan_entries import Table
from changefeed.owner.planning.planner import Planner
from changefeed.owner.planning.timeline import Timeline
from changefeed.owner.pulling.quota import Quota
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.writing.writing import Run
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import TableInfo, parse_database_info, parse_table_info
from changefeed.sink.contract import Outputs
from changefeed.sink.iceberg.layout import FileNames
from changefeed.sink.storage.driver import StorageDriver
from changefeed.sink.storage.layout import Layout
from changefeed.upstream.tikv.tidb.job import parse_job
from changefeed.wire import owner_pb2 as pb

DAY_MS = 86_400_000
FIRST_MS = 20_000 * DAY_MS
START_TS = compose(FIRST_MS)
ORDERS, ITEMS, PARTED, P0, P1, FRESH = 110, 111, 112, 113, 114, 120
EACH_S = 100.0  # after so long everything is due

STORAGE = {"uri": "file:///lake", "protocol": "csv", "dateSeparator": "day", "fileIndexWidth": 20}
KINDS: dict[str, dict[str, Any]] = {
    "storage": {"storage": STORAGE},
    "storage-undated": {"storage": {**STORAGE, "dateSeparator": "none", "fileIndexWidth": 6}},
    "storage-by-id": {"storage": {**STORAGE, "protocol": "canal-json", "useTableIdAsPath": True}},
    "storage-redated": {"storage": STORAGE},
    "iceberg": {"iceberg": {"warehouse": "file:///lake"}},
    "kafka": {"kafka": {"uri": "kafka://broker:9092/changes"}},
    "mysql": {"mysql": {"uri": "mysql://server:3306"}},
}
#: What the run that carries on has instead.
CHANGED = {"storage-redated": {"storage": {**STORAGE, "dateSeparator": "none"}}}


def raw(id_: int, name: str, *columns: str, **more: Any) -> dict[str, Any]:
    cols = [
        {"id": number, "name": {"O": column}, "offset": number - 1, "type": {"Tp": 8}, "state": 5}
        for number, column in enumerate(("id", *columns), 1)
    ]
    return {"id": id_, "name": {"O": name}, "cols": cols, "state": 5, **more}


PARTITIONS = {"enable": True, "definitions": [{"id": P0, "name": {"O": "p0"}}, {"id": P1, "name": {"O": "p1"}}]}
#: (after START_TS, what, the definition that it leaves)
DDLS: tuple[tuple[int, Action, dict[str, Any] | None], ...] = (
    (30, Action.ADD_COLUMN, raw(ORDERS, "orders", "wide")),
    (40, Action.RENAME_TABLE, raw(ITEMS, "goods")),
    (80, Action.ADD_COLUMN, raw(ITEMS, "goods", "late")),
    (130, Action.CREATE_TABLE, raw(FRESH, "fresh")),
    (140, Action.ADD_COLUMN, raw(PARTED, "parted", "wide", partition=PARTITIONS)),
    (150, Action.MODIFY_SCHEMA_CHARSET_AND_COLLATE, None),
)


class Recorded:
    """A run on the log in `folder`, whose sink's files are in `lake`. Time and ts go by `now`."""

    def __init__(self, folder: Path, lake: Path, kind: str, name: str, ddls: int) -> None:
        """`ddls`: how many were executed before it."""
        self.kind, self.now = kind, 0.0
        self.log = Log(LocalStore(folder))
        if self.log.read().n == 0:
            self.log.append(StartRecord(n=1, epoch=0, nonce=name, start_ts=START_TS, cluster_id=7, uid="local"))
        sink = CHANGED.get(kind, KINDS[kind]) if ddls else KINDS[kind]
        state = self.log.claim_epoch(lambda before: _epoch(before, name, sink))
        self.outputs = _outputs(sink, state)
        storage = sink.get("storage")
        self.sink = storage and StorageDriver(LocalStore(lake), self.log.poll_fence, by_id=self.outputs.by_id)
        self.schema, self.timeline = _schema()
        self.waiting = list(DDLS)
        for ddl in [self.waiting.pop(0) for _ in range(ddls)]:
            self._follow(*ddl)
        schema_ts = max(state.checkpoint_ts, state.last_ddl[0] if state.last_ddl else 0)
        infos = {id_: info for info in self.schema.tables_at(schema_ts) for id_ in info.physical_ids}
        self.spans, self.barrier = Spans(1), Barrier(schema_ts)
        self.owner = Owner(
            state=state,
            run=Run(state.epoch.number, state.epoch.nonce, "codec"),
            tables={id_: self._table(id_, info, state.table_version(id_)) for id_, info in infos.items()},
            table_infos={info.hash: info.to_json() for info in infos.values()},
            outputs=self.outputs,
            spans=self.spans,
            barrier=self.barrier,
            planner=Planner(1 << 20, EACH_S / 2),
            quota=Quota(1 << 30),
        )
        for each in infos:
            self.spans.add_span(each, b"a", b"b", state.flushed_ts(each))
        self.subs: dict[int, int] = {}
        self._hear((0, command) for command in self.owner.puller_joined(0.0, 0))
        self.owner.task_joined(0)
        self.seq = 0
        self.given: list[list[Any]] = []
        self.planned: list[list[Any]] = []

    def goes_on(self, pd_ms: int, upto: int, rows: dict[int, list[int]], writes: Iterable[int] | None = None) -> None:
        """Rows come, by table; all up to `upto` is there; then whatever is due is done, at `pd_ms`.

        `writes`: whose files are written; None: all.
        """
        self._hear(self.owner.tend(self.now))
        ts = START_TS + upto
        shares = [s.share(id_, self.subs[id_], [START_TS + row for row in each]) for id_, each in rows.items()]
        self.seq += 1
        segments = [s.meta(self.seq, *shares, attempt=self.log.state.epoch.nonce)]
        resolved = [s.resolved(sub, ts, self.seq, first=self.seq) for sub in self.subs.values()]
        self.owner.report(self.now, 0, pb.Report(segments=segments if shares else [], resolved=resolved))
        if not shares:
            self.seq -= 1
        while self.waiting and self.waiting[0][0] <= upto:
            self._follow(*self.waiting.pop(0), told=self.barrier.on_ddl)
        self.barrier.on_resolved(ts)
        self.owner.begin(pd_ms)
        for _ in range(4):
            self.now += EACH_S
            self._do_all(pd_ms)
            self._write(None if writes is None else set(writes))

    def _do_all(self, pd_ms: int) -> None:
        while (action := self.owner.step(self.now, pd_ms)) is not None:
            assert not isinstance(action, Stop)
            if isinstance(action, AppendPlan):
                self.planned += [self.shown(entry) for entry in action.record.entries]
            if self.sink and isinstance(action, Publish):
                self.sink.publish(action.entries, action.record)
            if self.sink and isinstance(action, WriteDdl):
                self.sink.execute(action.ddl)
            self.log.append(action.record)
            self.owner.recorded(self.now, action, self.log.state)
            self._hear(self.owner.tend(self.now))

    def _write(self, whose: set[int] | None) -> None:
        for _, work in self.owner.hand_out():
            for each in work.entries:
                entry = each.plan_entry
                self.given.append(self.shown(entry))
                if whose is None or entry.dispatcher in whose:
                    done = FileCommitted(
                        plan=work.record, entry=entry.entry, rows=1, raw_rows=1, filtered_rows=0, bytes=1, hash="h"
                    )
                    self.owner.file_done(0, done)

    def shown(self, entry: PlanEntry) -> list[Any]:
        name = entry.output["path"] if self.kind not in ("kafka", "mysql") else ""
        return [entry.dispatcher, entry.from_.commit_ts - START_TS, entry.to.commit_ts - START_TS, name]

    def _table(self, id_: int, info: TableInfo, version: int) -> Table:
        return Table(id_, info.hash, version, self.outputs.series(info, id_, version), info.full_name)

    def _hear(self, commands: Iterable[tuple[int, pb.Command]]) -> None:
        for _, command in commands:
            if command.HasField("subscribe"):
                self.subs[command.subscribe.span_id] = command.subscribe.sub_id

    def _follow(
        self, after: int, action: Action, table: dict[str, Any] | None, told: Callable[[Any], object] = print
    ) -> None:
        ts = START_TS + after
        said = {
            "id": ts,
            "type": int(action),
            "state": 4,
            "schema_id": 1,
            "schema_name": "shop",
            "table_id": table["id"] if table else 0,
            "query": f"{action.name} after {after}",
            "binlog": {"TableInfo": table, "DBInfo": None if table else {"id": 1, "db_name": {"O": "shop"}}},
        }
        job = parse_job(said)
        self.schema.apply(job, ts)
        ddl = self.timeline.follow(job, ts, self.schema.touches(job))
        if told is not print and ddl is not None:
            told(ddl)


def _outputs(sink: dict[str, Any], state: State) -> Any:
    if "iceberg" in sink:
        return FileNames(state.origin)
    return Layout.of(sink["storage"]) if "storage" in sink else Outputs()


def _schema() -> tuple[SchemaHistory, Timeline]:
    databases = [parse_database_info({"id": 1, "db_name": {"O": "shop"}})]
    there = (raw(ORDERS, "orders"), raw(ITEMS, "items"), raw(PARTED, "parted", partition=PARTITIONS))
    tables = [parse_table_info(each, "shop") for each in there]
    job_table = parse_table_info(raw(1, "tidb_ddl_job"), "mysql")
    first = [id_ for table in tables for id_ in table.physical_ids]
    timeline = Timeline(lambda *_: True, lambda _: True, lambda *_: False, first)
    return SchemaHistory(START_TS, databases, tables, job_table), timeline


def _epoch(before: State, nonce: str, sink: dict[str, Any]) -> EpochRecord:
    config = {"metadata": {"namespace": "shop", "name": "orders", "uid": "local"}, "spec": {"sink": sink}}
    return EpochRecord(
        n=before.n + 1,
        epoch=before.epoch.number + 1,
        nonce=nonce,
        attempt=0,
        host="h",
        pid=1,
        config=config,
        versions={},
    )


def record(folder: Path, lake: Path, kind: str) -> None:
    """Some files are committed, some are not; of two DDLs, and of one that nothing is planned after."""
    run = Recorded(folder, lake, kind, "before", 0)
    run.goes_on(FIRST_MS, 29, {ORDERS: [10], ITEMS: [10], P0: [10, 20], P1: [11]})
    run.goes_on(FIRST_MS, 45, {})
    run.goes_on(FIRST_MS + DAY_MS, 60, {ORDERS: [50], ITEMS: [51], P0: [52]}, [ORDERS, ITEMS])
    run.log.fold(run.log.state)
    run.goes_on(FIRST_MS + DAY_MS, 95, {ORDERS: [90]}, ())


def carry_on(folder: Path, lake: Path, kind: str) -> dict[str, Any]:
    """What the next run plans, gives to its tasks, and writes; at first its clock is a day behind."""
    run = Recorded(folder, lake, kind, "after", 3)
    run.goes_on(FIRST_MS, 120, {ORDERS: [90, 110], ITEMS: [112], P0: [52, 110], P1: [111]})
    run.goes_on(FIRST_MS + DAY_MS, 160, {})
    run.goes_on(FIRST_MS + 2 * DAY_MS, 180, {ORDERS: [170], FRESH: [171], P0: [172], P1: [173]})
    files = {path: LocalStore(lake).get(path).body.decode() for path, _ in LocalStore(lake).list()}
    state = run.log.state
    return {
        "given": run.given,
        "planned": run.planned,
        "files": dict(sorted(files.items())),
        "checkpoint": state.checkpoint_ts - START_TS,
        "open": [run.shown(entry) for _, entry in state.open_entries()],
    }


if __name__ == "__main__":
    for kind in KINDS:
        folder = Path(sys.argv[1]) / kind
        record(folder, folder / "lake", kind)
