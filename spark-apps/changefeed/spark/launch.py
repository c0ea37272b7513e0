"""One run's Spark, from the start of its JVM to its end.

A JVM needs seconds until it takes a job, and so does this process until it has loaded and asked what it needs: where
nobody minds a JVM that comes to nothing they go side by side. So this must import nothing that takes long.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from changefeed.errors import Unavailable
from changefeed.spark.jvm.jvm import Jvm
from changefeed.spark.jvm.jvm_watch import JvmWatch
from changefeed.spark.scratch import Scratch
from changefeed.spark.settings import Deployment, worker_environment
from changefeed.spark.worker.fork_server import ForkServer

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf, SparkContext


class Launch:
    """Every method blocks but `begin`; one thread at a time."""

    def __init__(self, where: Deployment) -> None:
        self._where = where
        self._scratch: Scratch | None = None
        self._fork_server: ForkServer | None = None
        self._thread: threading.Thread | None = None
        self._has_jvm = threading.Event()  # or never will
        self._gateway: JavaGateway | None = None
        self._watch: JvmWatch | None = None
        self._context: SparkContext | None = None
        self._asked = False  # whether somebody has asked for it
        self._error: BaseException | None = None

    @property
    def shows_output(self) -> bool:
        return self._where.shows_output

    @property
    def scratch(self) -> Scratch:
        """Return this run's; there is one from `begin` to `end`."""
        if self._scratch is None:
            raise RuntimeError("begin comes first")
        return self._scratch

    @property
    def silent_s(self) -> float:
        """Say for how long the JVM has not answered. Any thread, at once."""
        return self._watch.silent_s if self._watch is not None else 0.0

    def why_ended(self, within_s: float = 0.0) -> str | None:
        """A sentence, if the JVM has ended, or does so in the next seconds. Any thread."""
        return self._watch.why_ended(within_s) if self._watch is not None else None

    def kill(self) -> None:
        """End the JVM at once; who waits for it gets an error. Any thread."""
        if self._gateway is not None:
            self._gateway.proc.kill()

    def begin(self) -> None:
        """Start Spark in a thread, which does not keep the process from ending; `context` tells how it went."""
        if self._thread is not None:
            return
        self._scratch = Scratch()
        os.environ.update(self._where.environment(self._scratch.folder))
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._thread.start()

    def context(self) -> SparkContext:
        """Raises Unavailable when Spark does not start."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        self.begin()
        assert self._thread is not None
        self._thread.join()
        if isinstance(self._error, PySparkException | Py4JError | OSError):
            why = "\n".join(str(self._error).splitlines()[:2])  # below it are the frames of Spark's own code
            said = last_lines(self.scratch.log.read_text(errors="replace"))
            raise Unavailable(
                f"Spark did not start: {why}\n{said}".rstrip(),
                "Spark requires Java 17: install it, or point JAVA_HOME at it.",
            ) from self._error
        if self._context is None:
            raise self._error or RuntimeError("Spark has no context")
        self._asked = True
        return self._context

    def end(self, keep_log: bool) -> None:
        """Stop what was started, also when nobody has asked for the context."""
        if self._thread is None:
            return
        if self._asked and self._context is not None:
            self._stop_context(self._context)
        elif self._error is None:
            self._has_jvm.wait()
            logging.disable()  # what talks to the JVM at this moment logs that it is gone
            if self._gateway is not None:
                self._gateway.proc.kill()
                self._gateway.proc.communicate()
            self._thread.join()
            logging.disable(logging.NOTSET)
        if self._watch is not None:
            self._watch.close()
        if self._fork_server is not None:
            self._fork_server.close()
        self.scratch.remove(keep_log)
        self._scratch = self._thread = None

    def _stop_context(self, context: SparkContext) -> None:
        from py4j.protocol import Py4JError

        if self.why_ended() is None:
            with suppress(Py4JError, OSError), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # that the JVM has ended meanwhile
                context.stop()

    def _start(self) -> None:
        try:
            self._context = self._started()
        except BaseException as error:  # noqa: BLE001 - it is for `context` to raise
            self._error = error
        finally:
            self._has_jvm.set()

    def _started(self) -> SparkContext:
        settings = self._where.settings(self.scratch.folder)
        # What the JVM and its workers print goes to a file, or where ours goes.
        with self.scratch.log.open("wb") as file:
            output = None if self._where.shows_output else file
            self._gateway = self._start_jvm(settings, output)
        self._watch = JvmWatch(self._gateway)
        self._has_jvm.set()
        from pyspark import SparkContext

        context = SparkContext(conf=_conf(settings), gateway=self._gateway)
        # Nothing here counts in accumulators; their thread would print a traceback when the JVM ends before it.
        context._accumulatorServer.handle_error = lambda *_: None
        return context

    def _start_jvm(self, settings: dict[str, str], output: IO[bytes] | None) -> JavaGateway:
        if not self._where.runs_all_here:
            return _by_script(settings, output)
        os.environ.update(ForkServer.environment(self.scratch.folder))
        jvm = Jvm.started(self.scratch.folder, output)
        gateway = jvm.connect() if jvm is not None else _by_script(settings, output)
        # Only now: there are two who need the processor more, the JVM and what this process loads meanwhile.
        self._fork_server = ForkServer(self.scratch.folder, worker_environment(settings), output)
        return gateway


def _by_script(settings: dict[str, str], output: IO[bytes] | None) -> JavaGateway:
    """A session of its own: a signal to our process group (Ctrl-C, a service manager's stop) must not end the JVM
    before the changefeed has drained. It ends when this process does: its standard input closes then.
    """
    from pyspark.java_gateway import launch_gateway

    return launch_gateway(_conf(settings), {"start_new_session": True, "stdout": output, "stderr": output})


def _conf(settings: dict[str, str]) -> SparkConf:
    from pyspark import SparkConf

    return SparkConf().setAll(list(settings.items()))


def last_lines(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
