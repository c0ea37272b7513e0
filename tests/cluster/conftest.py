"""A real control plane for all tests here, and a namespace of its own for each."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import cluster_changefeed_operator
import cluster_images
import cluster_spark_operator
import pytest
from cluster_api import CORE, Namespace
from cluster_api_proxy import ApiProxy
from cluster_changefeed_operator import ChangefeedOperator
from cluster_control_plane import ControlPlane
from cluster_network import new_network
from cluster_node import Node
from cluster_pods import PlayedNode
from cluster_programs import cache_folder, unsupported

_numbers = itertools.count(1)


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
    cluster.api.delete(f"{CORE}/namespaces/{made.name}")


@pytest.fixture
def node(namespace: Namespace) -> Iterator[PlayedNode]:
    """Plays the lives of the namespace's pods."""
    with PlayedNode(namespace) as played:
        yield played


@pytest.fixture(scope="session")
def spark_operator(cluster: ControlPlane) -> Iterator[None]:
    """The kubeflow controller, for all namespaces."""
    cluster_spark_operator.install_crds(cluster)
    cluster_spark_operator.grant(cluster)
    with cluster_spark_operator.running(cluster):
        yield


@pytest.fixture(scope="session")
def real_node(tmp_path_factory: pytest.TempPathFactory, _supported: None) -> Iterator[Node]:
    """A node with our images, of a second cluster (`real_node.cluster`) in a network of its own."""
    if reason := cluster_images.node_unsupported():
        _skip(reason)
    folder = tmp_path_factory.mktemp("node")
    with (
        new_network(f"changefeed-{os.getpid()}") as network,
        ControlPlane(folder, network) as started,
        Node(started, network, cache_folder() / "containerd") as made,
    ):
        made.import_images(cluster_images.built())
        yield made


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
