"""What must hold in the simulated store, checked against the upstream's history (promises 1, 2, 4 and 6).

The store calls `on_create` and `on_swap` for every object that appears, whoever wrote it and whether or not it heard;
`check_store` reads everything that is there, as a reader would. All raise AssertionError.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from changefeed.log.history import apply
from changefeed.log.records import (
    CommitRecord,
    CopyRecord,
    DdlRecord,
    EpochRecord,
    FileCommitted,
    PlanEntry,
    PlanRecord,
    StartRecord,
    decode_record,
)
from changefeed.log.state import State, restore
from changefeed.objectstore.digest import Digest
from changefeed.sink.storage.layout import METADATA, is_schema_file, parse_directory
from simulated_tables import definition, path_of, schema_file_of
from simulated_transactions import START_TS, Row
from simulated_upstream import Upstream


def file_body(config: Mapping[str, Any], pd_ms: int, info: Mapping[str, Any], rows: Sequence[Row]) -> bytes:
    """A data file: all that may reach its bytes (rule 10), then its rows."""
    described = f"{info['name']} {info['cols'][0]['name']}"
    return repr((config["written by"], pd_ms, described, [tuple(row) for row in rows])).encode()


def file_rows(body: bytes) -> list[Row]:
    return [Row(*values) for values in ast.literal_eval(body.decode())[3]]


class Oracles:
    """The one history and the files that it makes, followed as they grow. `objects` is the store's content."""

    def __init__(self, upstream: Upstream, objects: Mapping[str, bytes], data_file: Callable[[str, int], str]) -> None:
        self._upstream = upstream
        self._objects = objects
        self._data_file = data_file
        self.state = State()
        self.states = [State()]  # after record n
        self.records = [b""]
        self._configs: dict[int, Mapping[str, Any]] = {}  # of a plan's record
        self._plans: dict[str, tuple[PlanRecord, PlanEntry]] = {}  # by path of a data file
        self._entries: dict[tuple[int, int], PlanEntry] = {}  # by plan and place in it
        self._planned: dict[int, list[PlanEntry]] = defaultdict(list)  # by dispatcher
        self._open: dict[int, list[PlanEntry]] = defaultdict(list)  # by dispatcher: planned, not committed
        self._committed: dict[int, list[PlanEntry]] = defaultdict(list)  # by dispatcher
        self.published_ts = 0

    def on_decided(self, commit_ts: int) -> None:
        """A transaction has committed: this is about the simulated upstream itself."""
        assert commit_ts > self.state.checkpoint_ts, f"{commit_ts} is committed below what is resolved"

    def on_create(self, path: str, body: bytes) -> None:
        name = path.removeprefix("log/")
        if is_schema_file(path):
            return
        if name == path:
            self._on_file(path, body)
        elif name.startswith("snapshot-"):
            snapshot = restore(body)
            assert snapshot == self.states[snapshot.n], f"{path} isn't what the records up to it say"
        else:
            self._on_record(path, body)

    def _on_file(self, path: str, body: bytes) -> None:
        assert path in self._plans, f"{path} is in no recorded plan"
        plan, entry = self._plans[path]
        rows = self._upstream.selected_rows(entry.dispatcher, entry.from_.commit_ts, entry.to.commit_ts)
        version = self._upstream.version(entry.dispatcher, entry.from_.commit_ts)
        assert version == self._upstream.version(entry.dispatcher, entry.to.commit_ts - 1), f"{path} has two versions"
        assert entry.table_version == version, f"{path} has version {entry.table_version}, its rows have {version}"
        info = definition(entry.table_id, version).to_json()
        expected = file_body(self._configs[plan.n], plan.pd_ms, info, rows)
        assert body == expected, f"{path} of plan {plan.n} is {body!r}, not {expected!r}"
        assert not rows or rows[0].commit_ts > self.state.checkpoint_ts, f"{path} has rows <= the checkpoint"
        assert not rows or rows[-1].commit_ts <= self._upstream.last_row_ts, f"{path} has rows past the last ts"

    def _on_record(self, path: str, body: bytes) -> None:
        record = decode_record(body)
        if record.n != len(self.states):
            folded = any(name.startswith("log/snapshot-") for name in self._objects)
            assert folded, f"{path} was created with {len(self.states) - 1} records in the log"
            harmless = isinstance(record, EpochRecord) or body == self.records[record.n]
            assert harmless, f"{path}, {record.kind}, was created at a folded number"
            return
        before = self.state
        self.state = apply(before, record)
        self.states.append(self.state)
        self.records.append(body)
        match record:
            case StartRecord():
                assert record.start_ts == self._upstream.first_ts
            case CopyRecord():
                for dispatcher, copy in self.state.copies().items():
                    assert dispatcher not in before.copied, f"{dispatcher} is copied twice"
                    self._upstream.copy(dispatcher, copy)
            case PlanRecord():
                self._on_plan(record, before)
            case CommitRecord():
                self._on_commit(record, before)
            case DdlRecord():
                self._on_ddl(record, before)

    def _on_plan(self, record: PlanRecord, before: State) -> None:
        self._configs[record.n] = before.epoch.config
        for number, entry in enumerate(record.entries):
            assert path_of(entry) not in self._plans, f"{path_of(entry)} is planned twice"
            self._check_goes_on(entry)
            self._plans[path_of(entry)], self._entries[record.n, number] = (record, entry), entry
            self._planned[entry.dispatcher].append(entry)
            self._open[entry.dispatcher].append(entry)

    def _check_goes_on(self, entry: PlanEntry) -> None:
        """Every row is planned once, and names are consecutive, whatever is written and committed by then."""
        planned = self._planned[entry.dispatcher]
        ended = planned[-1].to.commit_ts if planned else self._upstream.first_ts
        assert ended <= entry.from_.commit_ts < entry.to.commit_ts, f"{path_of(entry)} does not go on from {ended}"
        left_out = self._upstream.selected_rows(entry.dispatcher, ended, entry.from_.commit_ts)
        assert not left_out, f"{left_out} before {path_of(entry)} are not planned"
        directory = entry.output["directory"]
        number = 1 + sum(each.output["directory"] == directory for each in planned)
        assert path_of(entry) == self._data_file(directory, number), f"{path_of(entry)} is number {number}"
        found = parse_directory(directory, "day") or parse_directory(directory, "none")
        assert found is not None, directory
        assert found.version == entry.table_version, f"{path_of(entry)} has rows of version {entry.table_version}"

    def _on_commit(self, record: CommitRecord, before: State) -> None:
        assert record.checkpoint_ts >= before.checkpoint_ts
        ts = record.checkpoint_ts
        for file in sorted(record.files, key=lambda file: (file.plan, file.entry)):
            self._on_committed(file)
        for entry in self._all_open():
            assert ts <= entry.from_.commit_ts, f"checkpoint {ts} is published, {path_of(entry)} is open"
            assert not record.finished, f"it is finished without {path_of(entry)}"
        assert ts <= self._upstream.now_ts, f"checkpoint {ts} is in the future"
        assert ts <= self._upstream.last_row_ts, f"checkpoint {ts} is above {self._upstream.last_row_ts}"
        for ddl in self._upstream.ddls_after(before.last_ddl or (START_TS, 0))[:1]:
            assert ts < ddl.ts, f"checkpoint {ts} is published, the DDL at {ddl.ts} is not written"
        assert record.finished == (self._upstream.target_ts is not None and ts >= self._upstream.target_ts)
        for table in self._upstream.tables:
            self._check_committed(table, before.checkpoint_ts, ts, f"checkpoint {ts} is published")

    def _on_committed(self, file: FileCommitted) -> None:
        """Each once, after all that its dispatcher has before it, and as it stands there."""
        entry = self._entries[file.plan, file.entry]
        waiting = self._open[entry.dispatcher]
        assert waiting, f"{path_of(entry)} is committed twice"
        assert waiting[0] is entry, f"{path_of(entry)} is committed, {path_of(waiting[0])} comes before it"
        body = self._objects.get(path_of(entry))
        assert body is not None, f"{path_of(entry)} is committed, and is not there"
        assert (file.bytes, file.hash) == (len(body), Digest(body).hexdigest()), f"{path_of(entry)} is not as committed"
        self._committed[entry.dispatcher].append(waiting.pop(0))

    def _all_open(self) -> list[PlanEntry]:
        return [entry for entries in self._open.values() for entry in entries]

    def _check_committed(self, table: int, from_ts: int, to_ts: int, when: str) -> None:
        for row in self._upstream.selected_rows(table, from_ts, to_ts):
            there = any(entry.from_ < row.position <= entry.to for entry in self._committed[table])
            assert there, f"{when}, {row} of {table} is in no committed file"

    def _on_ddl(self, record: DdlRecord, before: State) -> None:
        expected = self._upstream.ddls_after(before.last_ddl or (START_TS, 0))[0]
        assert (record.ts, record.job_id) == expected.order, f"{record} is written, {expected} comes first"
        for table in expected.alters | expected.leaves:
            self._check_committed(table, before.checkpoint_ts, record.ts, f"the DDL at {record.ts} is written")
            assert not self._open[table], f"the DDL at {record.ts} is written, {path_of(self._open[table][0])} is open"
        for table in expected.alters | expected.joins:
            path = schema_file_of(table, record.ts)
            assert path in self._objects, f"the DDL at {record.ts} is written without {path}"

    def on_swap(self, path: str, body: bytes) -> None:
        if path == METADATA:
            ts = json.loads(body)["checkpoint-ts"]
            assert ts > self.published_ts, f"metadata goes from {self.published_ts} to {ts}"
            assert ts <= self.state.checkpoint_ts, f"metadata says {ts}, the log {self.state.checkpoint_ts}"
            self.published_ts = ts
            return
        directory, name = path.removesuffix("/meta/CDC.index"), body.decode().strip()
        index = int(name.removeprefix("CDC").removesuffix(".csv"))
        missing = [i for i in range(1, index + 1) if self._data_file(directory, i) not in self._objects]
        assert not missing, f"{path} says {index}, but files {missing} don't exist"
        named = self._plans[self._data_file(directory, index)][1]
        planned = self._planned[named.dispatcher]
        before = [path_of(entry) for entry in planned[: planned.index(named)] if path_of(entry) not in self._objects]
        assert not before, f"{path} says {index}, but {before} of earlier directories don't exist"

    def check_store(self, read_log: Callable[[], State]) -> None:
        """The whole store, as a reader finds it now: after a run, and at each crash."""
        if self.state.n:
            assert read_log() == self.state, "the log in the store isn't the one history"
        files = {path: body for path, body in self._objects.items() if path in self._plans}
        uncommitted = {path_of(entry) for entry in self._all_open()}
        assert uncommitted == {path_of(entry) for _, entry in self.state.open_entries()}, "open files are forgotten"
        for dispatcher in self._upstream.tables:
            entries = self._committed[dispatcher]
            paths = [path_of(entry) for entry in entries]
            assert paths == sorted(paths), f"files of {dispatcher} are out of order: {paths}"
            counts: dict[str, int] = defaultdict(int)
            for entry in entries:
                directory = entry.output["directory"]
                counts[directory] += 1
                assert path_of(entry) == self._data_file(directory, counts[directory]), path_of(entry)
            rows = [row for path in paths for row in file_rows(files.pop(path))]
            assert rows == sorted(set(rows)), f"rows of {dispatcher} are doubled or out of order"
            settled = [row for row in rows if row.commit_ts <= self.state.checkpoint_ts]
            expected = self._upstream.selected_rows(dispatcher, self._upstream.first_ts, self.state.checkpoint_ts)
            assert settled == expected, f"dispatcher {dispatcher}: {set(settled) ^ set(expected)} lost or invented"
        assert files.keys() <= uncommitted, f"nobody's files: {sorted(files.keys() - uncommitted)}"
