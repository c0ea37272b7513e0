"""A program that forks containers of the data plane's image off: `changefeed run`, `hold`, `close`, each a process of
its own that need not import all anew. It reads one order a line, JSON (`Order`), and answers with the process id.

A driver's tasks are threads of its process, as in tests/integration: they run the very code of Spark's tasks. What a
process ends with is in a file `exit` of its folder; one that was killed leaves none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TypedDict

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "support"))
import integration_inprocess
from changefeed.cli.main import main
from changefeed.kube import connection
from changefeed.owner.pod import Pod
from changefeed.puller.task import Limits
from changefeed.spark import execution, launch
from cluster_forks import serve, settle


class Order(TypedDict):
    """`folder`: the container's own; in it are `serviceaccount`, `output` and `exit`."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str


def _container(order: Order) -> int:
    folder = Path(order["folder"])
    settle(order["environment"], folder / "output")
    _without_spark(folder / "serviceaccount")
    code = main(order["arguments"])
    (folder / "exit").write_text(str(code))
    return code


def _without_spark(account: Path) -> None:
    # Several pods are on one machine: each listens at its own address only.
    Pod.every_address = property(lambda self: self.ip)  # type: ignore[method-assign,assignment]
    connection.in_pod.__defaults__ = (os.environ, account)  # type: ignore[attr-defined]
    launch.Launch.begin = lambda _: None  # type: ignore[method-assign]
    integration_inprocess.LIMITS = Limits(roll_interval=0.25)
    execution.SparkExecution = lambda *_: integration_inprocess.InProcessExecution()  # type: ignore[misc,assignment]


if __name__ == "__main__":
    serve(_container)
