"""A bank in Delta tables, while the processes of its changefeed are killed: each change is there once.

`CHANGEFEED_EVIDENCE=FILE`: 50 kills instead of 3, and what was counted goes there; `CHANGEFEED_SEED=123` draws the same
again.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest
from changefeed_devcluster.workload.bank import Bank
from conftest import Changefeed, Upstream
from integration_delta import LEFT, by_delta_rs, by_polars, sink
from integration_killer import Killer
from integration_story import Story

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
PULLERS = 2
KILLS = ("driver killed", "worker killed", "puller killed")
EVENTS = 50 if EVIDENCE else 3

pytestmark = pytest.mark.timeout(3600 if EVIDENCE else 900)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rule_25_each_change_is_there_once_whoever_is_killed(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], mode: str
) -> None:
    story = Story()
    rng = random.Random(story.seed)
    bank = Bank(upstream.tidb, 3, 2, 40, seed=story.seed)
    bank.create()
    changefeed = new_changefeed(["bank.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    changefeed.spec["spark"] = {"pullers": {"count": PULLERS}, "executor": {"instances": 1, "cores": PULLERS + 2}}
    changefeed.spec["sink"] = sink(changefeed.folder, mode)
    bank.load(Event())
    killer = Killer(upstream, changefeed, PULLERS, story.say)
    killer.start()
    killer.wait_until_passed()
    stop = Event()
    writer = Thread(target=bank.run, args=(stop, 400.0))
    writer.start()
    seconds: dict[str, list[float]] = {}
    try:
        for number in range(EVENTS):
            time.sleep(rng.uniform(0, 1))  # a random moment is what is wanted
            event = KILLS[number % len(KILLS)]
            story.say(event)
            seconds.setdefault(event, []).append(round(killer.harm(event), 2))
    finally:
        stop.set()
        writer.join()
    killer.wait_until_passed()
    code, _, err = changefeed.drain()
    assert code == 0, err
    rows = changes = total = 0
    now = upstream.tidb.now()
    for table in bank.tables:
        folder = table.name.replace(".", "/")
        log = by_delta_rs(changefeed.folder, folder)
        if mode == "append":
            met = Counter((row["id"], row["_commit_ts"], row["_op"]) for row in log)
            assert not [change for change, count in met.items() if count > 1]
            changes += len(log)
        names = [column.name for column in table.info.columns]
        there = {row["id"]: {name: row[name] for name in names} for row in upstream.tidb.snapshot(table, now).values()}
        assert LEFT[mode](log, "id") == there, table.name
        assert LEFT[mode](by_polars(changefeed.folder, folder), "id") == there, table.name
        rows += len(there)
        total += sum(row["balance"] for row in there.values())
    assert total == 0
    code, verdict = changefeed.verify()
    assert (code, verdict["rows"]) == (0, rows), verdict
    story.say(f"{rows} rows, {changes} changes")
    if EVIDENCE:
        said = {"seed": story.seed, "mode": mode, "recovery_s": seconds, "rows": rows, "changes": changes}
        with Path(EVIDENCE).open("a") as file:
            file.write(json.dumps(said) + "\n")
