"""Our operator as a process of this machine, as its chart would run it: the ServiceAccount, rights, arguments and
environment come from the release that helm has installed; only the pod is missing, because there is no node.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from cluster_api import CHANGEFEEDS, Namespace
from cluster_control_plane import ControlPlane
from cluster_processes import Processes, free_ports

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "changefeed-operator"
CRD = ROOT / "crds" / "changefeeds.yaml"
RELEASE = "test"
_PROCESS = "changefeed-operator"


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
    metrics_port: int = field(default_factory=lambda: free_ports(1)[0])

    def __post_init__(self) -> None:
        self._processes = Processes(self.folder)

    def install(self, *settings: str) -> None:
        """Install or upgrade the release, with rights in this namespace only; `settings`: as `state.uri=file:///x`."""
        registry, _, tag = self.image.rpartition(":")
        values = [f"watchNamespaces={{{self.namespace.name}}}", "crds.install=false", "replicaCount=0"]
        # Roles of the whole cluster, which the next test's release would find.
        values += ["rbac.aggregate=false"]
        values += [f"sparkImage.repository={registry}", f"sparkImage.tag={tag}", *settings]
        arguments = [argument for value in values for argument in ("--set", value)]
        self.cluster.helm("upgrade", "--install", self.release, CHART, "--namespace", self.namespace.name, *arguments)

    @property
    def user(self) -> str:
        """As the API server's audit log names it."""
        account = self._pod()["serviceAccountName"]
        return f"system:serviceaccount:{self.namespace.name}:{account}"

    @property
    def log(self) -> str:
        return self._processes.log(_PROCESS).read_text()

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
        command = [sys.executable, "-m", "changefeed_operator", *self._own_port(container["args"]), *arguments]
        environment = {env["name"]: env.get("value") or self._field(env) for env in container["env"]}
        self._processes.start(_PROCESS, command, {**environment, "KUBECONFIG": str(config)})

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

    def metrics(self) -> str:
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10.0) as answer:
            text: str = answer.read().decode()
            return text

    def _ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.metrics_port}/readyz", timeout=10.0):
                return True
        except URLError:
            return False

    def _own_port(self, arguments: Sequence[str]) -> list[str]:
        at = list(arguments).index("--metrics-port")
        return [*arguments[: at + 1], str(self.metrics_port), *arguments[at + 2 :]]

    def _field(self, env: dict[str, Any]) -> str:
        path = env["valueFrom"]["fieldRef"]["fieldPath"]
        return {"metadata.namespace": self.namespace.name, "metadata.name": f"{self.release}-{self.metrics_port}"}[path]

    def _pod(self) -> dict[str, Any]:
        path = self.namespace.of("apps/v1", "deployments", f"{self.release}-changefeed-operator")
        pod: dict[str, Any] = self.cluster.api.get(path)["spec"]["template"]["spec"]
        return pod
