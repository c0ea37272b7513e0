"""A Python worker of Spark freezes under a run: it is noticed, killed and replaced, and no row is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import psutil
import pytest
from changefeed_devcluster.workload.bank import Bank
from conftest import Changefeed, Upstream, wait_for
from integration_victims import Victims

RECOVERED_S = 20.0  # docs/running.md

pytestmark = pytest.mark.timeout(300)


@contextmanager
def writing(bank: Bank) -> Iterator[None]:
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(bank.run, stop, 500.0)
        try:
            yield
        finally:
            stop.set()
        written.result()


def test_a_frozen_puller_and_a_frozen_pipeline_worker_are_replaced(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed]
) -> None:
    """The changefeed has no other puller, so nobody else can take over: the task must be started again."""
    bank = Bank(upstream.tidb, 2, 1, 300)
    bank.create()
    changefeed = new_changefeed(["bank.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    bank.load(Event())
    victims = Victims(upstream, changefeed)

    def passes(ts: int, deadline_s: float) -> None:
        wait_for(lambda: changefeed.checkpoint() > ts, f"a checkpoint above {ts}", deadline_s)

    def recovers_from(frozen: psutil.Process, began: float) -> None:
        passes(upstream.tidb.now(), RECOVERED_S)
        print(f"recovered in {time.monotonic() - began:.1f} s")  # noqa: T201 - what the test is about
        wait_for(lambda: not frozen.is_running(), "that the frozen one is gone")

    with writing(bank):
        changefeed.start()
        passes(upstream.tidb.now(), 60.0)

        puller = victims.pullers().pop()
        began = time.monotonic()
        puller.suspend()
        recovers_from(puller, began)

        worker = wait_for(victims.executing, "a task that writes a file")
        began = time.monotonic()
        recovers_from(worker, began)
        passes(upstream.tidb.now(), RECOVERED_S)
    code, _, err = changefeed.drain()
    assert code == 0, err
    assert len(changefeed.records("epoch")) == 1
    code, verdict = changefeed.verify("--conserved", "balance")
    assert code == 0, verdict
