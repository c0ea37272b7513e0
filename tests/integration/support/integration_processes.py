"""Processes for tests that kill and freeze them: forked from one that has everything loaded, so that one costs little.

A process runs one function of a test's module and says what it has to say in lines of JSON, through a socket of its
own. The one that they are forked from starts no thread and opens no channel: a fork would have half of it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

DEADLINE_S = float(os.environ.get("CRASH_DEADLINE", "240"))
_LOADED = (
    "integration_driven",
    # What these would load when they are first asked.
    "cryptography.hazmat.backends.openssl.backend",
    "dateutil.relativedelta",
    "grpc.experimental",
    "numpy.ma",
)
_FORK, _CPU = b"f", b"c"

#: How a process says something to the test that started it.
Say = Callable[..., None]


class Process:
    """One that was forked. `said` is what it has said so far; each is a dict with one member, its kind."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = b""
        self._has_ended = False
        self.said: list[dict[str, Any]] = []
        self.pid = int(self.hear("pid"))

    def hear(self, kind: str, deadline_s: float = DEADLINE_S) -> Any:
        """Waits until it says something of this kind. Fails when it crashes, ends or is late."""
        until = time.monotonic() + deadline_s
        while (line := self._line(until)) is not None:
            if kind in line:
                return line[kind]
        raise AssertionError(f"process ended without {kind!r}: {self.said[-1:]}")

    def end(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Waits for its end; the last thing that it said."""
        until = time.monotonic() + deadline_s
        while not self._has_ended and self._line(until) is not None:
            pass
        return self.said[-1]

    def reaches(self, point: str, deadline_s: float = DEADLINE_S) -> bool:
        """Whether it comes to the point at which it is to die or to stop; it has done so then, or has ended."""
        until = time.monotonic() + deadline_s
        while (line := self._line(until)) is not None:
            if line == {"reached": point}:
                if self._is_dead_or_stopped(until):
                    self._ended()
                return True
        return False

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; nothing when it has ended by itself."""
        if self._has_ended:
            return
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.end()
        self._is_dead_or_stopped(time.monotonic() + DEADLINE_S)

    def _ended(self) -> None:
        self._has_ended = True
        self._connection.close()

    def _is_dead_or_stopped(self, until: float) -> bool:
        """Waits until it is one of these; True: dead.

        It says that it will be before it is; and it holds its locks until the last of its threads is dead.
        """
        try:
            process = psutil.Process(self.pid)
            while (status := process.status()) != psutil.STATUS_STOPPED:
                if status == psutil.STATUS_ZOMBIE and process.num_threads() <= 1:
                    return True
                assert time.monotonic() < until, f"process {self.pid} goes on"
                time.sleep(0.001)
        except psutil.NoSuchProcess:  # a ZombieProcess is one of them
            return True
        return False

    def _line(self, until: float) -> dict[str, Any] | None:
        """The next thing that it says; None when it has ended."""
        while b"\n" not in self._unread:
            self._connection.settimeout(max(until - time.monotonic(), 0.001))
            try:
                piece = self._connection.recv(1 << 16)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(self.said[0]["pid"], signal.SIGKILL)
                self._ended()
                raise AssertionError(f"a process goes on; it has said {self.said}") from None
            except ConnectionResetError:
                piece = b""
            if not piece:
                self._ended()
                return None
            self._unread += piece
        text, _, self._unread = self._unread.partition(b"\n")
        line: dict[str, Any] = json.loads(text)
        self.said.append(line)
        if "crashed" in line:
            self._ended()
            raise AssertionError(line["crashed"])
        return line


class Nursery:
    """Where processes are forked; threads may share it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()

    def start(self, call: str, **arguments: Any) -> Process:
        """A process that runs `call`, "module:function", as `function(say, **arguments)`."""
        mine, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [_FORK], [theirs.fileno()])
        mine.sendall(json.dumps({"call": call, "arguments": arguments}).encode() + b"\n")
        return Process(mine)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all processes that have ended."""
        self._control.sendall(_CPU)
        return float(self._control.recv(64))

    def close(self) -> None:
        self._control.close()
        self._process.wait(DEADLINE_S)


@contextmanager
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    try:
        yield made
    finally:
        made.close()


def _serve(control: socket.socket) -> None:
    born: set[int] = set()
    while True:
        message, (*fds,), _, _ = socket.recv_fds(control, 1, 1)
        while born and (gone := os.waitpid(-1, os.WNOHANG)[0]):
            born.discard(gone)
        if not message:
            for pid in born:  # the test is over, or dead: who is frozen would be so for ever
                os.kill(pid, signal.SIGKILL)
            return
        if message == _CPU:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            control.sendall(b"%.3f" % (used.ru_utime + used.ru_stime))
            continue
        connection = socket.socket(fileno=fds[0])
        if (pid := os.fork()) == 0:
            control.close()
            _live(connection)
        born.add(pid)
        connection.close()


def _live(connection: socket.socket) -> None:
    signal.alarm(int(2 * DEADLINE_S))  # whatever becomes of the test, which waits for less

    def say(**what: Any) -> None:
        connection.sendall(json.dumps(what).encode() + b"\n")

    try:
        say(pid=os.getpid())
        request = json.loads(connection.makefile("rb").readline())
        module, _, function = request["call"].partition(":")
        getattr(importlib.import_module(module), function)(say, **request["arguments"])
    except BaseException:  # noqa: BLE001 - told to the test, which fails
        say(crashed=traceback.format_exc())
    os._exit(0)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))  # a call may be of a test's module
    for module in _LOADED:
        importlib.import_module(module)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # nothing is to be torn down
