"""How the process ends when it is not let finish: a second Ctrl-C, and SIGKILL."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
from changefeed_devcluster.schema import Column
from conftest import Changefeed, Upstream, wait_for


def _started(upstream: Upstream, new_changefeed: Callable[..., Changefeed]) -> tuple[Changefeed, list[psutil.Process]]:
    """A changefeed that runs, and all processes below it: Spark's JVM and its Python workers."""
    upstream.tidb.create_database("shop")
    upstream.tidb.create_table("shop", "orders", (Column("id", "bigint"),))
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    changefeed.start(as_json=False)
    assert changefeed.process is not None
    parent = psutil.Process(changefeed.process.pid)
    events = changefeed.log.parent / "events"
    with upstream.tidb.begin() as txn:
        txn.insert(upstream.tidb.tables["shop.orders"], {"id": 1})
    wait_for(changefeed.data_files, "a data file")
    assert events.exists()
    below = parent.children(recursive=True)
    assert {"java"} < {process.name().split(".")[0] for process in below}
    return changefeed, below


def _all_end(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=30.0)
    assert [" ".join(process.cmdline()[:3]) for process in alive] == []


def test_second_ctrl_c_ends_all_at_once_with_130(upstream: Upstream, new_changefeed: Callable[..., Changefeed]) -> None:
    changefeed, below = _started(upstream, new_changefeed)
    process = changefeed.process
    assert process is not None

    def interrupted() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    wait_for(interrupted, "the process ends")
    code, _, err = changefeed.finish()
    assert code == 130
    assert "Traceback" not in err
    _all_end(below)


def test_rule_21_nothing_of_a_killed_driver_lives_on(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed]
) -> None:
    changefeed, below = _started(upstream, new_changefeed)
    changefeed.kill()
    _all_end(below)
