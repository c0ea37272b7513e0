"""Chaos on the operator's side: whatever is done to it and to its children, each changefeed is Ready at the end without
anybody's help, and no row is lost.

The API server, the Spark operator and the drivers are real; nodes are played. CHANGEFEED_EVIDENCE=FILE: for
CHANGEFEED_CHAOS_S seconds (default: half an hour), and the figures go into that file. The seed goes by the commit;
CHANGEFEED_SEED takes another.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_api import Namespace
from cluster_changefeed_operator import ForkedOperator
from cluster_chaos import Chaos
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_forks import Forks
from cluster_history import History
from cluster_pods import PlayedNode
from cluster_processes import Processes, free_ports, wait_until
from cluster_programs import program
from cluster_running_drivers import RunningDrivers
from cluster_seed import SEED
from cluster_spark_operator import SparkOperator

_BIN = Path(sys.executable).parent
_EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
SECONDS = float(os.environ.get("CHANGEFEED_CHAOS_S", "1800")) if _EVIDENCE else 45.0
#: From the end of the chaos until all is well.
CALM_S = 480.0
_KEY_ID, _KEY, _SECRET = "testkey", "testsecret", "writer"
pytestmark = [pytest.mark.timeout(SECONDS + CALM_S + 600), pytest.mark.usefixtures("crd")]


@dataclass
class World:
    """Two namespaces with changefeeds of one bank, and an S3 server; `upstream`: PD's address."""

    folder: Path
    namespaces: list[Namespace]
    feeds: dict[str, Feeds]
    upstream: str
    endpoint: str

    def create(self, namespace: Namespace, name: str) -> None:
        secret = {"metadata": {"name": _SECRET}, "stringData": {"access-key-id": _KEY_ID, "secret-access-key": _KEY}}
        if not namespace.api.find(namespace.core("secrets", _SECRET)):
            namespace.api.create(namespace.core("secrets"), secret)
        credentials = {"secretRef": {"name": _SECRET}}
        storage = {"uri": self._uri(f"lake/{namespace.name}/{name}"), "protocol": "csv", "flushInterval": "1s"}
        self.feeds[namespace.name].create(
            name,
            upstream={"pdAddresses": [f"http://{self.upstream}"]},
            filter={"rules": ["bank.*"]},
            state={"uri": self._uri("state"), "credentials": credentials},
            sink={"storage": {**storage, "csv": {"includeCommitTs": True}, "credentials": credentials}},
        )

    def _uri(self, path: str) -> str:
        return f"s3://{path}?endpoint={self.endpoint}&region=us-east-1"

    @property
    def all_feeds(self) -> list[tuple[Feeds, str]]:
        return [(feeds, name) for feeds in self.feeds.values() for name in feeds.history.all_latest(_name(feeds))]

    def is_well(self, feeds: Feeds, name: str, ts: int) -> bool:
        status = feeds.status(name)
        ready = [each["status"] for each in status.get("conditions", ()) if each["type"] == "Ready"]
        return ready == ["True"] and int(status.get("checkpointTs", 0)) > ts

    def verify(self, feeds: Feeds, name: str) -> dict[str, Any]:
        """What `changefeed verify` says; fails when a promise is broken."""
        found = feeds.namespace.api.get(feeds.namespace.changefeeds(name))
        file = self.folder / f"{_name(feeds)}-{name}.json"
        file.write_text(json.dumps(found))
        arguments = ("-f", file, "--secrets-dir", self.folder / "secrets", "--conserved", "balance", "--json")
        done = subprocess.run([_BIN / "changefeed", "verify", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"verify: {done.returncode}\n{done.stdout}\n{done.stderr}"
        verdict: dict[str, Any] = json.loads(done.stdout)
        return verdict

    def now(self) -> int:
        """A ts of the upstream."""
        command = [_BIN / "changefeed", "tso", "now", "--pd", f"http://{self.upstream}", "--json"]
        return int(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["ts"])


def _name(feeds: Feeds) -> str:
    return feeds.namespace.name


@pytest.fixture
def world(cluster: ControlPlane, history: History, tmp_path: Path) -> Iterator[World]:
    processes = Processes(tmp_path)
    (port,) = free_ports(1)
    for bucket in ("lake", "state"):
        (tmp_path / "s3" / bucket).mkdir(parents=True)
    command: list[str | Path] = [program("versitygw"), "--port", f"127.0.0.1:{port}", "--quiet"]
    processes.start("s3", [*command, "posix", tmp_path / "s3"], {"ROOT_ACCESS_KEY": _KEY_ID, "ROOT_SECRET_KEY": _KEY})
    command = [_BIN / "changefeed-devcluster", "start", "--workload", "bank", "--tables", "2", "--regions", "2"]
    processes.start("upstream", [*command, "--rows", "100", "--rate", "50"])
    for key, value in (("access-key-id", _KEY_ID), ("secret-access-key", _KEY)):
        file = tmp_path / "secrets" / _SECRET / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value)
    said = processes.log("upstream")
    processes.wait_until(lambda: '"startTs"' in said.read_text(), "the upstream is ready")
    ready = json.loads(next(line for line in said.read_text().splitlines() if '"startTs"' in line))
    namespaces = [cluster.create_namespace(f"chaos-{name}-{port}") for name in ("shop", "billing")]
    feeds = {namespace.name: Feeds(namespace, history) for namespace in namespaces}
    yield World(tmp_path, namespaces, feeds, ready["pd"], f"http://127.0.0.1:{port}")
    processes.stop_all()


def test_every_changefeed_is_ready_and_whole_whatever_was_done(
    cluster: ControlPlane,
    spark_operator: SparkOperator,
    world: World,
    tmp_path: Path,
    forks: Forks,
    capfd: pytest.CaptureFixture[str],
) -> None:
    story: list[str] = []
    with ExitStack() as stack:
        operator = ForkedOperator(cluster, world.namespaces[0], tmp_path, forks=forks, resync_s=20.0)
        stack.callback(operator.end)
        operator.install(f"watchNamespaces={{{','.join(each.name for each in world.namespaces)}}}")
        operator.start()
        nodes = {namespace: stack.enter_context(PlayedNode(namespace)) for namespace in world.namespaces}
        drivers = stack.enter_context(RunningDrivers(cluster, tmp_path, nodes))
        for namespace, name in zip(world.namespaces, ("orders", "invoices"), strict=True):
            world.create(namespace, name)
        _wait_until_well(world, operator, drivers, story)
        chaos = Chaos(
            cluster, operator, world.namespaces, drivers, spark_operator, random.Random(SEED), say=_told(story)
        )
        chaos.run(SECONDS)
        chaos.end()
        calm_at = time.monotonic()
        _wait_until_well(world, operator, drivers, story)
        calm_s = time.monotonic() - calm_at
        verdicts = {name: world.verify(feeds, name) for feeds, name in world.all_feeds}
        figures = {
            "seed": SEED,
            "seconds": SECONDS,
            "steps": dict(chaos.done),
            "drivers": drivers.started,
            "ready_after_s": round(calm_s, 1),
            "changefeeds": {name: _counts(verdict) for name, verdict in verdicts.items()},
        }
        for feeds, name in world.all_feeds:
            assert feeds.history.latest(_name(feeds), name)["metadata"]["generation"] == 1, "nobody touched it"
            assert verdicts[name]["rows"] > 0
    with capfd.disabled():
        sys.stdout.write(f"\n{json.dumps(figures)}\n")
    if _EVIDENCE:
        Path(_EVIDENCE).write_text(json.dumps(figures, indent=2) + "\n")


def _told(story: list[str]) -> Any:
    began = time.monotonic()

    def say(line: str) -> None:
        story.append(f"{time.monotonic() - began:7.1f} s  {line}")

    return say


def _wait_until_well(world: World, operator: ForkedOperator, drivers: RunningDrivers, story: list[str]) -> None:
    ts = world.now()
    for feeds, name in world.all_feeds or _expected(world):
        try:
            wait_until(lambda feeds=feeds, name=name: world.is_well(feeds, name, ts), f"{name} is well", CALM_S)
        except TimeoutError as late:
            status = json.dumps(feeds.status(name), indent=1)
            told = "\n".join(story)
            raise AssertionError(
                f"seed {SEED}: {late}\n{told}\n{status}\n{drivers.outputs()}\n{operator.log[-3000:]}"
            ) from late


def _expected(world: World) -> list[tuple[Feeds, str]]:
    wait_until(lambda: len(world.all_feeds) == len(world.namespaces), "the changefeeds are there")
    return world.all_feeds


def _counts(verdict: dict[str, Any]) -> dict[str, Any]:
    return {name: verdict[name] for name in ("rows", "missing", "duplicate", "out_of_order", "conserved")}
