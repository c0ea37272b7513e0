"""Seeds of faults on the real gRPC path: large transactions in a cluster that is upgraded, while its regions, streams
and locks are harmed. What the simulation draws in virtual time, with sockets and threads.

`CHANGEFEED_SEED=123` runs that seed alone. `CHANGEFEED_EVIDENCE=FILE` runs 500, and writes there what each has done;
stopped, it goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest
from changefeed.verify.storage.report import verify
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import TxnError
from changefeed_devcluster.tidb.large_transaction import LargeTransaction
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.workload.bank import CONSERVED, Bank
from integration_inprocess import World
from integration_nemesis import Nemesis
from integration_story import Story

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
STORES, REGIONS, HANDLES, ACCOUNTS = 3, 6, 600, 60
STEPS = {
    "bank": 6,
    "harm": 3,
    "begin": 2,
    "flush": 4,
    "heartbeat": 4,
    "upgrade": 1,
    "commit": 2,
    "rest": 3,
    "roll back": 1,
}
NUMBER = 120  # of steps
LONGEST_PAUSE_S = 0.05

pytestmark = pytest.mark.timeout(240)


def seeds() -> list[int]:
    """Those that are to run; of the evidence those that it does not have yet."""
    if one := os.environ.get("CHANGEFEED_SEED"):
        return [int(one)]
    if not EVIDENCE:
        return list(range(4))
    file = Path(EVIDENCE)
    done = {json.loads(line)["seed"] for line in file.read_text().splitlines()} if file.exists() else set()
    return [seed for seed in range(500) if seed not in done]


class Schedule:
    """Steps drawn from a seed. Of large transactions at most three are open, each with handles of its own."""

    def __init__(self, world: World, bank: Bank, draw: random.Random, say: Callable[[str], None]) -> None:
        """`say`: takes a line for each step."""
        self.world, self.bank, self.draw, self.say = world, bank, draw, say
        columns = [NewColumn("id", "bigint"), NewColumn("n", "int")]
        self.ledger = world.tidb.create_table("shop", "ledger", columns, regions=REGIONS, handles=HANDLES)
        self.handles = draw.sample(range(1, HANDLES + 1), HANDLES)
        self.open: list[LargeTransaction] = []
        self.decided: list[LargeTransaction] = []
        self.nemesis = Nemesis(world.cluster, [self.ledger, *bank.tables], ACCOUNTS, draw, say)
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        step = self.draw.choices(tuple(STEPS), tuple(STEPS.values()))[0]
        self.say(step)
        self.done[step] += self._do(step)

    def _do(self, step: str) -> bool:
        """Whether there was anything to do."""
        match step:
            case "bank":
                for _ in range(5):
                    with suppress(TxnError):
                        self.bank.step()
            case "harm":
                self.nemesis.step()
            case "begin" if len(self.open) < 3 and self.handles:
                self.open.append(self.world.tidb.begin_large())
                self._flush(self.open[-1])
            case "flush" if self.open:
                self._flush(self.draw.choice(self.open))
            case "heartbeat" if self.open:
                self.draw.choice(self.open).heartbeat()
            case "commit" if self.open:
                self.decided.append(self._taken())
                self.decided[-1].commit_primary()
            case "roll back" if self.open:
                self._taken().rollback()
            case "rest" if self.decided:
                large = self.draw.choice(self.decided)
                if not large.commit_secondaries(5):
                    self.decided.remove(large)
            case "upgrade" if old := self._old():
                self.world.cluster.upgrade(self.draw.choice(old))
            case _:
                return False
        return True

    def _taken(self) -> LargeTransaction:
        """One that is open no longer."""
        return self.open.pop(self.draw.randrange(len(self.open)))

    def _flush(self, large: LargeTransaction) -> None:
        """Rows of any region; a lock in the way of a read or a write ends the transaction, as TiDB does it."""
        taken, self.handles = self.handles[:15], self.handles[15:]
        try:
            for handle in taken:
                large.insert(self.ledger, {"id": handle, "n": len(self.handles)})
            large.flush()
        except TxnError:
            large.rollback()
            self.open.remove(large)

    def _old(self) -> list[int]:
        gate = self.world.cluster.watermarks.gate
        return [store for store in self.world.cluster.regions.store_ids if not gate.is_new(store)]

    def end(self) -> int:
        """All that lasts is over and every transaction ends; gives a ts after them."""
        self.world.cluster.heal()
        for large in self.open:
            large.commit()
        for large in self.decided:
            large.commit_secondaries(HANDLES)
        return self.world.tidb.now()


def note(line: dict[str, object]) -> None:
    if EVIDENCE:
        with Path(EVIDENCE).open("a") as out:
            out.write(json.dumps(line) + "\n")


@pytest.mark.parametrize("seed", seeds())
async def test_every_row_once_whatever_is_drawn(tmp_path: Path, seed: int) -> None:
    draw, story = random.Random(seed), Story(seed)
    proposed, is_gated = draw.randint(0, STORES), draw.random() < 0.7
    with DevCluster(stores=STORES, min_ts_interval=0.05, proposed_watermark=proposed, gated=is_gated) as cluster:
        world = World(cluster, tmp_path)
        bank = Bank(world.tidb, tables=2, regions=2, accounts=ACCOUNTS, seed=seed)
        bank.create()
        schedule = Schedule(world, bank, draw, story.say)
        world.start_ts = world.tidb.now()
        bank.load(Event())
        run = world.run(filter={"rules": ["bank.*", "shop.ledger"]})
        for _ in range(NUMBER):
            schedule.step()
            await asyncio.sleep(draw.uniform(0, LONGEST_PAUSE_S))  # the pace of the schedule
        end = schedule.end()
        await run.until(lambda: world.checkpoint() > end, "the checkpoint passes its end")
        await run.drained()
        verdict = await verify(world.lake.as_uri(), [cluster.pd_address], conserved=CONSERVED)
        assert verdict.ok, f"seed {seed}: {verdict.first_problem} ({verdict})"
        assert schedule.done["bank"] > 0
        assert schedule.done["harm"] > 0
    note({"seed": seed, "rows": verdict.rows, **schedule.done, "harms": dict(schedule.nemesis.done)})
