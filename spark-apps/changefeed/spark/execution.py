"""Starts and stops the Spark session, the puller job and the streaming query of one run."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from changefeed.errors import Unavailable
from changefeed.objectstore import Place
from changefeed.puller.task import PullerJob
from changefeed.spark import sink, source
from changefeed.spark.class_archive import java_options
from changefeed.wire.owner import OwnerAddress

_PULLER_GROUP = "changefeed-pullers"
_TRIGGER = "50 milliseconds"


class SparkExecution:
    """Implements owner.driver.Execution. Every method blocks: the driver calls them in threads."""

    def __init__(self, master: str, slots: int) -> None:
        self._master = master
        self._slots = slots
        self._session: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._puller_thread: threading.Thread | None = None
        self._puller_error: BaseException | None = None
        self._scratch = Path()  # a folder of this run, once there is a session
        self._stopping = False
        self._failed = False

    def start_session(self) -> None:
        """Start the JVM; takes some seconds, so it runs beside the owner's other preparations.

        Raises Unavailable when Spark does not start.
        """
        self._scratch = Path(tempfile.mkdtemp(prefix="changefeed-spark-"))
        # Workers otherwise take the first python3 of the PATH, which lacks the libraries (facts, Spark 5.7).
        os.environ["PYSPARK_PYTHON"] = str(_worker_python(self._scratch))
        os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"]
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings = {
            "spark.master": self._master,
            "spark.app.name": "changefeed",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
            "spark.sql.streaming.pollingDelay": "20ms",
            "spark.sql.shuffle.partitions": "1",
            "spark.local.dir": str(self._scratch / "local"),
            "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
            "spark.log.level": "FATAL",
            # As many tasks run as there are cores: a thread pool in each would only get in the others' way.
            "spark.executorEnv.POLARS_MAX_THREADS": "1",
            "spark.executorEnv.OMP_NUM_THREADS": "1",
            # Memory once had is kept: buffers of some MiB come and go with each chunk, and a fresh page costs as much
            # as the work on it (measured: half the CPU of a task).
            "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
            "spark.executorEnv.MALLOC_ARENA_MAX": "1",
            "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(1 << 30),
            "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(1 << 30),
            "spark.executorEnv.MALLOC_TOP_PAD_": str(64 << 20),
            "spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1",  # polars'
            "spark.driver.extraJavaOptions": java_options(),
        }
        conf = SparkConf().setAll(list(settings.items()))
        # A session of its own: a signal to our process group (Ctrl-C, a service manager's stop) must not end the JVM
        # before the changefeed has drained. It ends when this process does: its standard input closes then.
        # What the JVM and its workers print goes to a file: a person reads our messages, which name it when they must.
        try:
            with self._output.open("wb") as output:
                gateway = launch_gateway(conf, {"start_new_session": True, "stdout": output, "stderr": output})
            self._session = SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (PySparkException, Py4JError) as error:
            self._failed = True
            said = _last_lines(self._output.read_text(errors="replace"))
            raise Unavailable(f"Spark did not start: {error}\n{said}", "Java 17 is needed.") from error
        # Nothing here counts in accumulators; their thread would print a traceback when the JVM ends before it.
        self._session.sparkContext._accumulatorServer.handle_error = lambda *_: None

    def run(self, owner: OwnerAddress, sink_place: Place, pullers: PullerJob) -> None:
        """Start the puller job and the query that executes the owner's plans."""
        session = self._require_session()
        self._puller_thread = threading.Thread(
            target=self._run_pullers, args=(session, owner, pullers), name="puller-job", daemon=True
        )
        self._puller_thread.start()
        partitions = max(1, self._slots - pullers.count)
        session.dataSource.register(source.source_for(owner, pullers.state, partitions))
        session.dataSource.register(sink.sink_for(owner, sink_place))
        self._query = (
            session.readStream.format(source.NAME)
            .load()
            .writeStream.format(sink.NAME)
            .option("checkpointLocation", str(self._scratch / "checkpoint"))
            .trigger(processingTime=_TRIGGER)
            .start()
        )

    def failure(self) -> str | None:
        """Why the pullers or the query have ended by themselves; None while they run."""
        why = None if self._stopping else self._why_ended()
        if why is None:
            return None
        self._failed = True
        return f"{why}\nSpark's own output: {self._output}"

    def stop(self) -> None:
        """Stop the query, then the pullers, then the session; the owner service must have closed its streams."""
        self._stopping = True
        if self._session is None:
            return
        if self._query is not None:
            self._query.stop()
        if self._puller_thread is not None:
            # The pullers return once their streams end; those which do not are cancelled.
            self._puller_thread.join(timeout=5)
            if self._puller_thread.is_alive():
                self._session.sparkContext.cancelJobGroup(_PULLER_GROUP)
                self._puller_thread.join(timeout=10)
        self._session.stop()
        if not self._failed:
            shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def _output(self) -> Path:
        return self._scratch / "spark.log"

    def _why_ended(self) -> str | None:
        if self._puller_error is not None:
            return f"The puller job ended: {_last_lines(str(self._puller_error))}"
        if self._puller_thread is not None and not self._puller_thread.is_alive():
            return "The puller job ended by itself."
        if self._query is not None and not self._query.isActive:
            error = self._query.exception()
            return f"The streaming query ended: {_last_lines(str(error)) if error else 'without an error'}"
        return None

    def _run_pullers(self, session: SparkSession, owner: OwnerAddress, pullers: PullerJob) -> None:
        def task(index: int, rows: Any) -> Any:
            from changefeed.spark.pull_task import pull

            pull(owner, index, pullers)
            return iter(())

        context = session.sparkContext
        context.setJobGroup(_PULLER_GROUP, "pull row changes", interruptOnCancel=True)
        try:
            context.parallelize(range(pullers.count), pullers.count).mapPartitionsWithIndex(task).count()
        except BaseException as error:  # noqa: BLE001 - a thread's failure must reach the driver, whatever it is
            self._puller_error = error

    def _require_session(self) -> SparkSession:
        if self._session is None:
            raise RuntimeError("start_session comes first")
        return self._session


def _worker_python(folder: Path) -> Path:
    """This Python, for workers. Spark puts a zip of its modules first on their path, which each process compiles anew
    (1 CPU-s of the ten that a run starts); the same modules stand compiled where this process has them from.
    """
    script = folder / "python"
    paths = shlex.quote(os.environ.get("PYTHONPATH", ""))
    script.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o700)
    return script


def _last_lines(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
