"""How the process ends when it is not let finish: a second Ctrl-C. (SIGKILL: test_integration_s3_run.py.)"""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
from changefeed_devcluster.schema import Column
from conftest import Changefeed, Upstream, wait_for


def test_second_ctrl_c_ends_all_at_once_with_130(upstream: Upstream, new_changefeed: Callable[..., Changefeed]) -> None:
    upstream.tidb.create_database("shop")
    upstream.tidb.create_table("shop", "orders", (Column("id", "bigint"),))
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    with upstream.tidb.begin() as txn:
        txn.insert(upstream.tidb.tables["shop.orders"], {"id": 1})
    changefeed.start(as_json=False)
    process = changefeed.process
    assert process is not None
    wait_for(changefeed.data_files, "a data file")
    below = psutil.Process(process.pid).children(recursive=True)
    assert "java" in [each.info["name"] for each in psutil.process_iter(["name"]) if each in below]

    def interrupted() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    wait_for(interrupted, "the process ends")
    code, _, err = changefeed.finish()
    assert code == 130
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(below, timeout=30.0)
    assert [" ".join(each.cmdline()[:3]) for each in alive] == []
