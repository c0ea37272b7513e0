"""A whole run of a changefeed in processes of their own, without Spark: what forked processes run.

`drive` is `changefeed run`; `pull` and `write` are its tasks where they are to live elsewhere; `close` is what a
deletion runs. Each of them may die or stop at a named point (integration_points).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from changefeed.errors import ChangefeedError
from changefeed.eventstore import segment as segment_module
from changefeed.eventstore.files import LocalSegments
from changefeed.log.state import State
from changefeed.objectstore import Location
from changefeed.objectstore.local import LocalStore
from changefeed.owner import driver as driver_module
from changefeed.owner.closing import undriven
from changefeed.owner.driver import RunOptions
from changefeed.owner.owner import Owner
from changefeed.owner.pace import Pace, pace_of
from changefeed.owner.planning import checkpoint as checkpoint_module
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.serving.vigilance import Tasks
from changefeed.pipeline.task import PipelineJob, write_files
from changefeed.puller.task import PullerJob, run_puller
from changefeed.sink import spool as spool_module
from changefeed.sink.storage.event_sink import StorageJob
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import parse
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.wire.owner import OwnerAddress, RunKey
from changefeed.wire.owner_client import reporting
from integration_inprocess import LIMITS, InProcessExecution, Seen
from integration_points import Points, StatusFile, install
from integration_points_databases import install as install_databases
from integration_points_databases import name_progress_topic
from integration_points_delta import install as install_delta
from integration_points_iceberg import install as install_iceberg
from integration_points_slot import install as install_slot
from integration_processes import Say
from integration_several_plans import PLAN_BYTES
from integration_several_plans import install as install_several_plans

_FLUSH_S = 0.1
_NOON_MS = 1_767_268_800_000
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Elsewhere:
    """owner.execution.Execution that starts nothing: the test does."""

    say: Say
    silent_s = 0.0

    def start(self) -> None:
        pass

    def run(self, owner: OwnerAddress, pullers: PullerJob, pipeline: PipelineJob) -> None:
        run_key = owner.run_key.private.decode(), owner.run_key.certificate.decode()
        self.say(
            tasks={
                "owner": {**owner.__dict__, "certificate": owner.certificate.decode(), "run_key": run_key},
                "sink": pipeline.sink.location.uri,  # type: ignore[attr-defined]
                "state": pipeline.state.uri,
                "pd_addresses": pullers.upstream.pd_addresses,
            }
        )

    def tasks(self) -> Tasks:
        return Tasks({time.monotonic_ns()})  # always another one, so that none is ever silent

    def restart_task(self, task: int) -> None:
        raise NotImplementedError

    def failure(self) -> str | None:
        return None

    def stop(self) -> None:
        pass


def drive(
    say: Say,
    resource: dict[str, Any],
    folder: str,
    steps: list[int] | None = None,
    next_day: int = 0,
    point: str | None = None,
    at: int = 1,
    then: str = "kill",
    attempt: int = 0,
    shared: bool = False,
    clock_off_s: float = 0.0,
    elsewhere: bool = False,
    secrets: str = "",
) -> None:
    """`changefeed run`. The upstream's DDL span resolves to one of `steps` after the other, each once the one before it
    is in the log; PD's clock stands at noon, behind `next_day`, one of the steps, at that of the next day. So a short
    history that stands already gives the same files in every run, whenever the run before it has died. Without `steps`
    it goes on as it comes.

    `shared`: several can hold the state and the sink, as in S3. `clock_off_s`: of this process's wall clock.
    `secrets`: a folder of them.
    """
    points = _points(say, point, at, then, shared)
    if kafka := resource["spec"]["sink"].get("kafka"):
        name_progress_topic(urlsplit(kafka["uri"]).path.strip("/"))
    _set_clock(clock_off_s)
    if steps:
        install_several_plans(_follow_steps(steps, next_day))
    driver_module.pace_of = _pace_of  # type: ignore[attr-defined]
    checkpoint_module.RECORD_INTERVAL_S = 0.0
    status: Any = StatusFile(Path(folder) / "status", points)
    secrets_dir = Path(secrets) if secrets else None
    options = RunOptions(metrics_port=0, attempt=attempt, status=status, secrets_dir=secrets_dir)
    execution = Elsewhere(say) if elsewhere else InProcessExecution()
    try:
        outcome = driver_module.run(parse(json.dumps(resource)), options, execution, Seen())
    except ChangefeedError as error:
        _refused(say, error)
    else:
        say(ended=outcome.state, passed=points.passed)


def pull(
    say: Say,
    tasks: dict[str, Any],
    attempt: int,
    point: str | None = None,
    at: int = 1,
    then: str = "kill",
) -> None:
    """Puller 0 of the run that has said `tasks`."""
    _points(say, point, at, then, shared=True)
    owner = _owner(tasks)
    try:
        with reporting(owner):
            upstream = TikvAccess(tuple(tasks["pd_addresses"]))
            run_puller(owner, 0, f"puller-0-{attempt}", upstream, Location(tasks["state"]), LIMITS)
    except ChangefeedError as error:
        _refused(say, error)
    else:
        say(ended="let go")


def write(
    say: Say, tasks: dict[str, Any], number: int = 0, point: str | None = None, at: int = 1, then: str = "kill"
) -> None:
    """A pipeline task of the run that has said `tasks`."""
    _points(say, point, at, then, shared=True)
    owner = _owner(tasks)
    try:
        with reporting(owner):
            write_files(
                owner, number, PipelineJob("bank/feed", Location(tasks["state"]), StorageJob(Location(tasks["sink"])))
            )
    except ChangefeedError as error:
        _refused(say, error)
    else:
        say(ended="let go")


def close(say: Say, resource: dict[str, Any]) -> None:
    """The changefeed is deleted."""
    _share()
    say(closed=asyncio.run(undriven.close(parse(json.dumps(resource)))))


def _points(say: Say, point: str | None, at: int, then: str, shared: bool) -> Points:
    if shared:
        _share()
    points = Points(say, point, at, then)
    install(points)
    install_databases(points)
    install_iceberg(points)
    install_delta(points)
    install_slot(points)
    segment_module.CURVE_STEP = 1  # the planner knows the ts of each row
    spool_module.IN_MEMORY_BYTES = 0  # what is encoded is a file until it is put
    return points


def _pace_of(changefeed: Changefeed) -> Pace:
    """PD's clock moves with the steps."""
    pace = pace_of(changefeed)
    return replace(pace, flush_s=_FLUSH_S, metadata_s=0.0, pd_s=0.0, plan_bytes=PLAN_BYTES, fold_after=3)


def _refused(say: Say, error: ChangefeedError) -> None:
    say(refused=type(error).__name__, exit_code=error.exit_code, message=error.message)


def _owner(tasks: dict[str, Any]) -> OwnerAddress:
    owner = tasks["owner"]
    run_key = RunKey(*[pem.encode() for pem in owner["run_key"]])
    return OwnerAddress(**{**owner, "certificate": owner["certificate"].encode(), "run_key": run_key})


def _share() -> None:
    """Stores as those that several machines reach: no lock keeps a second driver out, what tasks are about to put is
    on their own machine, where no other driver cleans. The rules are what is left.
    """
    delete_run_folder = LocalSegments.delete_run_folder

    def delete_segments(self: LocalSegments, name: str) -> bool:
        pulled = [path for path in (self.scratch / name).glob("*") if path.name != "spool"]
        deleted = [delete_run_folder(self, f"{name}/{path.name}") for path in pulled]
        return all(deleted)

    LocalStore.hold = lambda self: None  # type: ignore[method-assign]
    LocalStore.clean_leftovers = lambda self: None  # type: ignore[method-assign]
    LocalSegments.delete_run_folder = delete_segments  # type: ignore[method-assign]


def _set_clock(off_s: float) -> None:
    """For all that is ours; gRPC takes its deadlines from the machine's own clock."""

    class Clock(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(time, name)

        def time(self) -> float:
            return time.time() + off_s

        def time_ns(self) -> int:
            return time.time_ns() + int(off_s * 1e9)

    class Moment(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Moment:
            return cls.fromtimestamp(time.time() + off_s, tz)

    for name, module in list(sys.modules.items()):
        if name.startswith("changefeed.") and off_s:
            if getattr(module, "time", None) is time:
                module.time = Clock("time")  # type: ignore[attr-defined]
            if getattr(module, "datetime", None) is datetime:
                module.datetime = Moment  # type: ignore[attr-defined]


def _follow_steps(steps: Sequence[int], next_day: int) -> list[Owner]:
    """The owners that there will be. A step begins when all rows up to it are pulled: they are planned together."""
    owners: list[Owner] = []

    class Stepping(Barrier):
        reached = 0  # the recorded checkpoint

        def __init__(self, start_ts: int, *more: Any) -> None:
            super().__init__(start_ts, *more)
            self._heard = start_ts

        def on_resolved(self, ts: int) -> None:
            self._heard = max(self._heard, ts)
            step = next((step for step in steps if step > self.reached), sys.maxsize)
            if all(spans.resolved_ts(each) >= min(step, steps[-1]) for spans, each in _pulled(owners)):
                super().on_resolved(min(self._heard, step))

    init, recorded, hear = Owner.__init__, Owner.recorded, Owner.report

    def init_(self: Owner, state: State, *more: Any, **named: Any) -> None:
        init(self, state, *more, **named)
        Stepping.reached = state.checkpoint_ts
        owners.append(self)

    def recorded_(self: Owner, now: float, action: Any, state: Any) -> None:
        recorded(self, now, action, state)
        Stepping.reached = state.checkpoint_ts
        self.barrier.on_resolved(0)

    def report_(self: Owner, now: float, puller: int, report: Any) -> None:
        hear(self, now, puller, report)
        self.barrier.on_resolved(0)

    async def pd_ms(self: PdClient) -> int:
        return _NOON_MS + _DAY_MS * (Stepping.reached >= next_day)

    driver_module.Barrier = Stepping  # type: ignore[attr-defined]
    Owner.__init__, Owner.recorded, Owner.report = init_, recorded_, report_  # type: ignore[method-assign]
    PdClient.pd_ms = pd_ms  # type: ignore[method-assign]
    return owners


def _pulled(owners: Sequence[Owner]) -> Iterator[tuple[Spans, int]]:
    """Each dispatcher of the run, with the spans that know how far it is pulled."""
    return ((owner.spans, dispatcher) for owner in owners[-1:] for dispatcher in owner.dispatchers)
