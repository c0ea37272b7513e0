"""Where a run's Spark tasks are: threads of a JVM on this machine, or executor pods; and what Spark is told for that.

Nothing secret may stand in a setting: they are shown by Spark's UI, in its logs and in command lines.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from changefeed.errors import NeedsHuman
from changefeed.spark.jvm.class_archive import jars_in_order, java_options
from changefeed.spark.jvm.jvm import leaves_in
from changefeed.spark.worker.worker_client import DAEMON

if TYPE_CHECKING:
    from changefeed.spark.rpc_secret import SharedSecret

_CLIENT = str(Path(__file__).parent / "worker" / "worker_client.py")
_WORKERS = "spark.executorEnv."
_WORKER_PYTHON = """#!/bin/sh
export PYTHONPATH={paths}
case "$2" in
  {daemon} | pyspark.daemon) shift 2; exec {client} "$@";;
esac
exec {python} "$@"
"""

_COMMON = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": DAEMON,
    # The driver's port takes Java objects, and tasks' closures hold the owner's token: who has no secret is refused,
    # also one who asks in the older, unencrypted way (SASL).
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
    # As many tasks run as there are cores: a thread pool in each would only get in the others' way.
    "spark.executorEnv.POLARS_MAX_THREADS": "1",
    "spark.executorEnv.OMP_NUM_THREADS": "1",
    # Memory once had is kept: buffers of some MiB come and go with each chunk, and a fresh page costs as much
    # as the work on it (measured: half the CPU of a task).
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    "spark.executorEnv.MALLOC_ARENA_MAX": "1",
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "spark.executorEnv.MALLOC_TOP_PAD_": str(64 << 20),
    "spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1",  # polars'
}


def worker_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return what these settings give Spark's Python workers."""
    return {name.removeprefix(_WORKERS): value for name, value in settings.items() if name.startswith(_WORKERS)}


class Deployment(Protocol):
    """One of the two, as `execution` uses it. `scratch`: a folder of this run on the driver's machine."""

    @property
    def shows_output(self) -> bool:
        """Tell whether what Spark prints goes where the driver's own output goes; else into a file."""
        ...

    @property
    def runs_all_here(self) -> bool:
        """Tell whether Spark's workers of all kinds run on this machine, so that they are forked from one process."""
        ...

    def settings(self, scratch: Path) -> dict[str, str]:
        """Spark's configuration; what is not in it is Spark's default, or the operator's. May block for seconds.

        Raises Unavailable when what a setting names can't be had.
        """
        ...

    def environment(self, scratch: Path) -> dict[str, str]:
        """Return what the driver's own environment must have before the JVM starts."""
        ...


@dataclass(frozen=True)
class LaptopDeployment:
    """Runs Spark in processes of this machine.

    `master`: local[N,M].
    """

    master: str
    shows_output = False  # a person reads our messages, which name the file when they must
    runs_all_here = True

    def settings(self, scratch: Path) -> dict[str, str]:
        return {
            **_COMMON,
            "spark.master": self.master,
            "spark.app.name": "changefeed",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(scratch / "local"),
            "spark.log.level": "FATAL",
            "spark.driver.extraJavaOptions": f"{java_options()} {shlex.quote(leaves_in(scratch))}",
        }

    def environment(self, scratch: Path) -> dict[str, str]:
        # Workers otherwise take the first python3 of the PATH, which lacks the libraries.
        python = str(_worker_python(scratch))
        address = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        return {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": "none", "SPARK_LOCAL_IP": address}


@dataclass(frozen=True)
class ClusterDeployment:
    """Executor pods, as the operator's SparkApplication wants them.

    `properties`: the file that Spark's submission has mounted; `bind_address`: the pod's; `python`: of the image, for
    workers here and in executors; `secret`: of driver and executors, None for one that Spark makes.
    """

    properties: Path
    bind_address: str
    python: str
    secret: SharedSecret | None = None
    shows_output = True
    runs_all_here = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ClusterDeployment:
        """Read it from the environment that the image's entrypoint leaves. Raises NeedsHuman when it was not that."""
        names = ("CHANGEFEED_SPARK_PROPERTIES", "SPARK_DRIVER_BIND_ADDRESS", "PYSPARK_PYTHON")
        if missing := [name for name in names if not environment.get(name)]:
            raise NeedsHuman(
                f"A driver's pod needs {', '.join(missing)} in its environment.",
                "The image's entrypoint sets it: use the operator's image, with its ENTRYPOINT.",
            )
        properties, bind_address, python = (environment[name] for name in names)
        return cls(Path(properties), bind_address, python)

    def settings(self, scratch: Path) -> dict[str, str]:
        """Return what is set over the properties file's, which names master, driver host, pods and memory."""
        java = java_options()
        secret = self.secret.settings(scratch) if self.secret else {}
        return {
            **_COMMON,
            **secret,
            "spark.driver.bindAddress": self.bind_address,
            "spark.log.level": "WARN",
            # Before what the application has in extraJavaOptions.
            "spark.driver.defaultJavaOptions": java,
            "spark.driver.extraClassPath": jars_in_order(),
            "spark.executor.defaultJavaOptions": java,
            "spark.task.maxFailures": "8",
            # An executor whose machine is gone says nothing any more. Its pullers are missed after 10 s by the owner;
            # its other tasks are started elsewhere after this, instead of two minutes.
            "spark.network.timeout": "40s",
            "spark.network.timeoutInterval": "10s",
            "spark.executor.heartbeatInterval": "5s",
            # The other way round: an executor that can't reach its driver for a minute ends itself, instead of five.
            "spark.executor.heartbeat.maxFailures": "12",
            # Failures of executors are counted for the application's life otherwise, which may be a year.
            "spark.executor.failuresValidityInterval": "10m",
            # A decommissioned executor waits for its tasks; pullers never end, and all else is written again anyway.
            "spark.decommission.enabled": "false",
        }

    def environment(self, scratch: Path) -> dict[str, str]:
        submit = ["--properties-file", str(self.properties), "--deploy-mode", "client", "pyspark-shell"]
        return {"PYSPARK_SUBMIT_ARGS": shlex.join(submit), "PYSPARK_DRIVER_PYTHON": self.python}


def _worker_python(folder: Path) -> Path:
    """This Python, for workers. Spark puts a zip of its modules first on their path, which each process compiles anew
    (1 CPU-s of the ten that a run starts); the same modules stand compiled where this process has them from."""
    script = folder / "python"
    script.write_text(
        _WORKER_PYTHON.format(
            daemon=DAEMON,
            paths=shlex.quote(os.environ.get("PYTHONPATH", "")),
            python=shlex.quote(sys.executable),
            client=shlex.join([sys.executable, "-I", "-S", _CLIENT]),
        )
    )
    script.chmod(0o700)
    return script
