"""Probes, metrics, and what of an event matters."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from changefeed.errors import NeedsHuman
from changefeed_operator import api
from changefeed_operator.health import (
    PASS_STUCK,
    QUEUE_STUCK,
    REACHED,
    WATCH_DEAD,
    WATCH_SILENT,
    Vitals,
    serve,
    sick,
    unready,
)
from changefeed_operator.loop.seen import SeenObjects
from changefeed_operator.loop.watch import Endless, listening
from changefeed_operator.metrics import Metrics, Standing, changefeed_families
from operator_api_server import ApiServer, refusal

WELL = Vitals(lease_age=1.0, watch_ages={"Changefeed": 5.0, "Pod": 60.0})
STANDBY = Vitals(lease_age=1.0, watch_ages={})
KEY = ("shop", "orders")


@pytest.mark.parametrize("vitals", [WELL, STANDBY])
def test_a_leader_and_a_standby_live_and_are_ready(vitals: Vitals) -> None:
    assert sick(vitals) == unready(vitals) == []


def test_a_silent_watch_is_first_not_ready_and_then_dead() -> None:
    silent = replace(WELL, watch_ages={"Pod": WATCH_SILENT + 1})
    assert sick(silent) == []
    assert unready(silent) == ["the Pod watch has been silent for 151 s"]
    assert "Pod watch" in sick(replace(WELL, watch_ages={"Pod": WATCH_DEAD + 1}))[0]


def test_an_api_server_that_is_gone_makes_it_not_ready_but_kills_nothing() -> None:
    gone = Vitals(lease_age=600.0, watch_ages={"Pod": 600.0})
    assert sick(gone) == []
    assert any("Lease" in problem for problem in unready(gone))
    assert unready(replace(STANDBY, lease_age=REACHED + 1))


def test_a_missing_crd_makes_it_not_ready_but_kills_nothing() -> None:
    waiting = Vitals(lease_age=1.0, watch_ages={}, waits_for="SparkApplication objects can't be listed")
    assert sick(waiting) == []
    assert unready(waiting) == ["SparkApplication objects can't be listed"]


def test_a_pass_or_a_queue_that_is_stuck_is_sick() -> None:
    assert sick(replace(WELL, longest_pass=PASS_STUCK + 1))
    assert sick(replace(WELL, oldest_wait=QUEUE_STUCK + 1))
    assert not sick(replace(WELL, oldest_wait=QUEUE_STUCK + 1, running=8))


async def test_probes_and_metrics_are_served() -> None:
    vitals = WELL
    server, port = await serve(0, lambda: vitals, lambda: b"numbers 1\n", "127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as session:

            async def ask(path: str) -> tuple[int, str]:
                async with session.get(f"{url}{path}") as response:
                    return response.status, await response.text()

            assert await ask("/healthz") == await ask("/readyz") == (200, "ok\n")
            vitals = replace(WELL, watch_ages={"Pod": WATCH_SILENT + 1})
            assert (await ask("/healthz"))[0] == 200
            assert await ask("/readyz") == (503, "the Pod watch has been silent for 151 s\n")
            vitals = replace(WELL, longest_pass=PASS_STUCK + 1)
            assert (await ask("/healthz"))[0] == 503
            assert await ask("/metrics") == (200, "numbers 1\n")
        with pytest.raises(NeedsHuman, match="--metrics-port"):
            await serve(port, lambda: vitals, lambda: b"", "127.0.0.1")
    finally:
        await server.cleanup()


async def test_a_free_port_is_the_same_for_both_families() -> None:
    server, port = await serve(0, lambda: WELL, lambda: b"")
    try:
        async with aiohttp.ClientSession() as session:
            for host in ["127.0.0.1", *(["[::1]"] if socket.has_dualstack_ipv6() else [])]:
                async with session.get(f"http://{host}:{port}/healthz") as response:
                    assert response.status == 200
    finally:
        await server.cleanup()


def test_metrics_tell_what_stands_and_what_happened() -> None:
    metrics = Metrics()
    feed = {
        "status": {
            "state": "Normal",
            "restarts": {"total": 2},
            "checkpointTime": "2020-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
        "spec": {"lagThreshold": "2m"},
    }
    odd = {"status": {"state": 1, "conditions": "none", "checkpointTime": "yesterday"}}
    standing = Standing(2, 7.5, 1, True, {"pods": 3.0}, {KEY: feed, ("shop", "new"): {}, ("shop", "newer"): odd})
    metrics.show(lambda: standing)
    metrics.count_request("PATCH", 409)
    metrics.count_request("GET", 200)
    metrics.count_request("GET", 404)
    lines = metrics.text().decode().splitlines()
    for line in (
        "changefeed_operator_queue_keys_count 2.0",
        "changefeed_operator_queue_oldest_seconds 7.5",
        "changefeed_operator_running_passes_count 1.0",
        "changefeed_operator_leader_info 1.0",
        'changefeed_operator_watch_age_seconds{type="pods"} 3.0',
        'changefeed_operator_requests_total{type="PATCH"} 1.0',
        'changefeed_operator_request_errors_total{reason="409"} 1.0',
        'changefeed_operator_changefeed_state_info{changefeed="orders",namespace="shop",state="Normal"} 1.0',
        'changefeed_operator_changefeed_ready_info{changefeed="orders",namespace="shop"} 1.0',
        'changefeed_operator_lag_threshold_seconds{changefeed="orders",namespace="shop"} 120.0',
        'changefeed_operator_restarts_total{changefeed="orders",namespace="shop"} 2.0',
    ):
        assert line in lines
    lag = next(line for line in lines if line.startswith("changefeed_operator_checkpoint_lag_seconds{"))
    assert float(lag.split()[-1]) > (datetime.now(UTC) - datetime(2021, 1, 1, tzinfo=UTC)).total_seconds()
    assert not any('"new' in line for line in lines)
    assert not any("reconcile_paused_info{" in line for line in lines)
    feed["metadata"] = {"annotations": {"changefeed.dev/reconcile": "paused"}}
    paused = 'changefeed_operator_reconcile_paused_info{changefeed="orders",namespace="shop"} 1.0'
    assert paused in metrics.text().decode().splitlines()
    assert not any('reason="404"' in line for line in lines)


@pytest.mark.parametrize(
    ("reason", "until", "seconds"),
    [
        ("Held", "2027-01-15T08:10:00Z", 600.0),
        ("Lapsed", "2027-01-15T07:59:00Z", -60.0),
        ("NotHeld", "", 0.0),
        ("SnapshotLostByGC", "2027-01-15T08:10:00Z", 0.0),
        ("NotHeldYet", "", None),
        ("NothingToHold", "", None),
        ("Finished", "2027-01-15T08:10:00Z", None),
    ],
)
def test_metrics_tell_how_long_history_is_held(reason: str, until: str, seconds: float | None) -> None:
    status = {"hold": {"until": until}, "conditions": [{"type": "HistoryHeld", "status": "True", "reason": reason}]}
    spec = {"upstream": {"safepointTtl": "10m"}}
    families = {each.name: each for each in changefeed_families({KEY: {"spec": spec, "status": status}}, 1_800_000_000)}
    told = [sample.value for sample in families["changefeed_operator_history_held_seconds"].samples]
    assert told == ([] if seconds is None else [seconds])
    ttl = [sample.value for sample in families["changefeed_operator_safepoint_ttl_seconds"].samples]
    assert ttl == ([] if seconds is None else [600.0])


@pytest.mark.parametrize(
    ("hold", "kept", "most"),
    [({}, [], []), ({"keptBytes": 7, "mostBytes": 0}, [7.0], []), ({"keptBytes": 7, "mostBytes": 9}, [7.0], [9.0])],
)
def test_metrics_tell_how_much_is_kept(hold: dict[str, int], kept: list[float], most: list[float]) -> None:
    held = {"reason": "RunningOut", "type": "HistoryHeld", "status": "True"}
    status = {"hold": {"until": "2027-01-15T08:10:00Z", **hold}, "conditions": [held]}
    families = {each.name: each for each in changefeed_families({KEY: {"spec": {}, "status": status}}, 1_800_000_000)}
    for name, values in (("kept", kept), ("most", most)):
        samples = families[f"changefeed_operator_history_{name}_bytes"].samples
        assert [sample.value for sample in samples] == values


def feed(**status: Any) -> dict[str, Any]:
    fields = [
        {"manager": "kubectl", "fieldsV1": {}},
        {"manager": api.DRIVER_FIELD_MANAGER, "time": "2026-11-21T12:00:00Z"},
    ]
    metadata = {"namespace": "shop", "name": "orders", "uid": "u1", "generation": 1, "managedFields": fields}
    return {"metadata": metadata, "status": status}


def condition(status: str, message: str = "", kind: str = "SinkAvailable") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "R", "message": message, "lastTransitionTime": "t"}


def test_progress_of_the_driver_and_our_own_status_wake_nobody() -> None:
    seen = SeenObjects()
    assert seen.note(KEY, "", feed())
    for status in (
        {"checkpointTs": "1", "checkpointTime": "t", "resolvedTs": "2", "lagSeconds": 1, "rows": 5, "tables": 1},
        {"state": "Normal", "message": "runs", "attempt": 2},
        {"conditions": [condition("True", kind="Ready")]},
    ):
        assert not seen.note(KEY, "MODIFIED", feed(**status))


def test_what_a_person_or_the_driver_decides_wakes() -> None:
    for change in (
        feed(conditions=[condition("False")]),
        feed(epoch=2),
        {**feed(), "metadata": {**feed()["metadata"], "generation": 2}},
        {**feed(), "metadata": {**feed()["metadata"], "labels": {"a": "b"}}},
        {**feed(), "metadata": {**feed()["metadata"], "deletionTimestamp": "t"}},
        {**feed(), "metadata": {**feed()["metadata"], "uid": "u2"}},
    ):
        seen = SeenObjects()
        seen.note(KEY, "", feed())
        assert seen.note(KEY, "MODIFIED", change)
        assert not seen.note(KEY, "MODIFIED", change)


def test_the_words_of_a_condition_wake_nobody() -> None:
    seen = SeenObjects()
    seen.note(KEY, "", feed(conditions=[condition("False", "3 s")]))
    assert not seen.note(KEY, "MODIFIED", feed(conditions=[condition("False", "4 s")]))


def test_a_driver_that_was_silent_wakes_with_its_report() -> None:
    seen = SeenObjects()
    seen.note(KEY, "", feed())
    for time, wakes in (
        ("2026-11-21T12:00:10Z", False),
        ("2026-11-21T12:02:00Z", False),
        ("2026-11-21T12:05:00Z", True),
    ):
        reported = feed()
        reported["metadata"]["managedFields"] = [{"manager": api.DRIVER_FIELD_MANAGER, "time": time}]
        assert seen.note(KEY, "MODIFIED", reported) is wakes


def test_a_deleted_one_wakes_and_is_no_longer_counted() -> None:
    seen = SeenObjects()
    seen.note(KEY, "ADDED", feed())
    assert KEY in seen.live()
    assert seen.note(KEY, "DELETED", feed(attempt=4))
    assert seen.live() == {}
    assert seen.note(KEY, "ADDED", feed(attempt=4))
    assert not [each for each in seen.live()[KEY]["metadata"]["managedFields"] if "fieldsV1" in each]
    seen.forget(KEY)
    assert seen.live() == {}


def test_children_are_kept_by_uid_under_the_name_that_they_bear() -> None:
    seen = SeenObjects()
    fields = [{"manager": "m", "time": "t", "fieldsV1": {"f:data": {}}}]
    child = {"metadata": {"name": "c", "namespace": "shop", "uid": "u1", "managedFields": fields}}
    assert seen.note_child(api.CONFIG_MAP, KEY, "ADDED", child) == {KEY}
    lean = {**child["metadata"], "managedFields": [{"manager": "m", "time": "t"}]}
    assert seen.children(KEY) == ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": lean},)
    # One that was made anew is told of before the deletion of the one before.
    anew = {"metadata": {**child["metadata"], "uid": "u2"}}
    seen.note_child(api.CONFIG_MAP, KEY, "ADDED", anew)
    seen.note_child(api.CONFIG_MAP, KEY, "DELETED", child)
    assert [api.uid_of(each) for each in seen.children(KEY)] == ["u2"]
    # Somebody changes its label: both changefeeds have to look.
    other = ("shop", "items")
    assert seen.note_child(api.CONFIG_MAP, other, "MODIFIED", anew) == {KEY, other}
    assert (len(seen.children(KEY)), len(seen.children(other))) == (0, 1)
    seen.note_child(api.CONFIG_MAP, other, "DELETED", anew)
    assert seen.children(other) == ()


def test_what_is_listed_anew_wakes_and_what_is_not_is_gone() -> None:
    seen = SeenObjects()
    seen.note(KEY, "ADDED", feed())
    seen.note_child(api.POD, KEY, "ADDED", {"metadata": {"uid": "u1"}})
    seen.clear()
    assert (seen.live(), seen.changefeed(KEY), seen.children(KEY)) == ({}, None, ())
    assert seen.note(KEY, "", feed())
    assert seen.note(KEY, "", feed())


def test_pauses_between_attempts_never_end_and_start_anew_each_time() -> None:
    pauses = Endless((1.0, 2.0))
    for _ in range(2):
        each = iter(pauses)
        assert [next(each) for _ in range(5)] == [1.0, 2.0, 2.0, 2.0, 2.0]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    started = ApiServer()
    await started.start()
    yield started
    await started.stop()


async def test_each_piece_of_a_watch_is_heard_bookmarks_too(server: ApiServer) -> None:
    heard: list[str] = []

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(3):
            await response.write(b'{"type": "BOOKMARK", "object": {}}\n')
            await asyncio.sleep(0)
        return response

    server.fail("GET", "/api/v1/pods", stream, refusal(500))
    async with aiohttp.ClientSession(
        middlewares=(listening((api.POD,), lambda kind, namespace: heard.append(f"{kind.kind} {namespace}")),)
    ) as session:
        async with session.get(f"{server.url}/api/v1/pods") as response:
            pieces = [piece async for piece in response.content.iter_chunked(1024)]
        assert b"".join(pieces).count(b"BOOKMARK") == 3
        assert heard == ["Pod "] * (1 + len(pieces))
        async with session.get(f"{server.url}/api/v1/pods"):
            pass
        server.objects["/api/v1/namespaces/shop/pods"] = {}
        async with session.get(f"{server.url}/api/v1/namespaces/shop/pods"):
            assert heard.pop() == "Pod shop"
        async with session.get(f"{server.url}/api/v1/secrets"):
            pass
    assert len(heard) == 1 + len(pieces)
