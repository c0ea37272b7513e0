"""Everything at once: a bank writes, regions and streams are harmed, processes are killed, a reader looks on.

`CHANGEFEED_SEED=123` draws the same harms and kills again. `CHANGEFEED_EVIDENCE=FILE` kills 100 times instead of one
time each, at random moments, and writes there how long it took until the checkpoint rose again; regions and streams are
left alone then, since a region that is made to stand still for seconds holds every checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
from changefeed_devcluster.workload.bank import Bank
from conftest import Changefeed, Upstream, free_port, wait_for
from integration_nemesis import WEIGHTS, Nemesis
from integration_observer import watching

TABLES = 6
REGIONS = 3  # a table
ACCOUNTS = 300  # a table
ROWS_A_SECOND = 500.0
PULLERS = 3
VICTIMS = ("driver", "worker", "puller")
EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
KILLS = 100 if EVIDENCE else len(VICTIMS)
PASSED_S = 90.0  # after a kill
LONGEST_PAUSE_S = 5.0 if EVIDENCE else 1.0  # before the next kill
OBSERVED_EVERY_S = 1.0 if EVIDENCE else 0.2  # all files of a long run are many

pytestmark = pytest.mark.timeout(120 * KILLS)


class Victims:
    """The processes of a run that runs at the moment."""

    def __init__(self, upstream: Upstream, changefeed: Changefeed) -> None:
        self._changefeed = changefeed
        addresses = (upstream.cluster.pd_address, *upstream.cluster.store_addresses.values())
        self._upstream_ports = {int(address.rpartition(":")[2]) for address in addresses}

    def pullers(self) -> set[psutil.Process]:
        """The tasks' workers that hold a connection to the upstream."""
        return {worker for worker in self._workers() if self._is_puller(worker)}

    def executing(self) -> psutil.Process | None:
        """A task's worker that is in the middle of writing a file; it is frozen, so it stays there."""
        for worker in self._workers():
            if not self._is_puller(worker) and _spools(worker):
                with suppress(psutil.NoSuchProcess):
                    worker.suspend()
                    if _spools(worker):
                        return worker
                    worker.resume()
        return None

    def _workers(self) -> list[psutil.Process]:
        """Spark forks a task's workers from a daemon, whose name they have."""
        assert self._changefeed.process is not None
        found = []
        for process in psutil.Process(self._changefeed.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                parent = process.parent()
                if _is_worker(process) and parent is not None and _is_worker(parent):
                    found.append(process)
        return found

    def _is_puller(self, worker: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            connections = worker.net_connections("tcp")
            return any(connection.raddr and connection.raddr.port in self._upstream_ports for connection in connections)
        return False


def _is_worker(process: psutil.Process) -> bool:
    return str(process.name()) == "pyspark.worker"


def _spools(worker: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any("/spool/" in file.path for file in worker.open_files())
    return False


class Killer:
    """Kills processes of a run, and sees to it that the run goes on."""

    def __init__(self, upstream: Upstream, changefeed: Changefeed, say: Callable[[str], None]) -> None:
        self._upstream = upstream
        self._changefeed = changefeed
        self._victims = Victims(upstream, changefeed)
        self._say = say
        self.recoveries: dict[str, list[float]] = {victim: [] for victim in VICTIMS}  # seconds
        self.totals: Counter[str] = Counter()  # what the metrics of all drivers have counted

    def start(self) -> None:
        self._changefeed.metrics_port = free_port()
        self._changefeed.start()

    def kill(self, victim: str) -> None:
        """Then wait until the checkpoint has passed what the upstream has written up to the kill."""
        match victim:
            case "driver":
                self.take_totals()
                began = time.monotonic()
                self._changefeed.kill()
                self.start()
            case "worker":
                process = self._wait_for(self._victims.executing, "a task that writes a file")
                began = time.monotonic()
                process.kill()
            case _:
                pullers = self._victims.pullers()
                chosen = min(pullers, key=lambda puller: puller.pid)
                began = time.monotonic()
                chosen.kill()
        self.wait_until_passed()
        self.recoveries[victim].append(time.monotonic() - began)
        self._say(f"recovered from the kill of a {victim} in {self.recoveries[victim][-1]:.1f} s")
        self._wait_for(lambda: len(self._victims.pullers()) == PULLERS, "that all pullers pull")

    def wait_until_passed(self) -> None:
        now = self._upstream.tidb.now()
        self._wait_for(lambda: self._changefeed.checkpoint() > now, f"a checkpoint above {now}")

    def take_totals(self) -> None:
        """To be called before a driver ends."""
        for name in ("changefeed_puller_region_registrations_total", "changefeed_puller_finished_locks_total"):
            self.totals[name] += int(self._changefeed.metric(name))

    def _wait_for(self, condition: Callable[[], object], what: str) -> Any:
        def holds() -> object:
            process = self._changefeed.process
            assert process is not None
            assert process.poll() is None, self._changefeed.finish()
            return condition()

        return wait_for(holds, what, PASSED_S)


@contextmanager
def under_load(bank: Bank, nemesis: Nemesis | None) -> Iterator[None]:
    """Transactions and harms go on inside; what fails there fails here."""
    stop = Event()
    with ThreadPoolExecutor(2) as pool:
        try:
            running = [pool.submit(bank.run, stop, ROWS_A_SECOND)]
            if nemesis is not None:
                running.append(pool.submit(nemesis.run, stop))
            yield
        finally:
            stop.set()
        for each in running:
            each.result()


def test_rule_3_4_16_and_21_every_row_once_whatever_is_harmed_and_killed(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed]
) -> None:
    seed = int(os.environ.get("CHANGEFEED_SEED") or random.SystemRandom().getrandbits(32))
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.2f} {line}")  # noqa: T201 - what a failing run shows

    say(f"CHANGEFEED_SEED={seed}")
    rng = random.Random(seed)
    bank = Bank(upstream.tidb, TABLES, REGIONS, ACCOUNTS, seed=seed)
    bank.create()
    changefeed = new_changefeed(["bank.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    changefeed.spec["spark"] = {"pullers": {"count": PULLERS}, "executor": {"instances": 1, "cores": PULLERS + 2}}
    changefeed.spec["sink"]["storage"]["flushInterval"] = "1s"
    bank.load(Event())
    nemesis = Nemesis(upstream.cluster, bank.tables, ACCOUNTS, random.Random(rng.random()), say)
    killer = Killer(upstream, changefeed, say)
    victims = [VICTIMS[n % len(VICTIMS)] for n in range(KILLS)]
    rng.shuffle(victims)
    with watching(changefeed.lake.as_uri(), every_s=OBSERVED_EVERY_S) as observer:
        with under_load(bank, None if EVIDENCE else nemesis):
            killer.start()
            killer.wait_until_passed()
            for victim in victims:
                time.sleep(rng.uniform(0, LONGEST_PAUSE_S))  # a random moment is what is wanted
                say(f"kill the {victim}")
                killer.kill(victim)
        say("the last transaction")
        killer.wait_until_passed()
        killer.take_totals()
        code, _, err = changefeed.drain()
    assert code == 0, err
    say(f"{dict(nemesis.done)} {dict(killer.totals)} {observer.listings} listings")
    code, verdict = changefeed.verify("--conserved", "balance")
    say(f"{verdict}")
    assert code == 0, verdict
    assert (verdict["missing"], verdict["duplicate"], verdict["out_of_order"]) == (0, 0, 0)
    assert verdict["conserved"] == "0"
    # Something has happened: every kind of harm and of kill, what they call for, and rows all the while.
    kills = {victim: len(recoveries) for victim, recoveries in killer.recoveries.items()}
    assert sum(kills.values()) == KILLS
    assert all(kills.values())
    registered = killer.totals["changefeed_puller_region_registrations_total"]
    assert registered > TABLES * REGIONS * (1 + kills["driver"]) + nemesis.done["transfer"]
    if not EVIDENCE:
        assert len(nemesis.done) > len(WEIGHTS) // 2
        assert killer.totals["changefeed_puller_finished_locks_total"] > 0
    assert len(changefeed.records("epoch")) == 1 + kills["driver"]
    assert verdict["rows"] > 10_000
    if EVIDENCE:
        record(Path(EVIDENCE), killer.recoveries, verdict, seed)


def record(file: Path, recoveries: dict[str, list[float]], verdict: dict[str, Any], seed: int) -> None:
    """What the long run came to, in seconds from a kill to a checkpoint above the kill's own ts."""

    def summary(seconds: list[float]) -> dict[str, float]:
        ordered = sorted(seconds)
        p50, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
        return {"kills": len(ordered), "p50_s": round(p50, 2), "p99_s": round(p99, 2), "max_s": round(ordered[-1], 2)}

    found = {victim: summary(seconds) for victim, seconds in recoveries.items()}
    found["all"] = summary([seconds for each in recoveries.values() for seconds in each])
    counts = {name: verdict[name] for name in ("rows", "missing", "duplicate", "out_of_order", "conserved")}
    file.write_text(json.dumps({"schema": 1, "seed": seed, "recovery": found, "verify": counts}, indent=2) + "\n")
