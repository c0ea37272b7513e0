"""The bank, while regions split and streams are cut: every change once, in order, the total conserved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from changefeed_devcluster import keys
from changefeed_devcluster.workload.bank import Bank
from conftest import Changefeed, Upstream, wait_for
from integration_observer import watching


def interrupt_until_it_ends(changefeed: Changefeed) -> None:
    """A second Ctrl-C ends all at once, with 130. (SIGKILL: test_integration_s3_run.py.)"""
    process = changefeed.process
    assert process is not None

    def interrupted() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    with changefeed.ending_whole():
        wait_for(interrupted, "the process ends")
        code, _, err = changefeed.finish()
        assert code == 130
        assert "Traceback" not in err


def test_split_and_cut_under_load_then_a_second_ctrl_c(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed]
) -> None:
    bank = Bank(upstream.tidb, tables=2, regions=4, accounts=300)
    bank.create()
    changefeed = new_changefeed(["bank.*"])
    changefeed.spec["spark"] = {"pullers": {"count": 2}, "executor": {"instances": 2, "cores": 2}}
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    stop = threading.Event()
    bank.load(stop)
    writer = threading.Thread(target=bank.run, args=(stop, 500.0))
    writer.start()
    with watching(changefeed.lake.as_uri()):
        try:
            changefeed.start(as_json=False)
            wait_for(changefeed.data_files, "a first data file")
            upstream.cluster.split(keys.record_key(bank.tables[0].id, 150))
            upstream.cluster.cut()
            after = upstream.tidb.now()
            wait_for(lambda: changefeed.checkpoint() > after, "a checkpoint after the split and the cut")
        finally:
            stop.set()
            writer.join()
        end = upstream.tidb.now()
        wait_for(lambda: changefeed.checkpoint() >= end, "a checkpoint after the last transfer")
        interrupt_until_it_ends(changefeed)
    code, verdict = changefeed.verify("--conserved", "balance")
    assert code == 0, verdict
    assert verdict["rows"] >= 600
    assert (verdict["missing"], verdict["duplicate"], verdict["out_of_order"]) == (0, 0, 0)
