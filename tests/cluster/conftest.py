"""A real control plane for all tests here, and a namespace of its own for each."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cluster_changefeed_operator
import cluster_images
import cluster_node_remains
import cluster_product
import cluster_spark_operator
import pytest
from cluster_api import CHANGEFEEDS, CORE, Namespace
from cluster_api_proxy import ApiProxy
from cluster_changefeed_operator import ChangefeedOperator, ForkedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_forks import Forks
from cluster_history import History
from cluster_network import new_network
from cluster_node import Node
from cluster_pods import PlayedNode
from cluster_policies import Policies
from cluster_programs import cache_folder, unsupported
from cluster_spark_operator import SparkOperator
from xdist.scheduler import LoadScopeScheduling

_numbers = itertools.count(1)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """All of the real node in one process, all else file by file: most tests wait most of the time."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0].rpartition("/")[2]
        return "node" if file.startswith(("test_cluster_real_", "test_cluster_node")) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    # Its own groups go by names of tests that pytest does not let it change any more.
    return _ByFile(config, log)


def _skip(reason: str) -> None:
    """Never where people rely on it."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session", autouse=True)
def _supported() -> None:
    if reason := unsupported():
        _skip(reason)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, _supported: None) -> Iterator[ControlPlane]:
    """Started once; logs stay in pytest's folder."""
    with ControlPlane(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def namespace(cluster: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """Fresh, ready for pods; asked to go at the end, which nobody waits for."""
    words = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    made = cluster.create_namespace(f"{words[:40].rstrip('-')}-{next(_numbers)}")
    yield made
    _release_changefeeds(made)
    cluster.api.delete(f"{CORE}/namespaces/{made.name}")


def _release_changefeeds(namespace: Namespace) -> None:
    """Their operator has ended: nobody else takes their finalizers away, and the namespace would stay."""
    found = namespace.api.request("GET", namespace.changefeeds())
    for each in found.body["items"] if found.status == 200 else ():
        namespace.api.merge(namespace.changefeeds(each["metadata"]["name"]), {"metadata": {"finalizers": None}})


@pytest.fixture
def node(namespace: Namespace) -> Iterator[PlayedNode]:
    """Plays the lives of the namespace's pods."""
    with PlayedNode(namespace) as played:
        yield played


@pytest.fixture(scope="session")
def spark_crds(cluster: ControlPlane) -> None:
    """SparkApplications can be created."""
    cluster_spark_operator.install_crds(cluster)


@pytest.fixture(scope="session")
def apache_crd(cluster: ControlPlane) -> None:
    """SparkApplications of Apache's Spark operator can be created."""
    cluster_spark_operator.install_apache_crd(cluster)


@pytest.fixture(scope="session")
def spark_operator_rights(cluster: ControlPlane, spark_crds: None) -> None:
    """The kubeflow controller may work."""
    cluster_spark_operator.grant(cluster)


@pytest.fixture(scope="session")
def spark_operator(cluster: ControlPlane, spark_operator_rights: None) -> Iterator[SparkOperator]:
    """The kubeflow controller, for all namespaces but those where Spark is played."""
    with SparkOperator(cluster) as started:
        yield started


@pytest.fixture(scope="session")
def can_have_nodes(_supported: None) -> None:
    """The machine can, and what killed runs left of theirs is gone."""
    if reason := cluster_images.node_unsupported():
        _skip(reason)
    cluster_node_remains.remove_killed()


@pytest.fixture(scope="session")
def real_node(tmp_path_factory: pytest.TempPathFactory, can_have_nodes: None) -> Iterator[Node]:
    """A node with our images, of a second cluster (`real_node.cluster`) in a network of its own."""
    folder = tmp_path_factory.mktemp("node")
    with (
        new_network(f"changefeed-{os.getpid()}") as network,
        ControlPlane(folder, network) as started,
        Node(started, network, cache_folder() / "containerd") as made,
    ):
        with cluster_images.built() as registry:
            made.pull(registry)
        yield made


@pytest.fixture(scope="session")
def spark_operator_pods(real_node: Node) -> None:
    """The Spark operator's own chart, on the real node."""
    cluster_product.install_spark_operator(real_node.cluster, list(cluster_product.NAMESPACES))


@pytest.fixture(scope="session")
def product(
    real_node: Node, spark_operator_pods: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[cluster_product.Store]:
    """Both charts on the real node, an upstream, and an S3 server, which is given. NetworkPolicies are enforced."""
    with (
        Policies(real_node.cluster, real_node.network),
        cluster_product.s3_server(real_node, tmp_path_factory.mktemp("s3")) as store,
        cluster_product.upstream(real_node),
    ):
        cluster_product.install(real_node.cluster)
        yield store


@pytest.fixture
def account(cluster: ControlPlane, namespace: Namespace, tmp_path: Path) -> Callable[[str], Path]:
    """`account(name)`: a new ServiceAccount of the namespace without rights; its kubeconfig."""

    def create(name: str) -> Path:
        namespace.api.create(namespace.core("serviceaccounts"), {"metadata": {"name": name}})
        return cluster.service_account_kubeconfig(namespace.name, name, tmp_path / f"{name}.kubeconfig")

    return create


@pytest.fixture(scope="session")
def crd(cluster: ControlPlane) -> None:
    """Changefeeds can be created."""
    cluster_changefeed_operator.install_crd(cluster)


@pytest.fixture(scope="session")
def history(cluster: ControlPlane, crd: None) -> Iterator[History]:
    """The history of all Changefeeds."""
    with History(cluster.api, f"{CHANGEFEEDS}/changefeeds") as watched:
        yield watched


@pytest.fixture
def feeds(namespace: Namespace, history: History) -> Feeds:
    """Those of the test's namespace."""
    return Feeds(namespace, history)


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks("cluster_operator_forks.py", tmp_path_factory.mktemp("forks") / "log") as started:
        yield started


@pytest.fixture
def proxy(cluster: ControlPlane) -> Iterator[ApiProxy]:
    with ApiProxy(cluster) as started:
        yield started


@pytest.fixture
def operator(cluster: ControlPlane, crd: None, namespace: Namespace, tmp_path: Path) -> Iterator[ChangefeedOperator]:
    """Neither installed nor started; ended with the test."""
    made = ChangefeedOperator(cluster, namespace, tmp_path)
    yield made
    made.end()


@pytest.fixture
def forked(
    cluster: ControlPlane, crd: None, namespace: Namespace, tmp_path: Path, forks: Forks
) -> Iterator[ForkedOperator]:
    """An operator whose clock can be set ahead; neither installed nor started; ended with the test."""
    made = ForkedOperator(cluster, namespace, tmp_path, forks=forks)
    yield made
    made.end()
