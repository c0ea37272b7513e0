"""A development cluster in this process, and `changefeed run` as a user starts it: a process of its own."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
from changefeed.cli.main import main
from changefeed.log.log import Log
from changefeed.objectstore.local import LocalStore
from changefeed.spark import execution, launch
from changefeed.spec.parse import parse
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.tidb import Tidb
from integration_inprocess import InProcessExecution, Run
from integration_mariadb import MariaDb
from integration_mariadb import running as mariadb_running
from integration_registry import RegistryServer, Release
from integration_registry import registry as registry_running
from integration_s3_servers import S3Server, running
from integration_tools import pytest_terminal_summary  # noqa: F401 - a hook

BIN = Path(sys.executable).parent
DEADLINE_S = 120.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: a load that two cores carry, but not beside other tests")


def wait_for(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The first truthy value of `condition`; fails the test when there is none before the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.02)
    return value


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@dataclass
class Upstream:
    cluster: DevCluster
    tidb: Tidb

    def now(self) -> int:
        return self.tidb.now()

    def ports(self) -> set[int]:
        addresses = (self.cluster.pd_address, *self.cluster.store_addresses.values())
        return {int(address.rpartition(":")[2]) for address in addresses}


@dataclass
class Changefeed:
    """One changefeed's resource, sink and state, and the process that runs it."""

    folder: Path
    spec: dict[str, Any]
    process: subprocess.Popen[str] | None = None
    output: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)  # of `changefeed run`
    metrics_port: int = 0  # 0: any

    @property
    def file(self) -> Path:
        return self.folder / "changefeed.json"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def log(self) -> Path:
        return self.folder / "state" / "default" / "test" / "local" / "log"

    def write(self) -> None:
        resource = {
            "apiVersion": "changefeed.dev/v1alpha1",
            "kind": "Changefeed",
            "metadata": {"name": "test"},
            "spec": self.spec,
        }
        self.file.write_text(json.dumps(resource))

    def start(self, as_json: bool = True) -> None:
        self.write()
        command = [str(BIN / "changefeed"), "run", "-f", str(self.file), "--metrics-port", str(self.metrics_port)]
        command += [*self.options, *(["--json"] if as_json else [])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def start_here(self) -> Run:
        """In this process's event loop and without Spark, where it is about neither: a start costs no 20 CPU-s."""
        self.write()
        return Run(parse(self.file.read_text()), InProcessExecution()).start()

    def run_here(self) -> int:
        """As `run`, with its exit code, but in this process and without Spark; what it prints is this process's."""
        self.write()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch.Launch, "begin", lambda _: None)
            patch.setattr(execution, "SparkExecution", lambda *_: InProcessExecution())
            try:
                return main(["run", "-f", str(self.file), "--metrics-port", "0", *self.options])
            finally:
                gc.unfreeze()  # what a driver takes for permanent is not all that this process does

    def finish(self, deadline_s: float = DEADLINE_S) -> tuple[int, str, str]:
        """Wait for the process to end: (exit code, stdout, stderr)."""
        assert self.process is not None
        try:
            out, err = self.process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self.process.returncode, out, err

    def run(self, as_json: bool = True) -> tuple[int, str, str]:
        self.start(as_json)
        return self.finish()

    def kill(self) -> tuple[str, str]:
        """SIGKILL, as power loss or the OOM killer would end it; Spark's JVM and workers end by themselves.

        (stdout, stderr)
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        return self.process.communicate()

    @contextmanager
    def ending_whole(self) -> Iterator[None]:
        """The process ends inside; Spark's JVM and its workers must end with it."""
        assert self.process is not None
        below = psutil.Process(self.process.pid).children(recursive=True)
        assert "java" in [each.info["name"] for each in psutil.process_iter(["name"]) if each in below]
        yield
        _, alive = psutil.wait_procs(below, timeout=30.0)
        assert [" ".join(each.cmdline()[:3]) for each in alive] == []

    def drain(self, deadline_s: float = DEADLINE_S) -> tuple[int, str, str]:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.finish(deadline_s)

    def metric(self, name: str) -> float:
        """A metric of the running process, summed over its labels; `metrics_port` must have been chosen."""
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10.0) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def checkpoint(self) -> int:
        """The published checkpoint, or where nothing is published the recorded one; 0 while there is none."""
        if "storage" not in self.spec["sink"]:
            return Log(LocalStore(self.log.parent)).read().checkpoint_ts if self.log.exists() else 0
        metadata = self.lake / "metadata"
        return int(json.loads(metadata.read_text())["checkpoint-ts"]) if metadata.exists() else 0

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The log's records in order."""
        records = [json.loads(path.read_text()) for path in sorted(self.log.glob("[0-9]*.json"))]
        return [record for record in records if kind in (None, record["kind"])]

    def data_files(self) -> list[Path]:
        return sorted(self.lake.rglob("CDC*.csv"))

    def verify(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """(exit code, its JSON) of `changefeed verify`."""
        done = subprocess.run(
            [BIN / "changefeed", "verify", "-f", self.file, "--json", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with DevCluster(min_ts_interval=0.2) as cluster:
        tidb = Tidb(cluster)
        tidb.bootstrap()
        yield Upstream(cluster, tidb)


@pytest.fixture
def new_changefeed(tmp_path: Path, upstream: Upstream) -> Iterator[Callable[..., Changefeed]]:
    """`new_changefeed(rules, name="a", **storage options)`: not yet started; killed at the end if it still runs."""
    made: list[Changefeed] = []

    def make(rules: list[str], name: str = "a", **storage: Any) -> Changefeed:
        folder = tmp_path / name
        folder.mkdir()
        spec = {
            "upstream": {"pdAddresses": [f"http://{upstream.cluster.pd_address}"]},
            "filter": {"rules": rules},
            "state": {"uri": (folder / "state").as_uri()},
            # As few Python workers as there can be: their start is what these tests wait for.
            "spark": {"pullers": {"count": 1}, "executor": {"instances": 1, "cores": 2}},
            "sink": {
                "storage": {
                    "uri": (folder / "lake").as_uri(),
                    "protocol": "csv",
                    "flushInterval": "500ms",
                    "csv": {"includeCommitTs": True},
                    **storage,
                }
            },
        }
        made.append(Changefeed(folder, spec))
        return made[-1]

    yield make
    for changefeed in made:
        if changefeed.process is not None and changefeed.process.poll() is None:
            print(changefeed.kill())  # noqa: T201 - shown when the test has failed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who is given much time begins first, so that at the end no worker waits for one long test of the other's."""

    def given(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return float(marker.args[0]) if marker else 0.0

    items.sort(key=given, reverse=True)


@pytest.fixture(autouse=True)
def _quiet_grpc() -> None:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server for the tests of a module."""
    with running("ministack", tmp_path_factory.mktemp("ministack") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One that refuses a body which was changed on its way."""
    with running("versitygw", tmp_path_factory.mktemp("versitygw") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def every_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Release], RegistryServer]]:
    """A registry of each release, started when it is asked for; what is in it stays."""
    with ExitStack() as running:

        @cache
        def of(release: Release) -> RegistryServer:
            return running.enter_context(registry_running(tmp_path_factory.mktemp("registry"), release))

        yield of


@pytest.fixture(scope="session")
def every_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], MariaDb]]:
    """Servers by their names in PROGRAMS, each started when it is asked for; what is in them stays."""
    with ExitStack() as running:

        @cache
        def of(name: str) -> MariaDb:
            return running.enter_context(mariadb_running(tmp_path_factory.mktemp(name), of=name))

        yield of


@pytest.fixture(scope="module")
def mariadb(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, every_mysql: Callable[[str], MariaDb]
) -> Iterator[MariaDb]:
    """A server for the tests of a module alone; with `every_server`, one after the other, which others have as well."""
    if (name := getattr(request, "param", None)) is not None:
        yield every_mysql(name)
        return
    with mariadb_running(tmp_path_factory.mktemp("mariadb")) as database:
        yield database
