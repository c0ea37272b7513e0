"""Real nodes of a test cluster: containerd and kubelet in the cluster's network. Needs root.

The first one brings the scheduler, kube-proxy and CoreDNS, which all share. Stopped they leave nothing outside of the
cluster's folder but their stores of images.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster_node_remains
from cluster_control_plane import CommandFailed, ControlPlane, flags
from cluster_images import PAUSE
from cluster_network import DNS_SERVICE, NODE_ADDRESSES, POD_BRIDGE, PODS, Address, Network
from cluster_programs import program
from cluster_registry import Registry

#: Of the processor, by cgroup v1 and v2: all pods together would otherwise get as much as one process beside them.
_SHARES = {"cpu.shares": "8192", "cpu.weight": "800"}
_CNI_PLUGINS = "/usr/lib/cni"
_PULL_S = 600.0


@dataclass
class Node:
    """`with Node(cluster, network, store) as node`, of a started cluster; Ready when entered.

    `store`: containerd's images, which may outlive the cluster; one running node at a time. `number`: from 1 on, the
    first one is stopped last.
    """

    cluster: ControlPlane
    network: Network
    store: Path
    number: int = 1

    def __post_init__(self) -> None:
        self.name = f"node{self.number}"
        self._address = NODE_ADDRESSES[self.number - 1]
        self._pods = f"10.88.{self.number}"
        self._mark = cluster_node_remains.mark(self.network, self.name)
        self._folder = self.cluster.folder / self._mark
        self._folder.mkdir()
        self.store.mkdir(parents=True, exist_ok=True)
        self._processes = self.cluster.processes

    @property
    def _kubelet(self) -> str:
        """Its name among the cluster's processes."""
        return f"kubelet-{self.name}"

    @property
    def _containerd(self) -> str:
        return f"containerd-{self.name}"

    @property
    def _socket(self) -> Path:
        return self._folder / "containerd.sock"

    def __enter__(self) -> Node:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._start_containerd()
        if self.number == 1:
            self._start_scheduler()
            self._start_kube_proxy()
            self._start_dns()
        self._start_kubelet()
        self._processes.wait_until(self._ready, f"{self.name} is Ready")

    def pull(self, registry: Registry, *images: str) -> None:
        """These images, or all, of a registry that has been entered, under the names that pods use."""
        for image in images or registry.images:
            there = f"{registry.address}/{image}"
            self._ctr("images", "pull", "--plain-http", there)
            self._ctr("images", "tag", "--force", there, image)

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """The API server hears nothing of the node, nor the node of it; its pods live, and reach everything else."""
        kubelet = self._processes.running[self._kubelet]
        rule = f"INPUT --source {self._pods}.0/24 --protocol tcp --dport {self.cluster.port} --jump DROP".split()
        self.network.run("iptables", "--wait", "--insert", *rule)
        os.kill(kubelet.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(kubelet.pid, signal.SIGCONT)
            self.network.run("iptables", "--wait", "--delete", *rule)

    def reaches(self, ends: Sequence[Address]) -> list[Address]:
        """Those of `ends` that a program of the node reaches."""
        return [end for end in ends if self._connects(end)]

    def _connects(self, end: Address) -> bool:
        with self.network.new_socket() as probe:
            return probe.connect_ex(end) == 0

    def runs(self, uid: str) -> bool:
        """Whether a container of the pod lives, whatever the API server says of it."""
        of_pod = f'labels."io.kubernetes.pod.uid"=={uid},labels."io.cri-containerd.kind"==container'
        containers = self._ctr("containers", "list", "--quiet", of_pod).split()
        tasks = [line.split() for line in self._ctr("tasks", "list").splitlines()[1:]]
        return any(task in containers and state == "RUNNING" for task, _, state in tasks)

    def last_words(self, uid: str) -> dict[str, str]:
        """What the pod's container has left in its termination log."""
        (file,) = (self._folder / "kubelet" / "pods" / uid / "containers").glob("*/*")
        said: dict[str, str] = json.loads(file.read_text())
        return said

    def logs(self, namespace: str, pod: str) -> str:
        return self.cluster.kubectl("--namespace", namespace, "logs", pod)

    def _start_containerd(self) -> None:
        (self._folder / "cni").mkdir()
        (self._folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._pod_network()))
        config = self._folder / "containerd.toml"
        config.write_text(self._containerd_config())
        self._processes.start(self._containerd, ["containerd", "--config", config])
        self._processes.wait_until(self._containerd_answers, "containerd answers")

    def _pod_network(self) -> dict[str, Any]:
        ranges = [[{"subnet": PODS, "rangeStart": f"{self._pods}.10", "rangeEnd": f"{self._pods}.250"}]]
        routes = [{"dst": "0.0.0.0/0"}]
        data = str(self._folder / "addresses")
        addresses = {"type": "host-local", "dataDir": data, "ranges": ranges, "routes": routes}
        bridge = {"type": "bridge", "bridge": POD_BRIDGE, "isGateway": True, "hairpinMode": True, "ipam": addresses}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "0.4.0", "name": self._mark, "plugins": [bridge, ports]}

    def _containerd_config(self) -> str:
        # restrict_oom_score_adj: where root has no CAP_SYS_RESOURCE, no pod would start without it.
        return f"""
version = 2
root = "{self.store}"
state = "{self._folder}/containerd"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{self._folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{_CNI_PLUGINS}"
  conf_dir = "{self._folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
  Root = "{self._folder}/runc"
"""

    def _containerd_answers(self) -> bool:
        try:
            self._ctr("version")
        except CommandFailed:
            return False
        return True

    def _start_scheduler(self) -> None:
        config = self._kubeconfig("kube-scheduler", "system:kube-scheduler")
        options: dict[str, object] = {
            "kubeconfig": config,
            "authentication-kubeconfig": config,
            "authorization-kubeconfig": config,
            "leader-elect": "false",
            "bind-address": "127.0.0.1",
        }
        self._processes.start("kube-scheduler", [program("kube-scheduler"), *flags(options)])

    def _start_kube_proxy(self) -> None:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "bindAddress": self._address,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "clusterCIDR": PODS,
            "hostnameOverride": self.name,
            "clientConnection": {"kubeconfig": str(self._kubeconfig("kube-proxy", "system:kube-proxy"))},
            # The limit is this machine's, not the network's.
            "conntrack": {"maxPerCore": 0, "min": 0},
        }
        self._processes.start("kube-proxy", [program("kube-proxy"), "--config", self._write("kube-proxy.yaml", config)])

    def _start_dns(self) -> None:
        """On the address that pods ask, which is the node's: no Service and no kube-proxy is needed."""
        config = self._kubeconfig("coredns", "system:coredns")
        group, name = "/apis/rbac.authorization.k8s.io/v1", "test:coredns"
        core = {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]}
        slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
        api = self.cluster.api
        api.create(f"{group}/clusterroles", {"metadata": {"name": name}, "rules": [core, slices]})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}]
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
        api.create(f"{group}/clusterrolebindings", binding)
        zones = f"kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {config}\n    pods insecure\n    ttl 1\n  }}"
        corefile = self._folder / "Corefile"
        corefile.write_text(f".:53 {{\n  bind {DNS_SERVICE}\n  errors\n  {zones}\n}}\n")
        self._processes.start("coredns", [program("coredns"), "-conf", corefile])

    def _start_kubelet(self) -> None:
        config = self._kubeconfig("kubelet", f"system:node:{self.name}", ["system:nodes"])
        for hierarchy in cluster_node_remains.own_cgroups(self._mark):
            hierarchy.mkdir(exist_ok=True)
            for name, share in _SHARES.items():
                if (hierarchy / name).exists():
                    (hierarchy / name).write_text(share)
        folder = self._folder / "kubelet"
        folder.mkdir()
        command: list[str | Path] = [
            program("kubelet"),
            "--config",
            self._write("kubelet.yaml", self._kubelet_config()),
        ]
        command += ["--kubeconfig", config, "--hostname-override", self.name, "--node-ip", self._address]
        command += ["--root-dir", folder, "--cert-dir", folder / "pki"]
        self._processes.start(self._kubelet, command)

    def _kubelet_config(self) -> dict[str, Any]:
        authority = self.cluster.authority
        certificate, key = authority.issue(self._kubelet, self.name, hosts=[self.name, self._address])
        nearly_full = {"nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"}
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self._address,
            "healthzBindAddress": self._address,
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(authority.ca)}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            # Of our own: two kubelets with one root would take each other's pods for orphans.
            "cgroupRoot": f"/{self._mark}",
            "failSwapOn": False,
            # A full disk of a shared machine must not evict what a test looks at, nor delete its images.
            "evictionHard": {"memory.available": "200Mi", **nearly_full, "imagefs.inodesFree": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "5s",
            "podLogsDir": str(self._folder / "pod-logs"),
            "volumePluginDir": str(self._folder / "volume-plugins"),
        }

    def _ready(self) -> bool:
        found = self.cluster.api.find(f"/api/v1/nodes/{self.name}")
        conditions = (found or {}).get("status", {}).get("conditions", ())
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def _kubeconfig(self, name: str, user: str, groups: Sequence[str] = ()) -> Path:
        path = self._folder / f"{name}.kubeconfig"
        return self.cluster.authority.kubeconfig(path, self.cluster.inside, name, user, groups)

    def _write(self, name: str, content: dict[str, Any]) -> Path:
        path = self._folder / name
        path.write_text(json.dumps(content))
        return path

    def _ctr(self, *arguments: str) -> str:
        """containerd's own command line, in the namespace where Kubernetes keeps its containers."""
        command = ["ctr", "--address", str(self._socket), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PULL_S, check=False)
        if done.returncode:
            raise CommandFailed(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def stop(self) -> None:
        running = self._processes.running
        try:
            if self._kubelet in running:
                self._processes.stop(self._kubelet)  # first: it would start again what is killed
            if self._containerd in running:
                self._processes.wait_until(self._remove_containers, f"the containers of {self.name} are gone")
            shared = ("coredns", "kube-proxy", "kube-scheduler") if self.number == 1 else ()
            for name in (*shared, self._containerd):
                if name in running:
                    self._processes.stop(name)
        finally:
            cluster_node_remains.remove(lambda text: self._mark in text)

    def _remove_containers(self) -> bool:
        """Whether none is left, not even of an earlier run that was killed: the store remembers them."""
        for kind, option in (("tasks", "--force"), ("containers", "")):
            for name in self._ctr(kind, "list", "--quiet").split():
                with contextlib.suppress(CommandFailed):  # its end is on its way, or was not yet: this is tried again
                    self._ctr(*filter(None, (kind, "delete", option, name)))
        return not self._ctr("containers", "list", "--quiet").split()
