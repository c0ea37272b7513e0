"""The kubeflow Spark operator's controller as a process of this machine: its chart's RBAC, Spark's own spark-submit.

No webhook runs: what only a webhook would set must not be needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pyspark
import yaml
from cluster_api import SPARK, Namespace
from cluster_control_plane import ControlPlane
from cluster_programs import module_folder, program
from spark_applications import APACHE

APACHE_CRD = Path(__file__).with_name("cluster_apache_crd.yaml")
NAMESPACE = "spark-operator"
ACCOUNT = "spark-operator-controller"
#: Of namespaces that the controller leaves alone, because its part is played there (cluster_played_spark.py).
PLAYED_LABELS = {"spark": "played"}
_SELECTOR = "spark!=played"
_PROCESS = "spark-operator"
_RBAC = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def chart() -> Path:
    """The Spark operator's own chart."""
    return module_folder("spark-operator") / "charts" / "spark-operator-chart"


def install_crds(cluster: ControlPlane) -> None:
    """Returns when SparkApplications can be created, and found by who asks which kinds there are."""
    cluster.kubectl("apply", "--server-side", "-f", chart() / "crds")
    cluster.processes.wait_until(lambda: _are_known(cluster, SPARK), "SparkApplications are served")


def install_apache_crd(cluster: ControlPlane) -> None:
    """The same for those of Apache's Spark operator; the CRD is ours."""
    cluster.kubectl("apply", "--server-side", "-f", APACHE_CRD)
    cluster.processes.wait_until(lambda: _are_known(cluster, f"/apis/{APACHE}"), "Apache's are served")


def _are_known(cluster: ControlPlane, group: str) -> bool:
    kinds = cluster.api.request("GET", group).body.get("resources", [])
    is_listed = any(kind["name"] == "sparkapplications" for kind in kinds)
    return is_listed and cluster.api.request("GET", f"{group}/sparkapplications").status == 200


def grant(cluster: ControlPlane) -> None:
    """The chart's ServiceAccount and rights, for nearly all namespaces; nothing of it that needs a node."""
    cluster.create_namespace(NAMESPACE)
    values = ("spark.jobNamespaces={}", f"spark.jobNamespaceSelector={_SELECTOR}", "spark.serviceAccount.create=false")
    settings = [argument for value in values for argument in ("--set", value)]
    rendered = cluster.helm("template", "spark-operator", chart(), "--namespace", NAMESPACE, *settings)
    wanted = [made for made in yaml.safe_load_all(rendered) if made and made["kind"] in _RBAC]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted})
    cluster.kubectl("apply", "--server-side", "-f", "-", text=listed)


class SparkOperator:
    """`with SparkOperator(cluster) as operator`: the controller, which must have its CRDs and rights, runs inside."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._cluster = cluster

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._cluster.processes.stop(_PROCESS)

    def start(self) -> None:
        cluster = self._cluster
        config = cluster.folder / "spark-operator.kubeconfig"
        cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT, config)
        server = urlsplit(cluster.server)
        home = cluster.folder / "spark-operator"
        home.mkdir(exist_ok=True)
        environment = {
            "KUBECONFIG": str(config),
            "HOME": str(home),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            # Its spark-submit connects to the API server that these name, as in a pod.
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
            # The least that a JVM of a few seconds needs. On a busy machine its 10 s for a connection are too few.
            "SPARK_SUBMIT_OPTS": (
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.kubernetes.submission.connectionTimeout=120000 "
                "-Dspark.kubernetes.submission.requestTimeout=120000"
            ),
        }
        command: list[str | Path] = [program("spark-operator"), "controller", "start", "--enable-ui-service=false"]
        command += ["--leader-election=false", "--enable-metrics=false", "--namespace-selector", _SELECTOR]
        # Each submission is a JVM: of ten at once, on two cores, none would be done in its time.
        command += ["--controller-threads=3", "--health-probe-bind-address=127.0.0.1:0", "--kubeconfig", config]
        cluster.processes.start(_PROCESS, command, environment)


def allow_network_policies(namespace: Namespace) -> None:
    """The right that Spark 4.2 and newer need at submission and the chart of 2.5.2 does not give."""
    rules = [{"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["create", "patch"]}]
    group, name = "rbac.authorization.k8s.io/v1", "spark-submit-networkpolicies"
    namespace.api.create(namespace.of(group, "roles"), {"metadata": {"name": name}, "rules": rules})
    subjects = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
    namespace.api.create(namespace.of(group, "rolebindings"), binding)
