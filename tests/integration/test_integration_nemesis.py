"""Everything at once: a bank writes, regions and streams are harmed, processes are killed and frozen, a reader looks.

`CHANGEFEED_SEED=123` draws the same harms and kills again. `CHANGEFEED_EVIDENCE=FILE` kills and freezes each process
100 times, at random moments, and writes there after every event how long it took until the checkpoint rose again;
regions and streams are left alone then, since a region that is made to stand still for seconds holds every checkpoint.
Stopped, it goes on where it was; `CHANGEFEED_EVIDENCE_S=2400` stops it after so many seconds. Its parts may run side by
side (`pytest -n 2`): most of the time is spent waiting for somebody to notice.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from changefeed_devcluster.workload.bank import Bank
from conftest import Changefeed, Upstream
from integration_kill_record import KillRecord
from integration_killer import Killer
from integration_nemesis import WEIGHTS, Nemesis
from integration_observer import watching
from integration_story import Story

TABLES = 6
REGIONS = 3  # a table
ACCOUNTS = 300  # a table
ROWS_A_SECOND = 500.0
PULLERS = 3
EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
#: The JVM's ends and a frozen worker's have tests of their own, which are as good when there is no evidence to collect.
SHORT = ("driver killed", "driver frozen", "puller killed", "worker killed")
#: Of a part of the evidence, which has its own upstream and its own verdict: how often each.
LONG = {
    "driver killed": 10,
    "driver frozen": 10,
    "jvm killed": 10,
    "jvm frozen": 10,
    "puller killed": 10,
    "puller frozen": 10,
    "worker killed": 4,
    "worker frozen": 2,
    "driver woken": 1,
}
PARTS = 10 if EVIDENCE else 1
SECONDS = float(os.environ.get("CHANGEFEED_EVIDENCE_S", "inf"))
LONGEST_PAUSE_S = 1.0  # before the next event
OBSERVED_EVERY_S = 1.0 if EVIDENCE else 0.2  # all files of a long run are many
BEGAN = time.monotonic()

pytestmark = pytest.mark.timeout(3600 if EVIDENCE else 600)


def events_of(record: KillRecord, rng: random.Random) -> list[str]:
    """Those of a part that no earlier run has done; each stretch has every kind, so that it can be stopped anywhere."""
    if not EVIDENCE:
        return rng.sample(SHORT, len(SHORT))
    left = {event: times - record.count(event) for event, times in LONG.items()}
    placed = [((n + rng.random()) / times, event) for event, times in left.items() for n in range(times)]
    return [event for _, event in sorted(placed)]


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


@pytest.mark.parametrize("part", range(PARTS))
def test_rule_3_4_16_and_21_every_row_once_whatever_is_harmed_and_killed(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], part: int
) -> None:
    record = KillRecord(Path(EVIDENCE) if EVIDENCE else None, part)
    story = Story()
    rng = random.Random(story.seed)
    events = events_of(record, rng)
    if not events or time.monotonic() - BEGAN > SECONDS:
        pytest.skip("done before, or no time is left")
    bank = Bank(upstream.tidb, TABLES, REGIONS, ACCOUNTS, seed=story.seed)
    bank.create()
    changefeed = new_changefeed(["bank.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    changefeed.spec["spark"] = {"pullers": {"count": PULLERS}, "executor": {"instances": 1, "cores": PULLERS + 2}}
    changefeed.spec["sink"]["storage"]["flushInterval"] = "1s"
    bank.load(Event())
    nemesis = Nemesis(upstream.cluster, bank.tables, ACCOUNTS, random.Random(rng.random()), story.say)
    killer = Killer(upstream, changefeed, PULLERS, story.say)
    done: Counter[str] = Counter()
    with watching(changefeed.lake.as_uri(), every_s=OBSERVED_EVERY_S) as observer:
        with under_load(bank, None if EVIDENCE else nemesis):
            killer.start()
            killer.wait_until_passed()
            for event in events:
                if time.monotonic() - BEGAN > SECONDS:
                    break
                time.sleep(rng.uniform(0, LONGEST_PAUSE_S))  # a random moment is what is wanted
                story.say(event)
                record.recovered(event, killer.harm(event))
                done[event] += 1
        story.say("the last transaction")
        killer.wait_until_passed()
        killer.take_totals()
        code, _, err = changefeed.drain()
    assert code == 0, err
    story.say(f"{dict(nemesis.done)} {dict(killer.totals)} {observer.listings} listings")
    code, verdict = changefeed.verify("--conserved", "balance")
    story.say(f"{verdict}")
    assert code == 0, verdict
    assert (verdict["missing"], verdict["duplicate"], verdict["out_of_order"]) == (0, 0, 0)
    assert verdict["conserved"] == "0"
    # Something has happened: every kind of harm and of kill, what they call for, and rows all the while.
    assert sum(done.values()) > 0
    registered = killer.totals["changefeed_puller_region_registrations_total"]
    assert registered > TABLES * REGIONS * killer.starts + nemesis.done["transfer"]
    if not EVIDENCE:
        assert done.keys() == set(SHORT)
        assert len(nemesis.done) > len(WEIGHTS) // 2
        assert killer.totals["changefeed_puller_finished_locks_total"] > 0
        assert verdict["rows"] > 10_000
    assert len(changefeed.records("epoch")) == killer.starts
    record.verified(verdict)
