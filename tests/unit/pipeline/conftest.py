"""Pipeline tasks as threads, with the owner's service, an event store and a sink of the test's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changefeed.eventstore.run_folder import RunFolder
from changefeed.objectstore import Location
from changefeed.pipeline.task import PipelineJob, write_files
from changefeed.sink.storage import event_sink
from changefeed.sink.storage.event_sink import StorageJob
from pipeline_files import Encodings, Sink
from pipeline_owner import ATTEMPT, DEADLINE_S, EPOCH, NONCE, Begin, Owner, listening


@pytest.fixture
def owner() -> Iterator[Owner]:
    with listening() as made:
        yield made


@pytest.fixture
def state(tmp_path: Path) -> Location:
    return Location((tmp_path / "state").as_uri())


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    """The sink of every task of the test's."""
    made = Sink(tmp_path / "sink")
    monkeypatch.setattr(event_sink, "open_store", lambda uri, *_: made)
    yield made
    made.let_go()


@pytest.fixture
def begin(owner: Owner, state: Location, sink: Sink) -> Iterator[Begin]:
    """Starts a task; whatever becomes of it, nothing of it is left."""
    begun: list[Future[int | None]] = []
    with ThreadPoolExecutor(4, "task") as threads:

        def started(number: int = 0, attempt: int | None = ATTEMPT, **address: Any) -> Future[int | None]:
            job = PipelineJob("shop/feed", state, StorageJob(Location(sink.uri)))
            begun.append(threads.submit(write_files, replace(owner.address, **address), number, job, attempt))
            return begun[-1]

        yield started
        sink.let_go()
        owner.stop()
        for task in begun:
            task.exception(DEADLINE_S)
    assert not [name for thread in threading.enumerate() if (name := thread.name).startswith(("put", "read", "orders"))]
    spooled = RunFolder(state, EPOCH, NONCE).spool_folder
    assert not spooled.is_dir() or list(spooled.iterdir()) == []


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Encodings]:
    made = Encodings()
    monkeypatch.setattr(event_sink, "encode_entry", made)
    yield made
    made.go_on.set()
