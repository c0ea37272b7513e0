"""Processes that are forked off a program which has imported all that they need: a start costs milliseconds.

`Forks` is a test's side. A program of the other side calls `serve` with the life of its processes, each of which calls
`settle` first.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

_PR_SET_PDEATHSIG = 1


class Forks:
    """`with Forks(program, log) as forks`: `program`, a file of this folder, runs; `log`: what it says itself."""

    def __init__(self, program: str, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._program = Path(__file__).with_name(program)
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, str(self._program)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, order: Mapping[str, Any]) -> int:
        """`order`: as the program has it. Gives the process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(f"{json.dumps(order)}\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


def serve(live: Callable[[Any], int]) -> None:
    """A process for each order (a line of JSON) until standard input ends; they end with it.

    `live` takes the order and gives the exit code.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: they shall leave no zombies
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            os._exit(live(json.loads(line)))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def settle(environment: Mapping[str, str], output: Path) -> None:
    """Make a forked process one of its own: it dies with its parent, and its words go to `output`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull) as nothing, output.open("a") as said:
        os.dup2(nothing.fileno(), 0)
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.environ.update(environment)
