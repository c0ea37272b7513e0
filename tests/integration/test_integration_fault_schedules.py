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
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest
from changefeed.verify.report import verify
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import TxnError
from changefeed_devcluster.tidb.large_transaction import LargeTransaction
from changefeed_devcluster.tidb.schema import Column
from changefeed_devcluster.workload.bank import CONSERVED, Bank
from integration_inprocess import World
from integration_nemesis import WEIGHTS, Nemesis

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
ONE = os.environ.get("CHANGEFEED_SEED")
SEEDS = [int(ONE)] if ONE else range(500 if EVIDENCE else 4)
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


class Schedule:
    """Steps drawn from a seed. Of large transactions at most three are open, each with handles of its own."""

    def __init__(self, world: World, bank: Bank, draw: random.Random) -> None:
        self.world, self.bank, self.draw = world, bank, draw
        columns = [Column("id", "bigint"), Column("n", "int")]
        self.ledger = world.tidb.create_table("shop", "ledger", columns, regions=REGIONS, handles=HANDLES)
        self.handles = draw.sample(range(1, HANDLES + 1), HANDLES)
        self.open: list[LargeTransaction] = []
        self.decided: list[LargeTransaction] = []
        tables = [self.ledger, *bank.tables]
        self.nemesis = Nemesis(world.cluster, tables, ACCOUNTS, draw, lambda line: print(line), WEIGHTS)  # noqa: T201
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        step = self.draw.choices(tuple(STEPS), tuple(STEPS.values()))[0]
        print(step)  # noqa: T201 - what a failing seed shows
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
                self._flush(self.world.tidb.begin_large())
            case "upgrade" if old := self._old():
                self.world.cluster.upgrade(self.draw.choice(old))
            case "rest" if self.decided:
                large = self.draw.choice(self.decided)
                if not large.commit_secondaries(5):
                    self.decided.remove(large)
            case "flush" | "heartbeat" | "commit" | "roll back" if self.open:
                self._of_one(step, self.draw.choice(self.open))
            case _:
                return False
        return True

    def _of_one(self, step: str, large: LargeTransaction) -> None:
        if step == "flush":
            return self._flush(large)
        if step == "heartbeat":
            large.heartbeat()
            return None
        self.open.remove(large)
        if step == "roll back":
            large.rollback()
        else:
            large.commit_primary()
            self.decided.append(large)
        return None

    def _flush(self, large: LargeTransaction) -> None:
        """Rows of any region; a lock in the way ends the transaction, as TiDB does it."""
        taken, self.handles = self.handles[:15], self.handles[15:]
        for handle in taken:
            large.insert(self.ledger, {"id": handle, "n": len(self.handles)})
        try:
            large.flush()
        except TxnError:
            self.open = [other for other in self.open if other is not large]
        else:
            if large.primary and large not in self.open:
                self.open.append(large)

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


def done_before(seed: int) -> bool:
    if not EVIDENCE or not Path(EVIDENCE).exists():
        return False
    return any(json.loads(line)["seed"] == seed for line in Path(EVIDENCE).read_text().splitlines())


def note(line: dict[str, object]) -> None:
    if EVIDENCE:
        with Path(EVIDENCE).open("a") as out:
            out.write(json.dumps(line) + "\n")


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_row_once_whatever_is_drawn(tmp_path: Path, seed: int) -> None:
    if done_before(seed):
        pytest.skip("done before")
    draw = random.Random(seed)
    new, is_gated = draw.randint(0, STORES), draw.random() < 0.7
    with DevCluster(stores=STORES, min_ts_interval=0.05, new_stores=new, gated=is_gated) as cluster:
        world = World(cluster, tmp_path)
        bank = Bank(world.tidb, tables=2, regions=2, accounts=ACCOUNTS, seed=seed)
        bank.create()
        schedule = Schedule(world, bank, draw)
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
