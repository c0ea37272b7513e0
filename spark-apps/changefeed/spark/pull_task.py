"""The body of a task of the puller job. A module of its own: workers import only what their kind of task needs."""

from __future__ import annotations

from pyspark import TaskContext

from changefeed.puller.task import Limits, PullerJob, run_puller
from changefeed.spark.owner_client import reporting
from changefeed.wire.owner import OwnerAddress


def pull(owner: OwnerAddress, puller: int, job: PullerJob) -> None:
    """The body of puller number `puller`; returns when the owner closes its stream."""
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else None  # unique, though the job may be started again
    limits = Limits(quota_bytes=job.memory_quota, roll_bytes=job.segment_bytes)
    with reporting(owner):
        run_puller(owner, puller, f"puller-{puller}-{attempt}", job.upstream, job.state, limits, attempt)
