"""The body of a task of the run's one Spark job: the first ones pull, the others write files."""

from __future__ import annotations

from pyspark import TaskContext

import changefeed.upstream.pulling  # noqa: F401 -- tasks are forked from a process that has loaded this module
from changefeed.pipeline.task import PipelineJob, write_files
from changefeed.puller.task import PullerJob, run_puller
from changefeed.wire.owner import OwnerAddress
from changefeed.wire.owner_client import reporting


def run_task(owner: OwnerAddress, index: int, pullers: PullerJob, pipeline: PipelineJob) -> None:
    """Task number `index`; returns when the owner closes its stream."""
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else None  # unique, though the job may be started again
    with reporting(owner):
        if index < pullers.count:
            _pull(owner, index, f"puller-{index}-{attempt}", pullers, attempt)
            return
        number, turn = index - pullers.count, 0
        while (puller := write_files(owner, number, pipeline, attempt)) is not None:
            turn += 1
            _pull(owner, puller, f"puller-{puller}-{attempt}-{turn}", pullers, attempt)


def _pull(owner: OwnerAddress, puller: int, name: str, job: PullerJob, attempt: int | None) -> None:
    run_puller(owner, puller, name, job.upstream, job.state, job.limits, attempt)
