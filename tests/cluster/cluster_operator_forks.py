"""A program that forks operators off: each is a process of its own, as `python -m changefeed_operator`, that need not
import all anew. It reads one order a line, JSON (`Order`), and answers with the process id.

An order may set the operator's wall clock ahead, and shorten the time after which it looks at each changefeed again
though nothing happened: what would take hours is then a matter of seconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import TypedDict

from changefeed_operator import queue
from changefeed_operator.__main__ import main

_PR_SET_PDEATHSIG = 1


class Order(TypedDict):
    """`resync_s` 0: the operator's own."""

    arguments: list[str]
    environment: dict[str, str]
    log: str
    ahead_s: float
    resync_s: float


def serve() -> None:
    """Until standard input ends; the operators end with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: they shall leave no zombies
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            os._exit(_operator(json.loads(line)))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _operator(order: Order) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull) as nothing, open(order["log"], "a") as log:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(order["environment"])
    _set_clocks(order)
    return main(order["arguments"])


def _set_clocks(order: Order) -> None:
    true_time = time.time
    time.time = lambda: true_time() + order["ahead_s"]
    queue.RESYNC = order["resync_s"] or queue.RESYNC


if __name__ == "__main__":
    serve()
