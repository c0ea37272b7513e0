"""What the driver is told of the run's one Spark job, from any thread, at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock, call

import pytest
from changefeed.errors import Unavailable
from changefeed.objectstore import Location
from changefeed.owner.serving.vigilance import Tasks
from changefeed.pipeline.task import PipelineJob
from changefeed.puller.task import Limits, PullerJob
from changefeed.sink.storage.event_sink import StorageJob
from changefeed.spark import execution as execution_module
from changefeed.spark import task as task_module
from changefeed.spark.execution import SparkExecution
from changefeed.spark.launch import Launch
from changefeed.spark.settings import LaptopDeployment
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.wire.owner import OwnerAddress, RunKey
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import cloudpickle

DEADLINE_S = 10.0
PLACE = Location("file:///tmp/none", None)
OWNER = OwnerAddress("127.0.0.1:1", 1, "n", "t", b"c", RunKey(b"k", b"c"))
PIPELINE = PipelineJob("shop/feed", PLACE, StorageJob(Location("file:///tmp/lake")))


def pullers(count: int = 1) -> PullerJob:
    return PullerJob(count, TikvAccess(()), PLACE, Limits())


@dataclass
class Spark:
    """Stands where Spark's context would: a job that goes on until it is let end, or fails of `error`."""

    context: MagicMock = field(default_factory=MagicMock)
    ends: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.context.parallelize.return_value.mapPartitionsWithIndex.return_value.count = self._count

    def _count(self) -> None:
        assert self.ends.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error

    @property
    def task(self) -> Callable[[int, Any], Any]:
        """The body of the job's tasks."""
        ((body,), _) = self.context.parallelize.return_value.mapPartitionsWithIndex.call_args
        assert callable(body)
        return body  # type: ignore[no-any-return]


@pytest.fixture
def spark() -> Spark:
    return Spark()


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, spark: Spark) -> Launch:
    launch = Launch(LaptopDeployment("local[2]"))
    monkeypatch.setattr(launch, "_scratch", MagicMock(log="/scratch.log"))
    monkeypatch.setattr(launch, "context", lambda: spark.context)
    return launch


@pytest.fixture
def execution(launch: Launch) -> SparkExecution:
    made = SparkExecution(launch, 2)
    made.start()
    return made


def end(execution: SparkExecution, spark: Spark, error: Exception | None = None) -> str | None:
    """What is said once the job has ended."""
    spark.error = error
    spark.ends.set()
    assert execution._job is not None
    execution._job.join(DEADLINE_S)
    return execution.failure()


@pytest.mark.parametrize(("slots", "count", "tasks"), [(2, 1, 2), (2, 2, 3), (8, 3, 8), (1, 1, 2)])
def test_there_is_a_task_for_each_slot_and_one_at_least_that_writes(
    launch: Launch, spark: Spark, slots: int, count: int, tasks: int
) -> None:
    execution = SparkExecution(launch, slots)
    execution.start()
    execution.run(OWNER, pullers(count), PIPELINE)
    end(execution, spark)
    group, job = [each for each in spark.context.mock_calls if each[0] in ("setJobGroup", "parallelize")]
    assert (group.args[0], group.kwargs) == ("changefeed", {"interruptOnCancel": True})
    assert job == call.parallelize(range(tasks), tasks)


def test_a_task_travels_with_all_it_needs(
    execution: SparkExecution, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[Any] = []
    execution.run(OWNER, pullers(), PIPELINE)
    end(execution, spark)
    monkeypatch.setattr(task_module, "run_task", lambda *given: run.append(given))
    assert list(cloudpickle.loads(cloudpickle.dumps(spark.task))(1, iter([1]))) == []
    assert run == [(OWNER, 1, pullers(), PIPELINE)]


def test_a_job_that_is_just_being_started_has_not_ended(
    monkeypatch: pytest.MonkeyPatch, execution: SparkExecution, spark: Spark
) -> None:
    start = threading.Thread.start
    said: list[object] = []

    def watched_start(thread: threading.Thread) -> None:
        said.extend([execution.failure(), execution.tasks()])
        start(thread)
        said.extend([execution.failure(), execution.tasks()])

    monkeypatch.setattr(threading.Thread, "start", watched_start)
    execution.run(OWNER, pullers(), PIPELINE)
    assert said == [None, Tasks(set())] * 2
    assert execution.failure() is None
    end(execution, spark)


def test_a_job_that_ended_says_so_and_of_what(execution: SparkExecution, spark: Spark) -> None:
    execution.run(OWNER, pullers(), PIPELINE)
    lines = [f"line {number}" for number in range(40)]
    said = end(execution, spark, Py4JError("\n".join(lines)))
    assert said == "The Spark job ended: " + "\n".join(lines[-12:]) + "\nSpark's own output: /scratch.log"


def test_a_job_that_returned_has_ended_by_itself(execution: SparkExecution, spark: Spark) -> None:
    execution.run(OWNER, pullers(), PIPELINE)
    assert end(execution, spark) == "The Spark job ended by itself.\nSpark's own output: /scratch.log"


def test_where_the_output_is_shown_no_file_is_named(
    execution: SparkExecution, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launch, "shows_output", True)
    execution.run(OWNER, pullers(), PIPELINE)
    assert end(execution, spark) == "The Spark job ended by itself."


def test_a_job_that_ended_with_the_jvm_says_that(
    execution: SparkExecution, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution.run(OWNER, pullers(), PIPELINE)
    # The connection breaks a moment before the process is gone.
    monkeypatch.setattr(Launch, "why_ended", lambda _, within_s=0.0: "Spark's JVM was killed." if within_s else None)
    said = end(execution, spark, Py4JNetworkError("Answer from Java side is empty"))
    assert said == "Spark's JVM was killed.\nSpark's own output: /scratch.log"


def test_a_fault_of_ours_in_the_jobs_thread_is_not_silent(execution: SparkExecution, spark: Spark) -> None:
    execution.run(OWNER, pullers(), PIPELINE)
    said = end(execution, spark, ZeroDivisionError("a fault of ours"))
    assert said is not None
    assert said.startswith("The Spark job ended: a fault of ours")


def stage(*tasks: tuple[int, str], all_tasks: int, complete: int = 0) -> MagicMock:
    made = MagicMock()
    made.attemptId.return_value = 0
    made.numTasks.return_value = all_tasks
    made.numActiveTasks.return_value = sum(status == "RUNNING" for _, status in tasks)
    made.numCompleteTasks.return_value = complete
    made.listed = [MagicMock(**{"taskId.return_value": task, "status.return_value": status}) for task, status in tasks]
    return made


def show(spark: Spark, stages: dict[int, MagicMock | Exception]) -> None:
    """As Spark's status store does; an exception stands for a stage that it has forgotten."""
    inner = spark.context._jsc.sc.return_value
    inner.statusTracker.return_value.getActiveStageIds.return_value = list(stages)

    def last_attempt(number: int) -> MagicMock:
        found = stages[number]
        if isinstance(found, Exception):
            raise found
        return found

    def task_list(number: int, attempt: int, most: int) -> MagicMock:
        found = stages[number]
        assert isinstance(found, MagicMock)
        assert most >= len(found.listed)
        listed = MagicMock(**{"size.return_value": len(found.listed)})
        listed.apply = found.listed.__getitem__
        return listed

    store = inner.statusStore.return_value
    store.lastStageAttempt, store.taskList = last_attempt, task_list


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(11, "RUNNING"), (12, "RUNNING")], Tasks({11, 12})),
        ([(11, "RUNNING")], Tasks({11}, has_waiting=True)),
        ([(10, "FAILED"), (11, "RUNNING"), (12, "KILLED")], Tasks({11}, has_waiting=True)),
        ([], Tasks(set(), has_waiting=True)),
    ],
)
def test_tasks_are_those_that_run_now(
    execution: SparkExecution, spark: Spark, found: list[tuple[int, str]], expected: Tasks
) -> None:
    execution.run(OWNER, pullers(), PIPELINE)
    show(spark, {0: stage(*found, all_tasks=2)})
    assert execution.tasks() == expected
    end(execution, spark)


def test_tasks_that_are_complete_do_not_wait(execution: SparkExecution, spark: Spark) -> None:
    execution.run(OWNER, pullers(), PIPELINE)
    show(spark, {0: stage((11, "SUCCESS"), (12, "RUNNING"), all_tasks=2, complete=1)})
    assert execution.tasks() == Tasks({12})
    end(execution, spark)


class Forgotten(Py4JJavaError):  # type: ignore[misc]  # it is untyped
    def __init__(self) -> None:
        Exception.__init__(self, "NoSuchElementException")


def test_a_stage_that_spark_has_forgotten_has_no_tasks(execution: SparkExecution, spark: Spark) -> None:
    """The job was started anew a moment ago."""
    execution.run(OWNER, pullers(), PIPELINE)
    show(spark, {0: Forgotten(), 1: stage((11, "RUNNING"), (12, "RUNNING"), all_tasks=2)})
    assert execution.tasks() == Tasks({11, 12})
    end(execution, spark)


def test_a_task_is_restarted_by_its_id(execution: SparkExecution, spark: Spark) -> None:
    execution.run(OWNER, pullers(), PIPELINE)
    execution.restart_task(11)
    (killed,) = spark.context._jsc.sc.return_value.killTaskAttempt.call_args_list
    assert killed.args[:2] == (11, True), "with its worker"
    end(execution, spark)


@pytest.mark.parametrize("ask", [SparkExecution.tasks, lambda execution: execution.restart_task(11)])
def test_a_jvm_that_has_ended_is_unavailable(
    execution: SparkExecution, spark: Spark, monkeypatch: pytest.MonkeyPatch, ask: Callable[[SparkExecution], object]
) -> None:
    execution.run(OWNER, pullers(), PIPELINE)
    monkeypatch.setattr(Launch, "why_ended", lambda *_: "Spark's JVM has ended.")
    with pytest.raises(Unavailable, match="Spark's JVM has ended"):
        ask(execution)
    assert execution.failure() == "Spark's JVM has ended.\nSpark's own output: /scratch.log"
    end(execution, spark)


def test_a_spark_that_does_not_start_leaves_its_log(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise Unavailable("Spark did not start: no Java.")

    kept: list[bool] = []
    monkeypatch.setattr(launch, "context", refuse)
    monkeypatch.setattr(launch, "end", lambda keep_log: kept.append(keep_log))
    execution = SparkExecution(launch, 2)
    with pytest.raises(Unavailable, match="no Java"):
        execution.start()
    execution.stop()
    assert kept == [True]


def test_a_job_whose_streams_have_ended_is_not_cancelled(
    execution: SparkExecution, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []
    monkeypatch.setattr(Launch, "end", lambda _, keep_log: kept.append(keep_log))
    execution.run(OWNER, pullers(), PIPELINE)
    spark.ends.set()
    execution.stop()
    spark.context.cancelJobGroup.assert_not_called()
    assert kept == [False]
    assert execution.failure() is None, "it was stopped"


def test_a_job_that_goes_on_is_cancelled(
    execution: SparkExecution, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launch, "end", lambda *_, **__: None)
    job = MagicMock()
    job.is_alive.return_value = True
    monkeypatch.setattr(execution, "_job", job)
    execution.stop()
    spark.context.cancelJobGroup.assert_called_once_with("changefeed")
    assert [each[0] for each in job.mock_calls] == ["join", "is_alive", "join"]


def test_a_spark_that_does_not_stop_is_killed(
    execution: SparkExecution, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = threading.Event()
    monkeypatch.setattr(execution_module, "_STOP_S", 0.05)
    monkeypatch.setattr(Launch, "kill", lambda _: killed.set())
    ended: list[bool] = []

    def wait_for_a_frozen_worker(_: Launch, keep_log: bool) -> None:
        ended.append(killed.wait(DEADLINE_S))

    monkeypatch.setattr(Launch, "end", wait_for_a_frozen_worker)
    execution.run(OWNER, pullers(), PIPELINE)
    spark.ends.set()
    execution.stop()
    assert ended == [True]


def test_a_jvm_that_ends_while_the_job_is_stopped_is_no_error(
    execution: SparkExecution, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(Launch, "end", lambda _, keep_log: ended.append(keep_log))
    monkeypatch.setattr(Launch, "why_ended", lambda _, within_s=0.0: "Spark's JVM was killed." if within_s else None)
    monkeypatch.setattr(execution, "_job", MagicMock())
    spark.context.cancelJobGroup.side_effect = ConnectionResetError
    execution.stop()
    assert ended == [True]


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("lasted", "jobs"),
    [([10_000.0, 700.0, 5.0], 3), ([599.0, 5.0], 1), ([601.0, None], 2)],
    ids=["until it fails soon", "it fails soon", "until it ends"],
)
def test_the_job_starts_anew_after_a_good_while(
    execution: SparkExecution,
    spark: Spark,
    lasted: list[float | None],
    jobs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(execution_module, "time", clock)
    ends = list(lasted)

    def count() -> None:
        seconds = ends.pop(0)
        if seconds is not None:
            clock.now += seconds
            raise Py4JError("Job aborted")

    spark.context.parallelize.return_value.mapPartitionsWithIndex.return_value.count = count
    execution.run(OWNER, pullers(), PIPELINE)
    said = end(execution, spark)
    assert said is not None
    assert said.startswith("The Spark job ended by itself." if lasted[-1] is None else "The Spark job ended: Job abort")
    assert spark.context.parallelize.call_count == jobs


def test_a_job_that_is_being_stopped_is_not_started_anew(
    execution: SparkExecution, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_module, "_GOOD_WHILE_S", 0.0)
    monkeypatch.setattr(Launch, "end", lambda *_, **__: None)
    execution.run(OWNER, pullers(), PIPELINE)
    monkeypatch.setattr(execution, "_stopping", True)
    end(execution, spark, Py4JError("Job was cancelled"))
    assert spark.context.parallelize.call_count == 1
