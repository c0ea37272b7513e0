"""The process that Spark's Python workers are forked from.

`python -m changefeed.spark.worker.worker_daemon KIND`. In an executor's pod Spark starts it, and it loads what workers
need; on a laptop it is a fork of the run's fork_server, with everything loaded (worker_client).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

TASK = "changefeed.spark.task"
_RUNS_OUR_TASKS = "pyspark.worker"  # the kind
_NAME_CHARACTERS = 15  # of a process, as Linux has it


def preload(program: Sequence[str]) -> None:
    """Load what workers of this kind will import."""
    load([TASK] if _RUNS_OUR_TASKS in program else [])


def load(modules: Sequence[str]) -> None:
    """Load it for processes that are forked then: their garbage collector leaves alone what was there before them."""
    for module in modules:
        importlib.import_module(module)
    gc.freeze()


def be(program: Sequence[str]) -> None:
    """Serve Spark, on standard input and output, until it ends this process; `ps` and `top` show the kind.

    `program`: a kind of worker, to be forked.
    """
    kind = program[-1]
    with contextlib.suppress(OSError):
        name = kind if len(kind) <= _NAME_CHARACTERS else kind.rpartition(".")[2]
        Path("/proc/self/comm").write_text(name[:_NAME_CHARACTERS])
    sys.argv = [sys.argv[0], *program]
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    preload(sys.argv[1:])
    be(sys.argv[1:])
