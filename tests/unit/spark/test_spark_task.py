"""What each task of the run's one job does, by its number."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from changefeed.errors import Fenced, NeedsHuman, OutputConflict, Unavailable
from changefeed.objectstore import Location
from changefeed.pipeline.task import PipelineJob
from changefeed.puller.task import Limits, PullerJob
from changefeed.sink.storage.event_sink import StorageJob
from changefeed.spark import task as module
from changefeed.spark.task import run_task
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.wire.owner import OwnerAddress
from pipeline_owner import Owner, listening

PIPELINE = PipelineJob("shop/feed", Location("file:///state"), StorageJob(Location("file:///lake")))
LIMITS = Limits(quota_bytes=1 << 30, roll_bytes=1 << 20, roll_interval=0.5, gather_s=0.1)
PULLERS = PullerJob(2, TikvAccess(("http://pd:2379",)), Location("file:///state"), LIMITS)


@pytest.fixture
def owner() -> Iterator[Owner]:
    with listening() as made:
        yield made


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was done: ("pull", puller, name, attempt) or ("write", number, attempt)."""
    kept: list[Any] = []

    def pull(
        owner: OwnerAddress,
        puller: int,
        name: str,
        upstream: TikvAccess,
        state: Location,
        limits: Limits,
        attempt: int | None,
    ) -> None:
        assert (upstream, state, limits) == (PULLERS.upstream, PULLERS.state, LIMITS)
        kept.append(("pull", puller, name, attempt))

    def write(owner: OwnerAddress, number: int, job: PipelineJob, attempt: int | None) -> int | None:
        assert job == PIPELINE
        kept.append(("write", number, attempt))
        return None

    monkeypatch.setattr(module, "run_puller", pull)
    monkeypatch.setattr(module, "write_files", write)
    monkeypatch.setattr(module, "TaskContext", SimpleNamespace(get=lambda: SimpleNamespace(taskAttemptId=lambda: 17)))
    return kept


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (0, ("pull", 0, "puller-0-17", 17)),
        (1, ("pull", 1, "puller-1-17", 17)),
        (2, ("write", 0, 17)),
        (5, ("write", 3, 17)),
    ],
)
def test_the_first_ones_pull_and_the_others_write(owner: Owner, done: list[Any], index: int, expected: Any) -> None:
    run_task(owner.address, index, PULLERS, PIPELINE)
    assert done == [expected]


def test_rule_21_one_that_takes_a_pullers_place_has_a_name_of_its_own_each_time_and_writes_again_after_it(
    owner: Owner, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter([0, 1, 0, None])

    def write(owner: OwnerAddress, number: int, job: PipelineJob, attempt: int | None) -> int | None:
        done.append(("write", number, attempt))
        return next(told)

    monkeypatch.setattr(module, "write_files", write)
    run_task(owner.address, 4, PULLERS, PIPELINE)
    assert done == [
        ("write", 2, 17),
        ("pull", 0, "puller-0-17-1", 17),
        ("write", 2, 17),
        ("pull", 1, "puller-1-17-2", 17),
        ("write", 2, 17),
        ("pull", 0, "puller-0-17-3", 17),
        ("write", 2, 17),
    ]


@pytest.mark.parametrize("name", ["run_puller", "write_files"])
@pytest.mark.parametrize("error", [OutputConflict("It stands.", "Look."), NeedsHuman("no"), Unavailable("away")])
def test_what_a_task_fails_of_is_told_and_raised(
    owner: Owner, done: list[Any], monkeypatch: pytest.MonkeyPatch, name: str, error: Any
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(type(error)) as caught:
        run_task(owner.address, 0 if name == "run_puller" else 2, PULLERS, PIPELINE)
    assert caught.value is error
    (told,) = owner.heard.failures
    assert (told.reason, told.message, told.next_step) == (type(error).__name__, error.message, error.next_step)


def test_without_spark_there_is_no_attempt(owner: Owner, done: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TaskContext", SimpleNamespace(get=lambda: None))
    run_task(owner.address, 2, PULLERS, PIPELINE)
    assert done == [("write", 0, None)]


def test_one_whose_owner_is_gone_fails_of_what_it_failed_of(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Fenced("another's")

    monkeypatch.setattr(module, "write_files", fail)
    owner.stop()
    with pytest.raises(Fenced, match="another's"):
        run_task(owner.address, 2, PULLERS, PIPELINE)
