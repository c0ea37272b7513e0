"""What is wrong with the delivery of change data at the moment: written by harm, read where it is delivered.

Every trouble is something that a real store or network does. None changes what is true: the rows, their order inside a
region's raft log, and that no row comes at or below a resolved-ts once told.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import TypeVar

T = TypeVar("T")


class InjectedTrouble(Enum):
    """The kinds; `about` is a store id, a region id, or nothing."""

    STALL = 1  # a store: sends nothing, without an error
    STALL_REGION = 2  # a region: its resolved-ts is not told any more
    DELAY = 3  # a store: `amount` seconds between a change and its delivery
    REPEAT = 4  # rows come live and from a scan, resolved-ts come twice and go back
    REORDER = 5  # what the protocol does not order comes in any order
    SLOW_SCAN = 6  # a store: `amount` bytes a second for each scan; what is live meanwhile overtakes it
    CONGESTION = 7  # a store: another client has used up the quota of what waits to be sent
    FROZEN_PD = 8  # PD answers nothing, without an error


class InjectedTroubles:
    """Thread-safe. Each lasts for some seconds, or until `heal`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: dict[tuple[InjectedTrouble, int | None], tuple[float, float]] = {}

    def begin(
        self, kind: InjectedTrouble, about: int | None = None, seconds: float | None = None, amount: float = 1.0
    ) -> None:
        """`about` None: everything of its kind. `seconds` None: until `heal`."""
        ends = float("inf") if seconds is None else self._clock() + seconds
        self._ends[kind, about] = ends, amount

    def heal(self) -> None:
        self._ends = {}

    def amount(self, kind: InjectedTrouble, about: int | None = None) -> float:
        """Say how much of a trouble there is now, 0 when there is none."""
        if not self._ends:
            return 0.0
        now = self._clock()
        known = (self._ends.get((kind, about)), self._ends.get((kind, None)))
        return max((amount for ends, amount in filter(None, known) if now < ends), default=0.0)


def interleaved(items: Iterable[tuple[Hashable | None, T]], chosen: random.Random) -> list[T]:
    """The items in another order: those of one lane keep theirs, and nothing crosses an item without lane (None)."""
    done: list[T] = []
    lanes: dict[Hashable, list[T]] = {}
    for lane, item in items:
        if lane is not None:
            lanes.setdefault(lane, []).append(item)
            continue
        done += _mixed(list(lanes.values()), chosen)
        done.append(item)
        lanes = {}
    return done + _mixed(list(lanes.values()), chosen)


def _mixed(lanes: list[list[T]], chosen: random.Random) -> list[T]:
    turns = [number for number, lane in enumerate(lanes) for _ in lane]
    chosen.shuffle(turns)
    waiting = [iter(lane) for lane in lanes]
    return [next(waiting[number]) for number in turns]
