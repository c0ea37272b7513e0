"""One pass: what is read, in what order things are done, and that every way of failing comes back."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from changefeed.kube.client import Kube
from changefeed.kube.connection import Connection
from changefeed.kube.kind import path_of
from changefeed.spec.reasons import Reason
from changefeed_operator import api
from changefeed_operator.actions import Apply, Create, Decision, DeleteObject, EmitEvent, PatchStatus, SetFinalizer
from changefeed_operator.loop import reconcile
from changefeed_operator.loop.queue import Gone, Requeue, Retry
from changefeed_operator.loop.reconcile import CONFIRM, Reconciler
from changefeed_operator.loop.seen import SeenObjects
from changefeed_operator.metrics import Metrics
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Settings
from operator_api_server import ApiServer, refusal

KEY = ("shop", "orders")
PATH = path_of(api.CHANGEFEED, *KEY)
FEED: dict[str, Any] = {
    "apiVersion": api.API_VERSION,
    "kind": "Changefeed",
    "metadata": {"namespace": "shop", "name": "orders", "uid": "u1", "resourceVersion": "7"},
}
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "shop", "name": "changefeed-orders"}}
STATUS = PatchStatus({"state": "Pending"}, "7")

Deciding = Callable[[Observed, Settings], Decision]


@dataclasses.dataclass
class Bench:
    """A reconciler whose `decide` gives what a test says, and keeps what it was shown."""

    server: ApiServer
    seen: SeenObjects
    metrics: Metrics
    kube: Kube
    decision: Decision = dataclasses.field(default_factory=Decision)
    shown: list[Observed] = dataclasses.field(default_factory=list)

    def decide(self, observed: Observed, settings: Settings) -> Decision:
        self.shown.append(observed)
        return self.decision

    def reconciler(self, selector: str = "") -> Reconciler:
        return Reconciler(self.kube, self.seen, Settings("image"), self.metrics, self.decide, selector)

    def number(self, line: str) -> float:
        text = self.metrics.text().decode()
        return next((float(each.split()[-1]) for each in text.splitlines() if each.startswith(line)), 0.0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    server = ApiServer()
    await server.start()
    server.objects[PATH] = FEED
    for kind in Settings("image").child_kinds:
        server.objects[path_of(kind, "shop")] = {"items": []}
    metrics = Metrics()
    made = Bench(
        server, SeenObjects(), metrics, Kube(Connection(server.url), "changefeed-operator", count=metrics.count_request)
    )
    yield made
    await made.kube.close()
    await server.stop()


async def test_a_pass_shows_decide_the_object_and_all_that_bears_its_name(bench: Bench) -> None:
    bench.server.objects[path_of(api.POD, "shop")] = {"items": [{"metadata": {"name": "p"}}]}
    assert await bench.reconciler().work(KEY) == Requeue(None)
    observed = bench.shown[0]
    assert observed.changefeed == FEED
    assert observed.children == ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}},)
    lists = [asked for asked in bench.server.asked if asked.path != PATH]
    assert {asked.path for asked in lists} == {path_of(kind, "shop") for kind in Settings("image").child_kinds}
    assert {asked.query["labelSelector"] for asked in lists} == {"changefeed.dev/name=orders"}


async def test_a_pass_with_nothing_to_do_writes_nothing(bench: Bench) -> None:
    bench.decision = Decision(requeue_after=60.0)
    assert await bench.reconciler().work(KEY) == Requeue(60.0)
    assert bench.server.writes() == []


async def test_actions_are_done_in_order_and_then_looked_at_again_soon(bench: Bench) -> None:
    pod = f"{path_of(api.POD, 'shop')}/changefeed-orders-driver"
    bench.server.objects[pod] = {}
    bench.decision = Decision(
        (STATUS, Apply(CONFIG_MAP), DeleteObject("Pod", "changefeed-orders-driver", "u2"), Create(CONFIG_MAP)), 60.0
    )
    assert await bench.reconciler().work(KEY) == Requeue(CONFIRM)
    assert [(asked.method, asked.path) for asked in bench.server.writes()] == [
        ("PATCH", f"{PATH}/status"),
        ("PATCH", "/api/v1/namespaces/shop/configmaps/changefeed-orders"),
        ("DELETE", pod),
        ("POST", "/api/v1/namespaces/shop/configmaps"),
    ]


def _changes(bench: Bench, metadata: dict[str, Any], status: dict[str, Any]) -> None:
    """Between the look at it and the first write of its status."""

    async def refuse(_: web.Request) -> web.StreamResponse:
        changed = {"metadata": {**FEED["metadata"], "resourceVersion": "8", **metadata}, "status": status}
        bench.server.objects[PATH] = {**FEED, **changed}
        return refusal(409, "Conflict")

    bench.server.fail("PATCH", f"{PATH}/status", refuse)
    bench.decision = Decision((STATUS,))


async def test_a_report_of_the_driver_that_comes_between_does_not_hold_a_step_up(bench: Bench) -> None:
    _changes(bench, {}, {"checkpointTs": "9", "conditions": [{"type": "WithinLag", "status": "True"}]})
    assert await bench.reconciler().work(KEY) == Requeue(CONFIRM)
    assert [asked.body["metadata"]["resourceVersion"] for asked in bench.server.writes()] == ["7", "8"]


@pytest.mark.parametrize(
    ("metadata", "status"),
    [({"generation": 2}, {}), ({"uid": "u2"}, {}), ({"deletionTimestamp": "x"}, {}), ({}, {"attempt": 1})],
)
async def test_anything_else_that_comes_between_ends_the_pass(
    bench: Bench, metadata: dict[str, Any], status: dict[str, Any]
) -> None:
    _changes(bench, metadata, status)
    assert await bench.reconciler().work(KEY) == Retry()
    assert len(bench.server.writes()) == 1


async def test_status_is_written_to_the_very_object_that_was_read(bench: Bench) -> None:
    bench.decision = Decision((STATUS,))
    await bench.reconciler().work(KEY)
    (written,) = bench.server.writes()
    assert written.body["metadata"] == {"namespace": "shop", "name": "orders", "uid": "u1", "resourceVersion": "7"}
    assert written.body["status"] == {"state": "Pending"}


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        (refusal(409, "Conflict"), Retry(), "Conflict"),
        (refusal(409, "AlreadyExists"), Retry(), "AlreadyExists"),
        (refusal(429, Retry_After="9"), Retry(9.0), "Transient"),
        (refusal(500), Retry(), "Transient"),
        (refusal(403, message="forbidden"), Retry(), "NeedsHuman"),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, web.Response) else "",
)
async def test_an_action_that_fails_ends_the_pass_and_comes_back(
    bench: Bench, answer: web.Response, outcome: Retry, reason: str
) -> None:
    bench.server.fail("PATCH", "/api/v1/namespaces/shop/configmaps/changefeed-orders", answer)
    bench.decision = Decision((Apply(CONFIG_MAP), STATUS))
    assert await bench.reconciler().work(KEY) == outcome
    told = [asked for asked in bench.server.writes() if asked.path == f"{PATH}/status"]
    assert bool(told) == (answer.status in (403, 500)), "what it refuses is told, what is to be done after it is not"
    assert bench.number(f'changefeed_operator_retries_total{{reason="{reason}"}}') == 1.0


POD: dict[str, Any] = {
    "metadata": {"name": "changefeed-orders-driver", "uid": "u-pod", "namespace": "shop"},
    "status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]},
}
LOG = f"{path_of(api.POD, 'shop')}/changefeed-orders-driver/log"


async def test_what_the_kubelet_and_the_driver_said_is_read_of_one_that_was_killed(bench: Bench) -> None:
    bench.server.objects[path_of(api.POD, "shop")] = {"items": [POD]}
    event = {"involvedObject": {"uid": "u-pod"}, "reason": "Killing"}
    bench.server.objects["/api/v1/namespaces/shop/events"] = {"items": [event]}
    bench.server.fail("GET", LOG, web.Response(text="first\nlast\n"))
    await bench.reconciler().work(KEY)
    assert bench.shown[0].driver_log == "first\nlast\n"
    assert [each["reason"] for each in bench.shown[0].pod_events] == ["Killing"]


@pytest.mark.parametrize("status", [400, 403, 404, 500, 502])
async def test_a_log_that_cannot_be_had_is_done_without(bench: Bench, status: int) -> None:
    bench.server.objects[path_of(api.POD, "shop")] = {"items": [POD]}
    bench.server.objects["/api/v1/namespaces/shop/events"] = {"items": []}
    bench.server.fail("GET", LOG, refusal(status))
    assert await bench.reconciler().work(KEY) == Requeue(None)
    assert bench.shown[0].driver_log == ""
    assert "request_errors_total{" not in bench.metrics.text().decode()


async def test_events_that_may_not_be_read_are_done_without(bench: Bench) -> None:
    bench.server.objects[path_of(api.POD, "shop")] = {"items": [POD]}
    bench.server.fail("GET", "/api/v1/namespaces/shop/events", refusal(403))
    assert await bench.reconciler().work(KEY) == Requeue(None)
    assert bench.shown[0].pod_events == ()


async def test_a_refusal_is_told_in_the_status_until_it_is_over(bench: Bench) -> None:
    refused = refusal(403, "Forbidden", 'configmaps "x" is forbidden: exceeded quota: small')
    bench.server.fail("PATCH", "/api/v1/namespaces/shop/configmaps/changefeed-orders", refused)
    bench.decision = Decision((Apply(CONFIG_MAP), STATUS))
    reconciler = bench.reconciler()
    await reconciler.work(KEY)
    await reconciler.work(KEY)
    await reconciler.work(KEY)
    told = 'The API server rejects ConfigMap changefeed-orders: configmaps "x" is forbidden: exceeded quota: small. '
    what_then = "Have the rule changed, or request less in the spec."
    assert [observed.refused for observed in bench.shown] == ["", told + what_then, told + what_then, ""]


@pytest.mark.parametrize(
    "answer", [refusal(429), refusal(409, "Conflict"), refusal(503)], ids=lambda it: str(it.status)
)
async def test_a_server_that_is_busy_refuses_nothing(bench: Bench, answer: web.Response) -> None:
    bench.server.fail("PATCH", "/api/v1/namespaces/shop/configmaps/changefeed-orders", answer)
    bench.decision = Decision((Apply(CONFIG_MAP),))
    reconciler = bench.reconciler()
    await reconciler.work(KEY)
    await reconciler.work(KEY)
    assert [observed.refused for observed in bench.shown] == ["", ""]


async def test_what_the_server_refuses_for_good_is_told_in_an_event(bench: Bench) -> None:
    bench.server.fail("PATCH", f"{PATH}/status", refusal(403, "Forbidden", "no patch of changefeeds/status"))
    bench.decision = Decision((STATUS,))
    await bench.reconciler().work(KEY)
    event = bench.server.writes()[-1].body
    assert (event["reason"], event["type"]) == ("Refused", "Warning")
    assert "no patch of changefeeds/status" in event["message"]
    assert event["involvedObject"]["uid"] == "u1"


async def test_the_same_event_counts_up_instead_of_a_new_one(bench: Bench) -> None:
    bench.decision = Decision((EmitEvent(Reason.RUNNING, "It runs."),))
    reconciler = bench.reconciler()
    await reconciler.work(KEY)
    await reconciler.work(KEY)
    first, second = (asked.body for asked in bench.server.writes())
    assert first["metadata"] == second["metadata"]
    assert (first["count"], second["count"]) == (1, 2)
    assert first["firstTimestamp"] == second["firstTimestamp"]


async def test_an_event_that_cannot_be_posted_stops_nothing(bench: Bench) -> None:
    bench.decision = Decision((EmitEvent(Reason.RUNNING, "It runs."), Apply(CONFIG_MAP)))
    reconciler = bench.reconciler()
    name = f"orders.{api.digest(['u1', 'Normal', 'Running', 'It runs.'])}"
    bench.server.fail("PATCH", f"/api/v1/namespaces/shop/events/{name}", refusal(403))
    assert await reconciler.work(KEY) == Requeue(CONFIRM)
    assert bench.server.writes()[-1].path.endswith("configmaps/changefeed-orders")


async def test_a_read_that_fails_ends_the_pass_before_anything_is_decided(bench: Bench) -> None:
    bench.server.fail("GET", path_of(api.ROLE, "shop"), refusal(500))
    assert await bench.reconciler().work(KEY) == Retry()
    assert bench.shown == []


async def test_a_mistake_of_ours_is_logged_counted_and_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(observed: Observed, settings: Settings) -> Decision:
        raise ZeroDivisionError("oops")

    reconciler = bench.reconciler()
    reconciler._decide = broken
    assert await reconciler.work(KEY) == Retry()
    assert bench.number('changefeed_operator_unexpected_errors_total{reason="ZeroDivisionError"}') == 1.0
    assert bench.number('changefeed_operator_reconciles_total{state="failed"}') == 1.0


async def test_a_pass_that_hangs_is_ended_and_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "PASS_TIMEOUT", 0.05)

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    bench.server.fail("GET", PATH, hang)
    assert await bench.reconciler().work(KEY) == Retry()
    assert bench.number('changefeed_operator_retries_total{reason="TimeoutError"}') == 1.0
    assert bench.number("changefeed_operator_unexpected_errors_total{") == 0.0


async def test_one_that_the_selector_leaves_out_is_not_touched(bench: Bench) -> None:
    bench.server.objects[path_of(api.CHANGEFEED, "shop")] = {"items": []}
    assert await bench.reconciler("tier=gold").work(KEY) == Gone()
    assert bench.shown == []
    asked = bench.server.asked[-1]
    assert asked.query == {"labelSelector": "tier=gold", "fieldSelector": "metadata.name=orders"}
    bench.server.objects[path_of(api.CHANGEFEED, "shop")] = {"items": [FEED]}
    await bench.reconciler("tier=gold").work(KEY)
    assert len(bench.shown) == 1


async def test_what_one_that_is_gone_left_behind_is_looked_at_until_nothing_is_left(bench: Bench) -> None:
    del bench.server.objects[PATH]
    bench.server.objects["/api/v1/namespaces/shop"] = {"status": {"phase": "Active"}}
    bench.decision = Decision((Apply(CONFIG_MAP),))
    reconciler = bench.reconciler()
    bench.server.fail("PATCH", "/api/v1/namespaces/shop/configmaps/changefeed-orders", refusal(500))
    assert await reconciler.work(KEY) == Retry()
    assert await reconciler.work(KEY) == Requeue(CONFIRM)
    bench.decision = Decision()
    assert await reconciler.work(KEY) == Gone()
    assert [observed.changefeed for observed in bench.shown] == [None, None, None]


async def test_finalizers_are_patched_over_what_was_observed(bench: Bench) -> None:
    bench.decision = Decision((SetFinalizer(("theirs", "changefeed.dev/close"), "7"),))
    assert await bench.reconciler().work(KEY) == Requeue(CONFIRM)
    asked = bench.server.asked[-1]
    assert (asked.method, asked.path) == ("PATCH", PATH)
    assert asked.body == {"metadata": {"resourceVersion": "7", "finalizers": ["theirs", "changefeed.dev/close"]}}


@pytest.mark.parametrize(("phase", "terminating"), [("Active", False), ("Terminating", True), ("", True)])
async def test_the_namespace_is_asked_only_when_the_changefeed_ends(
    bench: Bench, phase: str, terminating: bool
) -> None:
    reconciler = bench.reconciler()
    await reconciler.work(KEY)
    assert "/api/v1/namespaces/shop" not in {asked.path for asked in bench.server.asked}
    bench.server.objects[PATH] = {**FEED, "metadata": {**FEED["metadata"], "deletionTimestamp": "2026-11-21T12:00:00Z"}}
    if phase:
        bench.server.objects["/api/v1/namespaces/shop"] = {"status": {"phase": phase}}
    await reconciler.work(KEY)
    assert [observed.namespace_terminating for observed in bench.shown] == [False, terminating]


# What the watches know


def _watched(bench: Bench, *children: dict[str, Any]) -> Reconciler:
    """A reconciler whose watches have told of the Changefeed and of these."""
    bench.seen.note(KEY, "ADDED", {**FEED, "metadata": {**FEED["metadata"], "managedFields": [{"fieldsV1": {}}]}})
    for number, child in enumerate(children):
        made = {**child, "metadata": {"uid": f"u-{number}", **child["metadata"]}}
        bench.seen.note_child(Settings("image").kinds[child["kind"]], KEY, "ADDED", made)
    return bench.reconciler()


async def test_a_pass_that_finds_nothing_to_do_asks_the_api_server_nothing(bench: Bench) -> None:
    reconciler = _watched(bench, {"kind": "ConfigMap", "metadata": {"name": "changefeed-orders"}})
    bench.decision = Decision(requeue_after=60.0)
    assert await reconciler.work(KEY) == Requeue(60.0)
    assert bench.server.asked == []
    assert [api.name_of(child) for child in bench.shown[0].children] == ["changefeed-orders"]


async def test_nothing_is_done_that_the_api_server_itself_has_not_shown(bench: Bench) -> None:
    """What a watch has not told of yet looks as if it were missing."""
    found = {"metadata": {"namespace": "shop", "name": "changefeed-orders", "uid": "u3"}}
    bench.server.objects[path_of(api.CONFIG_MAP, "shop")] = {"items": [found]}
    reconciler = _watched(bench)

    def decide(observed: Observed, settings: Settings) -> Decision:
        bench.shown.append(observed)
        return Decision() if observed.children else Decision((Apply(CONFIG_MAP),))

    reconciler._decide = decide
    assert await reconciler.work(KEY) == Requeue(None)
    assert bench.server.writes() == []
    assert [bool(observed.children) for observed in bench.shown] == [False, True]


async def test_what_has_to_be_done_is_decided_by_what_the_api_server_shows(bench: Bench) -> None:
    reconciler = _watched(bench)
    bench.decision = Decision((STATUS,))
    assert await reconciler.work(KEY) == Requeue(CONFIRM)
    assert [observed.changefeed == FEED for observed in bench.shown] == [False, True]
    assert [asked.path for asked in bench.server.writes()] == [f"{PATH}/status"]


@pytest.mark.parametrize(
    "child",
    [
        {"kind": "Pod", **POD},
        {"kind": "Pod", "metadata": {"name": "p", "labels": {api.JOB_LABEL: "hold"}}, "status": {"phase": "Pending"}},
    ],
    ids=["a driver that ended", "a pod that does not start"],
)
async def test_where_there_is_trouble_the_watches_do_not_know_enough(bench: Bench, child: dict[str, Any]) -> None:
    reconciler = _watched(bench, child)
    bench.server.objects[path_of(api.POD, "shop")] = {"items": [child]}
    bench.server.objects["/api/v1/namespaces/shop/events"] = {"items": []}
    await reconciler.work(KEY)
    assert bench.server.asked != []


async def test_one_that_goes_or_is_not_known_is_read(bench: Bench) -> None:
    going = {**FEED, "metadata": {**FEED["metadata"], "deletionTimestamp": "2026-11-21T12:00:00Z"}}
    bench.server.objects["/api/v1/namespaces/shop"] = {"status": {"phase": "Active"}}
    reconciler = bench.reconciler()
    for known in (None, going):
        if known:
            bench.seen.note(KEY, "MODIFIED", known)
        before = len(bench.server.asked)
        await reconciler.work(KEY)
        assert len(bench.server.asked) > before


async def test_after_a_refusal_the_next_pass_reads_and_takes_it_back(bench: Bench) -> None:
    reconciler = _watched(bench)
    bench.decision = Decision((Apply(CONFIG_MAP),))
    bench.server.fail("PATCH", "/api/v1/namespaces/shop/configmaps/changefeed-orders", refusal(403, "Forbidden", "no"))
    await reconciler.work(KEY)
    bench.decision = Decision()
    await reconciler.work(KEY)
    assert bench.shown[-1].refused != ""
    before = len(bench.server.asked)
    await reconciler.work(KEY)
    assert bench.shown[-1].refused == ""
    assert len(bench.server.asked) == before


async def test_a_mode_that_a_quiet_pass_has_seen_is_the_one_before(bench: Bench) -> None:
    reconciler = _watched(bench)
    bench.seen.note(KEY, "MODIFIED", {**FEED, "status": {"eventStoreMode": "Buffer"}})
    await reconciler.work(KEY)
    await reconciler.work(KEY)
    assert [observed.mode_before for observed in bench.shown] == ["", "Buffer"]


async def test_rules_that_match_nothing_bring_a_pass_for_each_thing_said_of_them(bench: Bench) -> None:
    def told(message: str, status: str = "False") -> dict[str, Any]:
        rules = {"type": "RulesMatch", "status": status, "reason": "TableMissing", "message": message}
        return {**FEED, "status": {"conditions": [rules]}}

    reconciler = _watched(bench)
    for message in ("no shop.a", "no shop.b"):
        assert bench.seen.note(KEY, "MODIFIED", told(message))
        assert not bench.seen.note(KEY, "MODIFIED", told(message))
        await reconciler.work(KEY)
    bench.seen.note(KEY, "MODIFIED", told("no driver", "Unknown"))
    await reconciler.work(KEY)
    await reconciler.work(KEY)
    assert [observed.unmatched_before for observed in bench.shown] == ["", "no shop.a", "no shop.b", "no shop.b"]
