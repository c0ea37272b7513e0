"""The driver's part of the resource's status: what reaches an API server, and that nothing depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from changefeed.errors import Fenced, NeedsHuman, Unavailable
from changefeed.kube.connection import Connection, in_pod
from changefeed.log.log import Log
from changefeed.log.records import EpochRecord
from changefeed.model.tso import to_datetime
from changefeed.objectstore.local import LocalStore
from changefeed.owner.driver import Driver, RunOptions
from changefeed.owner.pod import Pod
from changefeed.owner.reporting import status as status_module
from changefeed.owner.reporting.status_writer import Applied, StatusWriter
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


def connection(port: int, account: Path) -> Connection:
    """As in a pod whose ServiceAccount's files are there."""
    return in_pod({"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}, account)


def writer(api: ApiServer) -> StatusWriter:
    return StatusWriter(POD, connection(api.port, api.account))


def reporting_run(world: World, api: ApiServer, **spec: object) -> Run:
    return Run(world.changefeed(**spec), InProcessExecution(), options(api)).start()


def options(api: ApiServer) -> RunOptions:
    return RunOptions(metrics_port=0, status=writer(api))


async def test_a_write_is_a_server_side_apply_of_the_drivers_own_fields(api: ApiServer) -> None:
    assert await writer(api).apply({"epoch": 4}) == Applied()
    (asked,) = api.asked
    assert asked["path"] == (
        "/apis/changefeed.dev/v1alpha1/namespaces/shop/changefeeds/orders/status"
        "?fieldManager=changefeed-driver&force=true&fieldValidation=Ignore"
    )
    assert (asked["type"], asked["token"]) == ("application/apply-patch+yaml", "Bearer first")
    assert asked["body"] == {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "0f-1"},
        "status": {"epoch": 4},
    }


async def test_the_token_is_read_each_time(api: ApiServer) -> None:
    said = writer(api)
    await said.apply({})
    (api.account / "token").write_text("second")
    await said.apply({})
    assert [asked["token"] for asked in api.asked] == ["Bearer first", "Bearer second"]


async def test_what_goes_wrong_is_a_word(api: ApiServer, tmp_path: Path) -> None:
    api.answer = 409
    assert await writer(api).apply({}) == Applied("409")
    with api_server(tmp_path / "other") as other:
        stranger = StatusWriter(POD, connection(other.port, api.account))  # another's certificate
        assert await stranger.apply({}) == Applied("unreachable")
        assert other.asked == []
    assert await stranger.apply({}) == Applied("unreachable")  # nobody listens any more
    gone = writer(api)
    (api.account / "token").unlink()
    assert await gone.apply({}) == Applied("unreachable")


def test_a_pod_without_an_api_server_says_what_is_missing() -> None:
    with pytest.raises(NeedsHuman, match="KUBERNETES_SERVICE_HOST"):
        in_pod({})


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
    assert conditions == dict.fromkeys(("RulesMatch", "SinkAvailable", "UpstreamAvailable", "WithinLag"), "True")
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
    failed = run.driver.registry.total("changefeed_owner_status_errors_total")
    assert failed == len(api.asked) > 0
    now = world.tidb.now()  # the driver's clock is older: it asks PD five times a second at most
    assert all(int(said["checkpointTs"]) < now for said in api.statuses())


async def test_a_fenced_driver_writes_nothing(world: World, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    confirmed: list[Driver] = []
    is_fenced = False

    async def confirm(driver: Driver) -> None:
        if is_fenced:
            raise Fenced("Epoch 2 runs.")
        confirmed.append(driver)

    monkeypatch.setattr(Driver, "say_alive", confirm)
    monkeypatch.setattr(status_module, "EVERY_S", 0.0)
    run = Run(world.changefeed(), InProcessExecution(), options(api), report_s=0.01).start()
    await run.until(lambda: len(api.asked) > 1, "it says something again and again")
    is_fenced = True
    with pytest.raises(Fenced):
        await run.outcome()
    assert len(api.asked) == len(confirmed)


async def test_a_driver_that_was_taken_over_has_no_last_word(world: World, api: ApiServer) -> None:
    run = reporting_run(world, api)
    await run.until(lambda: api.asked and world.checkpoint(), "it runs")
    mine = EpochRecord.model_validate(world.records("epoch")[0])
    Log(LocalStore(world.log.parent)).claim_epoch(
        lambda before: mine.model_copy(update={"n": before.n + 1, "epoch": 2, "nonce": "another"})
    )
    before = len(api.asked)
    with pytest.raises(Fenced):
        await run.outcome()
    assert len(api.asked) <= before + 1  # one may have been on its way


@pytest.mark.parametrize(
    ("answer", "applied"),
    [
        ("{}", Applied()),
        ('{"status": 1}', Applied()),
        ('{"status": {"liveSettings": [1]}}', Applied()),
        ("null", Applied("unreachable")),  # not the API server's
        ("[]", Applied("unreachable")),
        ("<html>", Applied("unreachable")),
    ],
)
async def test_an_answer_without_settings_changes_nothing(api: ApiServer, answer: str, applied: Applied) -> None:
    api.said_back = answer
    assert await writer(api).apply({}) == applied


async def test_a_field_that_the_crd_lacks_is_left_out_from_then_on(api: ApiServer) -> None:
    said = writer(api)
    api.unknown = {"version", "lastDdl"}
    status = {"epoch": 4, "version": "1", "lastDdl": {"ts": "1"}}
    assert await said.apply(status) == Applied()
    assert [set(each) for each in api.statuses()] == [{"epoch", "version", "lastDdl"}, {"epoch", "lastDdl"}, {"epoch"}]
    assert await said.apply(status) == Applied()
    assert api.statuses()[-1] == {"epoch": 4}
    assert len(api.asked) == 4


async def test_settings_that_were_accepted_are_applied_while_it_runs(
    world: World, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(InProcessExecution):
        """No pipeline task ever comes."""

        def _write(self, *_: object) -> None:
            self._stopping.wait()

    monkeypatch.setattr(status_module, "EVERY_S", 0.1)
    monkeypatch.setattr(status_module, "AT_MOST_EVERY_S", 0.0)
    another_ttl_is_not_waited_for = 3600.0
    pace = {"report_s": 0.05, "safepoint_s": another_ttl_is_not_waited_for}
    run = Run(world.changefeed(), Stuck(), options(api), **pace).start()
    await run.until(lambda: api.asked, "it has reported")
    was = {"lagThreshold": "1m", "drainTimeout": "1m", "upstream.safepointTtl": "24h"}
    assert api.statuses()[-1]["appliedSettings"] == was
    world.insert(range(1, 11))
    await run.until(lambda: world.records("plan"), "a plan is recorded")

    edited = {"lagThreshold": "1s", "drainTimeout": "2s", "upstream.safepointTtl": "1h"}
    api.settings = {**edited, "lagThreshold": "for ever"}
    assert run.driver is not None
    failed = run.driver.registry.total
    await run.until(lambda: failed("changefeed_owner_status_errors_total"), "what can't be read is counted")
    assert api.statuses()[-1]["appliedSettings"] == was, "all of them or none"
    api.settings = {**edited, "of.a.later.version": "1"}
    await run.until(lambda: api.statuses()[-1]["appliedSettings"] == edited, "it says that it runs with them")

    await run.until(lambda: _hold_s(api) < 3700.0, "the upstream is held for as long as it says now")
    await run.until(lambda: _lag(api).startswith("The lag is above lagThreshold, 1 s."), "the lag is judged by it")
    with pytest.raises(Unavailable, match="Not drained within 2 s"):
        await run.drained()
    assert len(world.records("epoch")) == 1
    assert world.records("epoch")[0]["config"]["spec"]["lagThreshold"] == "1m", "the log has what it began with"


def _hold_s(api: ApiServer) -> float:
    """How long the hold on the history lasts, by the clock of this machine."""
    until = api.statuses()[-1].get("hold", {}).get("until", "2999-01-01T00:00:00Z")
    return (datetime.fromisoformat(until) - datetime.now(UTC)).total_seconds()


def _lag(api: ApiServer) -> str:
    return next(each["message"] for each in api.statuses()[-1]["conditions"] if each["type"] == "WithinLag")
