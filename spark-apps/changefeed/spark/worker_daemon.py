"""The process that Spark's Python workers are forked from, with everything loaded that they need.

Started by Spark as `python -m changefeed.spark.worker_daemon KIND`. Without it each of a run's ten workers would load
polars, pyarrow and the product anew: a second of CPU each, when a run starts and again whenever one is replaced. It
must never run a query or open a connection: a fork would have half of its threads. (What loading alone starts, the
memory allocators' housekeeping, knows of forks.)
"""

from __future__ import annotations

import gc
import importlib
import sys

from pyspark import daemon

_RUNS_OUR_TASKS = "pyspark.worker"  # the kind; others plan and commit, and need little of ours
_TASKS = ("changefeed.spark.pull_task", "changefeed.spark.read_task", "changefeed.spark.write_task")


def preload(kind: str) -> None:
    """Load what workers of this kind will import. Their garbage collector leaves alone what was there before them."""
    if kind == _RUNS_OUR_TASKS:
        for module in _TASKS:
            importlib.import_module(module)
    gc.freeze()


if __name__ == "__main__":
    preload(sys.argv[1])
    daemon.manager()
