"""What is loaded before Spark's workers are forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import sys, threading
from changefeed.spark.worker.worker_daemon import preload
preload([sys.argv[1]])
print("polars" in sys.modules, threading.active_count())
"""


@pytest.mark.parametrize(("kind", "loaded"), [("pyspark.worker", True), ("another.worker", False)])
def test_workers_that_run_tasks_find_everything_loaded_and_no_thread(kind: str, loaded: bool) -> None:
    said = subprocess.run([sys.executable, "-c", PROBE, kind], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(loaded), "1"]
