"""Starts and stops the one Spark job of a run, in the Spark that its launch has started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from changefeed.errors import Unavailable
from changefeed.owner.serving.vigilance import Tasks
from changefeed.pipeline.task import PipelineJob
from changefeed.puller.task import PullerJob
from changefeed.spark.launch import Launch, last_lines
from changefeed.wire.owner import OwnerAddress

_GROUP = "changefeed"
_GOOD_WHILE_S = 600.0
_ALL = 1_000_000  # tasks of a stage
_STOP_S = 30.0
_DIES_S = 2.0  # between the last word of a JVM that was killed and the end of its process
_NEXT = "The next start resumes from the checkpoint."


class SparkExecution:
    """Implements owner.execution.Execution. Every method blocks: the driver calls them in threads."""

    def __init__(self, launch: Launch, slots: int) -> None:
        """`slots`: tasks that can run at the same time."""
        self._launch = launch
        self._slots = slots
        self._context: SparkContext | None = None
        self._job: threading.Thread | None = None
        self._error: BaseException | None = None
        self._stopping = False
        self._failed = False

    def start(self) -> None:
        """Takes some seconds, so it runs beside the owner's other preparations.

        Raises Unavailable when Spark does not start.
        """
        try:
            self._context = self._launch.context()
        except Unavailable:
            self._failed = True
            raise

    def run(self, owner: OwnerAddress, pullers: PullerJob, pipeline: PipelineJob) -> None:
        """Start the job: pullers, and as many pipeline tasks as there is room for. They end with their streams."""
        context = self._require_context()
        count = max(self._slots, pullers.count + 1)

        def task(index: int, rows: Any) -> Any:
            from changefeed.spark.task import run_task

            run_task(owner, index, pullers, pipeline)
            return iter(())

        job = threading.Thread(target=self._run, args=(context, count, task), name="spark-job", daemon=True)
        job.start()
        self._job = job  # from now on `failure`, asked by another thread, looks whether it lives

    @property
    def silent_s(self) -> float:
        """Say for how long Spark's JVM has not answered. Any thread, at once."""
        return self._launch.silent_s

    def tasks(self) -> Tasks:
        """Raises Unavailable when Spark has ended."""
        if self._job is None:
            return Tasks(set())  # it is being started
        with self._unless_ended():
            context = self._require_context()._jsc.sc()
            store = context.statusStore()
            running, has_waiting = set(), False
            for number in context.statusTracker().getActiveStageIds():
                with suppress(Py4JJavaError):  # it has just ended, and Spark has forgotten it
                    stage = store.lastStageAttempt(number)
                    tasks = store.taskList(number, stage.attemptId(), _ALL)
                    listed = [tasks.apply(index) for index in range(tasks.size())]
                    running |= {task.taskId() for task in listed if task.status() == "RUNNING"}
                    begun = stage.numActiveTasks() + stage.numCompleteTasks()
                    has_waiting |= begun < stage.numTasks()
            return Tasks(running, has_waiting)

    def restart_task(self, task: int) -> None:
        """Have Spark kill it, with its worker, and start it again. Raises Unavailable when Spark has ended."""
        with self._unless_ended():
            self._require_context()._jsc.sc().killTaskAttempt(task, True, "it has stopped working")

    def failure(self) -> str | None:
        """Say why Spark's JVM or the job have ended by themselves; None while they run."""
        if self._stopping:
            return None
        try:
            with self._unless_ended():
                why = self._why_ended()
        except Unavailable as error:
            return error.message
        return None if why is None else self._failed_as(why)

    def stop(self) -> None:
        """Stop the job, then Spark; the owner service must have closed its streams."""
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
        if self._job is not None:
            # The tasks return once their streams end; those which do not are cancelled.
            self._job.join(timeout=5)
            if self._job.is_alive():
                self._require_context().cancelJobGroup(_GROUP)
                self._job.join(timeout=10)

    @contextmanager
    def _unless_ended(self) -> Iterator[None]:
        """Around what asks the JVM. Raises Unavailable instead of what py4j raises when that has ended."""
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
        if self._error is not None:
            died = self._launch.why_ended(_DIES_S) if isinstance(self._error, Py4JError | OSError) else None
            return died or f"The Spark job ended: {last_lines(str(self._error))}"
        if self._job is not None and not self._job.is_alive():
            return "The Spark job ended by itself."
        return None

    def _run(self, context: SparkContext, count: int, task: Callable[[int, Any], Any]) -> None:
        context.setJobGroup(_GROUP, "pull row changes and write files", interruptOnCancel=True)
        try:
            self._run_again(context, count, task)
        except BaseException as error:  # noqa: BLE001 - a thread's failure must reach the driver, whatever it is
            self._error = error

    def _run_again(self, context: SparkContext, count: int, task: Callable[[int, Any], Any]) -> None:
        """Spark counts a task's failures for its job's life, which may be a year: after a good while, start anew."""
        while True:
            began = time.monotonic()
            try:
                context.parallelize(range(count), count).mapPartitionsWithIndex(task).count()
                return
            except (PySparkException, Py4JError):
                if self._stopping or time.monotonic() - began < _GOOD_WHILE_S:
                    raise

    def _require_context(self) -> SparkContext:
        if self._context is None:
            raise RuntimeError("start comes first")
        return self._context
