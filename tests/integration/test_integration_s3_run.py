"""`changefeed run` and `verify` with state and sink in S3 buckets, and what a start is refused for there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import NotFound
from changefeed.log.log import Log
from changefeed.log.state import State
from changefeed.objectstore.once import create_bytes
from changefeed.objectstore.open import Store, open_store
from changefeed_devcluster.workload.bank import Bank
from conftest import Changefeed, Upstream, wait_for
from integration_s3_servers import S3Server, running, write_secret

pytestmark = pytest.mark.timeout(1800)  # the first run builds the servers
SECRET = "lake-writer"


class Lake:
    """A server, a Secret for it, and what a changefeed with state and sink there has written."""

    def __init__(self, server: S3Server, secrets: Path) -> None:
        self.server = server
        self.secrets = secrets
        self.secret = write_secret(secrets, SECRET)

    def use(self, changefeed: Changefeed) -> None:
        credentials = {"secretRef": {"name": SECRET}}
        changefeed.spec["state"] = {"uri": self.server.uri("state"), "credentials": credentials}
        changefeed.spec["sink"]["storage"] |= {"uri": self.server.uri("orders"), "credentials": credentials}
        changefeed.options = ["--secrets-dir", str(self.secrets)]

    def open(self, path: str) -> Store:
        return open_store(self.server.uri(path), secret=self.secret)

    @property
    def state(self) -> Store:
        return self.open("state/default/test/local")

    @property
    def sink(self) -> Store:
        return self.open("orders")

    def checkpoint(self) -> int:
        try:
            return int(json.loads(self.sink.get("metadata").body)["checkpoint-ts"])
        except NotFound:
            return 0

    def log(self) -> State:
        return Log(self.state).read()

    def files(self) -> list[str]:
        return [path for path, _ in self.sink.list() if path.endswith(".csv")]

    def leave_segment(self) -> None:
        """As the first driver leaves what it has archived: what is released in time stands in no store."""
        epoch = self.log().epoch
        create_bytes(self.state, f"events/{epoch.number}-{epoch.nonce}/puller-0-0/{1:020}.arrow", b"archived")

    def segments(self) -> list[str]:
        return [path for path, _ in self.state.list("events")]


@pytest.fixture
def versitygw(tmp_path: Path) -> Iterator[Lake]:
    with running("versitygw", tmp_path / "server" / "data") as server:
        yield Lake(server, tmp_path / "secrets")


def verdict_of(changefeed: Changefeed, lake: Lake) -> dict[str, Any]:
    code, verdict = changefeed.verify("--conserved", "balance", "--secrets-dir", str(lake.secrets))
    assert code == 0, verdict
    assert (verdict["missing"], verdict["duplicate"], verdict["out_of_order"]) == (0, 0, 0)
    return verdict


def test_rule_21_killed_and_taken_over_under_load(
    upstream: Upstream,
    new_changefeed: Callable[..., Changefeed],
    versitygw: Lake,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    lake = versitygw
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-somebody-else")  # the Secret's files count
    bank = Bank(upstream.tidb, tables=2, regions=2, accounts=300)
    bank.create()
    changefeed = new_changefeed(["bank.*"])
    lake.use(changefeed)
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    stop = threading.Event()
    bank.load(stop)
    writer = threading.Thread(target=bank.run, args=(stop, 300.0))
    writer.start()
    try:
        changefeed.start()
        wait_for(lambda: lake.checkpoint() > 0 and len(lake.files()) >= 4, "published files")
        twin = Changefeed(changefeed.folder, changefeed.spec, options=changefeed.options.copy())
        code, out, _ = twin.run()
        assert code == 1, out
        assert "runs already" in json.loads(out)["error"]["message"]
        assert "--take-over" in json.loads(out)["error"]["next"]
        with changefeed.ending_whole():
            changefeed.kill()
        lake.leave_segment()
        published = lake.checkpoint()
        assert lake.log().epoch.number == 1, "a refused driver writes nothing"
        changefeed.options.append("--take-over")
        changefeed.start()
        wait_for(lambda: lake.checkpoint() > published, "a checkpoint of the second driver")
    finally:
        stop.set()
        writer.join()
    end = upstream.tidb.now()
    wait_for(lambda: lake.checkpoint() >= end, "a checkpoint after the last transfer")
    code, _, err = changefeed.drain()
    assert code == 0, err
    assert lake.log().epoch.number == 2
    assert not [path for path in lake.segments() if path.startswith("events/1-")], "the first driver's folder is gone"
    changefeed.options.remove("--take-over")  # the second one has said that it ended
    changefeed.spec["targetTs"] = str(upstream.tidb.now())
    assert changefeed.run_here() == 0
    assert "Finished at checkpoint" in capfd.readouterr().out
    assert verdict_of(changefeed, lake)["rows"] >= 600
    shown = b"".join(lake.state.get(path).body for path, _ in lake.state.list("log")).decode()
    assert SECRET in shown
    assert "testsecret" not in shown


def refused(changefeed: Changefeed, code: int) -> dict[str, Any]:
    """What a start that must not happen says; nothing of Spark or a library in it."""
    with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
        found = changefeed.run_here()
    out, err = stdout.getvalue(), stderr.getvalue()
    assert found == code, (out, err)
    assert not err
    error: dict[str, Any] = json.loads(out)["error"]
    assert error["next"]
    assert "testsecret" not in out
    assert len(out) < 1200, "one screen"
    return error


def test_every_refusal_says_why_and_what_to_do(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], versitygw: Lake
) -> None:
    Bank(upstream.tidb, tables=1, regions=1, accounts=10).create()
    changefeed = new_changefeed(["bank.*"])
    versitygw.use(changefeed)
    changefeed.options.append("--json")
    storage, server = changefeed.spec["sink"]["storage"], versitygw.server

    storage["uri"] = server.uri("orders", bucket="nolake")
    assert refused(changefeed, 1)["message"].startswith("spec.sink.storage.uri: the sink can't be used. ")
    storage["uri"] = "s3://lake/orders?endpoint=http://127.0.0.1:1"
    assert "no connection" in refused(changefeed, 69)["message"]
    storage["uri"] = server.uri("orders")

    write_secret(versitygw.secrets, "wrong", key="hunter2hunter2")
    storage["credentials"] = {"secretRef": {"name": "wrong"}}
    assert "refuses the credentials" in refused(changefeed, 1)["message"]
    storage["credentials"] = {"secretRef": {"name": "forgotten"}}
    assert "forgotten/access-key-id can't be read" in refused(changefeed, 1)["message"]
    storage["credentials"] = {"secretRef": {"name": SECRET}}

    versitygw.sink.create("bank/a/1/CDC00000000000000000001.csv", b"")
    assert refused(changefeed, 1)["message"].startswith("SinkOwned: ")
    versitygw.sink.delete("bank/a/1/CDC00000000000000000001.csv")
    versitygw.sink.create(".changefeed-owner.json", b'{"uid":"local","stateUri":"s3://elsewhere"}')
    assert "belongs to changefeed local with its state in s3://elsewhere" in refused(changefeed, 1)["message"]
    assert versitygw.state.list("log") == [], "nothing was started"


def test_rule_28_a_run_on_a_store_without_an_atomic_create_is_refused(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], tmp_path: Path
) -> None:
    with running("s3proxy", tmp_path / "server" / "data") as server:
        lake = Lake(server, tmp_path / "secrets")
        changefeed = new_changefeed(["bank.*"])
        lake.use(changefeed)
        changefeed.options.append("--json")
        error = refused(changefeed, 1)
        assert "does not keep create-if-absent" in error["message"]
        assert error["message"].startswith("spec.state.uri: the state can't be used.")
        assert lake.open("").list() == []
