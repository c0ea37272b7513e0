"""Spark from the driver's point of view, and the supervision of its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from changefeed.errors import Unavailable
from changefeed.owner.serving.vigilance import GiveUp, Restart, StandIn, Tasks, Vigilance
from changefeed.pipeline.task import PipelineJob
from changefeed.puller.task import PullerJob
from changefeed.wire.owner import OwnerAddress

_LOOK_S = 1.0


class Execution(Protocol):
    """Spark, as the driver sees it. All calls block; one thread makes them, but for `failure`, which any may."""

    @property
    def silent_s(self) -> float:
        """For how many seconds it has not answered. Any thread, at once."""
        ...

    def start(self) -> None: ...

    def run(self, owner: OwnerAddress, pullers: PullerJob, pipeline: PipelineJob) -> None: ...

    def failure(self) -> str | None: ...

    def tasks(self) -> Tasks:
        """Pullers included. Any thread."""
        ...

    def restart_task(self, task: int) -> None: ...

    def stop(self) -> None: ...


async def watch_tasks(
    execution: Execution,
    vigilance: Vigilance,
    all_pull: Callable[[], bool],
    stand_in: Callable[[StandIn], None],
) -> None:
    """Have tasks that have stopped working started again. Raises Unavailable when that does not help."""
    while True:
        await asyncio.sleep(_LOOK_S)
        if not vigilance.look(all_pull()):
            continue
        for each in vigilance.judge(await asyncio.to_thread(execution.tasks)):
            match each:
                case Restart(task):
                    await asyncio.to_thread(execution.restart_task, task)
                case StandIn():
                    stand_in(each)
                case GiveUp(why):
                    raise Unavailable(why, "The next start resumes from the checkpoint.")
