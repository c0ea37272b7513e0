"""The operator killed at every write that it makes in the life of a changefeed: whoever takes over ends up the same.

Every write of a clean life is counted; then there is a life for each, in which the operator is killed at it, in turn
before it has the answer and after, and another one takes over. Spark's part is played. Several lives go on at the
same moment, each at a site of its own: a namespace, a release, a proxy. Every third write is killed at, from where the
commit says, or CHANGEFEED_SEED; CHANGEFEED_EVIDENCE=FILE: every one, and the table as JSON.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster_api import CORE, Namespace
from cluster_api_proxy import ApiProxy
from cluster_changefeed_operator import ForkedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_forks import Forks
from cluster_history import History
from cluster_played_spark import PlayedSpark
from cluster_processes import READY_S, wait_until
from cluster_seed import SEED

_EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
EVERY = 1 if _EVIDENCE else 3
SITES = 5
TARGET_TS = "450000000000000000"
pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Site:
    namespace: Namespace
    operator: ForkedOperator
    proxy: ApiProxy


@dataclass(frozen=True)
class Kill:
    """At the `write`-th write, from 1; 0: before the first."""

    write: int
    before_answer: bool

    def __str__(self) -> str:
        return f"{self.write:3} {'before' if self.before_answer else 'after'} the answer" if self.write else "  0"


@dataclass
class Life:
    """What came of one. `stations`: where the changefeed stood after each step; `left`: what bears its name then."""

    kill: Kill | None
    writes: list[str] = field(default_factory=list)
    killed_at: str = ""
    stations: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def end(self) -> tuple[list[str], list[str]]:
        return self.stations, self.left


class Living:
    """Leads one changefeed through its life."""

    def __init__(self, site: Site, name: str, history: History, events: History, kill: Kill | None) -> None:
        self._site = site
        self._feeds = Feeds(site.namespace, history)
        self._events = events
        self._name = name
        self._killed = threading.Event()
        self._replaced = False
        self.life = Life(kill)

    def live(self) -> Life:
        began, before = time.monotonic(), len(self._site.proxy.writes)
        self._site.operator.start()
        wait_until(lambda: self._site.operator.leads, "the operator leads")
        self._arm()
        try:
            for step in (self._create, self._pause, self._resume, self._finish, self._delete):
                step()
        finally:
            self._site.proxy.disarm()
            self._site.operator.stop()
        self.life.writes = [write.name.replace(self._name, "X") for write in self._site.proxy.writes[before:]]
        self.life.seconds = time.monotonic() - began
        return self.life

    def _arm(self) -> None:
        kill = self.life.kill
        if kill and kill.write:
            self._site.proxy.kill_at(kill.write, self._kill, kill.before_answer)
        elif kill:
            self._kill()
            self.life.killed_at = "none yet"

    def _kill(self) -> None:
        self._site.operator.kill()
        self.life.killed_at = "".join(write.name for write in self._site.proxy.writes[-1:]).replace(self._name, "X")
        self._killed.set()

    def _take_over(self) -> None:
        """By an operator that need not wait for the dead one's Lease to run out."""
        self._replaced = True
        self._site.namespace.api.delete(self._site.operator.lease)
        self._site.operator.start()
        wait_until(lambda: self._site.operator.leads, "the next operator leads")

    def _until(self, condition: Callable[[], object], what: str, every_s: float = 0.05) -> None:
        deadline = time.monotonic() + READY_S
        while not condition():
            if self._killed.is_set() and not self._replaced:
                self._take_over()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._name}: {what}; it is {self._feeds.status(self._name)}")
            time.sleep(every_s)

    def _until_in(self, state: str, event: str) -> None:
        """And until the last write of the way there is done: its event, which a killed operator may owe for ever."""
        self._until(lambda: self._feeds.is_in(self._name, state), state)
        self._until(lambda: self._has_said(event) or self._has_looked(), f"event {event}")
        status = self._feeds.status(self._name)
        shown = [f"{each['type']}={each['status']}/{each['reason']}" for each in status["conditions"]]
        phase = (status["attempt"], status["attemptPhase"], status.get("attemptOutcome", ""))
        self.life.stations.append(f"{state} {sorted(shown)} {phase} {status['restarts']}")

    def _has_said(self, event: str) -> bool:
        said = self._events.all_latest(self._site.namespace.name).values()
        mine = (each for each in said if each["involvedObject"]["name"] == self._name and each["reason"] == event)
        return bool(sum(each["count"] for each in mine) > self._said_before.get(event, 0))

    def _has_looked(self) -> bool:
        return self._replaced and self._site.operator.number("changefeed_operator_reconciles_total") > 0

    def _note_events(self) -> None:
        self._said_before: dict[str, int] = {}
        for each in self._events.all_latest(self._site.namespace.name).values():
            if each["involvedObject"]["name"] == self._name:
                before = self._said_before.get(each["reason"], 0)
                self._said_before[each["reason"]] = before + each["count"]

    def _create(self) -> None:
        self._note_events()
        self._feeds.create(self._name)
        self._until_in("Normal", "Running")

    def _pause(self) -> None:
        self._change("Stopped", "Paused", paused=True)

    def _resume(self) -> None:
        self._change("Normal", "Running", paused=False)

    def _finish(self) -> None:
        """An edit, as any: a drain, and another attempt."""
        self._change("Finished", "Finished", targetTs=TARGET_TS)

    def _change(self, state: str, event: str, **spec: Any) -> None:
        self._note_events()
        self._feeds.edit(self._name, **spec)
        self._until_in(state, event)

    def _delete(self) -> None:
        self._until(self._is_idle, "the operator has done its pass")
        self._feeds.ask_to_delete(self._name)
        self._until(self._is_closed, "the close Job has run", every_s=0.2)
        # All but the Job and its pod.
        self._until(lambda: len(self._feeds.children(self._name)) <= 2, "its children are gone", every_s=0.3)
        self.life.left = [kind for kind, _, _ in (child.partition("/") for child in self._feeds.children(self._name))]

    def _is_idle(self) -> bool:
        operator = self._site.operator
        if not operator.leads or operator.number("changefeed_operator_running_passes_count"):
            return False
        # Asked last: a kill that is neither due nor done comes to an operator that has done its pass.
        return self.life.kill is None or self._site.proxy.kill_is_due or self._has_looked()

    def _is_closed(self) -> bool:
        job = self._site.namespace.of("batch/v1", "jobs", f"changefeed-{self._name}-close")
        return bool((self._site.namespace.api.find(job) or {}).get("status", {}).get("succeeded"))


@pytest.fixture
def sites(
    cluster: ControlPlane, crd: None, spark_crds: None, forks: Forks, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Site]]:
    with ExitStack() as stack, ThreadPoolExecutor(SITES) as pool:

        def build(number: int) -> Site:
            namespace = cluster.create_namespace(f"operator-kills-{number}")
            proxy = stack.enter_context(ApiProxy(cluster))
            folder = tmp_path_factory.mktemp(namespace.name)
            operator = ForkedOperator(cluster, namespace, folder, proxy.server, forks=forks)
            stack.callback(operator.end)
            stack.callback(cluster.api.delete, f"{CORE}/namespaces/{namespace.name}")
            operator.install()
            return Site(namespace, operator, proxy)

        yield list(pool.map(build, range(SITES)))


def test_an_operator_killed_at_any_write_is_followed_by_one_that_ends_up_the_same(
    cluster: ControlPlane, sites: list[Site], history: History
) -> None:
    namespaces = [site.namespace.name for site in sites]
    with (
        PlayedSpark(cluster.api, namespaces, report_s=1.0, poll_s=0.1) as spark,
        History(cluster.api, f"{CORE}/events") as events,
    ):
        clean = Living(sites[0], _name(None), history, events, None).live()
        sys.stdout.write(_head(clean))
        kills = [Kill(write, bool(write % 2)) for write in range(SEED % EVERY, len(clean.writes) + 1, EVERY)]
        lives = []
        for life in _lives(sites, history, events, kills):
            sys.stdout.write(_told(clean, life))
            lives.append(life)
    if _EVIDENCE:
        Path(_EVIDENCE).write_text(json.dumps(_evidence(clean, lives), indent=1) + "\n")
    assert len(clean.stations) == 4
    assert clean.left == ["jobs", "pods"]
    assert [str(life.kill) for life in lives if life.end != clean.end] == []
    assert spark.broken == [], "two drivers at once"
    assert spark.errors == []
    for life in lives:
        name = _name(life.kill)
        attempts = [attempt for _, changefeed, attempt in spark.started if changefeed == name]
        assert attempts == [1, 2, 3], name
    reached = sum(bool(life.killed_at) for life in lives)
    assert reached >= 0.9 * len(lives), "the lives are not alike"


def _name(kill: Kill | None) -> str:
    return f"k{kill.write}" if kill else "clean"


def _lives(sites: list[Site], history: History, events: History, kills: list[Kill]) -> Iterator[Life]:
    """In the order of the kills."""
    free: queue.SimpleQueue[Site] = queue.SimpleQueue()
    for site in sites:
        free.put(site)

    def one(kill: Kill) -> Life:
        site = free.get()
        try:
            return Living(site, _name(kill), history, events, kill).live()
        finally:
            free.put(site)

    with ThreadPoolExecutor(len(sites)) as pool:
        yield from pool.map(one, kills)


def _evidence(clean: Life, lives: list[Life]) -> dict[str, Any]:
    rows = [
        {
            "kill": str(life.kill).strip(),
            "at": life.killed_at,
            "writes": len(life.writes),
            "seconds": round(life.seconds, 1),
            "ends the same": life.end == clean.end,
        }
        for life in lives
    ]
    return {"writes": len(clean.writes), "stations": clean.stations, "left": clean.left, "lives": rows}


def _told(clean: Life, life: Life) -> str:
    """A row of the table."""
    end = "same" if life.end == clean.end else f"OTHER: {life.stations} {life.left}"
    return f"{life.kill!s:22} {life.killed_at or '(not reached)':52} {len(life.writes):6} {life.seconds:7.1f}  {end}\n"


def _head(clean: Life) -> str:
    rows = [
        f"clean: {len(clean.writes)} writes, {clean.seconds:.1f} s",
        *(f"  {station}" for station in clean.stations),
    ]
    rows += [f"  left: {clean.left}", f"{'killed at':22} {'write':52} {'writes':>6} {'seconds':>7}  end"]
    return "\n" + "\n".join(rows) + "\n"
