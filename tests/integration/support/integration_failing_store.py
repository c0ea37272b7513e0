"""A changefeed under load in this process, whose stores may fail: what it says of that, and that all is right."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from changefeed.objectstore import open as open_module
from changefeed.objectstore.open import Store, open_store
from changefeed.objectstore.remote import store as remote_store
from changefeed.owner import alive as alive_module
from changefeed.owner.driver import RunOptions
from changefeed.owner.reporting.status_writer import Applied, StatusWriter
from changefeed.puller.task import Limits
from changefeed.verify.storage.report import verify
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import TxnError
from changefeed_devcluster.workload.bank import Bank
from integration_inprocess import InProcessExecution, Run, World
from integration_s3_proxy import FaultyProxy, before
from integration_s3_servers import KEY, KEY_ID, S3Server

RATE, MUCH = 50.0, 500.0  # rows a second
SINK, STATE = "/orders", "/state"
TIME_OUT_S = 3
ROLL_S = 0.1
DEADLINE_S = 180.0


class Said(StatusWriter):
    """Takes the place of the writer of the resource's status: there is no resource."""

    def __init__(self) -> None:
        self.statuses: list[dict[str, Any]] = []

    async def apply(self, status: Mapping[str, Any]) -> Applied:
        self.statuses.append(dict(status))
        return Applied()

    def sink(self) -> dict[str, str]:
        """The condition SinkAvailable, as said last."""
        return self._condition("SinkAvailable")

    def _condition(self, kind: str) -> dict[str, str]:
        conditions = self.statuses[-1]["conditions"] if self.statuses else []
        return next((each for each in conditions if each["type"] == kind), {"status": "", "message": ""})


class Feed(World):
    """A changefeed of a bank that is being written to. Its runs are in this process."""

    def __init__(self, cluster: DevCluster, folder: Path, uri_of: Callable[[str], str]) -> None:
        super().__init__(cluster, folder)
        self.uri_of = uri_of
        self.said = Said()
        self.pace: dict[str, Any] = {}  # members of the driver's that are others
        self.bank = Bank(self.tidb, tables=1, regions=2, accounts=100)
        self.bank.create()
        self.start_ts = self.tidb.now()
        self.loaded = False
        self.rate = RATE

    @contextmanager
    def load(self) -> Iterator[None]:
        stop = threading.Event()
        if not self.loaded:
            self.bank.load(stop)
            self.loaded = True
        writer = threading.Thread(target=self._write, args=(stop,), daemon=True)
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()

    @contextmanager
    def more(self) -> Iterator[None]:
        self.rate = MUCH
        try:
            yield
        finally:
            self.rate = RATE

    def _write(self, stop: threading.Event) -> None:
        rows = 1
        while not stop.wait(rows / self.rate):
            with suppress(TxnError):  # somebody has resolved its lock
                rows = max(self.bank.step(), 1)

    @property
    def sink(self) -> Store:
        return open_store(self.uri_of(SINK))

    @property
    def state(self) -> Store:
        return open_store(self.uri_of(STATE + "/default/test/local"))

    def start(self, **spec: Any) -> Run:
        storage = {"uri": self.uri_of(SINK), "protocol": "csv", "flushInterval": "300ms"}
        csv = {"csv": {"includeCommitTs": True}}
        changefeed = self.changefeed(
            filter={"rules": ["bank.*"]},
            state={"uri": self.uri_of(STATE)},
            sink={"storage": storage | csv},
            **{"spark": {"pullers": {"count": 1}}, **spec},
        )
        options = RunOptions(metrics_port=0, status=self.said)
        return Run(changefeed, InProcessExecution(), options, **self.pace).start()

    async def caught_up(self, run: Run) -> None:
        """Everything that is committed by now is published, and nothing is said to be wrong."""
        now = self.tidb.now()
        await run.until(
            lambda: run.driver is not None and run.driver.publication.checkpoint_ts >= now, "it is published"
        )
        await run.until(lambda: self.said.sink()["status"] == "True", "the sink is said to be available")

    async def troubled(self, run: Run, says: str) -> None:
        """It is said what is wrong: in the status, in a metric, and to whoever watches."""
        await run.until(lambda: self.said.sink()["status"] == "False", "the status says that something is wrong")
        said = self.said.sink()
        answers = "it says" in said["message"] or "No space left" in said["message"]
        assert said["reason"] == ("StoreRefuses" if answers else "StoreAway"), said
        assert says in said["message"], said
        await run.until(lambda: run.view.progress[-1].message.startswith("Waiting for a store"), "the view says it")
        assert run.driver is not None
        assert run.driver.registry.snapshot()["changefeed_owner_state_info", "Warning"] == 1

    async def holds(self, rows: int = 100) -> None:
        """Every change up to the checkpoint once, in order; the bank's total conserved."""
        pd = [f"http://{self.cluster.pd_address}"]
        found = await asyncio.to_thread(asyncio.run, verify(self.uri_of(SINK), pd, "balance"))
        assert found.ok, found
        assert (found.missing, found.duplicate, found.unexpected, found.out_of_order) == (0, 0, 0, 0)
        assert found.rows >= rows


def surround(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setattr(open_module, "REMOTE_ROUNDS", 1)  # of the probe, which has tests of its own
    monkeypatch.setattr(remote_store, "SMALL_S", TIME_OUT_S)
    monkeypatch.setattr("integration_inprocess.LIMITS", Limits(roll_interval=ROLL_S))
    monkeypatch.setattr("integration_inprocess.DEADLINE_S", DEADLINE_S)
    monkeypatch.setattr(alive_module, "FRESH_MS", 0)  # one whose last word was lost does not keep the next one out


@contextmanager
def new_feed(server: S3Server, folder: Path) -> Iterator[tuple[Feed, FaultyProxy]]:
    with before(server) as (proxy, seen), DevCluster(stores=2, min_ts_interval=0.2) as cluster:
        yield Feed(cluster, folder, lambda path: seen.uri(folder.name + path)), proxy


@asynccontextmanager
async def running_feed(feed: Feed, **spec: Any) -> AsyncIterator[Run]:
    """Under load, with its first rows published; drained at the end."""
    with feed.load():
        run = feed.start(**spec)
        await feed.caught_up(run)
        yield run
        await feed.caught_up(run)
    await run.drained()


async def run_once(feed: Feed) -> None:
    """A whole run: it catches up, and is drained."""
    async with running_feed(feed):
        pass


def writes(fault: str, below: str = "") -> Callable[[str, str], str]:
    """Each write below a folder has the fault."""
    return lambda method, path: fault if method == "PUT" and below in path else ""


def everything(fault: str, below: str = "") -> Callable[[str, str], str]:
    return lambda method, path: fault if below in path else ""
