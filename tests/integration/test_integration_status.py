"""The driver's part of the resource's status: what reaches an API server, and that nothing depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from changefeed.errors import Fenced, NeedsHuman
from changefeed.model.record import EpochRecord
from changefeed.model.tso import physical_ms, to_datetime
from changefeed.objectstore.local import LocalStore
from changefeed.owner.api_server import ApiServer as DriversApi
from changefeed.owner.api_server import api_server as drivers_api
from changefeed.owner.driver import RunOptions
from changefeed.owner.pod import Pod
from changefeed.owner.reporting import status_writer as module
from changefeed.owner.reporting.status_writer import StatusWriter
from changefeed.owner.transaction_log.log import Log
from integration_api_server import ApiServer, api_server
from integration_inprocess import InProcessExecution, Run, World, new_world

POD = Pod("shop", "orders", "0f-1", "10.1.2.3")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server(tmp_path / "api") as made:
        yield made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def writer(api: ApiServer) -> StatusWriter:
    return StatusWriter(POD, DriversApi("127.0.0.1", api.port, api.account))


def reporting_run(world: World, api: ApiServer, **spec: object) -> Run:
    return Run(world.changefeed(**spec), InProcessExecution(), RunOptions(metrics_port=0, status=writer(api))).start()


def test_a_write_is_a_server_side_apply_of_the_drivers_own_fields(api: ApiServer) -> None:
    assert writer(api).apply({"epoch": 4}) is None
    (asked,) = api.asked
    assert asked["path"] == (
        "/apis/changefeed.dev/v1alpha1/namespaces/shop/changefeeds/orders/status"
        "?fieldManager=changefeed-driver&force=true"
    )
    assert (asked["type"], asked["token"]) == ("application/apply-patch+yaml", "Bearer first")
    assert asked["body"] == {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "0f-1"},
        "status": {"epoch": 4},
    }


def test_the_token_is_read_each_time(api: ApiServer) -> None:
    said = writer(api)
    said.apply({})
    (api.account / "token").write_text("second")
    said.apply({})
    assert [asked["token"] for asked in api.asked] == ["Bearer first", "Bearer second"]


def test_what_goes_wrong_is_a_word(api: ApiServer, tmp_path: Path) -> None:
    api.answer = 409
    assert writer(api).apply({}) == "409"
    with api_server(tmp_path / "other") as other:
        stranger = StatusWriter(POD, DriversApi("127.0.0.1", other.port, api.account))  # another's certificate
        assert stranger.apply({}) == "unreachable"
        assert other.asked == []
    assert stranger.apply({}) == "unreachable"  # nobody listens any more
    (api.account / "token").unlink()
    assert writer(api).apply({}) == "unreachable"


def test_a_pod_without_an_api_server_says_what_is_missing() -> None:
    with pytest.raises(NeedsHuman, match="KUBERNETES_SERVICE_HOST or _PORT is missing"):
        drivers_api({"KUBERNETES_SERVICE_HOST": "10.96.0.1"})


async def test_a_run_says_how_it_goes_and_how_it_ended(world: World, api: ApiServer) -> None:
    world.insert(range(1, 101))
    target = world.insert(range(101, 201))
    run = reporting_run(world, api, targetTs=str(target))
    outcome = await run.outcome()
    last = api.statuses()[-1]
    conditions = {each["type"]: each["status"] for each in last.pop("conditions")}
    assert outcome.checkpoint_ts == target == int(last["checkpointTs"])
    assert last["checkpointTime"] == to_datetime(target).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert (last["rows"], last["tables"], last["epoch"]) == (200, 1, 1)
    assert last["startTs"] == str(world.start_ts)
    assert last["sinkUri"] == world.lake.as_uri()
    assert last["clusterId"] == world.records("start")[0]["cluster_id"]
    assert conditions == {"SinkAvailable": "True", "UpstreamAvailable": "True", "WithinLag": "True"}
    # One that was finished before says it again: the last word may have been lost.
    api.asked.clear()
    await reporting_run(world, api, targetTs=str(target)).outcome()
    (again,) = api.statuses()
    assert (again["checkpointTs"], again["rows"]) == (str(target), 200)


async def test_rule_22_the_run_goes_on_without_the_api_server(world: World, api: ApiServer) -> None:
    api.answer = 503
    run = reporting_run(world, api)
    world.insert(range(1, 101))
    await run.until(lambda: len(world.ids()) >= 100, "100 rows are in files")
    await run.until(lambda: api.asked, "it was tried")
    outcome = await run.drained()
    assert outcome.checkpoint_ts == world.checkpoint()
    assert run.driver is not None
    failed = run.driver._registry.total("changefeed_owner_status_errors_total")
    assert failed == len(api.asked) > 0
    assert all(physical_ms(int(said["checkpointTs"])) <= run.driver._meter.pd_ms for said in api.statuses())


async def test_a_fenced_driver_writes_nothing(world: World, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP_S", 0.01)
    run = reporting_run(world, api)
    await run.until(lambda: api.asked, "it has said something")
    before = len(api.asked)

    async def fenced() -> None:
        raise Fenced("Epoch 2 runs.")

    assert run.driver is not None
    assert run.driver._reports is not None
    monkeypatch.setattr(run.driver._reports, "_confirm", fenced)
    monkeypatch.setattr(run.driver._reports._status, "due", run.driver._reports._status.last)
    with pytest.raises(Fenced):
        await run.outcome()
    assert len(api.asked) == before


async def test_a_driver_that_was_taken_over_has_no_last_word(world: World, api: ApiServer) -> None:
    run = reporting_run(world, api)
    await run.until(lambda: api.asked and world.checkpoint(), "it runs")
    mine = EpochRecord.model_validate(world.records("epoch")[0])
    Log(LocalStore(world.log.parent), "log").claim_epoch(
        lambda before: mine.model_copy(update={"n": before.n + 1, "epoch": 2, "nonce": "another"})
    )
    before = len(api.asked)
    with pytest.raises(Fenced):
        await run.outcome()
    assert len(api.asked) <= before + 1  # one may have been on its way
