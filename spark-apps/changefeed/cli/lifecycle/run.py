"""`changefeed run`: drives a changefeed, on this machine or in a driver pod."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from changefeed.cli.arguments import AsJson, File, SecretsDir
from changefeed.cli.config_file import read_accepted
from changefeed.cli.output import time_of, write_json, write_text, write_warning
from changefeed.cli.termination import termination_log, write_termination
from changefeed.errors import InvalidSpec
from changefeed.spec.clear_text import in_clear_text

if TYPE_CHECKING:
    from changefeed.owner.pod import Pod
    from changefeed.spark.settings import ClusterDeployment
    from changefeed.spec.model import Changefeed

_TASK_ATTEMPTS = 8


def run(
    *,
    file: File,
    master: str | None = None,
    metrics_port: int = 9464,
    secrets_dir: SecretsDir = None,
    take_over: Annotated[bool, Parameter(negative="")] = False,
    attempt: int = 0,
    as_json: AsJson = False,
) -> None:
    """Run a changefeed on this machine until its targetTs or Ctrl-C.

    In a driver pod created by the operator, tasks run in executor pods.

    Parameters
    ----------
    master
        Spark master "local[N,8]" with N threads, more than spec.spark.pullers.count. Default: as many as
        spec.spark.executor has cores.
    metrics_port
        Port for /metrics on 127.0.0.1; 0 picks a free port.
    take_over
        Start even if another driver of this changefeed was alive seconds ago; that driver is fenced off.
    attempt
        The operator's attempt number. A driver whose number is not above the latest recorded one exits (75).
    """
    from changefeed.spark.jvm.java import check_java

    check_java()
    changefeed = read_accepted(file)
    if attempt < 0:
        raise InvalidSpec("--attempt", f"{attempt}; allowed: 0 (attempts are not counted) or more")
    if changefeed.spec.paused:
        raise InvalidSpec("spec.paused", "true: a paused changefeed does not run", "Set it to false, or leave it out.")
    if told := in_clear_text(changefeed):
        write_warning(told)
    slots = _slots(master, changefeed)

    from changefeed.owner.pod import pod_of
    from changefeed.spark.launch import Launch
    from changefeed.spark.settings import LaptopDeployment

    pod = pod_of(os.environ)
    launch = Launch(_cluster(pod) if pod else LaptopDeployment(f"local[{slots},{_TASK_ATTEMPTS}]"))
    if not pod:  # executor pods are not to be asked for before the attempt has proved to be the newest
        launch.begin()

    from rich.console import Console

    from changefeed.cli.lifecycle.view import LINE_INTERVAL_S, POD_LINE_INTERVAL_S, open_view
    from changefeed.kube.connection import in_pod
    from changefeed.owner.driver import RunOptions
    from changefeed.owner.driver import run as drive
    from changefeed.owner.reporting.status_writer import StatusWriter
    from changefeed.spark.execution import SparkExecution

    options = RunOptions(
        metrics_port=metrics_port,
        secrets_dir=secrets_dir,
        take_over=take_over,
        attempt=attempt,
        pod=pod,
        status=StatusWriter(pod, in_pod()) if pod else None,
    )
    every = POD_LINE_INTERVAL_S if pod else LINE_INTERVAL_S
    try:
        with open_view(Console(file=sys.stdout), silent=as_json, line_interval=every) as view:
            outcome = drive(changefeed, options, SparkExecution(launch, slots), view)
    finally:
        launch.end(keep_log=False)
    at = f"{outcome.checkpoint_ts} ({time_of(outcome.checkpoint_ts)})"
    write_termination(termination_log(os.environ), outcome.state.capitalize(), f"The checkpoint is {at}.")
    if as_json:
        write_json({"name": changefeed.name, "state": outcome.state, "checkpoint_ts": str(outcome.checkpoint_ts)})
        return
    write_text(f"{outcome.state.capitalize()} at checkpoint {at}.")
    write_text(f"Written to: {outcome.sink_uri}")
    if outcome.state == "drained":
        write_text("Run the same command to resume from there.")


def _cluster(pod: Pod) -> ClusterDeployment:
    from changefeed.spark.rpc_secret import mounted_secret
    from changefeed.spark.settings import ClusterDeployment

    return replace(ClusterDeployment.of(os.environ), secret=mounted_secret(pod, os.environ))


def _slots(master: str | None, changefeed: Changefeed) -> int:
    """Say how many Spark tasks may run at once; each puller occupies one permanently."""
    spark = changefeed.spec.spark
    if master is None:
        return spark.executor.slots
    threads, comma, attempts = master.removeprefix("local[").removesuffix("]").partition(",")
    wrong = not (master.startswith("local[") and master.endswith("]") and threads.isdecimal())
    if wrong or (comma and attempts != str(_TASK_ATTEMPTS)) or int(threads) <= spark.pullers.count:
        lowest = spark.pullers.count + 1
        raise InvalidSpec(
            "--master",
            f"{master!r}; allowed: local[N,{_TASK_ATTEMPTS}] with N from {lowest} on",
            f"{spark.pullers.count} pullers hold a thread each (spec.spark.pullers.count).",
        )
    return int(threads)
