"""The whole product on a real node: both charts installed, an S3 server, an upstream, and a changefeed from it.

The servers are processes in the node's network, at its address: pods reach them, and so do commands run there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cluster_images
import cluster_spark_operator
from changefeed_operator.template import merge
from cluster_api import Namespace
from cluster_changefeed_operator import CHART, ROOT
from cluster_control_plane import CommandFailed, ControlPlane
from cluster_network import NODE_ADDRESS
from cluster_node import Node
from cluster_processes import wait_until
from cluster_programs import program

#: Where changefeeds of tests may be.
NAMESPACES = ("bank", "lost", "faults", "held", "shop")
RELEASE, SYSTEM = "changefeeds", "changefeed-system"
#: Namespace, and channel of its Changefeeds, of an operator beside the release.
KUSTOMIZED = "kustomized"
PD = f"{NODE_ADDRESS}:2379"
STORE_PORTS = (20160, 20161, 20162)
ENDPOINT = f"http://{NODE_ADDRESS}:9000"
_SECRET, _KEY_ID, _KEY = "lake-writer", "testkey", "testsecret"
_UPSTREAM_SECRET, _CERTIFICATES = "upstream-client", "upstream-tls"
_BIN = Path(sys.executable).parent
#: What takes a minute here may take several on a machine that has other work.
LATE_S = 900
#: Fewer files than examples/demo.yaml asks for: each costs the machine's two cores some ms, again when it is verified.
_FLUSH = {"flushInterval": "5s"}
#: Bucket owner, bucket, [time], address, requester, request, operation, key, URI, status.
_ACCESS = re.compile(
    r"\S+ \S+ \[[^]]*\] (?P<address>\S+) \S+ \S+ s3_(?!Get|Head|List)\S+ (?P<key>\S+) (?P<uri>\S+) (?P<status>\d+) "
)
Resource = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """An object that `address` asked the store to write or delete; `status`: the answer, 412 for one that came late.

    `key`: /BUCKET?delete for objects that were deleted together; the server doesn't log which.
    """

    address: str
    key: str
    status: int


@dataclass
class Store:
    """The S3 server; `folder`: what it stores, a folder a bucket."""

    folder: Path
    access_log: Path

    def changes(self) -> list[Change]:
        """What clients asked it to change, in the order of its answers."""
        found = map(_ACCESS.match, self.access_log.read_text().splitlines())
        return [
            Change(each["address"], each["uri"] if each["key"] == "-" else each["key"], int(each["status"]))
            for each in found
            if each
        ]

    def uri(self, path: str) -> str:
        return f"s3://{path}?endpoint={ENDPOINT}&region=us-east-1"


@contextmanager
def s3_server(node: Node, folder: Path) -> Iterator[Store]:
    """With the buckets `lake` and `cdc-state`."""
    store = Store(folder / "data", folder / "s3-access.log")
    for bucket in ("lake", "cdc-state"):
        (store.folder / bucket).mkdir(parents=True)
    command: list[str | Path] = [program("versitygw"), "--port", ENDPOINT.removeprefix("http://"), "--quiet"]
    command += ["--access-log", store.access_log, "posix", store.folder]
    processes = node.cluster.processes
    processes.start("versitygw", command, {"ROOT_ACCESS_KEY": _KEY_ID, "ROOT_SECRET_KEY": _KEY})
    try:
        processes.wait_until(lambda: node.reaches([(NODE_ADDRESS, 9000)]), "the S3 server listens")
        yield store
    finally:
        processes.stop("versitygw")


@contextmanager
def upstream(node: Node) -> Iterator[None]:
    """A bank at `PD` and `STORE_PORTS` whose customers never rest. It lets in nobody without a certificate."""
    command: list[str | Path] = [_BIN / "changefeed-devcluster", "start", "--host", NODE_ADDRESS, "--port", "2379"]
    command += ["--stores", str(len(STORE_PORTS)), "--store-port", str(STORE_PORTS[0])]
    command += ["--tls", node.cluster.folder / _CERTIFICATES]
    command += ["--workload", "bank", "--tables", "4", "--regions", "4", "--rows", "200", "--rate", "40"]
    processes = node.cluster.processes
    processes.start("devcluster", command)
    try:
        processes.wait_until(lambda: '"startTs"' in processes.log("devcluster").read_text(), "the upstream is ready")
        yield
    finally:
        processes.stop("devcluster")


def install_spark_operator(cluster: ControlPlane, namespaces: list[str]) -> None:
    """Its own chart, unmodified, for applications in these namespaces; returns when it is ready."""
    for name in namespaces:
        cluster.create_namespace(name)
    where = ("--namespace", cluster_spark_operator.NAMESPACE, "--create-namespace")
    only = ("--set", f"spark.jobNamespaces={{{','.join(namespaces)}}}")
    wait = ("--wait", "--timeout", f"{LATE_S}s")
    cluster.helm("install", "spark-operator", cluster_spark_operator.chart(), *where, *only, *wait)


def install(cluster: ControlPlane) -> None:
    """Our chart, packaged, for all namespaces; returns when the operator is ready."""
    cluster.helm("package", CHART, "--destination", cluster.folder / "packaged")
    (chart,) = (cluster.folder / "packaged").glob("*.tgz")
    values = {"selector": f"changefeed.dev/channel!={KUSTOMIZED}"}
    for key, image in (("image", cluster_images.OPERATOR), ("sparkImage", cluster_images.SPARK)):
        repository, _, values[f"{key}.tag"] = image.rpartition(":")
        values[f"{key}.registry"], _, values[f"{key}.repository"] = repository.partition("/")
    values["changefeedEgress.tikvPorts"] = f"{{{','.join(map(str, STORE_PORTS))}}}"
    settings = [argument for name, value in values.items() for argument in ("--set", f"{name}={value}")]
    where = ("--namespace", SYSTEM, "--create-namespace")
    cluster.helm("install", RELEASE, chart, *where, *settings, "--wait", "--timeout", f"{LATE_S}s")


@dataclass(frozen=True)
class Example:
    """A file of examples/ whose Changefeed has this name; how its upstream is reached here, and with which Secrets.

    `secrets`: folders with the keys, by the Secrets' names. `conserved`: a column whose sum stays, if there is one.
    """

    file: str
    name: str
    upstream: dict[str, Any]
    secrets: Mapping[str, Path]
    conserved: str = ""


def _bank(node: Node) -> Example:
    upstream = {"pdAddresses": [f"https://{PD}"], "tls": {"secretRef": {"name": _UPSTREAM_SECRET}}}
    secrets = {_UPSTREAM_SECRET: node.cluster.folder / _CERTIFICATES / "client"}
    return Example("demo.yaml", "demo", upstream, secrets, "balance")


@dataclass
class Demo:
    """An example in a namespace that the Spark operator watches; what differs there stands in a patch.

    `more`: of the spec. `example`: examples/demo.yaml, unless it is given.
    """

    node: Node
    store: Store
    namespace: Namespace
    folder: Path
    more: dict[str, Any] = field(default_factory=dict)
    example: Example | None = None

    def __post_init__(self) -> None:
        self._example = self.example or _bank(self.node)
        self.name = self._example.name
        self.driver = f"changefeed-{self.name}-driver"
        self.kustomization = self.folder / self.name
        self.kustomization.mkdir(parents=True)
        shutil.copy(ROOT / "examples" / self._example.file, self.kustomization)
        name = self.namespace.name
        credentials = {"secretRef": {"name": _SECRET}}
        # The machine's two cores are fewer than the pods would ask for.
        sparing = [("driver", "spark-kubernetes-driver"), ("executor", "spark-kubernetes-executor")]
        frugal = {
            role: {
                "memory": "1536Mi",
                "template": {"spec": {"containers": [{"name": each, "resources": {"requests": {"cpu": "100m"}}}]}},
            }
            for role, each in sparing
        }
        spec = {
            "upstream": self._example.upstream,
            "state": {"uri": self.store.uri("cdc-state"), "credentials": credentials},
            "sink": {"storage": {"uri": self.store.uri(f"lake/{name}"), "credentials": credentials, **_FLUSH}},
            "spark": frugal,
        }
        self._write_patch(merge(spec, self.more))
        self.secrets = self.folder / "secrets"
        (self.secrets / _SECRET).mkdir(parents=True)
        for key_name, value in (("access-key-id", _KEY_ID), ("secret-access-key", _KEY)):
            (self.secrets / _SECRET / key_name).write_text(value)
        for secret_name, keys in self._example.secrets.items():
            shutil.copytree(keys, self.secrets / secret_name)
        for secret in self.secrets.iterdir():
            self.kubectl("create", "secret", "generic", secret.name, f"--from-file={secret}")

    def _write_patch(self, spec: dict[str, Any]) -> None:
        patch = {
            "apiVersion": "changefeed.dev/v1alpha1",
            "kind": "Changefeed",
            "metadata": {"name": self.name},
            "spec": spec,
        }
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": self.namespace.name,
            "resources": [self._example.file],
            "patches": [{"patch": json.dumps(patch)}],
        }
        (self.kustomization / "kustomization.yaml").write_text(json.dumps(kustomization))

    def kubectl(self, *arguments: str | Path) -> str:
        return self.node.cluster.kubectl("--namespace", self.namespace.name, *arguments)

    def wait_until_ready(self) -> str:
        """What kubectl says of it."""
        try:
            return self.kubectl("wait", "--for=condition=Ready", f"cf/{self.name}", f"--timeout={LATE_S}s")
        except CommandFailed as failed:
            raise AssertionError(f"{failed}\n{self._situation(self.status)}") from failed

    def edit(self, spec: dict[str, Any]) -> None:
        """Returns when the operator has seen it."""
        self.kubectl("patch", "cf", self.name, "--type=merge", "--patch", json.dumps({"spec": spec}))
        self.wait_for(lambda found: found["status"]["observedGeneration"] == found["metadata"]["generation"], "seen")

    @property
    def resource(self) -> dict[str, Any]:
        return self.namespace.api.get(self.namespace.changefeeds(self.name))

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.resource["status"]
        return status

    def wait_for(self, condition: Callable[[Resource], Any], what: str) -> Resource:
        """`condition` of the resource. What it was at last is a part of the failure."""
        seen: dict[str, Any] = {}

        def so() -> bool:
            seen.update(self.resource)
            return bool(condition(seen))

        try:
            wait_until(so, what, LATE_S)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self._situation(seen.get('status'))}") from error
        return seen

    def _situation(self, status: Any) -> str:
        pods = self.kubectl("get", "pods", "-o", "wide")
        try:
            said = self.kubectl("logs", self.driver, "--tail=60")
        except CommandFailed as failed:
            said = str(failed)
        return f"{json.dumps(status, indent=1)}\n{pods}\n{said[-3000:]}"

    def now(self) -> int:
        """A ts of the upstream."""
        done = self._changefeed("tso", "now", "-f", self._resource_file(), "--secrets-dir", self.secrets, "--json")
        return int(json.loads(done.stdout)["ts"])

    def wait_until_past(self, ts: int) -> dict[str, Any]:
        """The status's checkpoint, and Ready with it."""
        return self.wait_for(
            lambda found: int(found["status"].get("checkpointTs", 0)) > ts and is_ready(found),
            f"Ready, and the checkpoint is past {ts}",
        )

    def published(self) -> int:
        """The sink's own checkpoint; 0 before the first."""
        file = self.store.folder / "lake" / self.namespace.name / "metadata"
        return int(json.loads(file.read_text())["checkpoint-ts"]) if file.exists() else 0

    def verify(self) -> dict[str, Any]:
        """What `changefeed verify` says of the sink; AssertionError when a promise is broken."""
        return self.verify_later()()

    def verify_later(self) -> Callable[[], dict[str, Any]]:
        """To be called when the resource may be gone."""
        arguments = ["-f", self._resource_file(), "--secrets-dir", self.secrets, "--json"]
        arguments += ["--conserved", self._example.conserved] if self._example.conserved else []
        return lambda: json.loads(self._changefeed("verify", *arguments).stdout)

    def _resource_file(self) -> Path:
        file = self.folder / "resource.json"
        file.write_text(self.kubectl("get", "cf", self.name, "-o", "json"))
        return file

    def cli(self, *arguments: str) -> str:
        """What a command of ours says about the cluster."""
        environment = {**os.environ, "KUBECONFIG": str(self.node.cluster.kubeconfig)}
        command = [str(_BIN / "changefeed"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LATE_S, check=True, env=environment)
        return done.stderr + done.stdout

    def alter(self, *ddl: str) -> int:
        """A DDL of `changefeed-devcluster ddl`; its finish ts."""
        at = ("--pd", PD, "--tls", str(self.node.cluster.folder / _CERTIFICATES))
        command = [*self.node.network.enter, str(_BIN / "changefeed-devcluster"), "ddl", *ddl, *at]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LATE_S, check=True)
        return int(json.loads(done.stdout)["ts"])

    def _changefeed(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """A command of ours, in the node's network."""
        command = [*self.node.network.enter, str(_BIN / "changefeed"), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LATE_S, check=False)
        assert done.returncode == 0, f"`changefeed {arguments[0]}`: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def pods(self, role: str = "") -> list[dict[str, Any]]:
        """Return the changefeed's pods; `role`: driver or executor."""
        labels = f"changefeed.dev/name={self.name}" + (f",spark-role={role}" if role else "")
        found = self.namespace.api.items(self.namespace.core("pods"), labels)
        return [pod for pod in found if pod["metadata"].get("deletionTimestamp") is None]

    def log_records(self) -> list[dict[str, Any]]:
        """Return the records of the transaction log that are not yet folded, oldest first."""
        files = sorted(self.store.folder.glob(f"cdc-state/{self.namespace.name}/{self.name}/*/log/*.json"))
        records = []
        for file in files:
            if not file.name.startswith("snapshot"):
                with contextlib.suppress(FileNotFoundError):  # folded meanwhile
                    records.append(json.loads(file.read_text()))
        return records


def is_ready(found: dict[str, Any]) -> bool:
    status = found["status"]
    seen = status["observedGeneration"] == found["metadata"]["generation"]
    return seen and any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
