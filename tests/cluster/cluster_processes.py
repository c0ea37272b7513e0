"""The processes of a test cluster: started with a log each, watched for an early end, stopped in reverse order."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

READY_S = 300.0
_STOP_S = 60.0


class ProcessEnded(Exception):
    """A process that should run has ended; the message holds the end of its log."""


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = READY_S) -> Any:
    """The first truthy value of `condition`; TimeoutError when there is none before the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.05)
    return value


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1, all different."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


class Processes:
    """`folder` gets `<name>.log` of each. `enter`: a command prefix for all, which enters a network namespace."""

    def __init__(self, folder: Path, enter: Sequence[str] = ()) -> None:
        self._folder = folder
        self._enter = tuple(enter)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """It ends with this process even when that is killed: setpriv asks the kernel for it."""
        whole = ["setpriv", "--pdeathsig", "KILL", *self._enter, *map(str, command)]
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                whole,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self.running[name] = process
        return process

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def wait_until(self, condition: Callable[[], Any], what: str, deadline_s: float = READY_S) -> Any:
        """As the function, but fails at once with ProcessEnded when a process has ended."""

        def alive_and_so() -> Any:
            self.check()
            return condition()

        return wait_until(alive_and_so, what, deadline_s)

    def check(self) -> None:
        for name, process in self.running.items():
            if process.poll() is not None:
                tail = self.log(name).read_text(errors="replace")[-2000:]
                raise ProcessEnded(f"{name} ended with {process.returncode}: {tail}")

    def stop(self, name: str, deadline_s: float = _STOP_S) -> int:
        """SIGTERM, then SIGKILL to its whole session; the exit code. A test may have stopped (SIGSTOP) it."""
        process = self.running.pop(name)
        for sent in (signal.SIGTERM, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(deadline_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def stop_all(self) -> None:
        for name in reversed(list(self.running)):
            self.stop(name)
