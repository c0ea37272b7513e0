"""From nothing but a cluster to a verified file, with a registry as the only place that anything comes from.

`python tests/cluster/cluster_release_install.py FOLDER`: a real node that has no image yet, and a registry that holds
what `release.publication` has pushed, and a copy of the Spark operator. It writes what each step took, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cluster_images
import cluster_spark_operator
import yaml
from cluster_api import Namespace
from cluster_control_plane import ControlPlane
from cluster_network import Bridge, new_network
from cluster_node import Node
from cluster_product import LATE_S, RELEASE, STORE_PORTS, SYSTEM, Demo, Store, s3_server, upstream
from cluster_programs import program
from cluster_release import Keys, clone, new_keys, registry, verifies, with_bills

from release.commit import commit_to_release
from release.files import write_files
from release.images import layouts
from release.publication import publish
from release.tools import run

SHOP = "bank"
_SPARK_OPERATOR = "spark-operator"


@dataclass
class Steps:
    """What each step took, in seconds, in their order."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)


def publish_all(folder: Path, address: str, keys: Keys) -> str:
    """Release HEAD with the images of test clusters, whichever commit they are of; returns the version."""
    os.environ["COSIGN_PASSWORD"] = ""
    repository = clone(folder / "clone")
    version = yaml.safe_load((repository / "charts" / "changefeed-operator" / "Chart.yaml").read_text())["version"]
    commit = commit_to_release(repository, version)
    images = layouts(with_bills(folder / "images"))
    source, files = commit.export(folder / "source"), folder / "dist"
    files.mkdir()
    write_files(commit, source, files, address, images)
    publish(commit, source, files, address, str(keys.private), images)
    _mirror_spark_operator(folder, address)
    return str(version)


def _mirror_spark_operator(folder: Path, address: str) -> None:
    """Kubeflow's image and chart, as somebody has them who installs from one registry."""
    image = cluster_images.spark_operator_image()
    with cluster_images.built() as built:
        run("crane", "copy", f"{built.address}/{image}", f"{address}/{_SPARK_OPERATOR}:{image.rpartition(':')[2]}")
    run("helm", "package", cluster_spark_operator.chart(), "--destination", folder)
    (packed,) = folder.glob("spark-operator-*.tgz")
    run("helm", "push", packed, f"oci://{address}/charts", "--plain-http")


def install(node: Node, store: Store, address: str, version: str, keys: Keys, folder: Path) -> dict[str, float]:
    """Verify, install, apply a changefeed, and wait for files that `changefeed verify` finds right."""
    steps = Steps()
    charts, cluster = f"oci://{address}/charts", node.cluster
    wait = ("--plain-http", "--create-namespace", "--wait", "--timeout", f"{LATE_S}s")
    with steps.step("cosign verify: chart and images"):
        for name in ("charts/changefeed-operator", "changefeed-operator", "changefeed-spark"):
            assert verifies(keys, "verify", f"{address}/{name}:{version}"), name
    with steps.step("helm install: Spark operator"):
        cluster.create_namespace(SHOP)
        values = {"spark.jobNamespaces": f"{{{SHOP}}}", "image.registry": address, "image.repository": _SPARK_OPERATOR}
        where = ("--namespace", cluster_spark_operator.NAMESPACE)
        cluster.helm("install", "spark-operator", f"{charts}/spark-operator", *where, *_set(values), *wait)
    with steps.step("helm install: changefeed operator"):
        values = {"changefeedEgress.tikvPorts": f"{{{','.join(map(str, STORE_PORTS))}}}"}
        chart = ("--version", version, "--namespace", SYSTEM)
        cluster.helm("install", RELEASE, f"{charts}/changefeed-operator", *chart, *_set(values), *wait)
    with steps.step("kubectl apply, until files are verified"):
        demo = Demo(node, store, Namespace(cluster.api, SHOP), folder / "bank")
        demo.kubectl("apply", "-k", demo.kustomization)
        demo.wait_until_ready()
        demo.wait_until_past(0)
        assert demo.verify()["ok"]
        assert list((store.folder / "lake" / SHOP).rglob("CDC*.csv")), "no file was verified"
    return steps.seconds


def _set(values: dict[str, str]) -> list[str]:
    return [argument for name, value in values.items() for argument in ("--set", f"{name}={value}")]


def images_of_pods(cluster: ControlPlane) -> set[str]:
    """The images that any pod of the cluster has."""
    listed = cluster.kubectl("get", "pods", "-A", "-o", "jsonpath={.items[*].spec.containers[*].image}")
    return set(listed.split())


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    keys = new_keys(folder / "keys")
    with ExitStack() as opened:
        address = opened.enter_context(registry(folder))
        version = publish_all(folder, address, keys)
        network = opened.enter_context(new_network(f"changefeed-{os.getpid()}"))
        host, _, port = address.partition(":")
        opened.enter_context(Bridge(network, (host, int(port)), (host, int(port)), from_inside=True))
        cluster = opened.enter_context(ControlPlane(folder / "cluster", network))
        node = opened.enter_context(Node(cluster, network, folder / "containerd"))
        with cluster_images.built() as built:
            node.pull(built, cluster_images.PAUSE)  # a node brings its own
        store = opened.enter_context(s3_server(node, folder / "s3"))
        opened.enter_context(upstream(node))
        seconds = install(node, store, address, version, keys, folder)
        images = sorted(images_of_pods(cluster))
    sys.stdout.write(
        json.dumps({"seconds": seconds, "total": round(sum(seconds.values()), 1), "images": images}) + "\n"
    )
    return 0


if __name__ == "__main__":
    program("cosign")  # what is missing is said before half of it is done
    sys.exit(main(Path(sys.argv[1])))
