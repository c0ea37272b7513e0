"""Generates the kustomize base and the OLM bundle in deploy/ from the chart. `make manifests` runs it.

Helm renders the chart with its default values, so every installation method installs the same objects, minus what only
Helm needs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "changefeed-operator"
NAME, NAMESPACE = "changefeed-operator", "changefeed-system"
_KUBERNETES = "1.35.0"  # any version the chart accepts: the output does not depend on it
_MADE = "# Generated from the chart by `make manifests`; don't edit.\n"
_ACCESS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
Object = dict[str, Any]


def rendered(helm: str) -> list[Object]:
    """The chart's objects except the CRD, without Helm's own labels and hooks."""
    command = [helm, "template", NAME, str(CHART), "--namespace", NAMESPACE, "--kube-version", _KUBERNETES]
    done = subprocess.run([*command, "--set", "crds.install=false"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` failed: {done.stderr}")
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    return [_without_helm(each) for each in found if "helm.sh/hook" not in each["metadata"].get("annotations", {})]


def _without_helm(found: Object) -> Object:
    metadata = {**found["metadata"], "labels": _labels(found["metadata"]["labels"])}
    if found["kind"] != "Deployment":
        return {**found, "metadata": metadata}
    template = found["spec"]["template"]
    pod = {**template["metadata"], "labels": _labels(template["metadata"]["labels"])}
    return {**found, "metadata": metadata, "spec": {**found["spec"], "template": {**template, "metadata": pod}}}


def _labels(labels: dict[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in labels.items() if name not in ("helm.sh/chart", "app.kubernetes.io/managed-by")
    }


def files(helm: str) -> dict[str, str]:
    """Path below deploy/ -> text."""
    objects = rendered(helm)
    return {**_kustomize(objects), **_bundle(objects)}


def _kustomize(objects: list[Object]) -> dict[str, str]:
    access = [each for each in objects if each["kind"] in _ACCESS]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../../crds", "namespace.yaml", "access.yaml", "operator.yaml"],
    }
    return {
        "kustomize/base/kustomization.yaml": _text(kustomization),
        "kustomize/base/namespace.yaml": _text(namespace),
        "kustomize/base/access.yaml": _text(*access),
        "kustomize/base/operator.yaml": _text(*(each for each in objects if each not in access)),
    }


def _bundle(objects: list[Object]) -> dict[str, str]:
    """OLM's registry+v1: the CSV has the Deployment and the operator's own rights; the rest are separate manifests."""
    crd = yaml.safe_load((CHART / "files" / "changefeeds.yaml").read_text())
    csv = _cluster_service_version(objects, crd)
    beside = [each for each in objects if each["kind"] in ("ClusterRole", "Service") and not _is_the_operators(each)]
    package = {
        "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
        "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
        "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
        "operators.operatorframework.io.bundle.package.v1": NAME,
        "operators.operatorframework.io.bundle.channels.v1": "alpha",
        "operators.operatorframework.io.bundle.channel.default.v1": "alpha",
    }
    dockerfile = ["FROM scratch", *(f"LABEL {name}={value}" for name, value in package.items())]
    dockerfile += ["COPY manifests /manifests/", "COPY metadata /metadata/"]
    return {
        "bundle/Dockerfile": _MADE + "".join(f"{line}\n" for line in dockerfile),
        "bundle/metadata/annotations.yaml": _text({"annotations": package}),
        f"bundle/manifests/{NAME}.clusterserviceversion.yaml": _text(csv),
        f"bundle/manifests/{crd['metadata']['name']}.crd.yaml": (CHART / "files" / "changefeeds.yaml").read_text(),
        **{f"bundle/manifests/{_file_name(each)}": _text(_without_namespace(each)) for each in beside},
    }


def _cluster_service_version(objects: list[Object], crd: Object) -> Object:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (deployment,) = _of(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    account = pod["serviceAccountName"]
    images = {"operator": pod["containers"][0]["image"]}
    images["spark"] = next(each["value"] for each in pod["containers"][0]["env"] if each["name"] == "CHANGEFEED_IMAGE")
    (own,) = [each for each in _of(objects, "ClusterRole") if _is_the_operators(each)]
    (leader,) = _of(objects, "Role")
    kind = crd["spec"]["names"]["kind"]
    about = chart["annotations"]
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{NAME}.v{chart['version']}",
            "annotations": {
                "alm-examples": json.dumps(yaml.safe_load(about["artifacthub.io/crdsExamples"]), indent=1),
                "capabilities": about["artifacthub.io/operatorCapabilities"],
                "categories": "Database, Streaming & Messaging",
                "containerImage": images["operator"],
                "operatorframework.io/suggested-namespace": NAMESPACE,
            },
        },
        "spec": {
            "displayName": "Changefeed operator",
            "description": f"{chart['description']} Requires kubeflow's or Apache's Spark operator.",
            "version": chart["version"],
            "maturity": "alpha",
            "minKubeVersion": "1.29.0",
            "keywords": chart["keywords"],
            "provider": {"name": "The changefeed-operator authors"},
            "installModes": [
                {"type": mode, "supported": mode == "AllNamespaces"}
                for mode in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "customresourcedefinitions": {
                "owned": [
                    {
                        "name": crd["metadata"]["name"],
                        "kind": kind,
                        "version": crd["spec"]["versions"][0]["name"],
                        "displayName": kind,
                        "description": yaml.safe_load(about["artifacthub.io/crds"])[0]["description"],
                    }
                ]
            },
            "relatedImages": [{"name": name, "image": image} for name, image in images.items()],
            "install": {
                "strategy": "deployment",
                "spec": {
                    "clusterPermissions": [{"serviceAccountName": account, "rules": own["rules"]}],
                    "permissions": [{"serviceAccountName": account, "rules": leader["rules"]}],
                    "deployments": [
                        {
                            "name": deployment["metadata"]["name"],
                            "label": deployment["metadata"]["labels"],
                            "spec": deployment["spec"],
                        }
                    ],
                },
            },
        },
    }


def _of(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def _is_the_operators(role: Object) -> bool:
    """The role that OLM grants the operator's account; the other roles are for drivers and users."""
    name: str = role["metadata"]["name"]
    return role["kind"] == "ClusterRole" and name == NAME


def _without_namespace(found: Object) -> Object:
    return {**found, "metadata": {name: value for name, value in found["metadata"].items() if name != "namespace"}}


def _file_name(found: Object) -> str:
    return f"{found['metadata']['name']}.{found['kind'].lower()}.yaml"


def _text(*objects: Object) -> str:
    return _MADE + yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=120)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helm", default="helm", help="helm executable (default: the one in PATH)")
    parser.add_argument("--out", type=Path, default=ROOT / "deploy", help="default: deploy/")
    given = parser.parse_args(arguments)
    for name, text in files(given.helm).items():
        path = given.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
