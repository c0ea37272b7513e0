"""deploy/: what is made from the chart is current, and installs the same as the chart does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_chart_tools import ROOT, of_kind, render, run
from cluster_control_plane import ControlPlane
from cluster_processes import wait_until
from cluster_programs import crd_of_module, program

DEPLOY = ROOT / "deploy"
BUNDLE = DEPLOY / "bundle" / "manifests"
#: Of Helm alone, or of the name that a release has.
_OF_HELM = ("helm.sh/chart", "app.kubernetes.io/managed-by")
_SERVED_S = 60
Object = dict[str, Any]


def test_what_is_made_from_the_chart_is_what_the_chart_gives(tmp_path: Path) -> None:
    command = [sys.executable, DEPLOY / "manifests.py", "--helm", program("helm"), "--out", tmp_path]
    subprocess.run([str(part) for part in command], check=True)
    made = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    folders = (DEPLOY / "kustomize" / "base", DEPLOY / "bundle")
    kept = {
        str(path.relative_to(DEPLOY)): path.read_text()
        for each in folders
        for path in each.rglob("*")
        if path.is_file()
    }
    assert made.keys() == kept.keys()
    assert [name for name in made if made[name] != kept[name]] == [], "run make manifests"


def _kustomized(folder: Path) -> list[Object]:
    done = run([program("kubectl"), "kustomize", folder])
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def _by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    """Without what is Helm's."""
    found = {}
    for each in objects:
        if "helm.sh/hook" not in each["metadata"].get("annotations", {}):
            described = json.loads(json.dumps(each))
            for metadata in (described["metadata"], described.get("spec", {}).get("template", {}).get("metadata", {})):
                for name in _OF_HELM:
                    metadata.get("labels", {}).pop(name, None)
            found[each["kind"], each["metadata"]["name"]] = described
    return found


def test_the_base_is_the_chart_as_it_comes() -> None:
    kustomized = _by_name(_kustomized(DEPLOY / "kustomize" / "base"))
    crd = kustomized.pop(("CustomResourceDefinition", "changefeeds.changefeed.dev"))
    assert crd == yaml.safe_load((ROOT / "crds" / "changefeeds.yaml").read_text())
    assert kustomized.pop(("Namespace", "changefeed-system"))
    assert kustomized == _by_name(render({"crds": {"install": False}}, "changefeed-operator"))


def test_the_namespaced_overlay_is_the_chart_with_watch_namespaces() -> None:
    values = {
        "watchNamespaces": ["shop"],
        "crds": {"install": False},
        "rbac": {"aggregate": False},
        "state": {"uri": "s3://cdc-state"},
        "image": {"registry": "images.example.com/platform"},
        "sparkImage": {"registry": "images.example.com/platform"},
    }
    rendered = _by_name(render(values, "changefeed-operator", "shop"))
    kustomized = _by_name(_kustomized(DEPLOY / "kustomize" / "overlays" / "namespaced"))
    for objects in (rendered, kustomized):
        (container,) = objects["Deployment", "changefeed-operator"]["spec"]["template"]["spec"]["containers"]
        container["env"].sort(key=lambda each: each["name"])
    assert kustomized == rendered


def test_olm_takes_the_bundle(cluster: ControlPlane) -> None:
    """The API server judges by the CRD that OLM itself has."""
    crd = crd_of_module("operators.coreos.com_clusterserviceversions.yaml")
    cluster.kubectl("apply", "--server-side", "-f", crd)
    served = "/apis/operators.coreos.com/v1alpha1/clusterserviceversions"
    wait_until(lambda: cluster.api.request("GET", served).status == 200, "the API server serves its kind", _SERVED_S)
    checked = (
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "--namespace",
        "default",
        "-f",
        BUNDLE,
    )
    said = cluster.kubectl("apply", *checked)
    assert said.count("serverside-applied") == len(list(BUNDLE.iterdir())) >= 5


@pytest.fixture(scope="module")
def csv() -> Object:
    (file,) = BUNDLE.glob("*.clusterserviceversion.yaml")
    loaded: Object = yaml.safe_load(file.read_text())
    return loaded


def test_the_bundle_gives_the_rights_of_the_chart_and_has_all_that_they_name(csv: Object) -> None:
    rendered = render({"crds": {"install": False}}, "changefeed-operator")
    roles = {
        role["metadata"]["name"]: role["rules"] for kind in ("ClusterRole", "Role") for role in of_kind(rendered, kind)
    }
    install = csv["spec"]["install"]["spec"]
    (cluster_wide,), (own,) = install["clusterPermissions"], install["permissions"]
    assert cluster_wide["rules"] == roles.pop("changefeed-operator")
    assert own["rules"] == roles.pop("changefeed-operator-leader")
    beside = [yaml.safe_load(path.read_text()) for path in BUNDLE.glob("*.clusterrole.yaml")]
    assert {role["metadata"]["name"]: role["rules"] for role in beside} == roles


def test_the_bundle_names_its_images_and_an_example(csv: Object) -> None:
    (deployment,) = csv["spec"]["install"]["spec"]["deployments"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value") for each in container["env"]}
    images = {each["name"]: each["image"] for each in csv["spec"]["relatedImages"]}
    assert images == {"operator": container["image"], "spark": told["CHANGEFEED_IMAGE"]}
    (example,) = json.loads(csv["metadata"]["annotations"]["alm-examples"])
    assert example["kind"] == csv["spec"]["customresourcedefinitions"]["owned"][0]["kind"]
