"""What `kubectl apply -k` installs, on the real node, beside Helm's release: it serves its namespace and no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cluster_images
import pytest
from cluster_api import Namespace
from cluster_changefeed_operator import ROOT
from cluster_control_plane import CommandFailed
from cluster_node import Node
from cluster_processes import wait_until
from cluster_product import KUSTOMIZED, LATE_S

pytestmark = [pytest.mark.timeout(1800), pytest.mark.usefixtures("product")]
_NAME, _LABEL = "changefeed-operator", {"changefeed.dev/channel": KUSTOMIZED}
_CHANGEFEED = {
    "apiVersion": "changefeed.dev/v1alpha1",
    "kind": "Changefeed",
    "metadata": {"name": "quiet", "labels": _LABEL},
    "spec": {
        "paused": True,
        "deletionPolicy": "Retain",
        "upstream": {"pdAddresses": ["http://pd.nowhere:2379"]},
        "sink": {"blackhole": {}},
    },
}


def _overlay(folder: Path) -> Path:
    """The example of deploy/, with the namespace and the images of this cluster, for Changefeeds with a label."""
    for name in ("deploy", "crds"):
        shutil.copytree(ROOT / name, folder / name)
    (selector,) = [f"{name}={value}" for name, value in _LABEL.items()]
    args = "/spec/template/spec/containers/0/args"
    patch = [
        {"op": "replace", "path": f"{args}/1", "value": KUSTOMIZED},
        {"op": "add", "path": f"{args}/-", "value": f"--selector={selector}"},
    ]
    image = {"name": "CHANGEFEED_IMAGE", "value": cluster_images.SPARK}
    container = {"name": "operator", "env": [image]}
    settings = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _NAME},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    name, _, tag = cluster_images.OPERATOR.rpartition(":")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": KUSTOMIZED,
        "resources": ["deploy/kustomize/overlays/namespaced"],
        "images": [{"name": f"images.example.com/platform/{_NAME}", "newName": name, "newTag": tag}],
        "patches": [
            {"target": {"kind": "Deployment"}, "patch": json.dumps(patch)},
            {"target": {"kind": "Deployment"}, "patch": json.dumps(settings)},
        ],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return folder


@pytest.fixture(scope="module")
def installed(real_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    namespace = real_node.cluster.create_namespace(KUSTOMIZED)
    overlay = _overlay(tmp_path_factory.mktemp("kustomize"))
    real_node.cluster.kubectl("apply", "--server-side", "-k", overlay)
    where = ("--namespace", KUSTOMIZED)
    real_node.cluster.kubectl("rollout", "status", *where, f"deployment/{_NAME}", f"--timeout={LATE_S}s")
    return namespace


def test_its_operator_serves_a_changefeed(installed: Namespace) -> None:
    installed.api.create(installed.changefeeds(), _CHANGEFEED)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = installed.api.get(installed.changefeeds("quiet"))["status"]
        return found

    wait_until(lambda: status()["observedGeneration"] == 1, "the operator has seen it", LATE_S)
    assert status()["state"] == "Stopped", status()
    installed.api.delete(installed.changefeeds("quiet"))
    wait_until(lambda: installed.api.find(installed.changefeeds("quiet")) is None, "it is gone", LATE_S)


def test_its_operator_has_rights_in_its_namespace_alone(real_node: Node, installed: Namespace) -> None:
    def may(namespace: str) -> str:
        who = f"--as=system:serviceaccount:{KUSTOMIZED}:{_NAME}"
        try:
            return real_node.cluster.kubectl(
                "auth", "can-i", "list", "changefeeds", who, "--namespace", namespace
            ).strip()
        except CommandFailed:
            return "no"

    assert (may(installed.name), may("default")) == ("yes", "no")
