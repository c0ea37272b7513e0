"""A whole changefeed in this process, without Spark: threads take the place of its tasks and run their very code.

What they run is the product's; only who starts it is not. A run takes about a second.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from changefeed.errors import ChangefeedError
from changefeed.owner.driver import Driver, Outcome, RunOptions
from changefeed.owner.pace import pace_of
from changefeed.owner.preparation.prepare import open_state_and_sink, prepare
from changefeed.owner.reporting.snapshot import RunSnapshot
from changefeed.owner.serving.vigilance import Tasks
from changefeed.pipeline.task import PipelineJob, write_files
from changefeed.puller.task import Limits, PullerJob, run_puller
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import parse
from changefeed.upstream import choice
from changefeed.wire.owner import OwnerAddress
from changefeed.wire.owner_client import reporting
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb

DEADLINE_S = 60.0
TASK_ATTEMPTS = 3
LIMITS = Limits(roll_interval=0.02)


class InProcessExecution:
    """owner.execution.Execution with threads for tasks, each tried again as Spark does."""

    silent_s = 0.0

    def __init__(self, writers: int = 2) -> None:
        """`writers`: how many pipeline tasks there are."""
        self._writers = writers
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._error: ChangefeedError | None = None
        self.puller_attempts: list[tuple[int, int]] = []  # (puller, attempt) in order of their starts
        self.writer_attempts: list[tuple[int, int]] = []  # the same of pipeline tasks

    def start(self) -> None:
        pass

    def run(self, owner: OwnerAddress, pullers: PullerJob, pipeline: PipelineJob) -> None:
        for puller in range(pullers.count):
            self._start(self._pull, owner, puller, pullers)
        for number in range(self._writers):
            self._start(self._write, owner, number, pipeline)

    def tasks(self) -> Tasks:
        return Tasks({time.monotonic_ns()})  # always another one, so that none is ever silent

    def restart_task(self, task: int) -> None:
        raise NotImplementedError

    def failure(self) -> str | None:
        return str(self._error) if self._error is not None and not self._stopping.is_set() else None

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), f"{thread.name} does not end"

    def _start(self, body: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=body, args=arguments, name=body.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _attempts(self, attempt: Callable[[int], None]) -> None:
        for number in range(TASK_ATTEMPTS):
            try:
                return attempt(number)
            except ChangefeedError as error:
                if self._stopping.is_set() or number == TASK_ATTEMPTS - 1:
                    self._error = self._error or error
                    return None
        return None

    def _pull(self, owner: OwnerAddress, puller: int, job: PullerJob) -> None:
        limits = replace(LIMITS, scan_rate=job.limits.scan_rate)

        def attempt(number: int) -> None:
            self.puller_attempts.append((puller, number))
            with reporting(owner):
                run_puller(owner, puller, f"puller-{puller}-{number}", job.upstream, job.state, limits)

        self._attempts(attempt)

    def _write(self, owner: OwnerAddress, number: int, job: PipelineJob) -> None:
        def attempt(turn: int) -> None:
            self.writer_attempts.append((number, turn))
            with reporting(owner):
                assert write_files(owner, number, job) is None, "there is room for every puller"

        self._attempts(attempt)


class Seen:
    """A view that remembers."""

    def __init__(self) -> None:
        self.progress: list[RunSnapshot] = []
        self.closed = False

    def update(self, snapshot: RunSnapshot) -> None:
        self.progress.append(snapshot)

    def close(self) -> None:
        self.closed = True


class Run:
    """One driver over a changefeed, on this event loop."""

    def __init__(
        self,
        changefeed: Changefeed,
        execution: InProcessExecution,
        options: RunOptions | None = None,
        **pace: Any,
    ) -> None:
        """`pace`: members of the driver's Pace that are not as the changefeed asks for."""
        self.changefeed = changefeed
        self.pace = replace(pace_of(changefeed), **pace)
        self.execution = execution
        self.options = options or RunOptions(metrics_port=0)
        self.view = Seen()
        self.driver: Driver | None = None
        self.ended: asyncio.Future[Outcome] | None = None

    def start(self) -> Run:
        self.ended = asyncio.ensure_future(self._run())
        return self

    async def _run(self) -> Outcome:
        async with AsyncExitStack() as stack:
            state, sink = await asyncio.to_thread(open_state_and_sink, self.changefeed, self.options.secrets_dir)
            stack.callback(state.release)
            stack.callback(sink.release)
            upstream = await choice.access_of(self.changefeed, self.options.secrets_dir).connect()
            stack.push_async_callback(upstream.close)
            prepared = await prepare(self.changefeed, upstream, state, sink, attempt=self.options.attempt)
            self.driver = Driver(prepared, self.options, self.execution, self.view, self.pace)
            if prepared.finished:
                return await self.driver.publish_finished()
            return await self.driver.run(stack)

    async def outcome(self) -> Outcome:
        assert self.ended is not None
        await asyncio.wait({self.ended}, timeout=DEADLINE_S)
        assert self.ended.done(), f"does not end.\n{self._standing()}"
        return self.ended.result()

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Fails when the run ends first, or the deadline passes."""
        assert self.ended is not None
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert not self.ended.done(), f"ended before {what}: {self.ended}"
            assert time.monotonic() < deadline_s, f"still not: {what}.\n{self._standing()}"
            await asyncio.sleep(0.01)

    def _standing(self) -> str:
        """Where it stands: its last progress, its task, and what each thread of this process does."""
        with tempfile.TemporaryFile("w+") as shown:
            if isinstance(self.ended, asyncio.Task):
                self.ended.print_stack(file=shown)
            shown.flush()
            faulthandler.dump_traceback(shown)
            shown.seek(0)
            return f"{self.view.progress[-1:]}\n{shown.read()}"

    async def killed(self) -> None:
        """Without a word, as after SIGKILL. What is under way in its threads goes on, until it is fenced or done."""
        assert self.ended is not None
        self.ended.cancel()
        await asyncio.wait([self.ended])

    async def drained(self) -> Outcome:
        """As after SIGTERM."""
        await self.until(lambda: self.driver is not None and self.view.progress, "the driver runs")
        assert self.driver is not None
        self.driver.drain()
        return await self.outcome()


def resource(pd_address: str, start_ts: int, folder: Path, **spec: Any) -> dict[str, Any]:
    """A changefeed of `shop.*` to csv, with `lake` and `state` in a folder; `spec` replaces members of it."""
    lake = (folder / "lake").as_uri()
    storage = {"uri": lake, "protocol": "csv", "flushInterval": "100ms", "csv": {"includeCommitTs": True}}
    members = {
        "upstream": {"pdAddresses": [f"http://{pd_address}"]},
        "startTs": str(start_ts),
        "filter": {"rules": ["shop.*"]},
        "state": {"uri": (folder / "state").as_uri()},
        "sink": {"storage": storage},
    }
    return {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "test"},
        "spec": members | spec,
    }


class World:
    """A cluster with the table shop.orders (id, name), and a changefeed of `shop.*`."""

    def __init__(self, cluster: DevCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.tidb = Tidb(cluster)
        self.tidb.bootstrap()
        self.tidb.create_database("shop")
        columns = (NewColumn("id", "bigint"), NewColumn("name", "varchar(64)", nullable=True))
        self.orders: NamedTable = self.tidb.create_table("shop", "orders", columns, regions=2, handles=1000)
        self.start_ts = self.tidb.now()

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def log(self) -> Path:
        return self.folder / "state" / "default" / "test" / "local" / "log"

    def changefeed(self, **spec: Any) -> Changefeed:
        """`spec` replaces members of the resource's."""
        return parse(json.dumps(resource(self.cluster.pd_address, self.start_ts, self.folder, **spec)))

    def run(
        self, execution: InProcessExecution | None = None, pace: Mapping[str, Any] | None = None, **spec: Any
    ) -> Run:
        return Run(self.changefeed(**spec), execution or InProcessExecution(), **pace or {}).start()

    def insert(self, ids: range) -> int:
        """One transaction; gives its commit ts."""
        with self.tidb.begin() as txn:
            for number in ids:
                txn.insert(self.orders, {"id": number, "name": f"order {number}"})
        return txn.commit_ts

    def records(self, kind: str) -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in sorted(self.log.glob("[0-9]*.json"))]
        return [record for record in found if record["kind"] == kind]

    def ids(self) -> list[int]:
        """Return the ids of the rows in the files, in the files' order; column 5 of csv with a commit ts."""
        lines = [line for path in sorted(self.lake.rglob("CDC*.csv")) for line in path.read_text().splitlines()]
        return [int(line.split(",")[4]) for line in lines]

    def checkpoint(self) -> int:
        """The published one; 0 while there is none."""
        with suppress(FileNotFoundError):
            return int(json.loads((self.lake / "metadata").read_text())["checkpoint-ts"])
        return 0


def insert(world: World, table: NamedTable, ids: Iterable[int], **more: object) -> None:
    """A row for each id, in one transaction."""
    with world.tidb.begin() as txn:
        for number in ids:
            txn.insert(table, {"id": number, **more})


@contextmanager
def new_world(folder: Path) -> Iterator[World]:
    with DevCluster(stores=2, min_ts_interval=0.05) as cluster:
        yield World(cluster, folder)
