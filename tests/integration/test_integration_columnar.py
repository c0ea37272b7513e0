"""No Python touches a row on its way from gRPC bytes to file bytes: what would do so raises, and loops are counted."""

from __future__ import annotations

import asyncio
import csv
import ctypes
import gc
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import changefeed.errors
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from changefeed.eventstore.reader import read_slice
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.slices import SegmentSlice
from changefeed.log.records import PlanEntry
from changefeed.model.position import Position
from changefeed.objectstore import Location
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.once import create_once
from changefeed.pipeline.recipe import Recipes
from changefeed.pipeline.run import EntryRows
from changefeed.pipeline.task import entry_of
from changefeed.pipeline.work import Work, WorkEntry
from changefeed.puller.task import Limits, PullerTask
from changefeed.schema.table_info import TableInfo
from changefeed.sink.storage.codec.csv import fingerprint
from changefeed.sink.storage.event_sink import StorageJob, encode_entry
from changefeed.spec.parse import effective, parse
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.cluster import TikvCluster
from changefeed.upstream.tikv.tidb.keys import table_span
from changefeed.upstream.tikv.tidb.snapshot import load_schema
from changefeed.wire import owner_pb2
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.workload import sysbench
from conftest import Upstream

ROWS = 100_000
SCANNED = 49_500  # rows that are there when the puller comes; as many follow while it pulls, and 1000 by transactions
#: Lines that any one function may run on the whole way: a loop over the rows runs 100,000 at least, one over the
#: scanned or the live half of them 49,500.
MOST_LINES = 40_000
#: And all of our own together. They run 25,000 without any such loop, and more the longer a busy machine takes.
MOST_OWN_LINES = 70_000
OWN_CODE = str(Path(changefeed.errors.__file__).parent)
DEADLINE_S = 60.0
FILE = "sbtest/t/1/CDC00000000000000000001.csv"
RUN = ("4", "abcd")  # epoch and nonce

# The guard: what takes rows out of their columns raises, in every thread; and lines are counted.


class RowByRow(AssertionError):
    """Something took rows out of their columns."""


@contextmanager
def _forbidden(kind: type, name: str) -> Iterator[None]:
    """Replace a method of a class of C or Python: its own dictionary is changed, and its method cache dropped."""
    own: dict[str, Any] = gc.get_referents(vars(kind))[0]
    before = own[name]

    def forbidden(*_: object, **__: object) -> NoReturn:
        raise RowByRow(f"{kind.__name__}.{name}")

    def put(method: object) -> None:
        own[name] = method
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))

    put(forbidden)
    try:
        yield
    finally:
        put(before)


@contextmanager
def row_by_row_raises() -> Iterator[None]:
    """to_pylist, to_pydict and as_py of every class of pyarrow, iter_rows and its kin of polars."""
    compiled = [kind for kind in vars(pa.lib).values() if isinstance(kind, type)]
    with ExitStack() as stack:
        for name in ("to_pylist", "to_pydict", "as_py"):
            kinds = [kind for kind in compiled if name in vars(kind)]
            assert kinds, f"pyarrow has no {name} any more"
            for kind in kinds:
                stack.enter_context(_forbidden(kind, name))
        for name in ("iter_rows", "rows", "to_dicts"):
            stack.enter_context(_forbidden(pl.DataFrame, name))
        yield


@contextmanager
def counted_lines(into: Counter[str]) -> Iterator[None]:
    """Count each line of Python that runs, by function, in this thread and those that start now; a loop's every turn.

    So are the elements of arrays of numpy that become a list. What this thread has begun already is not counted, nor a
    loop inside C, such as list(array), unless it calls Python.
    """

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            into[f"{frame.f_code.co_filename}: {frame.f_code.co_qualname}"] += 1
        return trace

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ == "tolist" and isinstance(called.__self__, np.ndarray):
            into[f"{frame.f_code.co_filename}: tolist"] += called.__self__.size

    before = sys.gettrace(), sys.getprofile()
    threading.settrace(trace)
    threading.setprofile(profile)
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before[1])
        sys.settrace(before[0])
        threading.setprofile(None)
        threading.settrace(None)


def in_a_thread(call: Callable[[], object]) -> object:
    """What `call` returns, or raises, in a new thread."""
    outcome: list[object] = []

    def body() -> None:
        try:
            outcome.append(call())
        except RowByRow as error:
            outcome.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if isinstance(outcome[0], RowByRow):
        raise outcome[0]
    return outcome[0]


def here(call: Callable[[], object]) -> object:
    return call()


TABLE = pa.table({"a": [1, 2], "b": ["x", None]})
TAKES_ROWS_OUT: dict[str, Callable[[], object]] = {
    "array.to_pylist": lambda: pa.array([1]).to_pylist(),
    "chunked.to_pylist": lambda: TABLE["a"].to_pylist(),
    "table.to_pylist": lambda: TABLE.to_pylist(),
    "batch.to_pylist": lambda: TABLE.to_batches()[0].to_pylist(),
    "table.to_pydict": lambda: TABLE.to_pydict(),
    "batch.to_pydict": lambda: TABLE.to_batches()[0].to_pydict(),
    "scalar.as_py": lambda: pa.scalar(1).as_py(),
    "text.as_py": lambda: TABLE["b"][0].as_py(),
    "bytes.as_py": lambda: pa.array([b"x"])[0].as_py(),
    "struct.as_py": lambda: pa.scalar({"a": 1}).as_py(),
    "frame.iter_rows": lambda: list(pl.DataFrame({"a": [1]}).iter_rows()),
    "frame.rows": lambda: pl.DataFrame({"a": [1]}).rows(),
    "frame.to_dicts": lambda: pl.DataFrame({"a": [1]}).to_dicts(),
}


@pytest.mark.parametrize("thread", [here, in_a_thread])
@pytest.mark.parametrize("name", TAKES_ROWS_OUT)
def test_the_guard_raises(name: str, thread: Callable[[Callable[[], object]], object]) -> None:
    before = thread(TAKES_ROWS_OUT[name])
    with row_by_row_raises(), pytest.raises(RowByRow, match=name.rpartition(".")[2]):
        thread(TAKES_ROWS_OUT[name])
    assert thread(TAKES_ROWS_OUT[name]) == before


def _loop() -> int:
    total = 0
    for row in range(ROWS):
        total += row
    return total


@pytest.mark.parametrize("thread", [here, in_a_thread])
@pytest.mark.parametrize(
    "loop",
    [_loop, lambda: [row + 1 for row in range(ROWS)], lambda: np.arange(ROWS).tolist()],
    ids=["loop", "comprehension", "tolist"],
)
def test_the_count_sees_every_turn(
    loop: Callable[[], object], thread: Callable[[Callable[[], object]], object]
) -> None:
    lines: Counter[str] = Counter()
    with counted_lines(lines):
        thread(loop)
    assert max(lines.values()) >= ROWS > MOST_LINES


# The way: the development cluster's gRPC → puller → segments → pipeline → sink.


class OwnerCall:
    """The owner's end of a puller's stream, in memory: hands out commands, keeps what is reported."""

    def __init__(self, *commands: owner_pb2.Command) -> None:
        self._commands = list(commands)
        self._ended = asyncio.Event()
        self._told = asyncio.Event()
        self.segments: list[owner_pb2.SegmentMeta] = []
        self.resolved_ts = 0

    async def __aiter__(self) -> Any:
        for command in self._commands:
            yield command
        await self._ended.wait()

    async def write(self, report: owner_pb2.Report) -> None:
        assert not report.failures, report
        self.segments += report.segments
        self.resolved_ts = max([self.resolved_ts, *(resolved.ts for resolved in report.resolved)])
        self._told.set()

    async def until(self, ts: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.resolved_ts < ts:
                self._told.clear()
                await self._told.wait()

    def end(self) -> None:
        self._ended.set()


class Writer(threading.Thread):
    """Writes the second half of the rows once the first is pulled. Started before lines are counted."""

    def __init__(self, tidb: Tidb, table: NamedTable) -> None:
        super().__init__()
        self._tidb = tidb
        self._table = table
        self.go = threading.Event()
        self.end_ts = 0

    def run(self) -> None:
        self.go.wait(DEADLINE_S)
        insert(self._tidb, self._table, SCANNED + 1, SCANNED)
        with self._tidb.begin() as txn:
            for handle in range(200_001, 200_501):
                note = f'"{handle}", über\r\n\\N' if handle % 2 else None
                price = Decimal(handle - 200_250) / 4
                txn.insert(self._table, {"id": handle, "k": -handle, "c": "", "pad": "", "note": note, "price": price})
        with self._tidb.begin() as txn:
            for handle in range(1, 501, 2):
                txn.update(self._table, {"id": handle, "c": "changed", "price": Decimal("-0.25")})
                txn.delete(self._table, handle + 1)
        self.end_ts = self._tidb.now()


def insert(tidb: Tidb, table: NamedTable, first: int, count: int) -> None:
    """sysbench rows in transactions of 5500."""
    for start in range(first, first + count, 5500):
        tidb.bulk_insert(table, *sysbench.rows(0, 0, start, 5500, ROWS))


async def table_info(pd_address: str, ts: int) -> TableInfo:
    pd = await PdClient.connect([pd_address])
    try:
        schema = await load_schema(Snapshot(pd, ts), ts)
    finally:
        await pd.close()
    (table,) = [table for table in schema.tables_at(ts) if table.full_name == "sbtest.t"]
    return table


async def pull(
    pd_address: str, run_folder: RunFolder, table_id: int, start_ts: int, writer: Writer
) -> list[SegmentSlice]:
    """Pull everything up to the end of what `writer` writes; where it stands."""
    start, end = table_span(table_id)
    call = OwnerCall(
        owner_pb2.Command(
            subscribe=owner_pb2.Subscribe(sub_id=1, span_id=table_id, start_key=start, end_key=end, start_ts=start_ts)
        )
    )
    pd = await PdClient.connect([pd_address])
    try:
        stream: Any = call
        task = asyncio.create_task(PullerTask(0, "task-0", TikvCluster(pd).feed, run_folder, Limits()).run(stream))
        await call.until(start_ts + 1)
        writer.go.set()
        await asyncio.to_thread(writer.join, DEADLINE_S)
        await call.until(writer.end_ts)
        call.end()
        await task
    finally:
        await pd.close()
    return [
        SegmentSlice(
            uri=meta.uri,
            size=meta.bytes,
            run=run_folder.run,
            seq=meta.seq,
            first_batch=span.first_batch,
            end_batch=span.end_batch,
            rows=span.rows,
        )
        for meta in call.segments
        for span in meta.spans
    ]


def work_of(table: TableInfo, segments: list[SegmentSlice], start_ts: int, end_ts: int) -> tuple[Work, WorkEntry]:
    resource = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "test"},
        "spec": {
            "upstream": {"pdAddresses": ["http://127.0.0.1:1"]},
            "sink": {"storage": {"uri": "file:///lake", "protocol": "csv", "csv": {"includeCommitTs": True}}},
        },
    }
    plan = PlanEntry(
        entry=0,
        dispatcher=table.id,
        table_id=table.id,
        **{"from": Position.end_of(start_ts)},
        to=Position.end_of(end_ts),
        output={"path": FILE},
        table_version=start_ts,
        table_info=table.hash,
        estimate=1,
        reason="size",
    )
    entry = WorkEntry(plan_entry=plan, segments=tuple(segments))
    epoch, nonce = RUN
    work = Work(
        record=3,
        epoch=int(epoch),
        nonce=nonce,
        pd_ms=0,
        codec=fingerprint(),
        config=json.dumps(effective(parse(json.dumps(resource)))),
        entries=(entry,),
        table_infos={table.hash: json.dumps(table.to_json())},
    )
    return work, entry


def lines_wanted(tidb: Tidb, table: NamedTable, start_ts: int, end_ts: int) -> list[list[str]]:
    """The file's records, from the cluster's own history, by Python."""
    order = {"delete": 0, "update": 1, "insert": 2}
    names = [column.name for column in table.info.columns]
    changes = tidb.history(table, start_ts, end_ts)
    changes.sort(key=lambda change: (change.commit_ts, change.start_ts, order[change.op], change.pk))
    wanted = []
    for change in changes:
        row = change.row if change.row is not None else change.old_row
        assert row is not None
        shown = ["\\N" if row[name] is None else str(row[name]) for name in names]
        wanted.append([change.op[0].upper(), "t", "sbtest", str(change.commit_ts), *shown])
    return wanted


def test_100_000_rows_from_wire_to_file_without_a_row_in_python(upstream: Upstream, tmp_path: Path) -> None:
    tidb, pd_address = upstream.tidb, upstream.cluster.pd_address
    tidb.create_database("sbtest")
    columns = [
        *(NewColumn("id", "bigint"), NewColumn("k", "int"), NewColumn("c", "char(120)"), NewColumn("pad", "char(60)")),
        *(NewColumn("note", "varchar(40)", nullable=True), NewColumn("price", "decimal(10,2)", nullable=True)),
    ]
    table = tidb.create_table("sbtest", "t", columns, regions=4, handles=ROWS)
    start_ts = tidb.now()
    insert(tidb, table, 1, SCANNED)
    info = asyncio.run(table_info(pd_address, start_ts))
    run_folder = RunFolder(Location((tmp_path / "state").as_uri()), int(RUN[0]), RUN[1])
    sink = LocalStore(tmp_path / "lake")
    writer = Writer(tidb, table)
    writer.start()
    lines: Counter[str] = Counter()

    def whole_way() -> EntryRows:
        segments = asyncio.run(pull(pd_address, run_folder, table.id, start_ts, writer))
        work, entry = work_of(info, segments, start_ts, writer.end_ts)
        recipe = Recipes(StorageJob(sink.location).mounting).of(work, entry.plan_entry.table_info)
        rows = EntryRows(recipe, entry, partial(read_slice, run_folder))
        target = entry_of("shop/feed", work, entry, rows.recipe)
        spool = encode_entry(target, rows, tmp_path / "spool")
        create_once(sink, target.output["path"], spool.body(), spool.hash)
        spool.discard()
        return rows

    with row_by_row_raises(), counted_lines(lines):
        committed = whole_way()

    assert committed.rows == committed.raw_rows == ROWS
    with (sink.root / FILE).open(newline="", encoding="utf-8") as file:
        found = list(csv.reader(file))
    assert len(found) == ROWS
    assert found == lines_wanted(tidb, table, start_ts, writer.end_ts)
    assert {line[0] for line in found} == {"I", "U", "D"}
    assert max(lines.values()) < MOST_LINES, lines.most_common(8)
    own = Counter({where: count for where, count in lines.items() if where.startswith(OWN_CODE)})
    assert {"encode_entry", "encode", "decode", "decode_rows", "write_segment"} <= {w.rpartition(" ")[2] for w in own}
    assert own.total() < MOST_OWN_LINES, own.most_common(8)
