"""Leader election, in virtual time: one leader, a fast hand-over, and nobody acts on a Lease that may be another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from changefeed.errors import Fenced
from changefeed.kube.client import Kube
from changefeed.kube.connection import Connection
from changefeed_operator.loop import leader as leader_module
from changefeed_operator.loop.leader import LEASE_DURATION, RENEW_DEADLINE, Election, Leadership
from hypothesis import given
from hypothesis import strategies as st
from operator_api_server import ApiServer, refusal

WALL = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Store:
    """A Lease as the API server keeps it: a write over another version than the newest fails."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = {}
        self.version = 0

    def write(self, spec: dict[str, Any], version: int) -> bool:
        if version != self.version:
            return False
        self.spec, self.version = spec, version + 1
        return True


def look(election: Election, store: Store, now: float, wall: datetime = WALL) -> None:
    """One look that writes what is proposed at once."""
    election.see(store.spec, now)
    proposed = election.proposal(store.spec, now, wall + timedelta(seconds=now))
    if proposed is None:
        election.lost()
    elif store.write(proposed, store.version):
        election.won(now)


def test_the_first_takes_a_lease_that_nobody_has() -> None:
    store, a = Store(), Election("a")
    look(a, store, 0.0)
    assert a.holds(0.0)
    assert store.spec["holderIdentity"] == "a"
    assert store.spec["leaseTransitions"] == 0


def test_a_lease_that_is_renewed_is_never_taken() -> None:
    store, a, b = Store(), Election("a"), Election("b")
    for now in range(0, 200, 2):
        look(a, store, float(now))
        look(b, store, now + 1.0)
        assert a.holds(now + 1.0)
        assert not b.holds(now + 1.0)


def test_a_dead_leader_is_followed_after_the_duration_and_not_before() -> None:
    store, a, b = Store(), Election("a"), Election("b")
    look(a, store, 0.0)
    look(b, store, 1.0)
    look(b, store, LEASE_DURATION + 0.9)
    assert not b.holds(LEASE_DURATION + 0.9)
    look(b, store, LEASE_DURATION + 1.1)
    assert b.holds(LEASE_DURATION + 1.1)
    assert store.spec["leaseTransitions"] == 1


def test_a_leader_that_cannot_renew_stops_before_another_may_start() -> None:
    a = Election("a")
    look(a, Store(), 0.0)
    assert a.holds(RENEW_DEADLINE - 0.01)
    assert not a.holds(RENEW_DEADLINE)
    assert RENEW_DEADLINE < LEASE_DURATION


def test_clocks_of_others_do_not_matter() -> None:
    store, a, b = Store(), Election("a"), Election("b")
    look(a, store, 0.0, WALL - timedelta(days=1))
    look(b, store, 1.0, WALL + timedelta(days=1))
    assert not b.holds(1.0)


def test_a_lease_that_was_given_back_is_taken_at_the_next_look() -> None:
    store, a, b = Store(), Election("a"), Election("b")
    look(a, store, 0.0)
    look(b, store, 1.0)
    store.write({**store.spec, "holderIdentity": ""}, store.version)
    look(b, store, 2.0)
    assert b.holds(2.0)


def test_a_longer_duration_of_the_holder_is_respected() -> None:
    store, a, b = Store(), Election("a", lease_duration=60.0), Election("b")
    look(a, store, 0.0)
    look(b, store, 0.0)
    look(b, store, 59.0)
    assert not b.holds(59.0)
    look(b, store, 61.0)
    assert b.holds(61.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.floats(0.0, 8.0), st.floats(0.0, 3.0), st.booleans()), min_size=1, max_size=80
    )
)
def test_two_never_hold_it_at_the_same_moment(steps: list[tuple[int, float, float, bool]]) -> None:
    """Three candidates look at any times; a write lands late, and its answer may be lost."""
    store = Store()
    candidates = [Election(name) for name in "abc"]
    now = 0.0
    for who, pause, flight, answer_lost in steps:
        now += pause
        one = candidates[who]
        one.see(store.spec, now)
        proposed, version = one.proposal(store.spec, now, WALL + timedelta(seconds=now)), store.version
        sent_at = now
        if proposed is None:
            one.lost()
        else:
            now += flight
            if store.write(proposed, version) and not answer_lost:
                one.won(sent_at)
        assert sum(candidate.holds(now) for candidate in candidates) <= 1


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    started = ApiServer()
    await started.start()
    yield started
    await started.stop()


PATH = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/changefeed-operator"


async def test_a_leader_that_loses_the_server_ends_at_its_deadline(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "RETRY_PERIOD", 0.0)
    now = 0.0
    kube = Kube(Connection(server.url), "changefeed-operator")
    leadership = Leadership(kube, "ops", "changefeed-operator", "a", clock=lambda: now)
    await leadership.acquire()
    assert leadership.holds()

    async def later(request: web.Request) -> web.Response:
        nonlocal now
        now += 3.0
        return refusal(500)

    server.fail("GET", PATH, later, later, later, later)
    with pytest.raises(Fenced, match="Lost the Lease"):
        await leadership.keep()
    assert now == 12.0
    await kube.close()


async def test_a_leader_that_sees_another_one_ends_at_once(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_module, "RETRY_PERIOD", 0.0)
    kube = Kube(Connection(server.url), "changefeed-operator")
    leadership = Leadership(kube, "ops", "changefeed-operator", "a", clock=lambda: 0.0)
    await leadership.acquire()
    server.objects[PATH] = {"metadata": {}, "spec": {"holderIdentity": "b", "leaseDurationSeconds": 15}}
    async with asyncio.timeout(10.0):
        with pytest.raises(Fenced, match="Lost the Lease"):
            await leadership.keep()
    await kube.close()


async def test_a_candidate_that_was_too_slow_looks_again(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_module, "RETRY_PERIOD", 0.0)
    kube = Kube(Connection(server.url), "changefeed-operator")
    leadership = Leadership(kube, "ops", "changefeed-operator", "a")
    server.fail("POST", PATH.rpartition("/")[0], refusal(409, "AlreadyExists"))
    await asyncio.wait_for(leadership.acquire(), 5.0)
    assert [asked.method for asked in server.asked] == ["GET", "POST", "GET", "POST"]
    await kube.close()


async def test_release_empties_the_holder_and_only_our_own(server: ApiServer) -> None:
    kube = Kube(Connection(server.url), "changefeed-operator")
    leadership = Leadership(kube, "ops", "changefeed-operator", "a")
    await leadership.acquire()
    metadata = {"namespace": "ops", "name": "changefeed-operator"}
    server.objects[PATH] = {"metadata": metadata, "spec": {"holderIdentity": "b"}}
    server.asked.clear()
    await leadership.release()
    assert server.writes() == []
    leadership.election.won(leadership.answered_at)
    server.objects[PATH]["spec"]["holderIdentity"] = "a"
    server.objects[PATH]["kind"] = "Lease"
    await leadership.release()
    assert server.writes()[0].body["spec"] == {"holderIdentity": "", "leaseDurationSeconds": 1}
    assert not leadership.holds()
    await kube.close()
