"""A real Kubernetes control plane in one folder: etcd, kube-apiserver, kube-controller-manager; RBAC on, no node.

Everything listens on 127.0.0.1 (or in a network namespace) only, on free ports, with certificates of its own.
`python tests/cluster/cluster_control_plane.py FOLDER` runs one until Ctrl-C, for tries by hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cluster_api import CORE, Api, Namespace
from cluster_certificates import Authority, write_kubeconfig
from cluster_network import API_SERVICE, NODE_ADDRESS, PODS, SERVICES, Bridge, Network
from cluster_processes import Processes, free_ports
from cluster_programs import program

_PORT = 6443  # of the API server in a network of its own, as installers have it
_COMMAND_S = 900.0  # more than any of them is told to wait
# Who plays the lives of pods (cluster_pods.py) sends no heartbeats, which these controllers would punish.
_WITHOUT_NODES = "*,-node-lifecycle-controller,-pod-garbage-collector-controller,-taint-eviction-controller"


class CommandFailed(Exception):
    """A command line tool ended with an error; the message holds what it wrote."""


@dataclass
class ControlPlane:
    """`with ControlPlane(folder) as cluster`. Stopped, it leaves its folder with the logs, and nothing else.

    Without a `network` it listens on 127.0.0.1 of this machine, and there can be no node.
    """

    folder: Path
    network: Network | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.processes = Processes(self.folder, self.network.enter if self.network else ())
        self._etcd, self._etcd_peer, self.port, self._controllers = free_ports(4)
        self._address = "127.0.0.1"
        if self.network:
            self._address, self.port = NODE_ADDRESS, _PORT
        self._open = contextlib.ExitStack()
        self.kubeconfig = self.folder / "admin.kubeconfig"

    @property
    def inside(self) -> str:
        """The API server for programs in its network."""
        return f"https://{self._address}:{self.port}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when the API server is ready and the controllers work."""
        self.authority = Authority(self.folder / "certificates")
        self.server = self.inside
        if self.network:
            bridge = Bridge(self.network, ("127.0.0.1", 0), (self._address, self.port))
            self.server = f"https://127.0.0.1:{self._open.enter_context(bridge).port}"
        self.authority.kubeconfig(self.kubeconfig, self.server, "admin", "admin", ["system:masters"])
        self.api = Api(self.kubeconfig)
        self._start_etcd()
        self._start_api_server()
        self._start_controllers()

    def stop(self) -> None:
        self.processes.stop_all()
        self._open.close()
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def _start_etcd(self) -> None:
        certificate, key = self.authority.issue("etcd", "etcd", hosts=["127.0.0.1"])
        client, peer = (f"https://127.0.0.1:{port}" for port in (self._etcd, self._etcd_peer))
        command: list[str | Path] = [program("etcd"), "--data-dir", self.folder / "etcd", "--log-level", "warn"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"default={peer}"]
        for prefix in ("", "peer-"):  # whoever reads or writes etcd has all rights of the cluster
            command += [f"--{prefix}cert-file", certificate, f"--{prefix}key-file", key]
            command += [f"--{prefix}trusted-ca-file", self.authority.ca, f"--{prefix}client-cert-auth"]
        # No test survives a power loss, and syncing to a shared disk costs seconds.
        self.processes.start("etcd", [*command, "--unsafe-no-fsync"])

    def _start_api_server(self) -> None:
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
        hosts = [*names, "127.0.0.1", NODE_ADDRESS, API_SERVICE]
        certificate, key = self.authority.issue("kube-apiserver", "kube-apiserver", hosts=hosts)
        kubelet_certificate, kubelet_key = self.authority.issue("kubelet-client", "kube-apiserver", ["system:masters"])
        etcd_certificate, etcd_key = self.authority.issue("etcd-client", "kube-apiserver")
        token_public, token_private = self.authority.signing_key("service-accounts")
        audit = self.folder / "audit.yaml"
        audit.write_text(json.dumps(_AUDIT))
        options: dict[str, object] = {
            "etcd-servers": f"https://127.0.0.1:{self._etcd}",
            "etcd-cafile": self.authority.ca,
            "etcd-certfile": etcd_certificate,
            "etcd-keyfile": etcd_key,
            "bind-address": self._address,
            "advertise-address": self._address,
            # 127.0.0.1 is not a valid endpoint of the Service kubernetes.default.
            "endpoint-reconciler-type": "lease" if self.network else "none",
            "kubelet-client-certificate": kubelet_certificate,
            "kubelet-client-key": kubelet_key,
            "kubelet-certificate-authority": self.authority.ca,
            "kubelet-preferred-address-types": "InternalIP",
            "secure-port": self.port,
            "tls-cert-file": certificate,
            "tls-private-key-file": key,
            "client-ca-file": self.authority.ca,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "service-cluster-ip-range": SERVICES,
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": token_public,
            "service-account-signing-key-file": token_private,
            "audit-policy-file": audit,
            "audit-log-path": self.audit_log,
            "profiling": "false",
        }
        self.processes.start("kube-apiserver", [program("kube-apiserver"), *flags(options)])
        self.processes.wait_until(self._ready, "the API server is ready")

    def _start_controllers(self) -> None:
        config = self.folder / "kube-controller-manager.kubeconfig"
        user = "system:kube-controller-manager"
        self.authority.kubeconfig(config, self.inside, "kube-controller-manager", user)
        options: dict[str, object] = {
            "kubeconfig": config,
            "authentication-kubeconfig": config,
            "authorization-kubeconfig": config,
            "bind-address": "127.0.0.1",
            "secure-port": self._controllers,
            "leader-elect": "false",
            "root-ca-file": self.authority.ca,
            "service-account-private-key-file": self.folder / "certificates" / "service-accounts.key",
            "use-service-account-credentials": "true",
            "cluster-cidr": PODS,
            "node-monitor-grace-period": "20s",
            "controllers": "*" if self.network else _WITHOUT_NODES,
            # Its own limits delay the first ServiceAccount by seconds.
            "kube-api-qps": 300,
            "kube-api-burst": 600,
        }
        name = "kube-controller-manager"
        self.processes.start(name, [program(name), *flags(options)])
        first = Namespace(self.api, "default")
        wanted = (first.core("serviceaccounts", "default"), first.core("configmaps", "kube-root-ca.crt"))
        self.processes.wait_until(lambda: all(map(self.api.find, wanted)), "the controllers work")

    def _ready(self) -> bool:
        try:
            return self.api.request("GET", "/readyz").status == 200
        except OSError:  # refused; through a bridge: ended
            return False

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    def writes(self, user: str) -> list[dict[str, Any]]:
        """The audit log's events of what `user` asked to change, in the order of their answers."""
        events = map(json.loads, self.audit_log.read_text().splitlines())
        return [event for event in events if event["user"]["username"] == user]

    def create_namespace(self, name: str) -> Namespace:
        """Ready for pods: its default ServiceAccount and root certificate are there."""
        self.api.create(f"{CORE}/namespaces", {"metadata": {"name": name}})
        made = Namespace(self.api, name)
        wanted = (made.core("serviceaccounts", "default"), made.core("configmaps", "kube-root-ca.crt"))
        self.processes.wait_until(lambda: all(map(self.api.find, wanted)), f"namespace {name} is ready")
        return made

    def service_account_kubeconfig(self, namespace: str, name: str, path: Path, server: str = "") -> Path:
        """For an existing ServiceAccount, with a token of a day. `server`: of a proxy, if not the cluster's."""
        request = {"spec": {"expirationSeconds": 86_400}}
        account = Namespace(self.api, namespace).core("serviceaccounts", name, "token")
        token = self.api.create(account, request)["status"]["token"]
        return write_kubeconfig(path, server or self.server, self.authority.ca, {"token": token}, namespace)

    def kubectl(self, *arguments: str | Path, text: str | None = None) -> str:
        """What it writes; `text` is its standard input."""
        return self.command([program("kubectl"), *arguments], text)

    def helm(self, *arguments: str | Path) -> str:
        return self.command([program("helm"), *arguments])

    def command(self, command: Sequence[str | Path], text: str | None = None) -> str:
        """A tool run as the cluster's administrator, with a home of its own."""
        done = subprocess.run(
            list(map(str, command)),
            input=text,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder)},
        )
        if done.returncode:
            raise CommandFailed(f"`{' '.join(map(str, command))}` ended with {done.returncode}: {done.stderr}")
        return done.stdout


_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}],
}


def flags(options: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


def main(folder: Path) -> int:
    with ControlPlane(folder) as cluster:
        sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\nPATH={program('kubectl').parent}:$PATH\n")
        sys.stdout.flush()
        signal.sigwait([signal.SIGINT, signal.SIGTERM])
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="changefeed-cluster-"))))
