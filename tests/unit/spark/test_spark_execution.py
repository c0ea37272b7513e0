"""What the driver is told of the puller job, from any thread, at any moment."""

from __future__ import annotations

import threading
from unittest.mock import MagicMock

import pytest
from changefeed.objectstore import Place
from changefeed.puller.task import PullerJob
from changefeed.spark import execution as execution_module
from changefeed.spark.execution import SparkExecution
from changefeed.spark.launch import Launch
from changefeed.spark.settings import Laptop
from changefeed.upstream.access import Access
from changefeed.wire.owner import OwnerAddress

PLACE = Place("file:///tmp/none", None)


@pytest.fixture
def session() -> MagicMock:
    """Stands where Spark's session would: a puller job that never ends, a query that is active."""
    session = MagicMock()
    lives = threading.Event()
    session.sparkContext.parallelize.return_value.mapPartitionsWithIndex.return_value.count = lives.wait
    return session


def started(monkeypatch: pytest.MonkeyPatch, session: MagicMock) -> SparkExecution:
    launch = Launch(Laptop("local[2]"))
    monkeypatch.setattr(launch, "_scratch", MagicMock())
    execution = SparkExecution(launch, 2)
    monkeypatch.setattr(execution, "_session", session)
    return execution


def run(execution: SparkExecution) -> None:
    job = PullerJob(1, Access(()), PLACE, 1 << 30, 1 << 20)
    execution.run(OwnerAddress("127.0.0.1:1", 1, "n", "t", b""), PLACE, job)


def test_a_job_that_is_just_being_started_has_not_ended(monkeypatch: pytest.MonkeyPatch, session: MagicMock) -> None:
    execution = started(monkeypatch, session)
    start = threading.Thread.start
    said: list[str | None] = []

    def watched_start(thread: threading.Thread) -> None:
        said.append(execution.failure())
        start(thread)
        said.append(execution.failure())

    monkeypatch.setattr(threading.Thread, "start", watched_start)
    run(execution)
    assert said == [None, None]


def test_a_query_that_failed_is_said_without_its_plan(monkeypatch: pytest.MonkeyPatch, session: MagicMock) -> None:
    execution = started(monkeypatch, session)
    query = session.readStream.format().load().writeStream.format().option().trigger().start()
    query.isActive = False
    query.exception.return_value = "[STREAM_FAILED] The task is gone.\n=== Streaming Query ===\nLogical Plan: ..."
    run(execution)
    said = execution.failure()
    assert said is not None
    assert said.startswith("The streaming query ended: [STREAM_FAILED] The task is gone.\nSpark's own output")


def test_a_query_that_does_not_stop_ends_with_the_jvm(monkeypatch: pytest.MonkeyPatch, session: MagicMock) -> None:
    execution = started(monkeypatch, session)
    killed = threading.Event()
    monkeypatch.setattr(execution_module, "_STOP_S", 0.05)
    monkeypatch.setattr(Launch, "kill", lambda _: killed.set())
    monkeypatch.setattr(Launch, "why_ended", lambda *_: "Spark's JVM has ended." if killed.is_set() else None)

    def stop() -> None:
        assert killed.wait(10.0)
        raise ConnectionResetError

    run(execution)
    session.readStream.format().load().writeStream.format().option().trigger().start().stop = stop
    execution.stop()
    assert killed.is_set()
