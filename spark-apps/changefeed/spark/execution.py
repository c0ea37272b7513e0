"""Starts and stops the puller job and the streaming query of one run, in the Spark that its launch has started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from changefeed.errors import Unavailable
from changefeed.objectstore import Place
from changefeed.owner.serving.vigilance import Tasks
from changefeed.puller.task import PullerJob
from changefeed.spark import sink, source
from changefeed.spark.launch import Launch, last_lines
from changefeed.wire.owner import OwnerAddress

_PULLER_GROUP = "changefeed-pullers"
_TRIGGER = "50 milliseconds"
_GOOD_WHILE_S = 600.0
_ALL = 1_000_000  # tasks of a stage
_STOP_S = 30.0
_DIES_S = 2.0  # between the last word of a JVM that was killed and the end of its process
_NEXT = "A later start goes on from the checkpoint."
_PLAN = "=== Streaming Query ==="  # from here on Spark shows the query's offsets and its plan, which help nobody


class SparkExecution:
    """Implements owner.execution.Execution. Every method blocks: the driver calls them in threads."""

    def __init__(self, launch: Launch, slots: int) -> None:
        """`slots`: tasks that can run at the same time."""
        self._launch = launch
        self._slots = slots
        self._session: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._puller_thread: threading.Thread | None = None
        self._puller_error: BaseException | None = None
        self._stopping = False
        self._failed = False

    def start_session(self) -> None:
        """Takes some seconds, so it runs beside the owner's other preparations.

        Raises Unavailable when Spark does not start.
        """
        try:
            self._session = self._launch.session()
        except Unavailable:
            self._failed = True
            raise

    def run(self, owner: OwnerAddress, sink_place: Place, pullers: PullerJob) -> None:
        """Start the puller job and the query that executes the owner's plans. Raises Unavailable if Spark has ended."""
        with self._unless_ended():
            self._run(owner, sink_place, pullers)

    def _run(self, owner: OwnerAddress, sink_place: Place, pullers: PullerJob) -> None:
        session = self._require_session()
        thread = threading.Thread(
            target=self._run_pullers, args=(session, owner, pullers), name="puller-job", daemon=True
        )
        thread.start()
        self._puller_thread = thread  # from now on `failure`, asked by another thread, looks whether it lives
        partitions = max(1, self._slots - pullers.count)
        session.dataSource.register(source.source_for(owner, pullers.state, partitions))
        session.dataSource.register(sink.sink_for(owner, sink_place))
        self._query = (
            session.readStream.format(source.NAME)
            .load()
            .writeStream.format(sink.NAME)
            .option("checkpointLocation", str(self._launch.scratch.folder / "checkpoint"))
            .trigger(processingTime=_TRIGGER)
            .start()
        )

    @property
    def silent_s(self) -> float:
        """For how long Spark's JVM has not answered. Any thread, at once."""
        return self._launch.silent_s

    def tasks(self) -> Tasks:
        """Of the pullers' job and the query's. Raises Unavailable when Spark has ended."""
        if self._puller_thread is None:
            return Tasks(set())  # it is being started
        with self._unless_ended():
            context = self._require_session().sparkContext._jsc.sc()
            store = context.statusStore()
            running, has_waiting = set(), False
            for number in context.statusTracker().getActiveStageIds():
                with suppress(Py4JJavaError):  # it has just ended, and Spark has forgotten it
                    stage = store.lastStageAttempt(number)
                    tasks = store.taskList(number, stage.attemptId(), _ALL)
                    listed = [tasks.apply(place) for place in range(tasks.size())]
                    running |= {task.taskId() for task in listed if task.status() == "RUNNING"}
                    begun = stage.numActiveTasks() + stage.numCompleteTasks()
                    has_waiting |= begun < stage.numTasks()
            return Tasks(running, has_waiting)

    def restart_task(self, task: int) -> None:
        """Have Spark kill it, with its worker, and start it again. Raises Unavailable when Spark has ended."""
        with self._unless_ended():
            self._require_session().sparkContext._jsc.sc().killTaskAttempt(task, True, "it has stopped working")

    def failure(self) -> str | None:
        """Why Spark's JVM, the pullers or the query have ended by themselves; None while they run."""
        if self._stopping:
            return None
        try:
            with self._unless_ended():
                why = self._why_ended()
        except Unavailable as error:
            return error.message
        return None if why is None else self._failed_as(why)

    def stop(self) -> None:
        """Stop the query, then the pullers, then Spark; the owner service must have closed its streams."""
        self._stopping = True
        late = threading.Timer(_STOP_S, self._launch.kill)  # Spark waits for a frozen worker for ever
        late.start()
        try:
            with suppress(Unavailable), self._unless_ended():  # the JVM is where they run: they ended with it
                self._stop()
            self._launch.end(keep_log=self._failed)
        finally:
            late.cancel()

    def _stop(self) -> None:
        if self._query is not None:
            self._query.stop()
        if self._puller_thread is not None:
            # The pullers return once their streams end; those which do not are cancelled.
            self._puller_thread.join(timeout=5)
            if self._puller_thread.is_alive():
                self._require_session().sparkContext.cancelJobGroup(_PULLER_GROUP)
                self._puller_thread.join(timeout=10)

    @contextmanager
    def _unless_ended(self) -> Iterator[None]:
        """Around what asks the JVM. Raises Unavailable in the place of what py4j raises when that has ended."""
        if why := self._launch.why_ended():
            raise Unavailable(self._failed_as(why), _NEXT)
        try:
            yield
        except (Py4JError, OSError) as error:
            why = None if isinstance(error, Py4JJavaError) else self._launch.why_ended(_DIES_S)
            if why is None:
                raise
            raise Unavailable(self._failed_as(why), _NEXT) from error

    def _failed_as(self, why: str) -> str:
        self._failed = True
        return why if self._launch.shows_output else f"{why}\nSpark's own output: {self._launch.scratch.log}"

    def _why_ended(self) -> str | None:
        if self._puller_error is not None:
            died = self._launch.why_ended(_DIES_S) if isinstance(self._puller_error, Py4JError | OSError) else None
            return died or f"The puller job ended: {last_lines(str(self._puller_error))}"
        if self._puller_thread is not None and not self._puller_thread.is_alive():
            return "The puller job ended by itself."
        if self._query is not None and not self._query.isActive:
            error = str(self._query.exception() or "without an error")
            return f"The streaming query ended: {last_lines(error.partition(_PLAN)[0])}"
        return None

    def _run_pullers(self, session: SparkSession, owner: OwnerAddress, pullers: PullerJob) -> None:
        def task(index: int, rows: Any) -> Any:
            from changefeed.spark.pull_task import pull

            pull(owner, index, pullers)
            return iter(())

        context = session.sparkContext
        context.setJobGroup(_PULLER_GROUP, "pull row changes", interruptOnCancel=True)
        try:
            self._pull(context, pullers.count, task)
        except BaseException as error:  # noqa: BLE001 - a thread's failure must reach the driver, whatever it is
            self._puller_error = error

    def _pull(self, context: SparkContext, count: int, task: Callable[[int, Any], Any]) -> None:
        """Spark counts a task's failures for its job's life, which may be a year: after a good while, start anew."""
        while True:
            began = time.monotonic()
            try:
                context.parallelize(range(count), count).mapPartitionsWithIndex(task).count()
                return
            except (PySparkException, Py4JError):
                if self._stopping or time.monotonic() - began < _GOOD_WHILE_S:
                    raise

    def _require_session(self) -> SparkSession:
        if self._session is None:
            raise RuntimeError("start_session comes first")
        return self._session
