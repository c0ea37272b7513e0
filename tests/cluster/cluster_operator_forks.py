"""A program that forks operators off: each is a process of its own, as `python -m changefeed_operator`, that need not
import all anew. It reads one order a line, JSON (`Order`), and answers with the process id.

An order may set the operator's wall clock ahead, and shorten the time after which it looks at each changefeed again
though nothing happened: what would take hours is then a matter of seconds. Or let time jump: what others wrote before a
jump is older by it, for the times that the operator reads and writes are told in its own time and in theirs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from changefeed_operator import api
from changefeed_operator.__main__ import main
from changefeed_operator.loop import queue
from cluster_forks import serve, settle

Jumps = Sequence[tuple[float, float]]


class Order(TypedDict):
    """`resync_s` 0: the operator's own."""

    arguments: list[str]
    environment: dict[str, str]
    log: str
    ahead_s: float
    resync_s: float
    jumps: list[tuple[float, float]]  # (true Unix seconds, by how much), in order


def _operator(order: Order) -> int:
    settle(order["environment"], Path(order["log"]))
    _set_clocks(order)
    return main(order["arguments"])


def _set_clocks(order: Order) -> None:
    true_time = time.time
    jumps = order["jumps"]
    time.time = lambda: jumped(true_time(), jumps) + order["ahead_s"]
    queue.RESYNC = order["resync_s"] or queue.RESYNC
    if jumps:
        text_of, time_of = api.time_text, api.parse_time
        api.time_text = lambda seconds: text_of(true(seconds, jumps))
        api.parse_time = lambda text: None if (seconds := time_of(text)) is None else jumped(seconds, jumps)


def jumped(seconds: float, jumps: Jumps) -> float:
    """The time after the jumps, of a true one."""
    return seconds + sum(by for at, by in jumps if at <= seconds)


def true(seconds: float, jumps: Jumps) -> float:
    """The inverse; what lies in a jump is when it was."""
    for at, by in jumps:
        if seconds < at:
            break
        seconds = max(seconds - by, at)
    return seconds


if __name__ == "__main__":
    serve(_operator)
