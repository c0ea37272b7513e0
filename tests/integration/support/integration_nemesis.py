"""What disturbs a development cluster while a changefeed reads it: one harm after another, drawn from a seed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from changefeed_devcluster import keys
from changefeed_devcluster.control import do_harm
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NamedTable

WEIGHTS = {
    "split": 4,
    "merge": 4,
    "transfer": 5,
    "cut": 3,
    "stall": 2,
    "stall-region": 2,
    "delay": 2,
    "slow-scans": 3,
    "congest": 1,
    "repeat": 2,
    "reorder": 2,
    "lock": 2,
    "abandon": 2,
}
_LONGEST_S = 2.0  # of what lasts
_LONGEST_PAUSE_S = 1.0


class Nemesis:
    """Harms the regions and rows of some tables. What it draws depends on its random numbers alone.

    Which region that is depends on what has happened to the regions, so on its own steps.
    """

    def __init__(
        self,
        cluster: DevCluster,
        tables: Sequence[NamedTable],
        rows: int,
        rng: random.Random,
        say: Callable[[str], None],
        weights: Mapping[str, int] = WEIGHTS,
    ) -> None:
        """`rows`: the tables have the handles 1 .. rows. `say`: takes a line for each step."""
        self._cluster = cluster
        self._tables = tables
        self._rows = rows
        self._rng = rng
        self._weights = weights
        self._say = say
        self.done: Counter[str] = Counter()  # harms by name, those that the cluster refused left out

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self._rng.uniform(0.1, _LONGEST_PAUSE_S)):
            self.step()

    def step(self) -> None:
        action = self._rng.choices(tuple(self._weights), tuple(self._weights.values()))[0]
        arguments = self._arguments(action)
        try:
            do_harm(self._cluster, action, arguments)
        except ValueError as error:  # no neighbour to merge with, or a row that is always busy
            self._say(f"{action} {arguments}: refused, {error}")
            return
        self.done[action] += 1
        self._say(f"{action} {arguments}")

    def _arguments(self, action: str) -> dict[str, Any]:
        rng, regions = self._rng, self._cluster.regions
        key = keys.record_key(rng.choice(self._tables).id, rng.randint(2, self._rows))
        region = regions.locate(key)
        store = rng.choice(sorted(self._cluster.store_addresses))
        yes = rng.random() < 0.5
        seconds = round(rng.uniform(0.3, _LONGEST_S), 2)
        match action:
            case "split":
                return {"key": key.hex()}
            case "merge":
                return {"left": region.id, "right": regions.locate(region.end).id}
            case "transfer":
                return {"region": region.id, "store": store}
            case "cut":
                return {"store": store, "messages": rng.randint(1, 20) if yes else 0}
            case "stall":
                return {"store": store if yes else None, "seconds": seconds}
            case "stall-region":
                return {"region": region.id, "seconds": seconds}
            case "delay":
                return {"store": store, "seconds": seconds, "by": round(rng.uniform(0.1, 1.0), 2)}
            case "slow-scans":
                return {"store": store, "seconds": seconds, "bytes_per_second": rng.choice((100, 1_000, 10_000))}
            case "congest":
                return {"store": store, "seconds": seconds}
            case "lock":
                return {"key": key.hex(), "seconds": seconds}
            case "abandon":
                return (
                    {"key": key.hex(), "committed": True} if yes else {"key": key.hex(), "ttl_ms": int(seconds * 1000)}
                )
            case _:
                return {"seconds": seconds}
