"""Notices that Spark's JVM answers no more, and kills it then.

py4j has no deadlines: whoever asks a frozen JVM waits for ever. Once it is dead, each of them gets an error instead.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

SILENT_S = 8.0
_ASK_EVERY_S = 1.0
_LOOK_EVERY_S = 0.5


class JvmWatch:
    """Two threads, from the JVM's first word until `close`: one asks and may hang, one looks at the answers."""

    def __init__(self, gateway: JavaGateway) -> None:
        logging.getLogger().addFilter(_is_not_py4js)
        self._gateway = gateway
        self._process: subprocess.Popen[bytes] = gateway.proc
        self._closed = threading.Event()
        self._killed = False
        self.silent_s = 0.0  # while this process ran: a pause of this process is not the JVM's silence
        for body in (self._ask, self._look):
            threading.Thread(target=body, name=f"jvm-watch{body.__name__}", daemon=True).start()

    def why_ended(self, within_s: float = 0.0) -> str | None:
        """A sentence, if the JVM has ended, or does so in the next seconds; None while it lives."""
        try:
            code = self._process.wait(within_s) if within_s else self._process.poll()
        except subprocess.TimeoutExpired:
            return None
        if code is None:
            return None
        if self._killed:
            return f"Spark's JVM has not answered for {SILENT_S:g} s and was killed."
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"Spark's JVM has ended {how}."

    def close(self) -> None:
        """Nobody waits for the JVM any more."""
        self._closed.set()

    def _ask(self) -> None:
        from py4j.protocol import Py4JError

        with suppress(Py4JError, OSError):  # it has ended, or says nothing more: the other thread sees either
            runtime = self._gateway.jvm.java.lang.Runtime.getRuntime()
            while not self._closed.wait(_ASK_EVERY_S):
                runtime.availableProcessors()
                self.silent_s = 0.0

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S) and self._process.poll() is None:
            self.silent_s += _LOOK_EVERY_S
            if self.silent_s >= SILENT_S:
                self._killed = True
                self._process.kill()


def _is_not_py4js(record: logging.LogRecord) -> bool:
    """It logs, with a traceback, what it also raises when the JVM has ended; that is told once, by us."""
    return record.module not in ("java_gateway", "clientserver")
