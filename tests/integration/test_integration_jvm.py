"""Spark's JVM is killed or frozen under a run, which ends as documented: a service manager starts it again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from urllib.request import urlopen

import pytest
from changefeed_devcluster.tidb.schema import NewColumn
from conftest import Changefeed, Upstream, free_port, wait_for
from integration_victims import Victims

NOTICED_S = 20.0  # docs/running.md; the end included


@pytest.mark.parametrize(
    ("sent", "said"),
    [(signal.SIGKILL, "Spark's JVM has ended"), (signal.SIGSTOP, "Spark's JVM has not answered")],
    ids=["killed", "frozen"],
)
def test_a_run_whose_jvm_is_gone_ends_with_69_and_one_sentence(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], sent: signal.Signals, said: str
) -> None:
    upstream.tidb.create_database("shop")
    upstream.tidb.create_table("shop", "orders", (NewColumn("id", "bigint"),))
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    changefeed.metrics_port = free_port()
    changefeed.start(as_json=False)
    wait_for(lambda: changefeed.checkpoint() > int(changefeed.spec["startTs"]), "a checkpoint of the idle run")
    with urlopen(f"http://127.0.0.1:{changefeed.metrics_port}/healthz", timeout=5.0) as answer:
        assert (answer.status, answer.read()) == (200, b"ok\n")
    with changefeed.ending_whole():
        Victims(upstream, changefeed).jvm().send_signal(sent)
        code, _, err = changefeed.finish(NOTICED_S)
    assert code == 69, err
    assert err.startswith(f"error: {said}"), err
    assert "Traceback" not in err
    assert "Warning" not in err
    assert len([line for line in err.splitlines() if line.startswith("error:")]) == 1
