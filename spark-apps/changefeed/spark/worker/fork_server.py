"""The process on the driver's machine that Spark's Python workers are forked from, with everything loaded.

Spark begins a Python process for its workers when a run starts (worker_client), which would load polars, pyarrow,
PySpark and the product only then: two seconds of CPU between a crash and the first row after it. This one loads them
while the JVM starts. It must never run a query, open a connection or start a thread: a fork would have half of it.
(What loading alone starts, the memory allocators' housekeeping, knows of forks.)

`python -m changefeed.spark.worker.fork_server FD`: FD is its listening socket. It ends when its standard input does,
and with it all that it has forked: what a killed driver leaves behind would be in its successor's way for a second.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

from changefeed.spark.worker.worker_client import ADDRESS, LENGTH_BYTES, decode
from changefeed.spark.worker.worker_daemon import TASK, be, load

_LOADED = (TASK, "pyspark.daemon", "pyspark.worker")
_STANDARD_STREAMS = 3
END_S = 5.0


class ForkServer:
    """The server of one run, as its driver sees it; it ends with the driver, however that ends."""

    def __init__(self, folder: Path, environment: Mapping[str, str], output: IO[bytes] | None) -> None:
        """`environment`: what workers have beside the driver's. `output`: where it and they print; None: as we do."""
        address = self.environment(folder)[ADDRESS]
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            # A session of its own: Ctrl-C is for the driver alone.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "changefeed.spark.worker.fork_server", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[listener.fileno()],
                env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    @staticmethod
    def environment(folder: Path) -> dict[str, str]:
        """Return what the JVM gets, which hands it to the processes that it starts."""
        return {ADDRESS: str(folder / "fork-server")}

    def close(self) -> None:
        """Close it, once the JVM has ended."""
        try:
            self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:  # it is frozen
            self._process.kill()
            self._process.communicate()


def serve(listener: socket.socket) -> None:
    """Serve until standard input ends. Each request is one process, which has the asker's streams and environment."""
    forked: set[int] = set()
    while True:
        ready, _, _ = select.select([0, listener.fileno()], [], [])
        _forget_ended(forked)
        if 0 in ready:
            return _kill(forked)
        asker, _ = listener.accept()
        length, streams, _, _ = socket.recv_fds(asker, LENGTH_BYTES, _STANDARD_STREAMS)
        if len(streams) == _STANDARD_STREAMS:
            process = os.fork()
            if process == 0:
                listener.close()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                _live(asker, int.from_bytes(length))
            forked.add(process)
        for stream in streams:
            os.close(stream)
        asker.close()


def _forget_ended(forked: set[int]) -> None:
    """Until this is called, nobody else can get their numbers."""
    with suppress(ChildProcessError):
        while process := os.waitpid(-1, os.WNOHANG)[0]:
            forked.discard(process)


def _kill(forked: set[int]) -> None:
    for process in forked:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        with suppress(ProcessLookupError):  # no daemon, whose workers are its group
            os.killpg(process, signal.SIGKILL)


def _live(asker: socket.socket, length: int) -> NoReturn:
    """In the fork, whose end closes `asker`, as soon as its own workers have ended too."""
    code = 1
    try:
        _become(asker, length)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - as Python itself does when a process ends by an error
        traceback.print_exc()
    finally:
        os._exit(code)


def _become(asker: socket.socket, length: int) -> None:
    with asker.makefile("rb", buffering=0) as file:
        request = b""
        while len(request) < length and (piece := file.read(length - len(request))):
            request += piece
    program, environment = decode(request)
    os.environ.clear()
    os.environ.update(environment)
    asker.sendall(os.getpid().to_bytes(LENGTH_BYTES))
    be(program)


if __name__ == "__main__":
    load(_LOADED)
    serve(socket.socket(fileno=int(sys.argv[1])))
