"""Our operator as a process of this machine, as its chart would run it: the ServiceAccount, rights, arguments and
environment come from the release that helm has installed; only the pod is missing, because there is no node.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from cluster_api import CHANGEFEEDS, Namespace
from cluster_control_plane import ControlPlane
from cluster_forks import Forks
from cluster_processes import Processes, wait_until

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "changefeed-operator"
CRD = ROOT / "crds" / "changefeeds.yaml"
RELEASE = "test"
_PROCESS = "changefeed-operator"
_LEASES = "coordination.k8s.io/v1"


def install_crd(cluster: ControlPlane) -> None:
    """Returns when Changefeeds can be created."""
    cluster.kubectl("apply", "--server-side", "-f", CRD)
    # `kubectl wait` fails while there are no conditions yet.
    path = f"{CHANGEFEEDS}/changefeeds"
    cluster.processes.wait_until(lambda: cluster.api.request("GET", path).status == 200, "Changefeeds are served")


@dataclass
class ChangefeedOperator:
    """An operator for one namespace, from a release of the chart in it. `server`: of a proxy that it shall use."""

    cluster: ControlPlane
    namespace: Namespace
    folder: Path
    server: str = ""
    image: str = "changefeed-spark:test"
    release: str = RELEASE
    chart: Path = CHART

    def __post_init__(self) -> None:
        self._processes = Processes(self.folder)
        self._started_at, self._port = 0, 0

    def install(self, *settings: str) -> None:
        """Install or upgrade the release, with rights in this namespace only; `settings`: as `state.uri=file:///x`."""
        registry, _, tag = self.image.rpartition(":")
        values = [f"watchNamespaces={{{self.namespace.name}}}", "crds.install=false", "replicaCount=0"]
        # Roles of the whole cluster, which the next test's release would find.
        values += ["rbac.aggregate=false"]
        values += [f"sparkImage.repository={registry}", f"sparkImage.tag={tag}", *settings]
        arguments = [argument for value in values for argument in ("--set", value)]
        self.cluster.helm(
            "upgrade", "--install", self.release, self.chart, "--namespace", self.namespace.name, *arguments
        )

    @property
    def user(self) -> str:
        """As the API server's audit log names it."""
        account = self._pod()["serviceAccountName"]
        return f"system:serviceaccount:{self.namespace.name}:{account}"

    @property
    def log(self) -> str:
        """The log of all its processes, the oldest first."""
        file = self._log_file
        return file.read_text() if file.exists() else ""

    @property
    def _log_file(self) -> Path:
        return self._processes.log(_PROCESS)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self._processes.running[_PROCESS]

    def start(self, *arguments: str) -> None:
        """With a new token, and without waiting. `arguments`: beyond the chart's."""
        pod = self._pod()
        config = self.folder / "operator.kubeconfig"
        account = pod["serviceAccountName"]
        self.cluster.service_account_kubeconfig(self.namespace.name, account, config, self.server)
        container = pod["containers"][0]
        environment = {env["name"]: env.get("value") or self._field(env) for env in container["env"]}
        self._started_at, self._port = len(self.log), 0
        self._run([*self._own_port(container["args"]), *arguments], {**environment, "KUBECONFIG": str(config)})

    def _run(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        self._processes.start(_PROCESS, [sys.executable, "-m", "changefeed_operator", *arguments], environment)

    def wait_until_ready(self) -> None:
        self._processes.wait_until(self._ready, "the operator is ready")

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        process = self._processes.running.pop(_PROCESS)
        process.kill()
        process.wait()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        return self._processes.stop(_PROCESS)

    def end(self) -> None:
        """Whatever it does, when it runs."""
        self._processes.stop_all()

    @property
    def lease(self) -> str:
        """Path of the Lease that says which operator of the release works."""
        return self.namespace.of(_LEASES, "leases", f"{self.release}-changefeed-operator")

    def metrics(self) -> str:
        """Raises URLError while it does not answer."""
        with self._ask("metrics") as answer:
            text: str = answer.read().decode()
            return text

    @property
    def port(self) -> int:
        """Where its metrics are. Raises URLError while it does not listen."""
        if not self._port:
            said = re.search(r'"port": (\d+)', self.log[self._started_at :])
            if not said:
                raise URLError("it does not listen yet")
            self._port = int(said[1])
        return self._port

    def page(self, path: str) -> str:
        """Return the page for people, when it was started with `--web-address`."""
        said = re.search(r'"web_port": (\d+)', self.log[self._started_at :])
        assert said, "it serves no page"
        with urlopen(f"http://127.0.0.1:{said[1]}/{path}", timeout=10.0) as answer:
            text: str = answer.read().decode()
            return text

    def _ask(self, path: str) -> Any:
        return urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=10.0)

    def number(self, name: str) -> float:
        """A metric, the sum over all its labels; 0 while the operator does not answer."""
        try:
            text = self.metrics()
        except OSError:
            return 0.0
        return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))

    @property
    def leads(self) -> bool:
        return self.number("changefeed_operator_leader_info") == 1.0

    @property
    def is_quiet(self) -> bool:
        """It leads, and has nothing to do."""
        keys = self.number("changefeed_operator_queue_keys_count")
        return self.leads and not keys + self.number("changefeed_operator_running_passes_count")

    def _ready(self) -> bool:
        try:
            with self._ask("readyz"):
                return True
        except URLError:
            return False

    def _own_port(self, arguments: Sequence[str]) -> list[str]:
        """A free one: several operators are on this machine."""
        at = list(arguments).index("--metrics-port")
        return [*arguments[: at + 1], "0", *arguments[at + 2 :]]

    def _field(self, env: dict[str, Any]) -> str:
        path = env["valueFrom"]["fieldRef"]["fieldPath"]
        return {"metadata.namespace": self.namespace.name, "metadata.name": f"{self.release}-pod"}[path]

    def _pod(self) -> dict[str, Any]:
        path = self.namespace.of("apps/v1", "deployments", f"{self.release}-changefeed-operator")
        pod: dict[str, Any] = self.cluster.api.get(path)["spec"]["template"]["spec"]
        return pod


@dataclass
class ForkedOperator(ChangefeedOperator):
    """`ahead_s`: its wall clock is ahead by so much, from its next start on; `resync_s`: how often it looks at all;
    `jumps`: of time, as of cluster_operator_forks.py.
    """

    forks: Forks = field(kw_only=True)
    ahead_s: float = 0.0
    resync_s: float = 0.0
    jumps: list[tuple[float, float]] = field(default_factory=list)
    _pid: int = 0

    def _run(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        order = {"arguments": arguments, "environment": environment, "log": str(self._log_file)}
        clocks = {"ahead_s": self.ahead_s, "resync_s": self.resync_s, "jumps": self.jumps}
        self._pid = self.forks.start({**order, **clocks})

    @property
    def _log_file(self) -> Path:
        return self.folder / "operator.log"

    def wait_until_ready(self) -> None:
        wait_until(self._ready, "the operator is ready")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Its exit code is its parent's to know: always 0."""
        self._end(signal.SIGTERM)
        return 0

    def end(self) -> None:
        self.kill()

    def _end(self, number: signal.Signals) -> None:
        pid, self._pid = self._pid, 0
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            wait_until(lambda: not _lives(pid), "the operator has ended")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
