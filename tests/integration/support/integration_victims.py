"""The processes of a changefeed that runs, for tests that kill and freeze them."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

import psutil
from conftest import Changefeed

_LOOKS = 100


class Source(Protocol):
    """What a changefeed reads."""

    def now(self) -> int:
        """Return a ts that what is committed now is not above."""

    def ports(self) -> set[int]:
        """Return those that pullers connect to."""


class Victims:
    """Those that run at the moment."""

    def __init__(self, upstream: Source, changefeed: Changefeed, downstream_port: int | None = None) -> None:
        """`downstream_port`: of a server that tasks write to, where these are no files."""
        self._changefeed = changefeed
        self._downstream_port = downstream_port
        self._upstream_ports = upstream.ports()

    def driver(self) -> psutil.Process:
        assert self._changefeed.process is not None
        return psutil.Process(self._changefeed.process.pid)

    def jvm(self) -> psutil.Process:
        return next(process for process in self.driver().children() if process.name() == "java")

    def family(self) -> list[psutil.Process]:
        """All but the driver: Spark's JVM, its daemon and the tasks' workers."""
        return list(self.driver().children(recursive=True))

    def pullers(self) -> set[psutil.Process]:
        """The tasks' workers that hold a connection to the upstream."""
        return {worker for worker in self._workers() if self._is_puller(worker)}

    def executing(self) -> psutil.Process | None:
        """A task's worker that is in the middle of writing a file; it is frozen, so it stays there."""
        writers = [worker for worker in self._workers() if not self._is_puller(worker)]
        for _ in range(_LOOKS):  # a small file takes a few milliseconds
            for worker in writers:
                if not self._writes(worker):
                    continue
                with suppress(psutil.NoSuchProcess):
                    worker.suspend()
                    if self._writes(worker):
                        return worker
                    worker.resume()
        return None

    def _workers(self) -> list[psutil.Process]:
        """Spark forks a task's workers from a daemon, whose name they have."""
        found = []
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                parent = process.parent()
                if _is_worker(process) and parent is not None and _is_worker(parent):
                    found.append(process)
        return found

    def _is_puller(self, worker: psutil.Process) -> bool:
        return bool(_ports(worker) & self._upstream_ports)

    def _writes(self, worker: psutil.Process) -> bool:
        """What it encodes is in its spool, or what it puts has no name yet (objectstore.local); or it is connected."""
        if self._downstream_port is not None:
            return self._downstream_port in _ports(worker)
        with suppress(psutil.NoSuchProcess):
            return any("/spool/" in file.path or file.path.endswith(".tmp") for file in worker.open_files())
        return False


def _is_worker(process: psutil.Process) -> bool:
    return str(process.name()) == "pyspark.worker"


def _ports(worker: psutil.Process) -> set[int]:
    """At the other ends of its connections."""
    with suppress(psutil.NoSuchProcess):
        return {connection.raddr.port for connection in worker.net_connections("tcp") if connection.raddr}
    return set()
